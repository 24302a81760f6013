#!/usr/bin/env python3
"""Prove that the host device computes, and computes right (`make host-check`).

Purpose   The executing half of the host device leans on private parts of Triton and was silently wrong before. This
          script launches real kernels on outputs full of NaN and compares with literal values and with torch.
Usage     python plugins/host_device/check.py [--target cuda:90] [--match TEXT] [--any-version]
Input     nothing. --match runs only the checks whose name contains TEXT; --any-version also runs on versions that are
          not on passed.json (that is how `make host-matrix` finds out whether they belong there).
Output    one line per check, and a last line with the counts:
            check                         dtype      launches  result
            mask_and                      -                 1  ok
            softmax                       bfloat16          1  ok
            bfloat16_add                  -                 1  WRONG: index 0: got inf, wanted 2.0
            65 checks, 1 wrong, 34 s
Exit      0 all right, 1 something is wrong, 2 usage, 3 a version is refused.
Needs     torch (CPU), triton, flag_gems. About 1 minute, less with a warm Triton cache.
"""

import argparse
import os
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import host_device  # noqa: E402


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description="Prove that the host device computes right.")
    parser.add_argument("--target", default=os.environ.get("HOST_TARGET") or "cuda:90", help="default cuda:90")
    parser.add_argument("--match", default="", metavar="TEXT", help="only checks whose name contains TEXT")
    parser.add_argument("--any-version", action="store_true", help="also on versions that have not passed")
    return parser.parse_args(argv)


def list_checks(match, arch):
    """(name, dtype name, function returning (got, wanted), tolerance) of those that match and ``arch`` can compile."""
    import flag_gems
    import torch

    from host_device import check_blocks, check_kernels, check_operators

    cases = check_kernels.LANGUAGE_CASES + check_blocks.BLOCK_CASES + check_kernels.FLOAT8_CASES * (arch >= 89)
    checks = [(case.__name__, "-", case, 1e-6) for case in cases]
    for case in check_blocks.DTYPE_CASES:
        for dtype in check_operators.DTYPES:
            checks.append((case.__name__, name_dtype(dtype), lambda c=case, d=dtype: c(d), 1e-6))
    for name, run in (("seeds", check_operators.check_seeds), ("own_generator", check_operators.check_own_generator)):
        checks.append((name, "-", lambda r=run: r(flag_gems.use_gems), 0.0))
    for name in check_operators.OPERATORS:
        for dtype in check_operators.DTYPES:
            run = lambda n=name, d=dtype: check_operators.run_operator(n, d, flag_gems.use_gems)  # noqa: E731
            checks.append((name, name_dtype(dtype), run, check_operators.TOLERANCE[dtype]))
    torch.manual_seed(0)
    return [check for check in checks if match in check[0]]


def name_dtype(dtype):
    return str(dtype).removeprefix("torch.")


def find_difference(got, wanted, tolerance):
    """'' if equal within the tolerance (NaN equals NaN), else the first difference in words."""
    import torch

    got, wanted = got.detach().double(), wanted.detach().double()
    if got.shape != wanted.shape:
        return f"shape {tuple(got.shape)}, wanted {tuple(wanted.shape)}"
    same = torch.isclose(got, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
    if same.all():
        return ""
    index = tuple((~same).nonzero()[0].tolist())
    where = ", ".join(map(str, index)) or "scalar"
    return f"index {where}: got {got[index].item():.9g}, wanted {wanted[index].item():.9g}"


def run_check(device, function, tolerance):
    """(launches, '' or what is wrong). An exception is a wrong result, not the end of the run."""
    before = device.recorder.total_launches
    try:
        got, wanted = function()
        problem = find_difference(got, wanted, tolerance)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    launches = device.recorder.total_launches - before
    if not problem and launches == 0:
        problem = "no Triton kernel was launched"
    return launches, problem


def run_checks(device, checks):
    """Run and print them; returns how many are wrong."""
    print(f"{'check':<30}{'dtype':<10}{'launches':>9}  result")
    wrong = 0
    for name, dtype, function, tolerance in checks:
        launches, problem = run_check(device, function, tolerance)
        wrong += bool(problem)
        print(f"{name:<30}{dtype:<10}{launches:>9}  {'WRONG: ' + problem if problem else 'ok'}", flush=True)
    return wrong


def main(argv):
    arguments = parse_arguments(argv)
    warnings.simplefilter("ignore")  # upstream kernels warn about deprecated spellings, once per compilation
    start = time.monotonic()
    try:
        target = host_device.parse_target(arguments.target, os.environ.get("HOST_MODE") or "execute")
        device = host_device.install(target, any_version=arguments.any_version)
        checks = list_checks(arguments.match, target.arch)
    except host_device.HostDeviceError as error:
        print(f"check.py: error: {error}", file=sys.stderr)
        return error.code
    if not checks:
        print(f"check.py: error: --match {arguments.match!r}: no such check", file=sys.stderr)
        return 2
    wrong = run_checks(device, checks)
    print(f"{len(checks)} checks, {wrong} wrong, {time.monotonic() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
