"""test_timing_check.py - what tests/gpu/timing_check.py does with figures; the figures themselves need a card."""
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests/gpu")]

import timing_check  # noqa: E402
import timing_physics  # noqa: E402
from common.noise import Series  # noqa: E402


def make_series(*times):
    return Series("abs", "float16", "[torch.Size([64, 64])]", "gems", "graph", "cold", times, (0.001,) * len(times))


@pytest.mark.parametrize("times, line, failed", [
    # three processes: a spread, but no pairs to ask for a verdict
    ((1.0, 1.001, 1.0), "graph cold: 1 rows, median within 0.100%, median between 0.058%, p95 between 0.06%, "
                        "alarms - at 5 %, band -", 0),
    ((1.0, 1.002, 1.0, 1.001), "graph cold: 1 rows, median within 0.100%, median between 0.096%, p95 between 0.10%, "
                               "alarms 0.0% at 5 %, band 0.2%", 0),
    ((1.0, 1.1, 1.0), "graph cold: 1 rows, median within 0.100%, median between 5.587%, p95 between 5.59%, "
                      "alarms - at 5 %, band -", 1)])
def test_spread_of_few_processes_has_a_table_and_no_verdict(tmp_path, times, line, failed):
    report = timing_check.Report(tmp_path / "report.txt")
    timing_check.print_spread([make_series(*times)], report, 1)
    assert line in report.path.read_text().splitlines() and len(report.failed) == failed


def test_a_single_process_has_times_and_fails(tmp_path):
    report = timing_check.Report(tmp_path / "report.txt")
    timing_check.print_spread([make_series(1.0)], report, 1)
    assert "   1.00000    0.10%        -" in report.path.read_text() and len(report.failed) == 1


def test_parts_that_use_the_card_do_so_in_another_process(tmp_path):
    """Here there is no card: what counts is that the part ran elsewhere, and that this process knows that it failed."""
    done = subprocess.run([sys.executable, ROOT / "tests/gpu/timing_check.py", "cases"], capture_output=True, text=True,
                          check=False, timeout=120,
                          env={"PATH": "/usr/bin:/bin", "OUT": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 1
    assert "--apart" in done.stdout and "CalledProcessError" in done.stdout and "1 failed" in done.stdout


@pytest.mark.parametrize("word, status, said", [
    ("--help", 0, "USAGE"), ("spred", 2, "timing_check.py: error: spred: unknown; the parts are")])
def test_help_and_a_part_that_there_is_not(tmp_path, word, status, said):
    done = subprocess.run([sys.executable, ROOT / "tests/gpu/timing_check.py", word], capture_output=True, text=True, check=False,
                          env={"PATH": "/usr/bin:/bin", "OUT": str(tmp_path / "out")}, timeout=60)
    assert done.returncode == status and said in done.stdout + done.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize("us, kernel, holds", [
    (17.916, 17.184, True), (5.868, 5.473, True), (64.923, 65.408, True),  # an H200's
    (64.7, 65.408, False),   # 1.1 % below
    (5.3, 5.473, False),     # 3 % below: no gap, and not all of the kernel
    (18.3, 17.184, False),   # more than a gap above
    (float("nan"), 17.184, False), (17.9, float("nan"), False)])
def test_a_figure_is_the_kernel_and_at_most_a_gap(us, kernel, holds):
    assert timing_physics.is_kernel_and_gap(us, kernel, 1.053) is holds
