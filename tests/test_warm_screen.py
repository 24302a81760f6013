"""The same screen with WARM=1 and WARM=0: the same statuses and the same rows. WHOLE=1 takes the whole sample tree."""
import csv
import json
import os
import subprocess
import sys
import time

import pytest

from common.process import find_members
from warm_parent import ROOT

# ok with tuning, random numbers, several nodes; all skipped
OPS = "abs,softmax,rand,conv2d"
TIMES = ("latency_base_ms", "latency_ms")
SITE = "import os, sys\nif 'server.py' in ' '.join(sys.orig_argv):\n" \
       "    def refuse(): raise OSError(11, 'no more')\n    os.fork = refuse\n"


class Screen:
    """run_batch.py on the sample tree."""

    def __init__(self, folder, ops, **environ):
        self.run = folder / "screen"
        env = {**os.environ, "PYTHON": sys.executable, "RUNS": str(folder), "RUN": str(self.run), "DEVICES": "host:0,host:1",
               "OPS": ops, "XDG_CACHE_HOME": str(folder), **environ}
        self.done = subprocess.run([sys.executable, ROOT / "run_batch.py"], env=env, capture_output=True, text=True, timeout=1200)
        self.output = self.done.stdout + self.done.stderr

    def read_rows(self):
        """The rows of summary.csv, but for what two runs never share: times, and the device."""
        with open(self.run / "summary.csv", newline="") as stream:
            rows = list(csv.DictReader(stream))
        for row in rows:
            row["device"] = row["device"][:4]
            for name in TIMES:
                row[name] = row[name] != ""
        return rows

    def read_tests(self):
        """{operator: [(node, outcome, reason)]}."""
        return {path.parts[-4]: [(line["node"], line["outcome"], line["reason"]) for line in map(json.loads, open(path))]
                for path in self.run.glob("samples/*/attempts/1/tests.jsonl")}

    def count_launches(self):
        """{operator: [(kernel, launches) of each variant]}. Not their hashes: a kernel that names a constexpr function
        has its address in its hash, which differs between any two processes (upstream's cumsum and sort)."""
        found = {}
        for path in self.run.glob("samples/*/attempts/1/launches.json"):
            variants = json.loads(path.read_text())["variants"]
            found[path.parts[-4]] = sorted((each["name"], each["launches"]) for each in variants)
        return found


@pytest.fixture(scope="module")
def screens(tmp_path_factory):
    ops = "" if os.environ.get("WHOLE") == "1" else OPS
    return {warm: Screen(tmp_path_factory.mktemp(f"warm{warm}"), ops, WARM=warm) for warm in ("1", "0")}


def test_warm_and_plain_processes_give_the_same(screens):
    warm, plain = screens["1"], screens["0"]
    assert warm.done.returncode == plain.done.returncode == 0, warm.output + plain.output
    assert len(warm.read_rows()) >= 28
    assert warm.read_rows() == plain.read_rows()
    assert warm.read_tests() == plain.read_tests()
    assert warm.count_launches() == plain.count_launches()


def test_every_operator_was_warm_and_says_nothing_of_it(screens):
    for screen in screens.values():
        logs = list(screen.run.glob("samples/*/attempts/1/run.log"))
        assert logs and all(f"\npython: {sys.executable}\n" in log.read_text() for log in logs)
        assert not any("warm:" in log.read_text() for log in logs) and "warm:" not in screen.output
        assert not (screen.run / ".warm").exists()
        assert not list(screen.run.glob("samples/*/attempts/1/driver.log"))


def test_a_fork_that_fails_is_said_once_and_costs_no_operator(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    screen = Screen(tmp_path, "abs,conv2d", WARM="1", DEVICES="host:0", PYTHONPATH=str(tmp_path), HOST_MODE="compile")
    assert screen.done.returncode == 0 and "1 ok, 1 skipped" in screen.output, screen.output
    assert screen.output.count("warm: host:0: plain processes: fork failed: ") == 1
    assert "fork failed" in (screen.run / ".warm" / "host_0-samples" / "log").read_text()


def test_nothing_outlives_a_driver_that_is_killed(tmp_path):
    env = {**os.environ, "PYTHON": sys.executable, "RUNS": str(tmp_path), "RUN": str(tmp_path / "screen"), "DEVICES": "host:0",
           "OPS": "sort"}
    with open(tmp_path / "output", "wb") as log:
        driver = subprocess.Popen([sys.executable, ROOT / "run_batch.py"], env=env, stdout=log, stderr=log)
    deadline = time.monotonic() + 100
    run_log = tmp_path / "screen/samples/sort/attempts/1/run.log"
    while not run_log.exists() or "collected 1 item" not in run_log.read_text():
        assert driver.poll() is None and time.monotonic() < deadline, (tmp_path / "output").read_text()
        time.sleep(0.05)
    run_id = json.loads((tmp_path / "screen/screen.json").read_text())["run_id"]
    parent = find_members(None, f"{run_id}/warm/host_0-samples")
    assert len(parent) == 1 and len(find_members(None, f"{run_id}/samples/sort/1")) >= 3      # the script, the client, the fork
    driver.kill()
    driver.wait()
    deadline = time.monotonic() + 20
    while find_members(None, f"{run_id}/", prefix=True):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_unknown_value_is_refused(tmp_path):
    done = Screen(tmp_path, "abs", WARM="yes").done
    assert done.returncode == 2 and "WARM: yes: unknown; valid are 0, 1" in done.stderr
