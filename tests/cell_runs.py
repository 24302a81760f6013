"""Helper of the campaign plugins' tests: pytest under the host device, in a run directory, as one cell.

The three cells of CELLS run once per test session (shared.py): a process costs seconds.
"""
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from shared import make_once

ROOT = Path(__file__).resolve().parent.parent
CELLS = {"off": ("0", "15"), "mask0": ("1", "0"), "candidate": ("1", "15")}
PLUGINS = "_device_guard_plugin _host_device_plugin _rlc_switch_plugin _ir_meta_plugin _pretty_report_plugin"
NODES = ("benchmark/test_rand.py::test_rand", "benchmark/test_scale_transpose.py::test_scale_transpose",
         "benchmark/test_masked_select.py::test_masked_select")


def run_sample_cell(cell, run_dir, cache):
    """NODES of the sample tree in one cell, through run_pytest.sh; the CompletedProcess."""
    enhance, mask = CELLS[cell]
    environment = {**os.environ, "REPO": "samples", "PYTHON": sys.executable, "PLUGINS": PLUGINS, "DTYPES": "float16",
                   "RUN_DIR": str(run_dir), "TRITON_CACHE_DIR": str(cache), "HOST_TARGET": "cuda:90", "IR_META": "1",
                   "RLC_STOCK_ENHANCE": enhance, "RLC_STOCK_PHASE_MASK": mask}
    return subprocess.run([ROOT / "run_pytest.sh", "cells", *NODES], env=environment, capture_output=True, text=True)


@make_once
def run_sample_cells(base):
    """{cell: run directory} of the three cells, which share one compile cache (`.cache`)."""
    for cell in CELLS:
        done = run_sample_cell(cell, base / cell, base / "cache")
        assert done.returncode == 0, done.stdout + done.stderr
    return SimpleNamespace(cache=base / "cache", **{cell: base / cell for cell in CELLS})


def run_file(folder, source, *words, plugins=("_host_device_plugin",), **environment):
    """A pytest file of the caller's, alone in `folder` with plugins/ on the path; the CompletedProcess."""
    (folder / "test_it.py").write_text(source)
    words = ["-q", "-p", "no:cacheprovider", "--rootdir", folder, *(w for p in plugins for w in ("-p", p)), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "plugins"), "TRITON_CACHE_DIR": str(folder / "cache"),
                   "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
    return subprocess.run([sys.executable, "-m", "pytest", *words, "test_it.py"], cwd=folder, env=environment,
                          capture_output=True, text=True)


def read_index(run_dir):
    """Rows of index.tsv as dicts."""
    header, *lines = (Path(run_dir) / "index.tsv").read_text().splitlines()
    return [dict(zip(header.split("\t"), line.split("\t"))) for line in lines]
