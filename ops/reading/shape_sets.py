"""shape_sets.py - read the shape sets in ops/shapes/*.yaml, and upstream's shape files.

FORMAT   A set names its keys, and every shape says which model it comes from:
           schema: 1
           set: smoke                        # the file's name without .yaml
           about: one small shape per family, for a first look
           keys:
             mm:                             # an op_name, or a class of benchmark/*.py: for all its operators without a key
               shape_desc: B, M, N, K
               shapes:
                 - {shape: [1, 16, 896, 896], from: "Qwen2.5-0.5B o_proj, 16 tokens"}
         An upstream shape file is {key: {shapes: [[...], ...], shape_desc: ...}}.
NEEDS    PyYAML.
"""

from pathlib import Path

import yaml

from common.errors import UserError

SCHEMA = 1
SETS = Path(__file__).resolve().parent.parent / "shapes"


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """A loader that refuses a key given twice; YAML would silently take the last one."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            name = key.value
            if name != "<<" and name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {name!r} is there twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def load_yaml(path):
    """The content of a YAML file. UserError naming the file and, where YAML says it, the line."""
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), _StrictLoader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give an existing one") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no UTF-8 text ({error.reason} at byte {error.start})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise UserError(f"{path}: {line}is no YAML: {getattr(error, 'problem', None) or error}; mend it") from None


def find_set(name, folder=SETS):
    """The file of a set: ops/shapes/NAME.yaml, or NAME itself if it is a path. UserError lists the sets that there are."""
    if "/" in name or name.endswith((".yaml", ".yml")):
        return Path(name)
    path = Path(folder) / f"{name}.yaml"
    if not path.is_file():
        raise UserError(f"SET: {name}: no such set; there are: {', '.join(sorted(p.stem for p in Path(folder).glob('*.yaml')))}")
    return path


def read_set(path):
    """{"set", "about", "keys": {key: {"shape_desc", "shapes": [[...]], "from": [str]}}}. UserError for anything unknown."""
    data = load_yaml(path)
    check_words(path, data, {"schema", "set", "about", "keys"}, "")
    if data["schema"] != SCHEMA:
        raise UserError(f"{path}: schema: {data['schema']}: this version reads {SCHEMA}")
    if data["set"] != Path(path).stem:
        raise UserError(f"{path}: set: {data['set']}: is not the file's name; write set: {Path(path).stem}")
    if not isinstance(data["keys"], dict) or not data["keys"]:
        raise UserError(f"{path}: keys: no keys; give at least one")
    return {**data, "keys": {key: read_entry(path, key, entry) for key, entry in data["keys"].items()}}


def read_entry(path, key, entry):
    check_words(path, entry, {"shapes", "shape_desc"}, f"{key}: ", optional={"shape_desc"})
    shapes, sources = [], []
    for item in entry["shapes"] or []:
        check_words(path, item, {"shape", "from"}, f"{key}: ")
        if not isinstance(item["shape"], list) or not item["shape"]:
            raise UserError(f"{path}: {key}: shape: {item['shape']}: is no list of values")
        if not isinstance(item["from"], str) or not item["from"].strip():
            raise UserError(f"{path}: {key}: {item['shape']}: from is empty; say which model the shape comes from")
        if item["shape"] in shapes:
            raise UserError(f"{path}: {key}: {item['shape']}: is there twice; remove one")
        shapes.append(item["shape"])
        sources.append(item["from"].strip())
    if not shapes:
        raise UserError(f"{path}: {key}: shapes: none; give at least one, or remove the key")
    return {"shape_desc": entry.get("shape_desc"), "shapes": shapes, "from": sources}


def check_words(path, data, wanted, where, optional=frozenset()):
    """UserError if `data` is no mapping with exactly these words."""
    if not isinstance(data, dict):
        raise UserError(f"{path}: {where}{data!r}: is no mapping with {', '.join(sorted(wanted))}")
    for word in sorted(set(data) - wanted, key=str):
        raise UserError(f"{path}: {where}{word}: unknown word; known are {', '.join(sorted(wanted))}")
    for word in sorted(wanted - optional - set(data)):
        raise UserError(f"{path}: {where}{word}: missing")


def read_shape_file(path):
    """{key: {"shapes": [[...]], "shape_desc": str or None}} of an upstream shape file. UserError if it is none."""
    data = load_yaml(path)
    if not isinstance(data, dict) or not data:
        raise UserError(f"{path}: is no shape file: no keys; give one like benchmark/core_shapes.yaml")
    table = {}
    for key, entry in data.items():
        shapes = entry.get("shapes") if isinstance(entry, dict) else None
        if not isinstance(shapes, list) or not all(isinstance(shape, list) for shape in shapes):
            raise UserError(f"{path}: {key}: has no list of lists under `shapes`")
        table[key] = {"shapes": shapes, "shape_desc": entry.get("shape_desc")}
    return table
