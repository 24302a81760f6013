"""campaign/topology.py: cells written here, each fault alone, and real cells from the host device."""
import subprocess
import sys

import pytest

from campaign.topology import COLUMNS, Converts, list_floors, read_cell, scope_cell
from cell_runs import ROOT, run_sample_cells
from common.ttgir import digest_ttgir

CONVERT = "    %1 = ttg.convert_layout %0 : tensor<64xf32, #a> -> tensor<64xf32, #b> loc(#loc)\n"
LOOP = "    scf.for %i = %a to %b step %c  : i32 {\n" + CONVERT + "    }\n"


def make_text(body, name="k"):
    return f'module attributes {{"ttg.num-warps" = 4 : i32}} {{\n  tt.func public @{name}() {{\n{body}  }}\n}}\n'


def make_row(kernel, number, text, counts, **launches):
    values = dict.fromkeys(COLUMNS, "")
    values.update(schema="1", file=f"ir/{kernel}-{number:04x}.ttgir", kernel=kernel, hash=f"{number:04x}",
                  ttgir_sha256=digest_ttgir(text), binary_sha256=f"b{number}", shared="64", num_warps="4",
                  switch="s-e1")
    values.update(zip(("converts", "converts_in_loop", "converts_weighted"), map(str, counts)))
    values.update({f"launches_{phase}": "0" for phase in ("construction", "tuning", "warmup", "measured", "baseline")})
    values.update({f"launches_{phase}": str(n) for phase, n in launches.items()})
    return values


def write_cell(folder, rows):
    """Rows and texts as a cell: [(row, text)]."""
    (folder / "ir").mkdir(parents=True)
    for row, text in rows:
        (folder / row["file"]).write_text(text)
    lines = ["\t".join(COLUMNS), *("\t".join(row[c] for c in COLUMNS) for row, _ in rows)]
    (folder / "index.tsv").write_text("\n".join(lines) + "\n")
    return folder


def make_variant(kernel, number, body, counts, **launches):
    text = make_text(body, kernel)
    return make_row(kernel, number, text, counts, **launches), text


@pytest.fixture
def rows():
    """The published case: an operator without a convert, and five input kernels that are launched once each; a config
    that lost its trial; a Triton baseline."""
    inputs = [make_variant("randn", n, CONVERT * n, (n, 0, n), construction=1) for n in range(1, 6)]
    return [*inputs, make_variant("operate", 16, "", (0, 0, 0), warmup=1, measured=1),
            make_variant("operate", 17, LOOP, (1, 1, 16), tuning=40),
            make_variant("reference", 18, CONVERT + LOOP, (2, 1, 17), baseline=3)]


# Scoping ------------------------------------------------------------------------------------------------------------


def test_floor_0_counts_what_ran_and_floor_1_the_operator(tmp_path, rows):
    cell = read_cell(write_cell(tmp_path / "c", rows))
    assert cell.errors == ()
    at_0, at_1, at_2 = (scope_cell(cell, floor) for floor in (0, 1, 2))
    assert at_0.converts == at_0.unscoped == at_1.unscoped == at_2.unscoped == Converts(17, 1, 32)
    assert [v.file for v in at_0.excluded] == ["ir/operate-0011.ttgir"]  # the trial
    assert [v.file for v in at_1.included] == ["ir/operate-0010.ttgir"] and at_1.converts == Converts(0, 0, 0)
    assert len(at_1.excluded) == 7 and at_1.unscoped_count == 7
    assert at_2.included == () and at_2.converts == Converts(0, 0, 0)
    assert list_floors(cell) == [0, 1, 2]


def test_building_inputs_is_one_run_however_often_a_kernel_helped(tmp_path):
    """Two random inputs a row over ten rows are no reason to take their kernel for the operator's."""
    rows = [make_variant("randn", 1, CONVERT, (1, 0, 1), construction=20, baseline=5),
            make_variant("shared", 2, CONVERT, (1, 0, 1), construction=20, warmup=10, measured=10)]
    cell = read_cell(write_cell(tmp_path / "c", rows))
    assert [(v.kernel, v.runs) for v in cell.variants] == [("randn", 1), ("shared", 21)]
    assert scope_cell(cell, 1).converts == Converts(1, 0, 1)


def test_identity_is_by_code_not_by_hash(tmp_path):
    one = read_cell(write_cell(tmp_path / "1", [make_variant("k", 1, CONVERT, (1, 0, 1), warmup=1, measured=1)]))
    row, text = make_variant("k", 2, CONVERT, (1, 0, 1), warmup=2, measured=2)
    other = read_cell(write_cell(tmp_path / "2", [(row, text.replace("loc(#loc)", "loc(#loc9)"))]))
    assert scope_cell(one, 1).code == scope_cell(other, 1).code
    assert scope_cell(one, 1).binaries == {("k", "b1")} and scope_cell(other, 1).binaries == {("k", "b2")}


# Broken evidence ----------------------------------------------------------------------------------------------------


def edit(path, old, new):
    path.write_text(path.read_text().replace(old, new, 1))


