"""The parts of one screen (SHARD_INDEX=i/n, one directory each) as one Run, for one summary.

They have to be of one screen: the same number of parts and the same trees, no operator twice. A part that lacks is said: a
summary of less than all must not pass for one of all.

Requirements: the standard library.
"""

from common.errors import INTEGRITY, UserError
from screen import sharding
from screen.facts import find_part, find_text, list_differences
from screen.results import Run, read_run

UNLIKE = "differs between the parts"
OWN = ("devices", "cards", "SHARD_INDEX", "DEVICES")      # in which parts may differ


def read_parts(paths, name, warn):
    """(Run of all the screens `paths`, numbers of the parts that lack, their total)."""
    runs = {path: read_run(path, warn) for path in paths}
    parts = {path: _find_part(path, run) for path, run in runs.items()}
    total = parts[paths[0]][1]
    first, seen = runs[paths[0]], {}
    for path, run in runs.items():
        if parts[path][1] != total:
            raise UserError(f"{path}: is one of {parts[path][1]} parts, {paths[0]} one of {total}; give the parts of one screen")
        trees = [{repo: (each["tree"], each.get("commit")) for repo, each in find_part(info, "repos").items()}
                 for info in (first.info, run.info)]
        differences = [text for text in list_differences(first.info, run.info) if not text.startswith(OWN)]
        if trees[0] != trees[1]:
            raise UserError(f"{path}: is of another tree than {paths[0]} ({', '.join(differences)}); results of two trees do not "
                            "go together", INTEGRITY)
        if differences:
            warn(f"{path}: differs from {paths[0]}: {', '.join(differences)}")
        for result in run.results:
            if result.key in seen:
                raise UserError(f"{path}: {'/'.join(result.key)}: is in {seen[result.key]}, too; give each part once", INTEGRITY)
            seen[result.key] = path
    results = sorted((result for run in runs.values() for result in run.results), key=lambda result: result.key)
    lacking = sorted(set(range(1, total + 1)) - {index for index, _ in parts.values()})
    return Run(name, _merge_facts([run.info for run in runs.values()]), results), lacking, total


def is_part(run):
    """True if `run` is one part of a screen."""
    return bool(find_text(find_part(run.info, "knobs"), "SHARD_INDEX"))


def _find_part(path, run):
    if not is_part(run):
        raise UserError(f"{path}: is no part of a screen (SHARD_INDEX); several directories are only read as its parts")
    return sharding.read_part(find_part(run.info, "knobs")["SHARD_INDEX"])


def _merge_facts(infos):
    """What screen.json would say of all parts. It has no run_id: nobody goes on with it."""
    facts = {name: value for name, value in infos[0].items() if name not in ("run_id", "stale_by")}
    for name in ("devices", "models"):
        facts[name] = sorted({str(each) for info in infos for each in info.get(name) or ()})
    facts["created"] = min(find_text(info, "created") for info in infos)
    facts["knobs"] = {name: value for name, value in find_part(facts, "knobs").items() if name not in ("SHARD_INDEX", "DEVICES")}
    parts = [find_part(info, "switches") for info in infos]
    facts["switches"] = {name: value if all(part.get(name) == value for part in parts) else UNLIKE
                         for part in parts for name, value in part.items()}
    if not all("switches" in info for info in infos):       # of older parts it is not known
        del facts["switches"]
    return facts
