#!/usr/bin/env python3
"""topology.py - the layout conversions of one cell: its index.tsv joined to its dumps, scoped by a floor.

PURPOSE  A cell's run directory holds ir/*.ttgir and index.tsv (plugins/_ir_meta_plugin.py). This reads both, counts the
         converts again from the dumps, and adds up the variants that ran more often than `measured_launch_floor`.
USAGE    campaign/topology.py RUN_DIR [--floor N]        the functions: read_cell(directory), scope_cell(cell, floor)
OUTPUT     floor 1: 2 variants, converts 4 (in loops 1, weighted 19); unscoped: 7 variants, converts 9 (in loops 1, ...)
           excluded ir/randn_kernel-77b0.ttgir: 1 run, 5 converts
           error ir/abs_func-3f0a.ttgir: is not in index.tsv
EXIT     0 done, 4 the directory's evidence is broken (a line per error), 2 usage.
LIMITS   Standard library only. Pure: the same files and floor give the same answer. 100 cells in about a second.

Runs, the number that the floor is compared with: launches in warm-up and measured calls of the operator, plus 1 if the
variant was launched in input construction or by the baseline, however often. A benchmark builds its inputs once and
then runs the operator many times; so at floor 0 everything that ran counts, at floor 1 all but what only built inputs
or ran once. A tuner's trials are no runs: what lost ran for nobody. Variants that ran in trials alone are in neither total, and
listed as excluded with 0 runs; a campaign has none, for every cell replays.
"""
import argparse
import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.errors import INTEGRITY, UserError, run_main
from common.ttgir import Converts, NotTtgir, count_converts, digest_ttgir

SCHEMA = "1"
INDEX, DUMPS = "index.tsv", "ir"
PHASES = ("construction", "tuning", "warmup", "measured", "baseline")
COLUMNS = ("schema", "file", "kernel", "hash", "ttgir_sha256", "binary_sha256", *(f"launches_{p}" for p in PHASES),
           "registers", "spills", "shared", "num_warps", "converts", "converts_in_loop", "converts_weighted",
           "switch", "switch_choice", "error")
OPTIONAL = ("registers", "spills", "shared", "num_warps")  # empty where the vendor's tools do not say
NUMBERS = (*(f"launches_{p}" for p in PHASES), *OPTIONAL, "converts", "converts_in_loop", "converts_weighted")
FILE_NAME = re.compile(DUMPS + r"/[A-Za-z0-9_.]+-[0-9a-f]+\.ttgir")


@dataclass(frozen=True)
class Variant:
    """One compiled form of a kernel that ran. `launches` by phase; `switch` and `switch_choice` are what the kernel's
    own metadata say of the compiler switch (empty: nothing)."""
    file: str
    kernel: str
    hash: str
    ttgir: str
    binary: str
    launches: dict
    registers: int | None
    spills: int | None
    shared: int | None
    num_warps: int | None
    converts: Converts
    switch: str
    switch_choice: str

    @property
    def runs(self):
        """What the floor is compared with; see the module's docstring."""
        once = self.launches["construction"] > 0 or self.launches["baseline"] > 0
        return self.launches["warmup"] + self.launches["measured"] + once


@dataclass(frozen=True)
class Cell:
    """What ran in one cell. Any error makes the cell unusable; `variants` are then those that could be read."""
    directory: Path
    variants: tuple
    errors: tuple


@dataclass(frozen=True)
class Scope:
    """A cell at one floor: the variants above it and their converts, all that ran, and the excluded ones."""
    floor: int
    included: tuple
    converts: Converts
    excluded: tuple
    unscoped_count: int
    unscoped: Converts

    @property
    def code(self):
        """Identity of the included TTGIR: equal sets, equal compiler output."""
        return frozenset((v.kernel, v.ttgir) for v in self.included)

    @property
    def binaries(self):
        """Identity of the included machine code."""
        return frozenset((v.kernel, v.binary) for v in self.included)


# Reading ------------------------------------------------------------------------------------------------------------


def read_cell(directory):
    """The Cell in a run directory. Broken content never raises: it is in `errors`, each naming the file."""
    directory = Path(directory)
    rows, errors = read_index(directory / INDEX)
    variants = []
    for number, row in rows:
        try:
            variants.append(read_variant(directory, row))
        except ValueError as error:
            errors.append(f"{row['file'] or f'{INDEX} line {number}'}: {error}")
    errors += find_strays(directory, [row["file"] for _, row in rows])
    return Cell(directory, tuple(variants), tuple(errors))


def read_index(path):
    """([(line number, row)], errors) of an index.tsv."""
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return [], [f"{INDEX}: cannot be read ({error})"]
    lines = text.split("\n")
    if lines.pop() or not lines:
        return [], [f"{INDEX}: is cut: its last line has no end"]
    if tuple(lines[0].split("\t")) != COLUMNS:
        return [], [f"{INDEX}: line 1: has other columns than schema {SCHEMA}"]
    rows, errors = [], []
    for number, line in enumerate(lines[1:], 2):
        values = line.split("\t")
        if len(values) != len(COLUMNS) or values[0] != SCHEMA:
            errors.append(f"{INDEX}: line {number}: is no row of schema {SCHEMA}")
        else:
            rows.append((number, dict(zip(COLUMNS, values))))
    for column in ("file", "hash"):
        values = [row[column] for _, row in rows if row[column]]
        errors += [f"{value}: is twice in {INDEX}" for value in sorted({v for v in values if values.count(v) > 1})]
    return rows, errors


