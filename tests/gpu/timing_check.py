"""timing_check.py - issue 5's claims on a real card, as one table. Not part of `make test`.

USAGE   source the environment that has torch, triton, flag_gems and FLAGGEMS_DIR, then in the project's root
          python tests/gpu/timing_check.py                       spread cases physics pace: one card, 8 to 10 minutes
          python tests/gpu/timing_check.py warmup                two cards, about 8 minutes
PARTS   spread   16 operators (or SPREAD_OPS=abs,sum) x 3 shapes, PROCESSES (6) fresh processes: graph and do_bench in each
        cases    capture that fails, random numbers, in place, another stream, nothing launched, a lost device, ...
        physics  abs: cold and warm by graph, by event and by the profiler; more and less rotation; do_bench's flush
        pace     seconds per column, from spread's samples; upstream's own defaults beside it
        warmup   mm, 16 shapes: sweep on two cards against one, and the serial run's latencies after both
OUTPUT  OUT (default runs/timing-check)/report.txt, which is also printed; the runs in OUT/<time>/, or, where OUT is
        given, in /tmp/timing-check/<time>/
EXIT    0 all held, 1 something did not, 2 no such part
LIMITS  cases and physics run in processes of their own: this one must hold no context on the card, or every block of the
        others is void, "shared with process N".
"""
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from aa_study import read_process  # noqa: E402
from common import noise  # noqa: E402
from common.runlog import parse_runlog  # noqa: E402

OPS = ("abs", "add", "mul", "exp", "gelu", "silu", "sigmoid", "tanh", "relu", "softmax", "log_softmax", "layer_norm",
       "sum", "mean", "cumsum", "argmax")
SHAPES = [[64, 64], [4096, 4096], [16384, 16384]]
MM_SHAPES = [[1, m, n, k] for m in (256, 512, 1024, 2048) for n, k in ((512, 512), (1024, 2048), (4096, 1024), (4096, 4096))]
MAX_BETWEEN = 0.005
MAX_COLUMN_SECONDS = 0.25
MIN_SPEEDUP = 1.7


