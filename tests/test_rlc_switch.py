"""_rlc_switch_plugin on the host device: three cells of sample operators on one compile cache, and what it refuses."""
import json
import re
import sys

import pytest

from cell_runs import ROOT, read_index, run_file, run_sample_cells

sys.path.insert(0, str(ROOT / "plugins"))
from rlc_switch import choice, pipeline, policy

SWITCH = ("_rlc_switch_plugin",)
ON_HOST = {"HOST_TARGET": "cuda:90", "HOST_MODE": "compile"}


@pytest.fixture(scope="module")
def cells():
    return run_sample_cells()


def read_codes(run_dir):
    """{(kernel, digest of its TTGIR without locations)}."""
    return {(row["kernel"], row["ttgir_sha256"]) for row in read_index(run_dir)}


# The three cells ------------------------------------------------------------------------------------------------


def test_mask0_emits_what_off_emits(cells):
    assert read_codes(cells.mask0) == read_codes(cells.off)
    assert {row["switch_choice"] for row in read_index(cells.mask0)} == {"stock"}


def test_candidate_removes_converts(cells):
    """rand, and all three kernels of masked_select, one of them in a loop; what is not better stays byte for byte."""
    counts = {cell: {row["kernel"]: int(row["converts"]) for row in read_index(getattr(cells, cell))}
              for cell in ("off", "candidate")}
    assert {k: n for k, n in counts["off"].items() if n} == {
        "mask_part_sum_kernel": 2, "masked_select_single_pass_kernel": 3, "rand_kernel": 4, "scale_transpose_kernel": 1,
        "write_back_kernel": 8,
    }
    assert {k: n for k, n in counts["candidate"].items() if n} == {"scale_transpose_kernel": 1}
    changed = {"mask_part_sum_kernel", "masked_select_single_pass_kernel", "rand_kernel", "write_back_kernel"}
    assert {kernel for kernel, _ in read_codes(cells.off) - read_codes(cells.candidate)} == changed
    assert {r["kernel"] for r in read_index(cells.candidate) if r["switch_choice"] == "nocoalesce"} == changed


def test_cells_on_one_cache_share_no_kernel(cells):
    """With the stages hook alone the candidate silently ran off's kernels; here every cell compiled its own."""
    hashes = {cell: {row["hash"] for row in read_index(getattr(cells, cell))} for cell in ("off", "mask0", "candidate")}
    assert [len(h) for h in hashes.values()] == [10, 10, 10] and len(set().union(*hashes.values())) == 30
    policies = {cell: {row["switch"] for row in read_index(getattr(cells, cell))} for cell in hashes}
    (revision,) = {re.match(r"(rlc-stock-3-[0-9a-f]{8})-", p)[1] for ps in policies.values() for p in ps}
    assert policies == {"off": {f"{revision}-e0-m0"}, "mask0": {f"{revision}-e1-m0"},
                        "candidate": {f"{revision}-e1-m15"}}


def test_metadata_and_log_hold_the_receipt(cells):
    (metadata,) = [m for m in (json.loads(p.read_text()) for p in cells.cache.glob("*/write_back_kernel.json"))
                   if m["rlc_policy"].endswith("-e1-m15")]
    assert [metadata[f"rlc_{key}"] for key in ("choice", "converts_stock", "converts", "rejected")] == \
        ["nocoalesce", 8, 0, ""]
    lines = {cell: re.search(r"^RLC_SWITCH cell=(\S+) policy=\S+ (.*)$", (run / "run.log").read_text(), re.M).groups()
             for cell, run in vars(cells).items() if cell != "cache"}
    assert lines == {"off": ("off", "kernels=10"), "mask0": ("mask0", "kernels=10 changed=0 converts=18->18"),
                     "candidate": ("candidate", "kernels=10 changed=4 converts=18->1")}


# What it refuses ------------------------------------------------------------------------------------------------

FLIPS = """
import os
import torch, triton, triton.language as tl

@triton.jit
def fill(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), 1.0)

def test_before():
    fill[(1,)](torch.zeros(64), 64)

def test_that_compiles_after_a_flip():
    os.environ["RLC_STOCK_PHASE_MASK"] = "0"
    fill[(1,)](torch.zeros(64), 32)

def test_that_launches_an_old_kernel_after_a_flip():
    os.environ["RLC_STOCK_ENHANCE"] = "0"
    fill[(1,)](torch.zeros(64), 64)

def test_back_again():
    os.environ.update(RLC_STOCK_ENHANCE="1", RLC_STOCK_PHASE_MASK="15")
    fill[(1,)](torch.zeros(64), 64)
"""


def test_a_flip_inside_one_process_fails_the_test(tmp_path):
    done = run_file(tmp_path, FLIPS, "--tb=line", plugins=("_host_device_plugin", *SWITCH), RLC_STOCK_ENHANCE="1",
                    RLC_STOCK_PHASE_MASK="15", **ON_HOST)
    assert "2 failed, 2 passed" in done.stdout
    changed = "SwitchError: RLC_STOCK_ENHANCE, RLC_STOCK_PHASE_MASK: changed inside one process, from candidate to "
    assert changed + "mask0;" in done.stdout and changed + "off;" in done.stdout


