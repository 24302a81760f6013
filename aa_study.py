"""aa_study.py - the same operators, in fresh processes, nothing changed: what is this machine's noise?

USAGE   OPS=OP[,OP...] [KNOB=VALUE ...] python aa_study.py        (make aa OPS=...)
          OPS=abs,softmax,mm PROCESSES=6 TIMERS=graph,do_bench python aa_study.py
        python aa_study.py --read RUN                              analyse RUN again (BAND=0.01 asks with another band)
KNOBS   PROCESSES  fresh processes per operator and timer, an even number (6); half as many rounds
        TIMERS     comma list (graph,do_bench,event)
        BAND       what the verdicts are held against (0.02, as ab_test.sh)
        DEVICES    one device; RUN the directory to make; and those of run_pytest.sh (DTYPES, SHAPES, CACHE, REPO, ...)
WHAT    Per operator one process tunes and records; it is not counted. Then PROCESSES times each timer, with the timers
        in order and in reversed order by turns, all replaying the record, so that tuning is no source of noise.
INPUT   run_pytest.sh's run directories: samples.jsonl, run.log
OUTPUT  RUN (default runs/aa-<UTC stamp>; runs/latest-aa is a link to it)/
          aa.json                         what was asked for
          <repo>/<op>/record, <n>-<timer> run directories
          aa.csv                          one row per operator, dtype, shape, column and timer
          noise.json                      one entry per timer: what `ab` and a campaign read (common/noise.py)
        and on stdout
          method         rows  within  between  p95   alarms  verdicts  band
          graph cold     12    0.04%   0.11%    0.4%  4.7%    0.0%      0.3%
          do_bench cold  12    3.10%   6.20%    31%   5.2%    0.8%      22.4%
EXIT    0 done, 1 a process failed or a row has no time in one, 2 usage, 3 refused (also: no device that measures time)
NEEDS   scipy, tabulate. LIMITS  An operator costs 1 + PROCESSES x TIMERS processes of 15 to 60 s.
"""
import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from tabulate import tabulate

from common import noise
from common.device_lock import hold_devices
from common.devices import apply_changes, child_environment, select_devices
from common.errors import BAD_RESULT, DONE, REFUSED, UserError, run_main
from common.inputs import check_cache_place
from common.runlog import parse_runlog
from common.replay_log import find_replay_fault
from common.session import find_session_fault
from common.state import read_json, utc_now, write_json_atomic, write_text_atomic
from common.trees import find_trees

ROOT = Path(__file__).resolve().parent
TIMERS = ("graph", "do_bench", "event")
KEY = ("op", "dtype", "detail", "column", "timer", "cache")


def split_names(text):
    """The names of a comma list, each once."""
    return list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def read_settings(environ):
    """What is asked for, checked: {"ops": [...], "processes": 6, "timers": [...], "band": 0.02}."""
    ops = split_names(environ.get("OPS", ""))
    if not ops:
        raise UserError("OPS: empty; name operators: OPS=abs,softmax")
    processes = environ.get("PROCESSES") or "6"
    if not processes.isdecimal() or int(processes) < 2 or int(processes) % 2:
        raise UserError(f"PROCESSES: {processes}: give an even number from 2 on, as PROCESSES=6")
    timers = split_names(environ.get("TIMERS", "")) or list(TIMERS)
    for name in timers:
        if name not in TIMERS:
            raise UserError(f"TIMERS: {name}: unknown; valid are {', '.join(TIMERS)}")
    if environ.get("CACHE") == "warm" and "do_bench" in timers:
        raise UserError("CACHE: warm: do_bench always flushes the L2; leave it out: TIMERS=graph,event")
    return {"ops": ops, "processes": int(processes), "timers": timers, "band": noise.parse_band(environ.get("BAND") or 0.02)}


def list_runs(processes, timers):
    """[(process from 1, timer)] in the order in which they are run: the timers mirrored from process to process."""
    return [(number, timer) for number in range(1, processes + 1) for timer in (timers if number % 2 else timers[::-1])]


