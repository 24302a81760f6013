"""screen/budget.py by literals, and BUDGET through run_batch.py with a stub (screen_stub.py)."""
import json

import pytest
from screen_stub import StubScreen

from common.errors import UserError
from screen.budget import AGAIN, KNOWN, NEVER, Need, order_by_need, read_budget


@pytest.mark.parametrize("text, seconds", [("2h", 7200.0), ("90m", 5400.0), ("45s", 45.0), ("1h30m", 5400.0), ("", float("inf")),
                                           (None, float("inf"))])
def test_budgets(text, seconds):
    assert read_budget(text) == seconds


@pytest.mark.parametrize("text", ["2", "0m", "h", "-1h", "1.5h", "30m2h", "soon", "9" * 400 + "h"])
def test_no_budgets(text):
    with pytest.raises(UserError, match=f"^BUDGET: {text}: is no time; give one, as BUDGET=2h, 1h30m, 45s$"):
        read_budget(text)


def test_what_matters_most_comes_first():
    needs = {"main/old": Need(KNOWN, 1.02, "2026-11-27T02:00:00Z"), "main/newer": Need(KNOWN, 1.0, "2026-11-29T02:00:00Z"),
             "main/slower": Need(KNOWN, 1.3, "2026-11-29T02:00:00Z"), "main/faster": Need(KNOWN, 0.5, "2026-11-28T02:00:00Z"),
             "main/worst": Need(KNOWN, 2.0, "2026-11-29T02:00:00Z"), "main/changed": Need(AGAIN, 1.0, "2026-11-29T02:00:00Z"),
             "main/b_new": Need(NEVER), "main/a_new": Need(NEVER)}
    assert order_by_need(needs) == ["main/a_new", "main/b_new", "main/changed", "main/worst", "main/slower", "main/old",
                                    "main/faster", "main/newer"]


OPS = ("a", "b", "c", "d", "e")


@pytest.fixture
def night(stub):
    """A StubScreen after a first night on one slot, on which its operators took 1, 900, 2, 3 and 1 s and ended in this order."""
    stub.write_ops(OPS)
    for op in OPS:
        stub.behave(op, 'echo "$REPO/$1" > /dev/null; echo ' + op + ' >> "$BEHAVE/../order"')
    assert stub.run("--devices", "host:0", "--run", stub.runs / "first") == 0
    for number, (op, seconds) in enumerate(zip(OPS, (1, 900, 2, 3, 1))):
        path = stub.runs / f"first/main/{op}/.complete"
        facts = {"seconds": seconds, "finished": f"2026-11-29T0{number}:00:00Z"}
        path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    (stub.folder / "order").unlink()
    return stub


def test_what_would_end_too_late_is_left_out_and_the_next_call_goes_on_with_it(night: StubScreen):
    night.write_ops(OPS + ("new",))
    night.behave("new", 'echo new >> "$BEHAVE/../order"')
    (night.tree / "benchmark/test_e.py").write_text("# changed\n")
    call = ["--devices", "host:0", "--run", night.runs / "second"]
    assert night.run(*call, "--budget", "2m") == 0
    assert (night.folder / "order").read_text().split() == ["new", "e", "a", "c", "d"]
    assert "1 of 6 operators left out: BUDGET=2m; the same call goes on with them" in night.output()
    assert night.output().splitlines()[-2].endswith("second: 1 left_out, 5 ok")
    assert [(row["status"], row["reason"]) for row in night.read_csv("plan.csv") if row["op"] == "b"] == [
        ("left_out", "BUDGET=2m: expected to take 900 s")]
    assert [(row["op"], row["status"]) for row in night.read_csv("summary.csv")][:2] == [("a", "ok"), ("b", "left_out")]
    assert night.run(*call) == 0
    assert (night.folder / "order").read_text().split()[5:] == ["b"] and night.output().splitlines()[-1].endswith(": 6 ok")


def test_without_a_record_the_median_counts(night):
    for op in OPS:
        path = night.runs / f"first/main/{op}/.complete"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": 500}))
    night.write_ops(OPS + ("new",))
    assert night.run("--devices", "host:0", "--run", night.runs / "second", "--budget", "2m") == 0
    assert not (night.folder / "order").exists()
    assert {row["op"]: row["reason"] for row in night.read_csv("plan.csv")}["new"] == "BUDGET=2m: expected to take 500 s"


def test_what_was_begun_is_finished_and_a_bad_result_is_bad(stub):
    stub.write_ops(["bad", "later"])
    stub.behave("bad", "sleep 1.2; test_line failed 'RuntimeError: bad'; finish 1")
    assert stub.run("--devices", "host:0", "--budget", "2s") == 1
    assert stub.attempts("bad") == ["1", "2"]
    assert {row["op"]: row["status"] for row in stub.read_csv("summary.csv")} == {"bad": "failed", "later": "left_out"}


def test_a_wrong_budget_is_refused(stub):
    assert stub.run("--budget", "2") == 2
    assert "BUDGET: 2: is no time" in stub.output() and not stub.runs.exists()
