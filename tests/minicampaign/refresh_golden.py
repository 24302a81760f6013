#!/usr/bin/env python3
"""refresh_golden.py - write golden.csv again: the matrix of all planted outcomes. The only way to change that file."""
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import GOLDEN_TASKS, MiniCampaign

with tempfile.TemporaryDirectory() as folder:
    mini = MiniCampaign(folder, GOLDEN_TASKS, candidate_hangs=3)
    done = mini.run()
    assert done.returncode == 1, done.stdout + done.stderr
    (HERE / "golden.csv").write_text((mini.run_dir / "matrix.csv").read_text())
