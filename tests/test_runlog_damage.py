"""common/runlog.py: logs that are cut, damaged, hostile or no logs show no row that was not printed."""

import os

import pytest

from common.errors import UserError
from common.runlog import parse_runlog
from printed_tables import BANNERS, FOLDED, PLAIN, RESCUED, figures, row, title


def test_no_end_banner_is_a_cut_log():
    log = parse_runlog(BANNERS.format("").split("==== gemscreen end")[0])
    assert log.is_cut and log.footer == {} and log.notes == ["the log has no end banner"]


def test_a_log_without_banners_is_not_called_cut():
    assert not parse_runlog(RESCUED).is_cut


def test_a_row_cut_by_a_kill_before_the_end_banner():
    whole = title() + PLAIN + row("SUCCESS", "0.2", "0.1", "2.000", detail="[torch.Size([1])]")
    for cut in ("SUCC", row("SUCCESS", "0.4", "0.1", "4.0", detail="")[:45], "FAILED                     N/A"
                "                 N/A                 N/A          N/"):
        log = parse_runlog(BANNERS.format(whole + cut))
        assert [(r.status, r.latency_ms) for r in log.rows] == [("SUCCESS", 0.1), ("TRUNCATED", None)], cut
        assert log.footer["pytest_exit"] == "1" and log.is_cut


def test_rows_whose_title_is_lost_are_not_given_to_another_operator():
    good = title("abs") + PLAIN + row("SUCCESS", "0.2", "0.1", "2.000", detail="[torch.Size([1])]")
    for damaged in ("\n", "Operator: mm  Performance Test (dtype=torch.flo\n"):
        log = parse_runlog(good + damaged + PLAIN + row("SUCCESS", "0.4", "0.1", "4.000", detail="[torch.Size([2])]"))
        assert [(r.op_name, r.speedup) for r in log.rows] == [("abs", 2.0)]
        assert any("a table without a title" in note or "title is damaged" in note for note in log.notes)
        assert any(note.startswith("a row outside of a table is left out: SUCCESS") for note in log.notes)


WHOLE = BANNERS.format(FOLDED + RESCUED + title("größe") + PLAIN
                       + row("SUCCESS", "0.2", "0.1", "2.000", detail="[{'k': 'é\nSUCCESS'}, None]"))


def test_a_log_cut_at_every_byte_shows_nothing_that_the_whole_one_lacks():
    known = [(r.op_name, r.dtype, r.shape, r.status) + figures(r) for r in parse_runlog(WHOLE).rows]
    assert len(known) == 8
    data = WHOLE.encode()
    cut_rows = 0
    for size in range(len(data)):
        log = parse_runlog(data[:size].decode(errors="replace"))
        shown = [(r.op_name, r.dtype, r.shape, r.status) + figures(r) for r in log.rows if r.status != "TRUNCATED"]
        assert shown == known[:len(shown)], size
        cut_rows += len(log.rows) - len(shown)
        assert all(figures(r) == (None,) * 6 for r in log.rows if r.status == "TRUNCATED")
        assert len(log.rows) - len(shown) <= 1
        assert log.footer in ({}, {"pytest_exit": "1"}, {"pytest_exit": "1", "seconds": "2.5"})
    assert cut_rows > 500     # a row is about 100 bytes long, there are seven in tables


def test_a_line_lost_from_the_middle_never_raise_or_invent():
    known = {(r.op_name, r.status) + figures(r) for r in parse_runlog(WHOLE).rows}
    lines = WHOLE.split("\n")
    for lost in range(len(lines)):
        log = parse_runlog("\n".join(lines[:lost] + lines[lost + 1:]))
        shown = {(r.op_name, r.status) + figures(r) for r in log.rows if r.status not in ("TRUNCATED", "INVALID")}
        assert shown <= known, lines[lost]


@pytest.mark.parametrize("text", ["", "\n", "\x00\xff", "SUCCESS   ", "Operator: ", "====", "==== gemscreen begin ====",
                                  "FAILED: Operator= dtype= row=1 err=<<<>>>", "Legend: #1 = x\n", "Status Latency",
                                  "\x1b[", "[" * 1000])
def test_odd_texts_have_no_rows(text):
    assert parse_runlog(text).rows == []


def test_a_binary_file_has_no_rows(tmp_path):
    (tmp_path / "run.log").write_bytes(bytes(range(256)) * 20)
    assert parse_runlog(tmp_path / "run.log").rows == []


def test_an_unreadable_file_is_named(tmp_path):
    (tmp_path / "run.log").mkdir()
    with pytest.raises(UserError) as caught:
        parse_runlog(tmp_path / "run.log")
    assert str(caught.value) == (f"{tmp_path / 'run.log'}: Is a directory: the run log cannot be read; "
                                 "make it readable, or run its operator again")
    with pytest.raises(UserError, match="No such file or directory"):
        parse_runlog(tmp_path / "missing.log")
    assert os.listdir(tmp_path) == ["run.log"]


@pytest.mark.parametrize("line", [
    "TIMER: Operator=abs dtype=torch.float16 row=1 timer=graph cache=cold host_us=- reason=<<<>>>",
    "FAILED: Operator=abs dtype=torch.float16 row=" + "9" * 5000 + " err=<<<x>>>",
    "Operator: " * 60000,
    "FAILED: Operator=a dtype=b " * 20000,
    "E   " + "OSError" * 50000,
], ids=range(5))
def test_a_hostile_line_costs_nothing(line):
    log = parse_runlog(f"{line}\n")    # before the patterns were bounded some of these took minutes
    assert [row for row in log.rows if row.status == "SUCCESS"] == []