FIRST = "ir/randn-0001.ttgir"
FAULTS = {
    "stray dump": (lambda c: (c / "ir/other-77.ttgir").write_text(make_text("")),
                   "ir/other-77.ttgir: is not in index.tsv"),
    "dump gone": (lambda c: (c / FIRST).unlink(), f"{FIRST}: is missing"),
    "dump cut": (lambda c: (c / FIRST).write_text((c / FIRST).read_text()[:-2]),
                 f"{FIRST}: the module is cut: 1 regions are still open at its end"),
    "dump empty": (lambda c: (c / FIRST).write_text(""), f"{FIRST}: no `module attributes {{ttg.num-warps ...}}`"),
    "dump is no text": (lambda c: (c / FIRST).write_bytes(b"\xff"), f"{FIRST}: 'utf-8' codec can't decode byte"),
    "dump edited": (lambda c: edit(c / FIRST, "tensor<64xf32, #a>", "tensor<64xf32, #c>"), f"{FIRST}: digest is "),
    "dump is a link": (lambda c: ((c / FIRST).rename(c / "x"), (c / FIRST).symlink_to(c / "x")),
                       f"{FIRST}: is a symbolic link"),
    "count edited": (lambda c: edit(c / "index.tsv", "\t1\t0\t1\ts-e1", "\t0\t0\t0\ts-e1"),
                     f"{FIRST}: has 1 converts, index.tsv says 0 (or their loops differ)"),
    "no number": (lambda c: edit(c / "index.tsv", "\t1\t0\t1\ts-e1", "\t-1\t0\t1\ts-e1"),
                  f"{FIRST}: converts: '-1' is no number"),
    "row marked": (lambda c: edit(c / "index.tsv", "s-e1\t\t\n", "s-e1\t\tno dump: why\n"),
                   f"{FIRST}: kernel randn: no dump: why"),
    "row cut": (lambda c: edit(c / "index.tsv", "\trandn", ""), "index.tsv: line 2: is no row of schema 1"),
    "row twice": (lambda c: edit(c / "index.tsv", "randn-0002", "randn-0001"), f"{FIRST}: is twice in index.tsv"),
    "path outside": (lambda c: edit(c / "index.tsv", FIRST, "ir/../x-0.ttgir"),
                     "ir/../x-0.ttgir: is no name of a dump: 'ir/../x-0.ttgir'"),
    "other columns": (lambda c: edit(c / "index.tsv", "spills\t", ""),
                      "index.tsv: line 1: has other columns than schema 1"),
    "index cut": (lambda c: (c / "index.tsv").write_text((c / "index.tsv").read_text()[:-1]),
                  "index.tsv: is cut: its last line has no end"),
    "index empty": (lambda c: (c / "index.tsv").write_text(""), "index.tsv: is cut: its last line has no end"),
    "index gone": (lambda c: (c / "index.tsv").unlink(), "index.tsv: cannot be read"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(tmp_path, rows, fault):
    folder = write_cell(tmp_path / "c", rows)
    damage, expected = FAULTS[fault]
    damage(folder)
    errors = read_cell(folder).errors
    assert errors and errors[0].startswith(expected), errors


# Real cells, and the command line -----------------------------------------------------------------------------------


def run_script(*words):
    return subprocess.run([sys.executable, ROOT / "campaign/topology.py", *words], capture_output=True, text=True)


def test_real_cells():
    cells = run_sample_cells()
    read = {cell: read_cell(getattr(cells, cell)) for cell in ("off", "mask0", "candidate")}
    scoped = {cell: scope_cell(value, 1) for cell, value in read.items()}
    assert {cell: (scope.converts, value.errors) for (cell, scope), value in zip(scoped.items(), read.values())} == {
        "off": (Converts(18, 2, 48), ()), "mask0": (Converts(18, 2, 48), ()), "candidate": (Converts(1, 0, 1), ())}
    assert scoped["off"].code == scoped["mask0"].code != scoped["candidate"].code
    assert scoped["off"].binaries == scoped["mask0"].binaries != scoped["candidate"].binaries


def test_command_line(tmp_path, rows):
    folder = write_cell(tmp_path / "c", rows[4:6])
    done = run_script(folder, "--floor", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("floor 1: 1 variants, converts 0 (in loops 0, weighted 0); unscoped: 2 variants, converts 5 "
                           "(in loops 0, weighted 5)\nexcluded ir/randn-0005.ttgir: 1 runs, 5 converts\n")
    (folder / "ir/operate-0010.ttgir").unlink()
    done = run_script(folder)
    assert done.returncode == 4 and "error ir/operate-0010.ttgir: is missing\n" in done.stdout


@pytest.mark.parametrize("words, message", [
    (["/no/such"], "topology.py: error: /no/such: is no directory; give a cell's run directory\n"),
    (["/", "--floor", "-1"], "topology.py: error: --floor: -1: is negative; give 0 or more\n"),
])
def test_bad_arguments(words, message):
    done = run_script(*words)
    assert (done.returncode, done.stderr) == (2, message)
