"""index.py - RUN_DIR/index.tsv and RUN_DIR/ir/: one row and one TTGIR file per variant that ran.

COLUMNS are the file's; `_ir_meta_plugin.py` shows a sample. A row with an `error` is one that no dump explains.
"""
import json
import os
import re
from pathlib import Path

import ttgir_text

from .binary import read_binary
from .ledger import PHASES

SCHEMA = 1
INDEX, DUMPS = "index.tsv", "ir"
COLUMNS = ("schema", "file", "kernel", "hash", "ttgir_sha256", "binary_sha256", *(f"launches_{p}" for p in PHASES),
           "registers", "spills", "shared", "num_warps", "converts", "converts_in_loop", "converts_weighted",
           "switch", "switch_choice", "error")
TEXT_STAGES = ("source", "ttir", "ttgir", "llir", "ptx", "json")  # all other files of a variant hold machine code


def write_index(run_dir, ledger, late):
    """Dump what ran and index it; returns the problems, a line each. `late`: {hash: Variant} loaded while timed."""
    dumps = Path(run_dir, DUMPS)
    dumps.mkdir(exist_ok=True)
    ran = [v for v in ledger.variants.values() if v.launches or v.hash in late]
    rows = [describe_variant(v, dumps, v.hash in late) for v in ran]
    rows += [{"kernel": name, **count_columns(launches), "error": "launched, but never announced as loaded"}
             for name, launches in ledger.unknown.items()]
    write_rows(Path(run_dir, INDEX), rows)
    return [f"kernel={row['kernel']} hash={row.get('hash', '')} launches="
            f"{sum(row[f'launches_{p}'] for p in PHASES)}: {row['error']}" for row in rows if row.get("error")]


def describe_variant(variant, dumps, is_late):
    """One row of the index; writes the variant's TTGIR into `dumps`."""
    row = {"kernel": variant.name, "hash": variant.hash, **count_columns(variant.launches)}
    try:
        text = read_stage(variant, ".ttgir").decode("utf-8")
        metadata = json.loads(read_stage(variant, ".json"))
        binary = read_binary(read_machine_code(variant))
        converts = ttgir_text.count_converts(text)
    except (OSError, ValueError, LookupError) as error:
        return {**row, "error": f"no dump: {type(error).__name__}: {error}"}
    name = f"{re.sub(r'[^A-Za-z0-9_.]', '_', variant.name)[:100]}-{variant.hash}.ttgir"
    (dumps / name).write_text(text, encoding="utf-8", newline="")
    if is_late and not (variant.launches["warmup"] or variant.launches["measured"]):
        row["error"] = "first loaded while the operator was timed: these launches were not counted"
    return {**row, "file": f"{DUMPS}/{name}", "ttgir_sha256": ttgir_text.digest_ttgir(text),
            "binary_sha256": binary.digest, "registers": binary.registers, "spills": binary.spills,
            "shared": metadata.get("shared"), "num_warps": metadata.get("num_warps"), "converts": converts.static,
            "converts_in_loop": converts.in_loop, "converts_weighted": converts.weighted,
            "switch": metadata.get("rlc_policy"), "switch_choice": metadata.get("rlc_choice")}


def count_columns(launches):
    return {f"launches_{phase}": launches[phase] for phase in PHASES}


def read_stage(variant, suffix):
    """Bytes of the one file of a variant that ends in `suffix`. LookupError if the compile cache has none."""
    paths = [path for name, path in variant.files.items() if name.endswith(suffix)]
    if len(paths) != 1:
        raise LookupError(f"{len(paths)} files *{suffix} in the compile cache (TRITON_STORE_BINARY_ONLY drops them)")
    return Path(paths[0]).read_bytes()


def read_machine_code(variant):
    """Bytes of the variant's binary, whatever its vendor calls it."""
    suffixes = sorted({os.path.splitext(name)[1] for name in variant.files} - {f".{s}" for s in TEXT_STAGES})
    if len(suffixes) != 1:
        raise LookupError(f"binaries {suffixes} in the compile cache, expected one")
    return read_stage(variant, suffixes[0])


def write_rows(path, rows):
    """A tab-separated file with COLUMNS; what a row has not is empty."""
    lines = ["\t".join(COLUMNS)]
    for row in sorted(rows, key=lambda row: (row["kernel"], row.get("hash", ""))):
        row = {"schema": SCHEMA, **row}
        values = ("" if row.get(column) is None else str(row[column]) for column in COLUMNS)
        lines.append("\t".join(re.sub(r"\s+", " ", value) for value in values))
    temporary = Path(f"{path}.tmp")  # written last and whole: without an index.tsv no dump counts
    with open(temporary, "w", encoding="utf-8", newline="") as stream:
        stream.write("\n".join(lines) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
