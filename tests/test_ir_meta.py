"""_ir_meta_plugin on the host device: real compiles of sample operators, and a small tree that knows every case."""
import hashlib
import json
import re
import subprocess
import sys

import pytest

from cell_runs import ROOT, read_index, run_file, run_sample_cell, run_sample_cells

sys.path.insert(0, str(ROOT / "plugins"))
from ir_meta.binary import read_binary

PHASES = ("construction", "tuning", "warmup", "measured", "baseline")


def list_launches(row):
    return [int(row[f"launches_{phase}"]) for phase in PHASES]


# Sample operators -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cells():
    return run_sample_cells()


@pytest.fixture(scope="module")
def warm(cells, tmp_path_factory):
    """The cell `off` once more, all kernels from its warm compile cache: (CompletedProcess, run directory)."""
    run_dir = tmp_path_factory.mktemp("warm") / "off"
    return run_sample_cell("off", run_dir, cells.cache), run_dir


def test_launches_are_those_of_one_call_per_row(cells):
    """Plain JIT, LibEntry and Autotuner. rand has three shapes, the others two; masked_select has a path for each."""
    assert {row["kernel"]: list_launches(row) for row in read_index(cells.off)} == {
        "_copy_kernel_kernel_rank_2": [0, 0, 1, 1, 0],
        "add_func_tensor_scalar_kernel_rank_1": [0, 0, 3, 3, 0],
        "mask_part_sum_kernel": [0, 0, 1, 1, 0],
        "masked_select_single_pass_kernel": [0, 0, 1, 1, 0],
        "rand_kernel": [0, 0, 3, 3, 0],
        "scale_transpose_kernel": [0, 0, 2, 2, 0],
        "sum_kernel_1": [0, 0, 1, 1, 0],
        "sum_kernel_2": [0, 0, 1, 1, 0],
        "write_back_kernel": [0, 0, 1, 1, 0],
        "zeros_kernel": [0, 0, 1, 1, 0],
    }


