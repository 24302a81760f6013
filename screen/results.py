"""Read a run from disk: which operators it has, how each ended, and its run.log.

Two kinds of directories are understood:

    a screen            RUN/plan.csv names every op; RUN/<repo>/<op>/.complete and attempts/<n>/run.log
    runs made by hand   any directory: every run.log below it is one operator's run

Output: Run(name, info, results=[OpResult, ...]) sorted by repo, op and attempt. What is unreadable
costs only the op it belongs to, and is said through `warn`.
Requirements: the standard library.
"""

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import INTEGRITY, UserError
from common.outcome import STATUSES, classify_attempt, mark_cascade
from common.runlog import RunLog, parse_runlog
from common.session import read_session
from common.state import MARKER, read_json, read_marker
from screen.plan_file import read_rows

TEST_TEXTS = ("outcome", "when", "error", "reason")     # of a line in tests.jsonl
# These ops ended by themselves: their logs have to be whole.
ENDED = ("ok", "partial", "failed", "skipped")


@dataclass
class OpResult:
    """One operator's result. log_path is None where no run.log is expected (dismissed, not started).

    run_number counts the runs of one op that were made by hand; a screen has one of each.
    """
    repo: str
    op: str
    status: str
    reason: str = ""
    attempt: str = ""
    fallback: str = ""
    device: str = ""
    run_number: int = 1
    log_path: Path = None
    log: RunLog = field(default_factory=RunLog)

    @property
    def key(self):
        return self.repo, self.op

    @property
    def is_tests(self):
        """True if the correctness tests ran (SUITE=tests): they measure nothing."""
        return self.log.header.get("suite") == "tests"

    @property
    def is_host(self):
        """True on the host device: its latencies are no times, so no ratio is made of them."""
        return self.log.header.get("cache") == "host" or bool(self.log.header.get("host_target"))

    @property
    def timer(self):
        return self.log.header.get("timer", "")

    @property
    def cache(self):
        return "host" if self.is_host else self.log.header.get("cache", "")


@dataclass
class Run:
    """A run: info is screen.json's content; of runs made by hand what their logs say (screen/facts.py reads it)."""
    name: str
    info: dict
    results: list


def read_run(path, warn):
    """Run in directory `path`. `warn(text)` is called once for each thing that could not be read.

    UserError: no directory, nothing in it (usage); a plan that is missing or damaged, or a result
    that no plan names (integrity).
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path}: no such directory; give the directory of a screen, as in runs/latest-screen")
    if (path / "screen.json").exists() or (path / "plan.csv").exists():
        info = _read_json_or_none(path / "screen.json")
        if not isinstance(info, dict):
            warn(f"{path / 'screen.json'}: missing or cut; devices and commits are left out")
            info = {}
        results = _read_screen(path, info.get("stale_by"), warn)
    else:
        results = _read_hand_runs(path, warn)
        info = _describe_hand_runs(results)
    return Run(path.resolve().name, info, sorted(results, key=lambda result: (result.key, _natural_key(result.attempt))))


def read_tests(path):
    """The lines of a tests.jsonl as dicts; [] if there is none. A line that is cut is left out."""
    tests = []
    try:
        text = Path(path).read_bytes().decode("utf-8", errors="replace")
    except OSError:
        return tests
    for line in text.split("\n"):
        try:
            test = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(test, dict):
            tests.append({name: _clean(value) if isinstance(value, (str, int, float)) else "" for name, value in test.items()}
                         | {name: "" for name in TEST_TEXTS if not isinstance(test.get(name, ""), str)})
    return tests


def _clean(value):
    """`value`; of a text that is no Unicode what can be written."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def read_pytest_exit(directory):
    """pytest's exit status in directory/exit.json, or None: pytest did not end by itself."""
    content = _read_json_or_none(Path(directory) / "exit.json")
    status = content.get("pytest_exit") if isinstance(content, dict) else None
    return status if isinstance(status, int) and not isinstance(status, bool) else None


def _read_json_or_none(path):
    try:
        return read_json(path)
    except OSError:
        return None


# ---- a screen

def _read_screen(root, stale_by, warn):
    plan = read_rows(root / "plan.csv")
    results = [_read_planned_op(root, row, stale_by, warn) for row in plan]
    unplanned = sorted(_list_op_directories(root) - {result.key for result in results})
    if unplanned:
        names = ", ".join("/".join(key) for key in unplanned[:5]) + (" ..." if len(unplanned) > 5 else "")
        raise UserError(f"{root}: {len(unplanned)} ops have results but are not in plan.csv: {names}; "
                        "move their directories away, or plan them again", INTEGRITY)
    return results


def _list_op_directories(root):
    """(repo, op) of every directory below `root` that holds an attempt or a marker."""
    found = set()
    for repo in filter(Path.is_dir, root.iterdir()):
        found |= {(repo.name, entry.name) for entry in os.scandir(repo) if entry.is_dir()
                  and (os.path.exists(f"{entry.path}/attempts") or os.path.exists(f"{entry.path}/{MARKER}"))}
    return found


