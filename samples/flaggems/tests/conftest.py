"""Options of the sample accuracy tests, the words of FlagGems' tests/conftest.py; the code is gemscreen's own."""

import json
import os

import flag_gems
import yaml

BUILTIN_MARKS = {
    "filterwarnings",
    "parametrize",
    "skip",
    "skipif",
    "timeout",
    "tryfirst",
    "trylast",
    "usefixtures",
    "xfail",
}


class TestConfig:
    """The options of this session; `results` gathers what `--record json` writes."""

    __test__ = False

    def __init__(self, config):
        self.to_cpu = config.getoption("--ref") == "cpu"
        self.quick = config.getoption("--quick")
        self.record_json = config.getoption("--record") == "json"
        self.output = config.getoption("--output")
        self.results = {}


Config = None


def pytest_addoption(parser):
    devices = sorted({flag_gems.device, "cpu"})
    parser.addoption("--ref", default=flag_gems.device, choices=devices, help="device of the torch reference")
    parser.addoption("--quick", action="store_true", help="one shape per operator")
    try:
        parser.addoption("--record", default="none", choices=["none", "log", "json"], help="record results in a file")
        parser.addoption("--output", default="accuracy_result.json", help="file for --record json")
    except ValueError:
        pass  # benchmark/conftest.py came first
    try:
        parser.addoption("--collect-marks", default=None, help="write the tests' marks to this YAML file, run nothing")
    except ValueError:
        pass


def pytest_configure(config):
    global Config
    Config = TestConfig(config)


def op_marks(item):
    return [mark.name for mark in item.iter_markers() if mark.name not in BUILTIN_MARKS]


def pytest_runtest_logreport(report):
    if report.when == "call" or (report.when == "setup" and not report.passed):
        Config.results[report.nodeid] = {"result": report.outcome, "reason": report.longreprtext or None}


def pytest_terminal_summary(terminalreporter):
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
    rows = [
        {"test_case": item.name, "function": item.originalname, "file": item.location[0], "marks": op_marks(item)}
        for item in items
    ]
    with open(path, "w") as f:
        yaml.dump(rows, f, indent=2)
    items.clear()