def test_the_host_device_saw_the_timed_launches_too(cells):
    """Its own launcher counts all: warm-up, timed, measured. The index leaves the timed ones out, and nothing else."""
    launched = {v["hash"]: v["launches"] for v in json.loads((cells.off / "launches.json").read_text())["variants"]}
    assert launched == {row["hash"]: sum(list_launches(row)) * 3 // 2 for row in read_index(cells.off)}


def test_each_variant_has_its_dump_and_figures(cells):
    rows = {row["kernel"]: row for row in read_index(cells.off)}
    assert sorted(row["file"] for row in rows.values()) == sorted(f"ir/{p.name}" for p in (cells.off / "ir").iterdir())
    figures = ("registers", "spills", "shared", "num_warps", "converts", "converts_in_loop", "converts_weighted",
               "error")
    assert [rows["rand_kernel"][f] for f in figures] == ["22", "0", "2048", "16", "4", "0", "4", ""]
    assert [rows["write_back_kernel"][f] for f in figures] == ["73", "0", "32768", "16", "8", "2", "38", ""]
    assert (cells.off / rows["write_back_kernel"]["file"]).read_text().count(" = ttg.convert_layout ") == 8


def test_a_warm_compile_cache_gives_the_same_index(cells, warm):
    done, run_dir = warm
    assert done.returncode == 0, done.stdout
    assert (run_dir / "index.tsv").read_text() == (cells.off / "index.tsv").read_text()
    assert re.search(r"^IR_META variants=10 calls=7 construction=0 tuning=0 warmup=15 measured=15 baseline=0 "
                     rf"unexplained=0 file={run_dir}/index.tsv$", (run_dir / "run.log").read_text(), re.M)


def test_a_second_run_in_the_same_directory_is_refused(tmp_path):
    (tmp_path / "ir").mkdir()
    done = run_file(tmp_path, "", plugins=("_ir_meta_plugin",), IR_META="1", RUN_DIR=str(tmp_path))
    assert done.returncode == 3
    assert done.stderr == (f"_ir_meta_plugin: error: RUN_DIR: {tmp_path}: holds ir of another run; "
                           "give an empty directory\n")


@pytest.mark.parametrize("environment", [{"IR_META": "1"}, {"IR_META": "0", "RUN_DIR": "."}, {"RUN_DIR": "."}])
def test_without_its_switch_it_does_nothing(tmp_path, environment):
    done = run_file(tmp_path, "import sys\ndef test_it():\n    assert 'triton' not in sys.modules\n",
                    plugins=("_ir_meta_plugin",), **environment)
    assert done.returncode == 0, done.stdout
    assert "IR_META" not in done.stdout and not (tmp_path / "index.tsv").exists()


# Every phase and every fault ------------------------------------------------------------------------------------

SMALL_TREE = """
import contextlib, os, sys, types
import pytest, torch, triton, triton.language as tl
from pathlib import Path

@triton.jit
def operate(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.load(x + i) + 1)

@triton.jit
def build(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), 1.0)

@triton.jit
def prepare(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), 2.0)

@triton.jit
def reference(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), 3.0)

@triton.jit
def settle(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), 4.0)

@triton.jit
def flush(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), 5.0)

@triton.jit
def vanish(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), 6.0)

@triton.jit
def spill(x, o, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    a = tl.load(x + at)
    tl.store(o + at, a + tl.trans(a) * tl.sum(a * tl.load(x + 77 + at), 1)[:, None])

@triton.autotune([triton.Config({"N": 64}), triton.Config({"N": 128})], key=[])
@triton.jit
def tuned(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), 7.0)

class UseGems:  # what benchmarks enter to send torch's operators to Triton
    def __enter__(self): pass
    def __exit__(self, *error): pass

gems = sys.modules["flag_gems"] = types.ModuleType("flag_gems")
gems.use_gems = UseGems

class Benchmark:
    def __init__(self, torch_op=None, gems_op=None):
        self.torch_op, self.gems_op = torch_op, gems_op

    def get_input_iter(self, dtype):
        x = torch.zeros(256)
        build[(1,)](x, 128)
        yield x

    def get_latency(self, op, *args):
        prepare[(1,)](*args, 128)  # as the forward pass of a backward benchmark
        return triton.testing.do_bench(lambda: op(*args))

    def run(self, op, rows=1):
        for _ in range(rows):
            for x in self.get_input_iter(None):
                self.get_latency(op, x)

class Deeper(Benchmark):
    def get_latency(self, op, *args):
        return super().get_latency(op, *args)

def get_iter_count(function):
    function()
    return 1, 2

class Wrapper(Benchmark):  # as upstream's wrapper mode: asks how often, then times by itself
    def get_latency(self, op, *args):
        function = lambda: op(*args)
        for _ in range(sum(get_iter_count(function))):
            function()
        return 1.0

@triton.jit
def gemscreen_flush(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), 8.0)

class ByHand(Benchmark):
    def get_latency(self, op, *args):
        op(*args)
        return 1.0

def call_operate(x):
    operate[(1,)](x, 64)
    operate[(1,)](x, 64)
    operate[(1,)](x, 128)

def call_reference(x):
    reference[(1,)](x, 128)

def test_operator():
    Deeper(gems_op=call_operate, torch_op=call_reference).run(call_operate, rows=3)

def test_baseline():
    Benchmark(gems_op=call_operate, torch_op=call_reference).run(call_reference)

def test_torch_op_inside_use_gems_is_the_operator():
    with gems.use_gems():
        bench = Benchmark(torch_op=lambda x: settle[(1,)](x, 64))
        bench.run(bench.torch_op)

def test_wrapper_mode():
    Wrapper(gems_op=call_operate).run(call_operate)

def test_kernels_of_our_timers_are_none_of_the_benchmarks():
    gemscreen_flush[(1,)](torch.zeros(256), 64)
    bench = Benchmark()
    bench.run(lambda x: gemscreen_flush[(1,)](x, 128))

def test_spill():
    spill[(1,)](torch.zeros(1 << 20), torch.zeros(1 << 20), N=128, num_warps=1)

def test_tuner():
    import host_device.autotune_shim as shim
    shim.try_config = lambda device, call, quantiles: [call() or 1.0] * 3  # trials that launch, as on a GPU
    Benchmark().run(lambda x: tuned[(1,)](x))
"""

FAULTS = SMALL_TREE.split("def test_operator")[0] + """
calls = []

def call_late(x):
    calls.append(1)
    flush[(1,)](x, 256 if len(calls) == 2 else 64)  # the second call is the timed one

def test_variant_first_loaded_while_timed():
    Benchmark().run(call_late)

def test_dump_gone():
    vanish[(1,)](torch.zeros(256), 128)
    (path,) = Path(os.environ["TRITON_CACHE_DIR"]).glob("*/vanish.ttgir")
    path.unlink()

def test_cut_dump():
    reference[(1,)](torch.zeros(256), 128)
    (path,) = Path(os.environ["TRITON_CACHE_DIR"]).glob("*/reference.ttgir")
    path.write_bytes(path.read_bytes().partition(b'tt.return')[0])

def test_load_that_nobody_announced():
    hooks = triton.knobs.runtime.kernel_load_end_hook
    before, hooks.calls = hooks.calls, []
    settle[(1,)](torch.zeros(256), 128)
    hooks.calls = before

def test_timer_that_nobody_knows():
    ByHand().run(call_operate)
"""


def run_small_tree(folder, source):
    """(CompletedProcess, rows of the index, folder)."""
    done = run_file(folder, source, plugins=("_host_device_plugin", "_ir_meta_plugin"), IR_META="1",
                    RUN_DIR=str(folder), HOST_TARGET="cuda:90", HOST_MODE="compile")
    return done, read_index(folder), folder


@pytest.fixture(scope="module")
def small_tree(tmp_path_factory):
    return run_small_tree(tmp_path_factory.mktemp("small_tree"), SMALL_TREE)


def test_phases(small_tree):
    done, rows, _ = small_tree
    assert done.returncode == 0, done.stdout
    launches = sorted((row["kernel"], list_launches(row)) for row in rows)
    assert launches == [
        ("build", [8, 0, 0, 0, 0]),  # eight rows
        ("operate", [0, 0, 4, 4, 0]),  # N=128: once per call
        ("operate", [0, 0, 8, 8, 0]),
        ("prepare", [7, 0, 0, 0, 0]),
        ("reference", [0, 0, 0, 0, 1]),
        ("settle", [0, 0, 1, 1, 0]),
        ("spill", [1, 0, 0, 0, 0]),
        ("tuned", [0, 1, 1, 1, 0]),
    ]
    assert ("IR_META variants=8 calls=7 construction=16 tuning=1 warmup=14 measured=14 baseline=1 unexplained=0 "
            in done.stdout)


def test_what_no_dump_explains_is_loud(tmp_path):
    done, rows, _ = run_small_tree(tmp_path, FAULTS)
    assert done.returncode == 1
    assert "5 passed" in done.stdout
    errors = {row["kernel"]: (row["file"] != "", sum(list_launches(row)), row["error"])
              for row in rows if row["error"]}
    assert errors == {
        "flush": (True, 0, "first loaded while the operator was timed: these launches were not counted"),
        "vanish": (False, 1, errors["vanish"][2]),
        "reference": (False, 1, "no dump: NotTtgir: the module is cut: 2 regions are still open at its end"),
        "settle": (False, 1, "launched, but never announced as loaded"),
    }
    assert errors["vanish"][2].startswith("no dump: FileNotFoundError: ")
    lines = [line for line in done.stdout.splitlines() if line.startswith("IR_META_UNEXPLAINED ")]
    assert len(lines) == 5
    assert re.match(r"IR_META_UNEXPLAINED kernel=flush hash=[0-9a-f]{64} launches=0: first loaded while", lines[0])
    assert lines[4] == "IR_META_UNEXPLAINED benchmark=ByHand: gave its function to no timer that is known"


# Binaries -------------------------------------------------------------------------------------------------------

def test_registers_and_spills_are_what_cuobjdump_says(small_tree):
    """Of a kernel that spills and of those that do not."""
    from triton import knobs

    _, rows, folder = small_tree
    spilled = 0
    for row in rows:
        (cubin,) = [p for p in folder.glob(f"cache/*/{row['kernel']}.cubin")
                    if read_binary(p.read_bytes()).digest == row["binary_sha256"]]
        text = subprocess.run([knobs.nvidia.cuobjdump.path, "-res-usage", cubin], capture_output=True, text=True).stdout
        registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", text).groups())
        assert (int(row["registers"]), int(row["spills"])) == (registers, stack // 4)
        spilled += stack > 0
    assert spilled == 1


def test_digest_of_a_binary_ignores_its_debug_sections_only(cells):
    rows = {row["kernel"]: row for row in read_index(cells.off)}
    others = {row["kernel"]: row["binary_sha256"] for row in read_index(cells.mask0)}
    assert {k: r["binary_sha256"] for k, r in rows.items()} == others
    path = next(cells.cache.glob("*/zeros_kernel.cubin"))
    data = path.read_bytes()
    assert read_binary(data).digest == rows["zeros_kernel"]["binary_sha256"]
    at = data.index(b".version")  # the PTX text that a cubin carries along
    assert read_binary(data[:at] + b"#" + data[at + 1:]).digest == read_binary(data).digest
    assert read_binary(b"not an ELF").digest == hashlib.sha256(b"not an ELF").hexdigest()
    assert read_binary(b"not an ELF").registers is None