def _read_planned_op(root, planned, stale_by, warn):
    result = OpResult(planned["repo"], planned["op"], planned["status"], planned["reason"], device=planned["device"])
    if planned["status"] != "planned":
        if planned["status"] not in STATUSES:
            raise UserError(f"{root / 'plan.csv'}: {result.repo}/{result.op}: status {planned['status']!r} is unknown; "
                            "start the same screen again, it writes its plan anew", INTEGRITY)
        return result
    directory = root / result.repo / result.op
    marker = _read_marker_or_none(directory)
    if marker is None or marker["status"] not in STATUSES:
        if (directory / MARKER).exists():
            warn(f"{directory / MARKER}: cut or unknown; {result.repo}/{result.op} counts as interrupted")
        result.status, result.attempt = "interrupted", _find_last_attempt(directory)
        result.reason = "not finished" if result.attempt else "not started"
    elif stale := _list_stale(marker, stale_by, result.repo):
        result.status, result.reason = "interrupted", f"not measured again: its last result is of another {', '.join(stale)}"
    else:
        result.status, result.reason = marker["status"], marker.get("reason") or ""
        result.attempt, result.fallback = str(marker.get("attempt") or ""), marker.get("fallback") or ""
        result.device = str(marker.get("device") or "") or result.device
    if result.attempt:
        result.log_path = directory / "attempts" / result.attempt / "run.log"
        _read_log(result, warn)
    return result


def _list_stale(marker, stale_by, repo):
    """Names of the inputs (tree, versions, device, ...) in which `marker` is of another start of the screen than the last."""
    wanted = stale_by.get(repo) if isinstance(stale_by, dict) else None
    had = marker.get("inputs") or {}
    return [name for name, digest in wanted.items() if had.get(name) != digest] if isinstance(wanted, dict) else []


def _read_marker_or_none(directory):
    try:
        return read_marker(directory)
    except OSError:
        return None


def _find_last_attempt(directory):
    """Name of the newest directory in `directory`/attempts, "" if there is none."""
    try:
        names = [entry.name for entry in os.scandir(directory / "attempts") if entry.is_dir()]
    except OSError:
        return ""
    return max(names, key=_natural_key, default="")


def _read_log(result, warn):
    """Read the op's run.log; an op whose log lacks what its marker claims is not taken for good."""
    try:
        result.log = parse_runlog(result.log_path)
    except UserError as error:
        is_missing = not result.log_path.exists()
        if result.status in ("ok", "partial") or not is_missing:
            warn(f"{result.repo}/{result.op}: {error}")
        if result.status in ("ok", "partial"):
            result.reason = f"run.log cannot be read (the op ended as {result.status})"
            result.status = "failed"
        if is_missing:      # an attempt that was refused before it started has none
            result.log_path = None
        return
    result.log.rows = mark_cascade(result.log.rows)
    if result.status in ENDED and result.log.is_cut:
        warn(f"{result.repo}/{result.op}: {result.log_path}: {'; '.join(result.log.notes) or 'a row is cut'}; "
             "the rows before it are kept, run the operator again for the rest")
    measured = sum(row.status == "SUCCESS" for row in result.log.rows)
    if result.status in ("ok", "partial") and not measured and not result.is_tests:
        result.reason, result.status = f"run.log has no measured row (the op ended as {result.status})", "failed"
    elif result.status == "ok" and (result.log.is_cut or measured < len(result.log.rows)):
        result.reason, result.status = "run.log is cut or lacks rows (the op ended as ok)", "partial"


# ---- runs made by hand

def _read_hand_runs(root, warn):
    paths = sorted((Path(folder) / "run.log" for folder, _, files in os.walk(root) if "run.log" in files),
                   key=lambda path: _natural_key(str(path.parent)))
    if not paths:
        raise UserError(f"{root}: neither plan.csv nor a run.log below; give the directory of a screen or of runs by hand")
    results, numbers = [], {}
    for path in paths:
        result = _read_hand_run(path, warn)
        numbers[result.key] = numbers.get(result.key, 0) + 1
        result.run_number = numbers[result.key]
        result.attempt = str(result.run_number)
        results.append(result)
    return results


def _read_hand_run(path, warn):
    directory = path.resolve().parent
    result = OpResult(directory.parent.name, directory.name, "failed", log_path=path)
    try:
        result.log = parse_runlog(path)
    except UserError as error:
        warn(f"{result.repo}/{result.op}: {error}")
        result.reason = "run.log cannot be read"
        return result
    header = result.log.header
    result.repo, result.op = header.get("repo") or result.repo, header.get("op") or result.op
    result.device, result.fallback = header.get("device", ""), header.get("fallback", "")
    pytest_exit = read_pytest_exit(directory)
    if pytest_exit is None and result.log.footer.get("pytest_exit", "").isdigit():
        pytest_exit = int(result.log.footer["pytest_exit"])
    outcome = classify_attempt(ended="exit", returncode=None, pytest_exit=pytest_exit, log=result.log,
                               tests=read_tests(directory / "tests.jsonl"), session=read_session(directory))
    result.status, result.reason = outcome.status, outcome.reason
    result.log.rows = mark_cascade(result.log.rows)
    return result


def _describe_hand_runs(results):
    """What the logs say of where they were made, as screen.json would."""
    headers = [result.log.header for result in results]
    repos = {header["repo"]: {"commit": header["commit"]} for header in headers
             if header.get("repo") and header.get("commit", "unknown") != "unknown"}
    info = {"repos": repos, "devices": sorted({header["device"] for header in headers if header.get("device")})}
    if "samples" in repos:
        info["harness"] = repos["samples"].pop("commit")    # the sample tree has gemscreen's commit
    return info


def _natural_key(text):
    """Sort key that puts `abs-2` before `abs-10`, and `abs` before both."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]
