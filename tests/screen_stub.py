"""screen_stub.py - a tree, an inventory and a stub of run_pytest.sh for tests of run_batch.py that need no torch.

StubScreen(folder)     folder/tree is a tree, folder/ops its inventory, folder/behave/<op> a bash snippet that says what
                       the stub does for that operator (default: one good table)
stub.run("--ops", "abs", FAKE=1)   run_batch.py to its end;  stub.start(...) in the background
stub.marker("abs"), stub.plan(), stub.summary(), stub.attempts("abs")   what it left
stub.list_processes()  what still runs on behalf of this screen

In a snippet: `table` prints a table for each dtype asked for, `test_line OUTCOME ERROR` a line of tests.jsonl, `finish N`
ends with pytest's status N, `refuse_dtype X...` fails as upstream does where one of these is asked for. Without `finish`
the stub goes on with its default.
"""
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.switches import list_switches

COLUMNS = "schema,repo,op,mark,yaml_id,bench_node,bench_file,bench_class,op_name,dtypes,shape_key,test_file,test_nodes," \
          "skip_guard,source,verified"
# The caller's knobs and switches, and what this workplace may have set, never reach a test.
FOREIGN = re.compile(r"^(OPS|MATCH|DTYPES|LEVEL|MODE|SHAPES|TIMER|CACHE|RUN|RUNS|SHARD|SHARD_INDEX|ENGINE|RAY_ADDRESS|BUDGET"
                     r"|TIMEOUT|RETRIES|FRESH|RETRY_FAILED|REPLAY_\w+|DEVICES?"
                     r"|HOST_\w+|USE_FLAGTUNE|FLAGGEMS_\w+|OPS_DIR|RUN_PYTEST|GRACE_S|RETRY_PAUSE_S|\w+_VISIBLE_DEVICES"
                     r"|TRITON_CACHE_DIR|GEMSCREEN_TAG|GEMSCREEN_HELD|GEMS_VENDOR|PYTHON|PYTHONPATH|OMP_NUM_THREADS|MAKE\w*"
                     r"|SUITE|TUNER_CACHE|PLUGINS"
                     r"|SITE_PLUGINS|PYTEST_EXTRA|KILL_AFTER_S|WARMUP_MS|ITER_MS|ATTEMPT|FALLBACK|REPO|RUN_DIR|SETTLE_S)$")

STUB = r"""#!/bin/bash
set -u
[ "$1" != --check ] || exit 0
op=$1; shift
mkdir "$RUN_DIR" || exit 3
echo "run directory: $RUN_DIR"
record() { echo "{\"schema\": 1, \"event\": \"$1\"${2:+, $2}}" >> "$RUN_DIR/session.jsonl"; }
say() { printf '%s\n' "$@"; printf '%s\n' "$@" >> "$RUN_DIR/run.log"; }    # without a process: there are thousands of these stubs
table() {
    local dtype dtypes=${DTYPES:-float16}
    for dtype in ${dtypes//,/ }; do
        say "" "Operator: $op  Performance Test (dtype=torch.$dtype, mode=kernel,level=core)" \
            "Status      Torch Latency (ms)    Gems Latency (ms)         Gems Speedup         Size Detail" \
            "------------------------------------------------------------------------------------------" \
            "SUCCESS               0.010000            0.020000               0.500          [torch.Size([64, 64])]"
        record table "\"op\": \"$op\", \"dtype\": \"torch.$dtype\", \"rows\": [\"0.020000\"]"
    done
}
test_line() {
    printf '{"schema": 1, "node": "%s", "outcome": "%s", "when": "call", "seconds": 0.1, "error": "%s", "reason": "%s"}\n' \
        "$op" "$1" "${2:-}" "${2:-}" >> "$RUN_DIR/tests.jsonl"
}
finish() {
    record finished "\"exit\": $1"
    say "==== gemscreen end ====" "pytest_exit: $1" "finished: 2026-11-30T06:29:31Z" "seconds: 1" "===="
    echo "{\"schema\": 1, \"pytest_exit\": $1}" > "$RUN_DIR/exit.json"
    exit "$1"
}
refuse_dtype() {
    local dtype bad=""
    for dtype; do [[ ,$DTYPES, == *,$dtype,* ]] && bad="$bad${bad:+, }torch.$dtype"; done
    [ -z "$bad" ] && return
    test_line failed "ValueError: Given dtype(s) '$bad'can't be supported by this op '$op'"
    finish 1
}
say "==== gemscreen begin ====" "schema: 1" "repo: $REPO" "op: $op" "nodes: $*" "dtypes: $DTYPES" "level: ${LEVEL:-core}" \
    "mode: ${MODE:-kernel}" "timer: do_bench" "cache: cold" "device: $DEVICE" "attempt: $ATTEMPT" "fallback: $FALLBACK" \
    "record: session.jsonl" "===="
record started; record collected "\"nodes\": []"
if [ -f "$BEHAVE/$op" ]; then . "$BEHAVE/$op"; fi
table
test_line passed
finish 0
"""


