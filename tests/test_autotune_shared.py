"""test_autotune_shared.py - what records are made of, one database for many processes, and the operators of flag_gems."""
import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from autotune_runs import Folder, find_tables

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "plugins"))


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


# ---- codec

def test_values_keep_their_types_through_json():
    import numpy
    import torch
    from autotune_record import codec
    values = (True, 1, 1.0, -0.0, 0.0, float("inf"), None, "torch.float16", torch.float16, numpy.int64(1), numpy.bool_(False),
              (1, True), [0.5])
    text = codec.encode_key(values)
    back = [codec.decode_value(v) for v in json.loads(text)]
    assert [type(v) for v in back] == [type(v) for v in values] and codec.encode_key(back) == text
    assert len({codec.encode_key((v,)) for v in values}) == len(values)


@pytest.mark.parametrize("encoded", [["dtype", "torch.float3"], ["dtype", "torch.nn"], ["repr", "x.Y", "<Y>"]])
def test_values_that_cannot_be_built_again_are_not_replayable(encoded):
    from autotune_record import codec
    with pytest.raises(codec.NotReplayable):
        codec.decode_value(encoded)


# ---- the database is shared

def test_eight_processes_record_while_a_ninth_holds_the_write_lock(folder):
    """Longer than the 5 s that SQLite's driver waits by itself; the database does not exist at the start."""
    path = folder.path / "shared"
    holder = subprocess.Popen([sys.executable, "-c", HOLD_LOCK, path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    run = folder.run("forks", "-k", "many_processes", database="shared", FORKS="8", HELD=str(path) + ".go")
    assert holder.wait(30) == 0 and run.code == 0, run.text
    with sqlite3.connect(path) as database:
        winners, _ = find_tables(database, "lib_kernel")
        found = sorted(database.execute(f"SELECT key_0, BLOCK FROM '{winners}'"))
        assert found == [(999, 64), *((1000 + n, 64) for n in range(8))]


HOLD_LOCK = """
import os, sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
while not os.path.exists(sys.argv[1] + ".go"):
    time.sleep(0.02)
time.sleep(6)
connection.execute("COMMIT")
"""


# ---- the operators of flag_gems, through run_pytest.sh

NODES = [f"benchmark/test_{op}.py::test_{op}" for op in ("mm", "addmm", "bmm", "scale_transpose")]


def run_samples(folder, name, **environment):
    env = {**os.environ, "REPO": "samples", "PYTHON": sys.executable, "DTYPES": "float16", "RUN_DIR": str(folder / name),
           "HOST_TARGET": "cuda:90", "HOST_MODE": "compile", "TRITON_CACHE_DIR": str(folder / "triton"), **environment}
    done = subprocess.run([ROOT / "run_pytest.sh", "tuned", *NODES], env=env, text=True, capture_output=True, timeout=600,
                          check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    record = json.loads((folder / name / "autotune.json").read_text())
    return {(e["kernel"], e["key"]): e for e in record["entries"]}, done.stdout


def test_the_operators_of_flag_gems(tmp_path):
    recorded, _ = run_samples(tmp_path, "recorded", FLAGGEMS_DB_URL=f"sqlite:///{tmp_path}/db")
    assert {kernel.rpartition(".")[2] for kernel, _ in recorded} >= {"scale_transpose_kernel", "addmm_kernel", "bmm_kernel"}
    assert {e["kind"] for e in recorded.values()} == {"libtuner", "autotune"}
    again, text = run_samples(tmp_path, "again", FLAGGEMS_DB_URL=f"sqlite:///{tmp_path}/other",
                              REPLAY_FROM=str(tmp_path / "recorded"), REPLAY_STRICT="1")
    assert {key: (e["config"], e["origin"]) for key, e in again.items()} == {
        key: (e["config"], "replayed") for key, e in recorded.items()}
    counts = re.findall(r"AUTOTUNE_REPLAY (\w+): used=(\d+) unused=0 missed=0 fallback=0 dropped=0", text)
    assert sum(int(used) for _, used in counts) == len(recorded) and {kind for kind, _ in counts} == {"libtuner", "autotune"}