def read_variant(directory, row):
    """The Variant of one index row, checked against its dump. ValueError says what does not fit."""
    if row["error"]:
        raise ValueError(f"kernel {row['kernel']}: {row['error']}")
    if not FILE_NAME.fullmatch(row["file"]):
        raise ValueError(f"is no name of a dump: {row['file']!r}")
    number = {column: parse_number(column, row[column]) for column in NUMBERS}
    digest, converts = read_dump(directory / row["file"])
    if digest != row["ttgir_sha256"]:
        raise ValueError(f"digest is {digest[:12]}, {INDEX} says {row['ttgir_sha256'][:12]}")
    listed = Converts(number["converts"], number["converts_in_loop"], number["converts_weighted"])
    if converts != listed:
        raise ValueError(f"has {converts.static} converts, {INDEX} says {listed.static} (or their loops differ)")
    return Variant(file=row["file"], kernel=row["kernel"], hash=row["hash"], ttgir=digest, binary=row["binary_sha256"],
                   launches={p: number[f"launches_{p}"] for p in PHASES}, converts=converts, switch=row["switch"],
                   switch_choice=row["switch_choice"], **{column: number[column] for column in OPTIONAL})


def parse_number(column, text):
    if text == "" and column in OPTIONAL:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{column}: {text!r} is no number")
    return int(text)


def read_dump(path):
    """(digest, Converts) of a TTGIR file. ValueError if it is missing, a link, cut, or something else."""
    if path.is_symlink():
        raise ValueError("is a symbolic link")
    try:
        text = path.read_bytes().decode("utf-8")
        return describe_text(text)
    except FileNotFoundError:
        raise ValueError("is missing") from None
    except (OSError, NotTtgir) as error:
        raise ValueError(str(error)) from None


@functools.lru_cache(maxsize=256)
def describe_text(text):
    """(digest, Converts) of TTGIR text; the cells of one task mostly hold the same texts, hence the cache."""
    return digest_ttgir(text), count_converts(text)


def find_strays(directory, listed):
    """An error for each file in ir/ that no row names."""
    dumps = directory / DUMPS
    found = sorted(f"{DUMPS}/{path.name}" for path in dumps.iterdir()) if dumps.is_dir() else []
    return [f"{name}: is not in {INDEX}" for name in found if name not in set(listed)]


# Scoping ------------------------------------------------------------------------------------------------------------


def scope_cell(cell, floor):
    """The Scope of a cell at a floor (>= 0): its converts over the variants that ran more often than that."""
    ran = [v for v in cell.variants if v.runs > 0]
    included = tuple(v for v in ran if v.runs > floor)
    excluded = tuple(v for v in cell.variants if v.runs <= floor)
    return Scope(floor, included, add_converts(included), excluded, len(ran), add_converts(ran))


def add_converts(variants):
    counts = [v.converts for v in variants]
    return Converts(sum(c.static for c in counts), sum(c.in_loop for c in counts), sum(c.weighted for c in counts))


def list_floors(cell):
    """The floors at which the scope of a cell changes, ascending: 0, and every number of runs that a variant has."""
    return sorted({0, *(v.runs for v in cell.variants)})


# Command line -------------------------------------------------------------------------------------------------------


def describe_scope(cell, scope):
    """The lines of OUTPUT in the module's docstring."""
    def text(count, converts):
        return (f"{count} variants, converts {converts.static} (in loops {converts.in_loop}, "
                f"weighted {converts.weighted})")

    scoped, unscoped = text(len(scope.included), scope.converts), text(scope.unscoped_count, scope.unscoped)
    yield f"floor {scope.floor}: {scoped}; unscoped: {unscoped}"
    for variant in scope.excluded:
        yield f"excluded {variant.file}: {variant.runs} runs, {variant.converts.static} converts"
    for error in cell.errors:
        yield f"error {error}"


def main(argv):
    parser = argparse.ArgumentParser(prog="topology.py", description="layout conversions of one cell, by floor")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--floor", type=int, default=0, help="measured_launch_floor (default 0: everything that ran)")
    options = parser.parse_args(argv)
    if options.floor < 0:
        raise UserError(f"--floor: {options.floor}: is negative; give 0 or more")
    if not options.run_dir.is_dir():
        raise UserError(f"{options.run_dir}: is no directory; give a cell's run directory")
    cell = read_cell(options.run_dir)
    print("\n".join(describe_scope(cell, scope_cell(cell, options.floor))))
    return INTEGRITY if cell.errors else 0


if __name__ == "__main__":
    run_main(main)