HOOKED = """
import torch, triton, triton.language as tl

@triton.jit
def fill(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), 1.0)

def test_engaged():
    fill[(1,)](torch.zeros(64), 64)

def test_another_hook_took_the_place():
    triton.knobs.runtime.add_stages_inspection_hook = lambda *args: None
    fill[(1,)](torch.zeros(64), 32)
"""


@pytest.mark.parametrize("enhance, ended", [("1", "1 failed, 1 passed"), ("0", "2 passed")])
def test_a_switch_that_does_not_engage_fails_the_test(tmp_path, enhance, ended):
    """The kernel's metadata name the candidate all the same, and a campaign would call the operator a baseline."""
    done = run_file(tmp_path, HOOKED, "--tb=line", plugins=("_host_device_plugin", *SWITCH), RLC_STOCK_ENHANCE=enhance, **ON_HOST)
    assert ended in done.stdout
    assert ("SwitchError: kernel fill: was lowered without the switch" in done.stdout) == (enhance == "1")


def test_another_triton_is_refused(tmp_path):
    (tmp_path / "triton.py").write_text("__version__ = '3.7.0'\n")
    done = run_file(tmp_path, "", plugins=SWITCH, RLC_STOCK_ENHANCE="0", PYTHONPATH=f"{tmp_path}:{ROOT / 'plugins'}")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == ("_rlc_switch_plugin: error: triton: 3.7.0: the switch is made for the pipeline of 3.6.0 "
                           "only; install that, or unset RLC_STOCK_ENHANCE\n")


@pytest.mark.parametrize("environment, reason", [
    ({"RLC_STOCK_ENHANCE": "yes"}, "RLC_STOCK_ENHANCE: 'yes': is neither 0 nor 1"),
    ({"RLC_STOCK_ENHANCE": ""}, "RLC_STOCK_ENHANCE: '': is neither 0 nor 1"),
    ({"RLC_STOCK_ENHANCE": "1", "RLC_STOCK_PHASE_MASK": "16"},
     "RLC_STOCK_PHASE_MASK: '16': is no number from 0 to 15"),
    ({"RLC_STOCK_PHASE_MASK": "15"},
     "RLC_STOCK_PHASE_MASK: 15: means nothing without RLC_STOCK_ENHANCE; set that to 0 or 1 too"),
])
def test_bad_values_are_refused(tmp_path, environment, reason):
    done = run_file(tmp_path, "", plugins=SWITCH, **environment)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"_rlc_switch_plugin: error: {reason}\n")


def test_without_its_switch_it_does_nothing(tmp_path):
    done = run_file(tmp_path, "import sys\ndef test_it():\n    assert 'triton' not in sys.modules\n", plugins=SWITCH)
    assert done.returncode == 0 and "rlc" not in done.stdout.lower()


# What the phases allow ------------------------------------------------------------------------------------------

FLAT = "  %1 = tt.load %0 : tensor<64x!tt.ptr<f32>> loc(#loc1)\n"
WIDE = "  %1 = tt.load %0 : tensor<64x2x!tt.ptr<f32>>\n"
LOOP = "  %2 = scf.for %i = %a to %b step %c iter_args(%x = %1) -> (tensor<64xf32>) : i32 {\n  }\n"
DOT = "  %3 = tt.dot %1, %2, %1 : tensor<64x64xf16> * tensor<64x64xf16> -> tensor<64x64xf32>\n"
NO_DOT = '  %3 = tt.elementwise_inline_asm "= tt.dot" {x = 1} %1 : i32 -> i32 loc("tt.dot")\n'


@pytest.mark.parametrize("ttir, bit", [(FLAT, 1), (FLAT + LOOP, 2), (WIDE, 4), (WIDE + LOOP, 4), (FLAT + NO_DOT, 1)])
def test_a_kernel_belongs_to_one_phase_and_to_the_last(ttir, bit):
    assert {mask: [w.name for w in choice.list_eligible(ttir, mask)] for mask in (0, bit, 8, 15, 15 - bit)} == {
        0: [], bit: ["nocoalesce"], 8: ["late"], 15: ["nocoalesce", "late"], 15 - bit: ["late"]}


def test_a_kernel_with_a_dot_is_never_eligible():
    assert choice.list_eligible(WIDE + DOT, 15) == []


def test_another_pipeline_is_refused():
    """make_ttgir of this Triton adds RemoveLayoutConversions three times; the phases are made for that."""
    switch = pipeline.Switch(policy.Policy(True, 15))
    with pytest.raises(policy.SwitchError, match="calls RemoveLayoutConversions 0 times, expected 3"):
        switch.lower(lambda module, metadata: module, None, {}, choice.STOCK)
