"""screen/retry.py: every rule of what follows an attempt."""

import pytest

from screen.retry import Attempt, Step, decide_next, name_infrastructure

REQUESTED = ("float16", "int32")


def fail(number, signature="RuntimeError: N", status="failed", **more):
    return Attempt(number, status, signature, dtypes=REQUESTED, **more)


@pytest.mark.parametrize("status", ["ok", "skipped", "not_found", "timeout"])
def test_a_final_status_is_not_tried_again(status):
    attempt = Attempt(1, status, "anything")
    assert decide_next([attempt], 2) == Step("finish", attempt=attempt)


@pytest.mark.parametrize("status", ["failed", "crashed", "partial"])
def test_a_failure_is_tried_again_with_the_same_dtypes(status):
    assert decide_next([fail(1, status=status)], 2) == Step("run", dtypes=REQUESTED)


def test_two_equal_signatures_are_deterministic():
    attempts = [fail(1), fail(2)]
    assert decide_next(attempts, 5) == Step("finish", attempt=attempts[1])
    alternating = [fail(1, "A"), fail(2, "B"), fail(3, "A")]
    assert decide_next(alternating, 5) == Step("finish", attempt=alternating[2])


def test_different_signatures_stop_at_the_limit():
    attempts = [fail(number, f"E{number}") for number in (1, 2, 3)]
    assert decide_next(attempts[:2], 2).kind == "run"
    assert decide_next(attempts, 2) == Step("finish", attempt=attempts[2])
    assert decide_next(attempts[:1], 0).kind == "finish"


def test_the_best_attempt_counts():
    attempts = [fail(1, "A", "partial"), fail(2, "B", "crashed"), fail(3, "A", "failed")]
    assert decide_next(attempts, 5).attempt.number == 1
    attempts = [fail(1, "A", "partial"), Attempt(2, "timeout", "T", dtypes=REQUESTED)]
    assert decide_next(attempts, 5).attempt.number == 1


def test_fallback_goes_first_to_the_supported_subset_then_to_the_ops_own():
    first = fail(1, unsupported=("int32",))
    assert decide_next([first], 2) == Step("run", dtypes=("float16",), fallback="subset")
    second = Attempt(2, "failed", "V", dtypes=("float16",), fallback="subset", unsupported=("float16",))
    assert decide_next([first, second], 2) == Step("run", dtypes=(), fallback="own")
    third = Attempt(3, "failed", "V", fallback="own")
    assert decide_next([first, second, third], 0) == Step("finish", attempt=third)


def test_nothing_supported_goes_straight_to_the_ops_own():
    assert decide_next([fail(1, unsupported=REQUESTED)], 2) == Step("run", dtypes=(), fallback="own")


def test_a_fallback_is_no_retry_and_its_attempts_count_alone():
    first = fail(1, "V", unsupported=("int32",), status="partial")
    second = Attempt(2, "failed", "V", dtypes=("float16",), fallback="subset")
    assert decide_next([first, second], 1) == Step("run", dtypes=("float16",), fallback="subset")
    third = Attempt(3, "failed", "V", dtypes=("float16",), fallback="subset")
    assert decide_next([first, second, third], 1) == Step("finish", attempt=third)


def test_infrastructure_is_tried_again_after_a_pause():
    assert decide_next([fail(1, infrastructure="memory")], 2) == Step(
        "run", dtypes=REQUESTED, pause=True, elsewhere=True)
    assert decide_next([fail(1, infrastructure="cache")], 2) == Step(
        "run", dtypes=REQUESTED, pause=True, fresh_cache=True)
    assert decide_next([fail(1, infrastructure="lock")], 2) == Step("run", dtypes=REQUESTED, pause=True)


@pytest.mark.parametrize("text, expected", [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB", "memory"),
    ("RuntimeError: CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY", "memory"),
    ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 280000", ""),
    ("sqlite3.OperationalError: database is locked", "lock"),
    ("OSError: [Errno 28] No space left on device", "disk"),
    ("lib/triton/runtime/cache.py:131: in get_group\njson.decoder.JSONDecodeError: Expecting value: line 1", "cache"),
    ("lib/triton/compiler/compiler.py:480: in _init_handles\nRuntimeError: Triton Error [CUDA]: device kernel image is invalid",
     "cache"),
    ("benchmark/test_x.py:3: in f\nRuntimeError: CUDA error: device kernel image is invalid", ""),
    ("benchmark/test_x.py:3: in f\njson.decoder.JSONDecodeError: Expecting value: line 1", ""),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/cache/6/triton/AB/k.json'", "cache"),
    ("ImportError: /cache/6/triton/AB/launcher.so: file too short", "cache"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/data/weights.bin'", ""),
    ("AssertionError: 3 != 4", ""),
])
def test_infrastructure_is_told_from_an_operators_failure(text, expected):
    assert name_infrastructure(text, "/cache/6/triton") == expected


def test_a_text_that_repeats_an_errors_name_is_read_in_linear_time():
    text = "OSError " * 200_000     # a pattern that backtracks needs an hour
    assert name_infrastructure(text, "/cache/6/triton") == ""
    assert name_infrastructure(text + "/cache/6/triton/k.json", "/cache/6/triton") == "cache"