class Report:
    """Lines for people, and what did not hold."""

    def __init__(self, path):
        self.path = path
        path.touch()

    @property
    def failed(self):
        """What did not hold, whichever process found it."""
        return [line[5:] for line in self.path.read_text(encoding="utf-8").splitlines() if line.startswith("FAIL ")]

    def say(self, text=""):
        print(text, flush=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(text + "\n")

    def check(self, holds, text):
        self.say(f"{'ok  ' if holds else 'FAIL'} {text}")


def write_shapes(path, table):
    path.write_text("".join(f"{op}:\n  shapes: {shapes}\n" for op, shapes in table.items()))
    return path


def run_pytest(folder, op, nodes, **knobs):
    """run_pytest.sh into `folder`; (seconds, RunLog)."""
    began = time.monotonic()
    env = {**os.environ, "RUN_DIR": str(folder), "PYTHON": sys.executable, "REPO": "main", "DTYPES": "float16",
           **{name: str(value) for name, value in knobs.items()}}
    with open(f"{folder}.out", "w", encoding="utf-8") as out:
        subprocess.run([ROOT / "run_pytest.sh", op, *nodes], env=env, stdout=out, stderr=subprocess.STDOUT, check=False)
    return time.monotonic() - began, parse_runlog(folder / "run.log")


# ---- spread and pace

def check_spread(out, report):
    """Six fresh processes, every figure by both timers."""
    processes = int(os.environ.get("PROCESSES", "6"))
    ops = tuple(filter(None, os.environ.get("SPREAD_OPS", "").split(","))) or OPS
    nodes = [f"benchmark/test_{op}.py::test_{op}" for op in ops]
    knobs = {"SHAPES": write_shapes(out / "spread.yaml", dict.fromkeys(OPS, SHAPES)), "WARMUP_MS": 100, "ITER_MS": 100,
             "TIMER": "graph"}
    both = {"PYTEST_EXTRA": "--metrics=latency -p both_timers",
            "PYTHONPATH": f"{ROOT / 'tests/gpu'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    seconds, log = run_pytest(out / "record", "spread", nodes, **knobs)
    report.say(f"\nspread: tuned and recorded in {seconds:.0f} s, {len(log.rows)} rows")
    found = []
    for number in range(1, processes + 1):
        seconds, log = run_pytest(out / f"spread-{number}", "spread", nodes, REPLAY_FROM=out / "record", **knobs, **both)
        found.append(read_process(out / f"spread-{number}"))
        report.say(f"spread: process {number} took {seconds:.0f} s, {sum(r.status == 'SUCCESS' for r in log.rows)} rows")
    series = []
    for key in dict.fromkeys(key for figures in found for key in figures):
        figures = [figures.get(key, (None, None)) for figures in found]
        series.append(noise.Series(*key, tuple(t for t, _ in figures), tuple(s for _, s in figures)))
    print_spread(series, report, len(ops) * len(SHAPES))


def print_spread(series, report, wanted):
    """The table, its medians, and whether they hold, of `wanted` rows; fewer than 4 processes have no verdicts."""
    def share(value, digits=2):
        return "-" if value is None else f"{value:.{digits}%}"

    summaries = [(s, noise.summarize_series(s, 0.02)) for s in series]
    rows = {}
    for s, spread in summaries:
        rows.setdefault((s.op, s.detail), {})[s.timer] = spread
    columns = " ".join(f"{name:>10} {'within':>8} {'between':>8}" for name in ("graph ms", "do_bench"))
    report.say(f"{'op':<12} {'shape':<44} {columns}")
    for (op, detail), timers in sorted(rows.items()):
        cells = [f"{t.median_ms:>10.5f} {share(t.within):>8} {share(t.between):>8}" if t and t.median_ms else f"{'-':>28}"
                 for t in (timers.get("graph"), timers.get("do_bench"))]
        report.say(f"{op:<12} {detail.replace('torch.Size', '')[:44]:<44} {' '.join(cells)}")
    for method, m in noise.summarize_methods(summaries).items():
        report.say(f"{method}: {m['rows']} rows, median within {share(m['within'], 3)}, median between {share(m['between'], 3)}, "
                   f"p95 between {share(m['between_p95'])}, alarms {share(m['alarms'], 1)} at 5 %, band {share(m['band'], 1)}")
    graph = noise.summarize_methods(summaries).get("graph cold") or {"between": 1.0, "rows": 0}
    report.check(graph["between"] < MAX_BETWEEN and graph["rows"] >= 0.9 * wanted,
                 f"median between-process spread by graph {graph['between']:.3%} < 0.5 % over {graph['rows']} rows")


def check_pace(out, report):
    """Seconds per column under 1 ms, from what spread left; and upstream's defaults, for two operators."""
    import json
    seconds, slow, tries = [], [], {}
    for path in sorted(out.glob("spread-*/samples.jsonl")):
        for line in path.read_text().splitlines():
            block = json.loads(line)
            place = f"{block['op']} {block['detail']} in {path.parent.name}"
            if block["kind"] == "block":
                tries[place] = f"{block['try']} tries {block['void']}".strip()
            if block["kind"] == "column" and block["timer"] == "graph" and block["latency_ms"] < 1:
                seconds.append(block["seconds"])
                slow.append((block["seconds"], f"{place}: {block['seconds']:.3f} s, {tries.get(place)}"))
    report.say(f"\npace: {len(seconds)} columns under 1 ms")
    if seconds:
        report.check(statistics.mean(seconds) < MAX_COLUMN_SECONDS,
                     f"mean {statistics.mean(seconds):.3f} s per column (median {statistics.median(seconds):.3f}, "
                     f"max {max(seconds):.3f}) < 0.25 s")
        for _, text in sorted(slow, reverse=True)[:5]:
            report.say(f"     slowest: {text}")
    run_pytest(out / "pace", "pace", ["benchmark/test_abs.py::test_abs", "benchmark/test_gelu.py::test_gelu"], TIMER="do_bench",
               SHAPES=out / "spread.yaml", REPLAY_FROM=out / "record")
    figures = [json.loads(line) for line in (out / "pace/samples.jsonl").read_text().splitlines()]
    figures = [f["seconds"] for f in figures if f["kind"] == "column"]
    report.say(f"     upstream's defaults (1000 + 100 ms): {statistics.mean(figures):.2f} s per column, {len(figures)} columns")


# ---- warm-up

def check_warmup(out, report):
    """Sweep of mm on two cards and on one, each with empty caches; the latencies that follow."""
    shapes = write_shapes(out / "mm.yaml", {"mm": MM_SHAPES})
    sweeps, tables = {}, {}
    for count in (2, 1, 1):  # the second run on one card shows how far two serial runs are apart
        name = f"warmup-{count}" if count not in sweeps else "warmup-1-again"
        seconds, log = run_pytest(out / name, "mm", ["benchmark/test_mm.py::test_mm"], SHAPES=shapes, PARALLEL_WARMUP_GPUS=count,
                                  TUNER_CACHE="isolated", **({"REPLAY_FROM": out / "warmup-1"} if count in sweeps else {}))
        text = (out / name / "run.log").read_text()
        line = next((x for x in text.splitlines() if x.startswith("PARALLEL_WARMUP ")), "PARALLEL_WARMUP nothing sweep=nan")
        report.say(f"\nwarmup: {name}: {seconds:.0f} s in all; {line}")
        for warning in [x for x in text.splitlines() if x.startswith("WARNING: PARALLEL_WARMUP")]:
            report.say(warning)
        sweeps.setdefault(count, float(line.split("sweep=")[1].split()[0]))
        tables[name] = {row.shape: row.latency_ms for row in log.rows if row.status == "SUCCESS"}
    report.check(sweeps[1] / sweeps[2] >= MIN_SPEEDUP, f"sweep {sweeps[1]:.0f} s on one card, {sweeps[2]:.0f} s on two: "
                 f"{sweeps[1] / sweeps[2]:.2f} times faster")
    for one, other in (("warmup-1", "warmup-2"), ("warmup-1", "warmup-1-again")):
        ratios = [tables[other][s] / t for s, t in tables[one].items() if tables[other].get(s)]
        report.say(f"latencies, {other} over {one}: {len(ratios)} rows, median {statistics.median(ratios):.4f}, "
                   f"from {min(ratios):.4f} to {max(ratios):.4f}")


PARTS = {"spread": check_spread, "pace": check_pace, "warmup": check_warmup}
APART = ("cases", "physics")  # they use the card in the process that runs them


def run_apart(part, work, report):
    """A part in a process of its own, which adds to the same report."""
    subprocess.run([sys.executable, __file__, "--apart", part, work, report.path], check=True)


def main(parts):
    if parts in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if parts[:1] == ["--apart"]:
        from timing_cases import check_cases
        from timing_physics import check_physics
        {"cases": check_cases, "physics": check_physics}[parts[1]](Path(parts[2]), Report(Path(parts[3])))
        return 0
    known = (*APART, *PARTS)
    if unknown := [part for part in parts if part not in known]:
        print(f"timing_check.py: error: {unknown[0]}: unknown; the parts are {', '.join(known)}", file=sys.stderr)
        return 2
    out = Path(os.environ.get("OUT") or ROOT / "runs/timing-check").resolve()
    out.mkdir(parents=True, exist_ok=True)
    # The runs are large; OUT may be copied home. A directory per call: run_pytest.sh never writes into an old one.
    work = (Path("/tmp/timing-check") if os.environ.get("OUT") else out) / time.strftime("%H%M%S")
    work.mkdir(parents=True)
    (out / "report.txt").unlink(missing_ok=True)
    report = Report(out / "report.txt")
    for part in parts or ("cases", "physics", "spread", "pace"):
        began = time.monotonic()
        try:
            run_apart(part, work, report) if part in APART else PARTS[part](work, report)
        except Exception as error:  # noqa: BLE001 - the other parts are still worth their time on the card
            report.check(False, f"{part}: {type(error).__name__}: {error}")
        report.say(f"     {part}: {time.monotonic() - began:.0f} s")
    failed = report.failed
    report.say(f"\n{len(failed)} failed" + "".join(f"\n  {text}" for text in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
