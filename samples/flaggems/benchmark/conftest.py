"""Options of the sample benchmarks: the same words, defaults and results as FlagGems' benchmark/conftest.py.

Usage: python -m pytest benchmark/test_abs.py -s --level core --dtypes float16
`Config` is filled before a benchmark module is imported; `benchmark/base.py` reads it from here.
"""

import json
import logging
import os

import flag_gems
import pytest
import torch
import yaml

from . import consts

BUILTIN_MARKS = (
    "parametrize",
    "skip",
    "skipif",
    "xfail",
    "usefixtures",
    "filterwarnings",
    "timeout",
    "tryfirst",
    "trylast",
)
SHAPE_FILE = os.path.join(os.path.dirname(__file__), "core_shapes.yaml")
# One Chinese vendor's image brings a pytest plugin that already owns --mode.
MODE_OPTION = "--fg_mode" if flag_gems.vendor_name == "kunlunxin" else "--mode"

record_logger = logging.getLogger("gemscreen_samples")
record_logger.propagate = False


class BenchConfig:
    """The options of this session, under the names that upstream's plugins and operators read."""

    def __init__(self, config):
        option = config.getoption
        self.mode = consts.BenchMode(option(MODE_OPTION))
        self.bench_level = consts.BenchLevel(option("--level"))
        self.warm_up = int(option("--warmup"))
        self.repetition = int(option("--iter"))
        self.query = option("--query")
        self.parallel = int(option("--parallel") or 0)
        self.shape_file = option("--shape_file")
        self.user_desired_dtypes = [getattr(torch, name) for name in option("--dtypes") or []] or None
        self.user_desired_metrics = option("--metrics")
        self.record_log = option("--record") == "log"
        self.record_json = option("--record") == "json"
        self.output = option("--output")
        self.results = {}


Config = None


def pytest_addoption(parser):
    dtypes = consts.FLOAT_DTYPES + consts.INT_DTYPES + consts.BOOL_DTYPES + [torch.cfloat]
    add = parser.addoption
    add(MODE_OPTION, default="kernel", choices=[m.value for m in consts.BenchMode], help="what a latency is")
    add("--level", default="comprehensive", choices=[v.value for v in consts.BenchLevel], help="which shapes to run")
    add("--warmup", default=consts.DEFAULT_WARMUP_TIME, help="warm-up before each measurement, in ms")
    add("--iter", default=consts.DEFAULT_ITER_TIME, help="length of each measurement, in ms")
    add("--query", action="store_true", default=False, help="print the operators' shapes, measure nothing")
    add("--metrics", action="append", choices=sorted(consts.ALL_AVAILABLE_METRICS), help="metric to measure, repeatable")
    names = [str(dtype).split(".")[-1] for dtype in dtypes]
    add("--dtypes", action="append", choices=names, help="dtype to run, repeatable; default: the operator's own")
    add("--shape_file", default=SHAPE_FILE, help="YAML file of shapes by operator or class name")
    add("--parallel", type=int, default=0, help="accepted for upstream's sake; the samples always run serially")
    add_shared_options(parser)


def add_shared_options(parser):
    """Options that tests/conftest.py owns as well: whoever comes second finds them taken."""
    try:
        parser.addoption("--record", default="none", choices=["none", "log", "json"], help="record results in a file")
        parser.addoption("--output", default="benchmark_result.json", help="file for --record json")
    except ValueError:
        pass
    try:
        parser.addoption("--collect-marks", default=None, help="write the tests' marks to this YAML file, run nothing")
    except ValueError:
        pass


def pytest_configure(config):
    global Config
    Config = BenchConfig(config)
    if Config.record_log:
        start_record_log(config.invocation_params.args)


def start_record_log(args):
    """Opens `result_<arguments>.log` in the current folder, named as upstream names it."""
    words = [str(arg).replace(".py", "").replace("=", "_").replace("/", "_") for arg in args]
    path = "result_{}.log".format("_".join(words)).replace("_-", "-")
    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter("[%(levelname)s] %(message)s"))
    record_logger.handlers[:] = [handler]
    record_logger.setLevel(logging.INFO)


def emit_record_logger(message):
    if Config.record_log:
        record_logger.info(message)


def update_result(op, data):
    """Keeps one table (a dict) for `--record json`."""
    if Config.record_json:
        Config.results.setdefault(op, {}).setdefault("details", []).append(data)


@pytest.fixture(scope="session", autouse=True)
def announce_query(request):
    if request.config.getoption("--query"):
        print("\nThis is query mode; all benchmark functions will be skipped.")


def op_marks(item):
    return [mark.name for mark in item.iter_markers() if mark.name not in BUILTIN_MARKS]


def short_reason(report):
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash else str(report.longrepr)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.opid = (op_marks(item) or [item.nodeid])[0]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report):
    if not Config.record_json or not (report.when == "call" or (report.when == "setup" and report.skipped)):
        return
    reason = None if report.passed else short_reason(report)
    entry = Config.results.setdefault(report.opid, {})
    entry.update(result=report.outcome, reason=reason, test_case=report.nodeid)


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """Merges into an existing file, as upstream does: entries of an earlier run stay in it."""
    if not Config.record_json:
        return
    data = {}
    if os.path.exists(Config.output):
        with open(Config.output) as f:
            data = json.load(f)
    data.update(Config.results)
    with open(Config.output, "w") as f:
        json.dump(data, f, indent=2, default=str)


def pytest_collection_modifyitems(session, config, items):
    path = config.getoption("--collect-marks")
    if not path:
        return
    registered = {line.split(":")[0].strip() for line in config.getini("markers")}
    rows = []
    for item in items:
        row = {"class": item.cls.__name__} if item.cls else {}
        row.update(test_case=item.name, function=item.originalname, file=item.location[0])
        row["marks"] = [name for name in op_marks(item) if name not in registered]
        rows.append(row)
    with open(path, "w") as f:
        yaml.dump(rows, f, indent=2)
    items.clear()