class StubScreen:
    """A tree with the operators `ops` below `folder`, and run_batch.py on it with three fake host slots."""

    def __init__(self, folder, ops=("abs", "add", "mm")):
        self.folder, self.runs = folder, folder / "runs"
        self.tree, self.ops_dir, self.behaviour = folder / "tree", folder / "ops", folder / "behave"
        for path in (self.tree / "benchmark", self.ops_dir, self.behaviour):
            path.mkdir(parents=True)
        for name in ("conftest.py", "base.py", "consts.py"):
            (self.tree / "benchmark" / name).write_text("# stub\n")
        (self.tree / "benchmark" / "core_shapes.yaml").write_text("BlasBenchmark:\n  shapes: []\nBenchmark:\n  shapes: []\n")
        self.stub = folder / "stub.sh"
        self.stub.write_text(STUB)
        self.stub.chmod(0o755)
        self.write_ops(ops)

    def write_ops(self, ops):
        """An inventory of `ops`, and a benchmark file for each."""
        lines = ["# repo: main", "# commit: stub", "# verified: yes", COLUMNS]
        for op in ops:
            file = f"benchmark/test_{op}.py"
            (self.tree / file).write_text(f"# {op}\n")
            lines.append(f"1,main,{op},{op},{op},{file}::test_{op},{file},Benchmark,{op},,,,,,ast,yes")
        (self.ops_dir / "inventory_main.csv").write_text("\n".join(lines) + "\n")

    def dismiss(self, op, reason):
        """Dismiss `op`."""
        (self.ops_dir / "dismiss.csv").write_text("schema,repo,op,scope,reason,evidence,date,commit\n"
                                                  f"1,main,{op},vendor=host,{reason},timeout,2026-11-30,ed2508b\n")

    def behave(self, op, snippet):
        """Let the stub do `snippet` for `op`."""
        (self.behaviour / op).write_text(snippet)

    def environ(self, **variables):
        """The environment of run_batch.py; a variable that is None is left out."""
        switches = list_switches(os.environ)
        clean = {name: value for name, value in os.environ.items() if not FOREIGN.match(name) and name not in switches}
        own = {"FLAGGEMS_DIR": self.tree, "OPS_DIR": self.ops_dir, "RUNS": self.runs, "RUN_PYTEST": self.stub,
               "BEHAVE": self.behaviour, "PYTHON": sys.executable, "DEVICES": "host:0,host:1,host:2", "GRACE_S": "0.5",
               "RETRY_PAUSE_S": "0.1"}
        return {**clean, **{name: str(value) for name, value in {**own, **variables}.items() if value is not None}}

    def start(self, *arguments, **variables):
        """run_batch.py in the background, in a session of its own as under cron; its output is in self.output()."""
        with open(self.folder / "output", "wb") as output:
            return subprocess.Popen([sys.executable, ROOT / "run_batch.py", *arguments], env=self.environ(**variables),
                                    stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=self.folder)

    def run(self, *arguments, **variables):
        """run_batch.py to its end; the exit status. Its output is in self.output()."""
        code = self.start(*arguments, **variables).wait(timeout=120)
        print(self.output())            # pytest shows it where a test fails
        return code

    def output(self):
        """stdout and stderr of the last call."""
        return (self.folder / "output").read_text()

    @property
    def latest(self):
        """The newest screen's directory."""
        return (self.runs / "latest-screen").resolve()

    def marker(self, op, run=None):
        """The .complete of `op` without what only the clock knows, or None."""
        path = (run or self.latest) / "main" / op / ".complete"
        return json.loads(path.read_text()) if path.is_file() else None

    def statuses(self, run=None):
        """{op: status} of the markers."""
        return {path.parent.name: json.loads(path.read_text())["status"]
                for path in (run or self.latest).glob("main/*/.complete")}

    def attempts(self, op, run=None):
        """Names of the attempts of `op`, sorted."""
        return sorted(path.name for path in ((run or self.latest) / "main" / op / "attempts").iterdir())

    def read_csv(self, name, run=None):
        """The rows of a CSV of the screen as dicts."""
        with open((run or self.latest) / name, newline="") as stream:
            return list(csv.DictReader(stream))

    def log_facts(self, op, attempt):
        """The banner of an attempt's run.log as a dict."""
        text = (self.latest / "main" / op / "attempts" / str(attempt) / "run.log").read_text()
        return dict(line.partition(": ")[::2] for line in text.split("\n====\n")[0].splitlines()[1:])

    def list_processes(self):
        """(pid, command) of every process below this screen's folder or tagged by it, without zombies."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                        continue
                    if f"BEHAVE={self.behaviour}\0".encode() in (entry / "environ").read_bytes():
                        found.append((int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
                except OSError:
                    continue
        return found

    def wait_for(self, is_so, seconds=30):
        """Wait until `is_so()`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if is_so():
                return
            time.sleep(0.02)
        raise AssertionError(f"not so within {seconds} s:\n{self.output()}")

    def wait_for_attempt(self, op, seconds=30):
        """Wait until the stub of `op` wrote a file `ready` into its first attempt, or one later."""
        self.wait_for(lambda: list(self.runs.glob(f"*/main/{op}/attempts/*/ready")), seconds)

    def end_processes(self):
        """For a failing test: leave nothing behind."""
        for pid, _ in self.list_processes():
            os.kill(pid, signal.SIGKILL)