# ---- running

def claim_run(environ):
    """The new run directory."""
    run = Path(environ.get("RUN") or ROOT / "runs" / f"aa-{utc_now().replace(':', '').replace('-', '')}")
    run.parent.mkdir(parents=True, exist_ok=True)
    try:
        run.mkdir()
    except FileExistsError:
        raise UserError(f"RUN: {run}: exists; name a new directory, or read it again: --read {run}") from None
    if not environ.get("RUN"):
        link = run.parent / "latest-aa"
        link.unlink(missing_ok=True)
        link.symlink_to(run.name)
    return run.resolve()


def run_study(run, settings, environ):
    """All processes of the study, one after the other."""
    for op in settings["ops"]:
        folder = run / settings["repo"] / op
        folder.mkdir(parents=True)
        record = folder / "record"
        run_once(record, op, {**environ, "TIMER": settings["timers"][0]})
        replay = {"REPLAY_FROM": str(record), "REPLAY_STRICT": "0"} if (record / "autotune.json").exists() else {}
        for number, timer in list_runs(settings["processes"], settings["timers"]):
            run_once(folder / f"{number}-{timer}", op, {**environ, **replay, "TIMER": timer})


def run_once(directory, op, environ):
    """One fresh process of run_pytest.sh. A refusal ends the study: the next process would be refused too."""
    print(f"aa_study.py: {op} {directory.name}", flush=True)
    done = subprocess.run([ROOT / "run_pytest.sh", op], env={**environ, "RUN_DIR": str(directory)}, text=True, check=False,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if not (directory / "run.log").exists():
        reason = done.stderr.strip().splitlines()[-1:] or [f"run_pytest.sh ended with {done.returncode}"]
        code = done.returncode if done.returncode in (2, 3) else REFUSED
        raise UserError(reason[0].removeprefix("run_pytest.sh: error: "), code)


# ---- reading

def find_fault(directory, text):
    """Why a process, whose run.log is `text`, is not one of the study; "" if it is."""
    log = parse_runlog(text)
    replays = log.header.get("replay_from")
    return find_session_fault(directory, log) or (replays and find_replay_fault(directory, text, False)) or ""


def read_process(directory):
    """{key: (ms or None, spread or None)} of one run directory, key as KEY; the last figure of a key counts. {} for a process
    that ended early, whose log lost rows, or that tuned for itself where it was to replay."""
    figures, path = {}, directory / "samples.jsonl"
    log = directory / "run.log"
    if log.is_file() and find_fault(directory, log.read_text(encoding="utf-8", errors="replace")):
        return figures
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            block = json.loads(line)
        except ValueError:
            continue  # the last line of a process that was killed
        if block.get("kind") == "column":
            time = None if block["fault"] else block["latency_ms"]
            figures[tuple(block[name] for name in KEY)] = (time, block["spread"])
    return figures


def read_study(run, settings):
    """The Series of the study. UserError REFUSED if there is no time in it at all."""
    found = []
    for op in settings["ops"]:
        for timer in settings["timers"]:
            folder = run / settings["repo"] / op
            processes = [read_process(folder / f"{n}-{timer}") for n in range(1, settings["processes"] + 1)]
            for key in dict.fromkeys(key for figures in processes for key in figures):
                figures = [figures.get(key, (None, None)) for figures in processes]
                found.append(noise.Series(*key, tuple(t for t, _ in figures), tuple(s for _, s in figures)))
    if not found:
        log = next(iter(sorted((run / settings["repo"]).glob("*/*/run.log"))), None)
        header = parse_runlog(log).header if log else {}
        is_host = header.get("cache") == "host"
        why = "the host device measures no time" if is_host else "no process wrote samples.jsonl; see its run.log"
        raise UserError(f"{run}: {why}", REFUSED)
    return found


def write_csv(found, path):
    text = io.StringIO()
    names = ("schema", *KEY, *noise.Spread.__dataclass_fields__, "times_ms")
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for series, spread in found:
        row = {"schema": 1, **{name: getattr(series, name) for name in KEY}, **asdict(spread),
               "times_ms": " ".join("" if t is None else f"{t:.6g}" for t in series.times)}
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    write_text_atomic(path, text.getvalue())


def print_methods(methods, settings, found):
    def share(value, digits=2):
        return "" if value is None else f"{value:.{digits}%}"

    rows = [(method, m["rows"], share(m["within"]), share(m["between"]), share(m["between_p95"]), share(m["alarms"], 1),
             share(m["verdicts"], 1), share(m["band"], 1)) for method, m in methods.items()]
    print(tabulate(rows, ("method", "rows", "within", "between", "p95", "alarms", "verdicts", "band"), tablefmt="plain",
                   disable_numparse=True))
    missing = sum(None in series.times for series, _ in found)
    print(f"\n{len(settings['ops'])} operators, {settings['processes']} processes per timer, {len(found)} figures, "
          f"{missing} of them missing in a process; alarms at a nominal 5 %, verdicts beyond a band of {settings['band']:.1%}.")
    return missing


def analyse(run, settings):
    """aa.csv, noise.json and the table; the exit status."""
    found = [(series, noise.summarize_series(series, settings["band"])) for series in read_study(run, settings)]
    methods = noise.summarize_methods(found)
    device = find_device_name(run, settings["repo"]) or settings["device"]
    write_csv(found, run / "aa.csv")
    write_json_atomic(run / "noise.json", {"schema": 1, "device": device, "repo": settings["repo"],
                                           "created": settings["created"], "processes": settings["processes"], "timers": methods})
    missing = print_methods(methods, settings, found)
    print(run / "noise.json")
    return BAD_RESULT if missing else DONE


def find_device_name(run, repo):
    """The card's name as the plugins saw it, from the record of an operator; None without one."""
    for path in sorted((run / repo).glob("*/record/autotune.json")):
        name = (read_json(path) or {}).get("meta", {}).get("device")
        if name:
            return name
    return None


def main(argv):
    """See the header."""
    if argv in (["-h"], ["--help"]):
        print(__doc__)
        return DONE
    if len(argv) == 2 and argv[0] == "--read":
        settings = read_json(Path(argv[1]) / "aa.json")
        needed = {"ops", "processes", "timers", "band", "repo", "device", "created"}
        if not isinstance(settings, dict) or not needed <= settings.keys():
            raise UserError(f"{argv[1]}/aa.json: missing, cut, or not of this version; name a run directory of aa_study.py")
        return analyse(Path(argv[1]), {**settings, "band": noise.parse_band(os.environ.get("BAND") or settings["band"])})
    if argv:
        raise UserError(f"{' '.join(argv)}: unknown arguments, or --read without its RUN; knobs are environment variables, "
                        "see --help")
    settings = read_settings(os.environ)
    check_cache_place("RUN", os.environ.get("RUN") or ROOT / "runs")
    device = select_devices(os.environ, sys.executable)[0]
    if device.is_host:
        raise UserError(f"DEVICES: {device.name}: the host device measures no time; run the study on a card", REFUSED)
    environ = apply_changes(dict(os.environ), child_environment(device, os.environ))
    environ |= {"DEVICES": device.name, "DEVICE": device.name, "PYTHON": sys.executable}
    repo = os.environ.get("REPO") or next(iter(find_trees(os.environ)))
    settings |= {"repo": repo, "device": device.name, "created": utc_now()}
    environ["REPO"] = repo
    with hold_devices([device], os.environ, os.environ.get("RUN") or ROOT / "runs") as held:
        run = claim_run(os.environ)
        write_json_atomic(run / "aa.json", {"schema": 1, **settings})
        run_study(run, settings, environ | held)
    return analyse(run, settings)


if __name__ == "__main__":
    run_main(main)
