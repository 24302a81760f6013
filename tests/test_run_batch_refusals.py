"""run_batch.py with bad input (screen_stub.py): a clear error, and nothing happens."""

import pytest


BLAS_BASE = """
class Benchmark:
    def set_shapes(self):
        self.shapes = self.DEFAULT_SHAPES


class BlasBenchmark(Benchmark):
    def get_input_iter(self, dtype):
        for b, m, n, k in self.shapes:
            yield b, m, n, k
"""
BLAS_TEST = """
from . import base


@pytest.mark.mm
def test_mm():
    base.BlasBenchmark(op_name="mm").run()


@pytest.mark.abs
def test_abs():
    base.Benchmark(op_name="abs").run()
"""


@pytest.mark.parametrize("arguments, variables, message", [
    (["--ops", "abs,ad"], {}, "OPS: ad: in no inventory of main; did you mean add"),
    (["--ops", "zzzzzz"], {}, "OPS: zzzzzz: in no inventory of main"),
    (["--match", "("], {}, "MATCH: (: is no regular expression"),
    (["--match", "^zz"], {}, "MATCH: ^zz: matches none of 3 operators"),
    (["--dtypes", "float16,half"], {},
     "DTYPES: half: unknown; valid are float16, float32, bfloat16, int16, int32, bool, complex64"),
    (["--level", "medium"], {}, "LEVEL: medium: unknown; valid are core, comprehensive"),
    ([], {"MODE": "graph"}, "MODE: graph: unknown; valid are kernel, operator, wrapper, cudagraph"),
    (["--shard", "random"], {}, "SHARD: random: unknown; valid are hash, balanced, queue"),
    (["--timeout", "soon"], {}, "TIMEOUT: soon: is no number of seconds"),
    (["--timeout", "0"], {}, "TIMEOUT: 0: is no number of seconds"),
    (["--retries", "-1"], {}, "RETRIES: -1: is no whole number"),
    (["--shapes", "/no/such.yaml"], {}, "SHAPES: /no/such.yaml: no such file"),
    (["--devices", "host:0,host:0"], {}, "DEVICES: host:0: named twice"),
    ([], {"REPLAY_FROM": "/no/record"}, "REPLAY_FROM: /no/record: is not there"),
    ([], {"FLAGGEMS_DIR": "/tmp"}, "FLAGGEMS_DIR: /tmp: is no checkout"),
    ([], {"OPS_DIR": "/tmp"}, "/tmp/inventory_main.csv: missing"),
    ([], {"RUN_PYTEST": "/no/stub"}, "RUN_PYTEST: /no/stub: is no executable file"),
    (["--run", "tree"], {}, "is not empty and no screen"),
    (["--run", "/tmp/a?b"], {}, "run_batch.py: error: RUN: /tmp/a?b: has a `?`, at which the URL of FlagGems' tuner database "
                                "would end; name another place\n"),
    ([], {"RUNS": "/tmp/a?b"}, "RUNS: /tmp/a?b: has a `?`"),
    (["--frobnicate"], {}, "unrecognized arguments: --frobnicate"),
])
def test_bad_input(stub, arguments, variables, message):
    assert stub.run(*arguments, **variables) == 2
    assert message in stub.output()
    assert "Traceback" not in stub.output()
    assert not stub.runs.exists()


def test_an_inventory_with_a_missing_column(stub):
    path = stub.ops_dir / "inventory_main.csv"
    path.write_text(path.read_text().replace(",bench_node,", ",node,"))
    assert stub.run() == 2
    assert "inventory_main.csv" in stub.output() and "bench_node" in stub.output()


def test_a_shape_file_without_class_keys_is_refused_before_anything_runs(stub):
    (stub.tree / "benchmark/base.py").write_text(BLAS_BASE)
    (stub.tree / "benchmark/test_abs.py").write_text(BLAS_TEST)
    shapes = stub.folder / "my.yaml"
    shapes.write_text("abs:\n  shapes:\n  - [64, 64]\n")
    assert stub.run("--shapes", str(shapes), "--ops", "abs") == 2
    assert "my.yaml: lacks the class keys Benchmark, BlasBenchmark" in stub.output()
    assert not list(stub.runs.glob("screen-*"))
    shapes.write_text("BlasBenchmark:\n  shapes:\n  - [1, 2, 3, 4]\nBenchmark:\n  shapes:\n  - [64, 64]\n")
    assert stub.run("--shapes", str(shapes), "--ops", "abs") == 0
    assert "warning" not in stub.output()


@pytest.mark.parametrize("knob", ["TIMEOUT", "GRACE_S"])
def test_a_limit_that_is_no_number_is_refused(stub, knob):
    assert stub.run(**{knob: "nan"}) == 2
    assert f"{knob}: nan: is no number of seconds" in stub.output()
