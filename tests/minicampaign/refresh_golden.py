#!/usr/bin/env python3
"""refresh_golden.py - write golden.csv again: the matrix of all planted outcomes. The only way to change that file."""
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import run_golden

(HERE / "golden.csv").write_text((run_golden().run_dir / "matrix.csv").read_text())
