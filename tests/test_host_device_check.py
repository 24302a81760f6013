"""check.py: right on the pinned versions, and able to find every wrong result that it is there for.

Run as a script (`python test_host_device_check.py`), this file undoes one patch of the host device after the
other and prints what check.py's own cases then say, as JSON: {"name of the undone patch": {"case": "problem"}}.
"""
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHECK = ROOT / "plugins/host_device/check.py"


def run_python(*args, **extra):
    environ = dict(os.environ, PYTHONPATH=str(ROOT / "plugins"), **extra)
    return subprocess.run([sys.executable, *map(str, args)], capture_output=True, text=True, env=environ, timeout=600)


@pytest.fixture(scope="module")
def table():
    """check.py's whole table: {(check, dtype): (launches, result)}, and its last line."""
    ended = run_python(CHECK)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    header, *lines, last = ended.stdout.splitlines()
    assert header.split() == ["check", "dtype", "launches", "result"]
    rows = {}
    for line in lines:
        dtype, launches, result = line[30:].split(maxsplit=2)
        rows[line[:30].strip(), dtype] = int(launches), result
    return rows, last


def test_every_check_is_right_and_launched(table):
    rows, last = table
    assert {result for _, result in rows.values()} == {"ok"}
    assert min(launches for launches, _ in rows.values()) >= 1
    assert last.startswith(f"{len(rows)} checks, 0 wrong, ")


def test_checks_cover_what_was_silently_wrong_and_all_dtypes(table):
    rows, _ = table
    once = "mask_and mask_or mask_not constexpr_defaults constexpr_left_out bfloat16_add compare_dtype bool_argument"
    once += " float_argument out_of_bounds seeds threads min_max loop_index"
    assert {(name, "-") for name in once.split()} <= set(rows)
    for name in ("reduce_rows", "atomic_add", "softmax", "mm", "any (mask and)", "topk"):
        assert {dtype for check, dtype in rows if check == name} == {"float32", "float16", "bfloat16"}


def test_nothing_executed_is_wrong():
    """HOST_MODE=compile launches without executing: poisoned outputs must not pass."""
    ended = run_python(CHECK, "--match", "mask_", HOST_MODE="compile")
    assert ended.returncode == 1
    assert "mask_and                      -                 1  WRONG: index 0, 0: got nan, wanted 0\n" in ended.stdout
    assert "mask_not                      -                 1  WRONG: index 2, 0: got nan, wanted 8\n" in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("3 checks, 3 wrong, ")


@pytest.mark.parametrize(
    "args, message",
    [
        (["--target", "cuda:75"], "'cuda:75' is no target of the host device; use one of: cuda:80, cuda:90"),
        (["--match", "no such thing"], "--match 'no such thing': no such check"),
    ],
)
def test_bad_arguments(args, message):
    ended = run_python(CHECK, *args)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"check.py: error: {'HOST_TARGET: ' if 'cuda' in message else ''}{message}\n"


# ---- every patch undone once


def undo_patches(device):
    """(name, cases that must then be wrong, context that undoes one patch)."""
    import numpy as np
    import triton.language as tl
    from host_device import launcher, numerics, philox, rewriting
    from triton.runtime import interpreter as upstream

    right_scalar, right_result = launcher.make_scalar, numerics.result
    builder, transformer = numerics.HostNumerics, rewriting.KernelTransformer

    def python_scalar(value, dtype):
        return value if isinstance(value, float) else right_scalar(value, dtype)

    def widened_bool(value, dtype):
        return upstream._implicit_cvt(int(value)) if isinstance(value, bool) else right_scalar(value, dtype)

    def left_dtype(data, dtype):
        return upstream.TensorHandle(data, dtype.scalar) if data.dtype == bool else right_result(data, dtype)

    def bind_by_position(self, args):
        types = zip(self.kernel.params, self.signature)
        return {p.name: self.convert(v, t, (p.num,)) for v, (p, t) in zip(args, types)}

    def constant_as_int(self, value, type_name, path):
        if type_name == "constexpr" and not self.kernel.params[path[0]].is_constexpr:
            return right_scalar(value, tl.int32)
        return right_convert(self, value, type_name, path)

    def only_offset(self, state):
        self._offset = int.from_bytes(state.numpy().tobytes()[8:], "little")

    def seed_once(self, seed):
        self._seed, self._offset = getattr(self, "_seed", seed), getattr(self, "_offset", 0)

    right_convert = launcher.HostLauncher.convert
    builtins = {name: f for name, f in rewriting.KERNEL_BUILTINS.items() if name.startswith("_")}
    patch = mock.patch.object
    return [
        ("Python's and, or", ["mask_and", "mask_or"], patch(transformer, "visit_BoolOp", transformer.generic_visit)),
        ("Python's not", ["mask_not"], patch(transformer, "visit_UnaryOp", transformer.generic_visit)),
        ("arguments by position", ["constexpr_left_out"], patch(launcher.HostLauncher, "bind", bind_by_position)),
        ("bits of bfloat16", ["bfloat16_add"], patch(builder, "binary_op", upstream.InterpreterBuilder.binary_op)),
        ("upstream's casts", ["bfloat16_rounding"], patch(builder, "cast_impl", upstream.InterpreterBuilder.cast_impl)),
        ("comparison keeps left dtype", ["compare_dtype"], patch(numerics, "result", left_dtype)),
        ("bool widened", ["bool_argument"], patch(launcher, "make_scalar", widened_bool)),
        ("float raw", ["float_argument"], patch(launcher, "make_scalar", python_scalar)),
        ("1 as int32", ["specialized_one"], patch(launcher.HostLauncher, "convert", constant_as_int)),
        ("Python's min, max, range", ["min_max", "loop_index"], patch(rewriting, "KERNEL_BUILTINS", builtins)),
        ("NaN wins min", ["min_max"], patch(builder, "create_minnumf", lambda s, a, b: s.binary_op(a, b, np.minimum))),
        ("set_state ignores the seed", ["seeds"], patch(philox.PhiloxGenerator, "set_state", only_offset)),
        ("same seed again ignored", ["seeds"], patch(philox.PhiloxGenerator, "manual_seed", seed_once)),
    ]


def report_undone():
    """Run as a script: what the cases say with each patch undone."""
    import host_device

    device = host_device.install(host_device.parse_target("cuda:90"))
    from host_device import check

    checks = {name: (function, tolerance) for name, _, function, tolerance in check.list_checks("", 90)}
    report = {}
    for name, cases, undo in undo_patches(device):
        with undo:
            device.interpreter._rewritten.clear()
            report[name] = {case: check.run_check(device, *checks[case])[1] for case in cases}
    device.interpreter._rewritten.clear()
    cases = {case for found in report.values() for case in found}
    report["nothing"] = {case: check.run_check(device, *checks[case])[1] for case in sorted(cases)}
    print(json.dumps(report))


@pytest.fixture(scope="module")
def undone():
    ended = run_python(Path(__file__), HOST_MODE="")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_no_patch_undone_nothing_wrong(undone):
    assert set(undone.pop("nothing").values()) == {""}


def test_each_undone_patch_is_found(undone):
    undone.pop("nothing", None)
    missed = {name: found for name, found in undone.items() if "" in found.values()}
    assert missed == {} and len(undone) == 13


def test_wrong_results_are_silent_ones(undone):
    """What makes the patches necessary: without them a number comes out, not an error."""
    assert undone["Python's and, or"]["mask_and"] == "index 2, 0: got 8, wanted nan"
    assert undone["bits of bfloat16"]["bfloat16_add"] == "index 0: got 1.70141183e+38, wanted 2"
    assert undone["arguments by position"]["constexpr_left_out"] == "index 0: got 100, wanted 7"
    assert undone["bool widened"]["bool_argument"] == "index 0: got 10, wanted 20"
    assert undone["float raw"]["float_argument"] == "index 0: got 2048, wanted 2048.5"
    assert undone["Python's min, max, range"]["loop_index"] == "index 2: got -128, wanted 128"


if __name__ == "__main__":
    report_undone()
