"""common/runlog.py: what is read from a run.log, its tables as upstream prints them (damaged ones: test_runlog_damage.py)."""

import pytest

from common.runlog import Row, parse_runlog
from printed_tables import ALL, BANNERS, FOLDED, GBPS, PLAIN, RESCUED, figures, row, title


# ---- upstream's text

def test_the_table_of_upstream_with_every_column():
    log = parse_runlog(
        "\nOperator: mm  Performance Test (dtype=torch.float16, mode=kernel,level=core)\n"
        "Status       Torch Latency (ms)    Gems Latency (ms)         Gems Speedup               TFLOPS"
        "          Torch GBPS            Gems GBPS           Size Detail\n"
        "--------------------------------------------------------------------------------------------"
        "------------------------------------------------------------------\n"
        "SUCCESS               0.012300            0.023400               0.526               1.234"
        "              10.000              20.000          [torch.Size([64, 64]), torch.Size([64, 64])]\n"
        "FAILED                     N/A                 N/A                 N/A          [torch.Size([1])]\n"
        "\n.\n")
    assert log.rows == [
        Row("mm", "float16", "kernel", "core", "[torch.Size([64, 64]), torch.Size([64, 64])]", "SUCCESS", "",
            0.0123, 0.0234, 0.526, 1.234, 10.0, 20.0),
        Row("mm", "float16", "kernel", "core", "[torch.Size([1])]", "FAILED", "", None, None, None, None, None, None)]
    assert log.notes == [] and log.header == {} and log.footer == {}


def test_nested_details_are_the_rest_of_the_record():
    nested = ("([torch.Size([64, 64]), {'a': 1e-05}, (1, 2)], {'out': torch.Size([2]), 'dtype': torch.float32, "
              "'x': None, 's': 'SUCCESS   ] 0.1  0.2'})")
    log = parse_runlog(title() + PLAIN + row("SUCCESS", "0.2", "0.1", "2.000", detail=nested))
    assert [r.shape for r in log.rows] == [nested]
    assert log.rows[0].status == "SUCCESS"


def test_a_detail_of_two_lines_with_the_word_success():
    detail = "[torch.Size([4]), {'note': 'first\nSUCCESS   of the second', 'n': 1e-05}]"
    log = parse_runlog(title() + PLAIN + row("SUCCESS", "0.2", "0.1", "2.000", detail=detail)
                       + row("SUCCESS", "0.4", "0.1", "4.000", detail="[torch.Size([8])]"))
    assert [(r.shape, r.speedup) for r in log.rows] == [(detail, 2.0), ("[torch.Size([8])]", 4.0)]


def test_an_unclosed_detail_does_not_swallow_the_next_row():
    log = parse_runlog(title() + PLAIN + row("SUCCESS", "0.2", "0.1", "2.000", detail="[torch.Size([4]), torch.")
                       + row("SUCCESS", "0.4", "0.1", "4.000", detail="[torch.Size([8])]"))
    assert [(r.status, r.latency_ms) for r in log.rows] == [("TRUNCATED", None), ("SUCCESS", 0.1)]


def test_tflops_only_in_a_later_row():
    # The header is made from the first row, which had no TFLOPS: the second has one figure more.
    log = parse_runlog(title() + PLAIN + row("SUCCESS", "0.2", "0.1", "2.000", detail="[torch.Size([1])]")
                       + row("SUCCESS", "0.4", "0.1", "4.000", "1.500", detail="[torch.Size([2])]"))
    assert [figures(r) for r in log.rows] == [(0.2, 0.1, 2.0, None, None, None), (0.4, 0.1, 4.0, 1.5, None, None)]
    assert log.rows[1].shape == "[torch.Size([2])]"


def test_gbps_without_tflops_and_a_row_that_has_none():
    log = parse_runlog(title("sum") + GBPS
                       + row("SUCCESS", "0.2", "0.1", "2.000", "500.000", "1000.000", detail="[torch.Size([1])]")
                       + row("SUCCESS", "0.4", "0.1", "4.000", detail="[torch.Size([2])]"))
    assert [figures(r) for r in log.rows] == [(0.2, 0.1, 2.0, None, 500.0, 1000.0), (0.4, 0.1, 4.0, None, None, None)]


def test_a_row_of_tflops_under_all_columns():
    log = parse_runlog(title() + ALL + row("SUCCESS", "0.4", "0.1", "4.000", "1.500", detail="[torch.Size([2])]")
                       + row("SUCCESS", "0.4", "0.1", "4.000", "7.000", "8.000", detail="[torch.Size([2])]"))
    assert [figures(r) for r in log.rows] == [(0.4, 0.1, 4.0, 1.5, None, None), (0.4, 0.1, 4.0, None, 7.0, 8.0)]


def test_columns_are_taken_by_their_header_text():
    log = parse_runlog(title() + "Status   Gems Speedup   Accuracy   Gems Latency (ms)   Torch Latency (ms)   Size Detail\n"
                       + row("SUCCESS", "2.000", "0.99", "0.1", "0.2", detail="[torch.Size([1])]"))
    assert figures(log.rows[0]) == (0.2, 0.1, 2.0, None, None, None)
    assert log.notes == ["unknown column 'Accuracy' is left out"]


def test_figures_that_do_not_fit_the_columns_are_invalid():
    log = parse_runlog(title() + "Status   Gems Speedup   Gems Latency (ms)   Torch Latency (ms)   Size Detail\n"
                       + row("SUCCESS", "2.000", "0.1", "0.2", "9.0", detail="[torch.Size([1])]"))
    assert [(r.status, r.reason, r.latency_ms) for r in log.rows] == [
        ("INVALID", "4 figures under 3 columns", None)]


def test_a_latency_in_another_unit_is_not_taken_for_ms():
    log = parse_runlog(title() + PLAIN.replace("Gems Latency (ms)", "Gems Latency (us)")
                       + row("SUCCESS", "0.2", "100.0", "2.000", detail="[torch.Size([1])]"))
    assert [(r.status, r.reason, r.latency_ms, r.speedup) for r in log.rows] == [
        ("INVALID", "no Gems latency", None, None)]


@pytest.mark.parametrize("op", ["isnan", "isinf", "nan_to_num", "_to_copy", "add_", "SUCCESS"])
def test_names_of_operators_are_names(op):
    log = parse_runlog(title(op) + PLAIN + row("SUCCESS", "0.2", "0.1", "2.000", detail="[torch.Size([1])]"))
    assert [(r.op_name, r.speedup) for r in log.rows] == [(op, 2.0)]


@pytest.mark.parametrize("printed, stored", [
    ("torch.float8_e4m3fn", "float8_e4m3fn"), ("torch.bool", "bool"),
    ("(torch.float16, torch.int8)", "(float16, int8)"), ("None", "None")])
def test_dtypes_lose_their_torch(printed, stored):
    log = parse_runlog(title(dtype=printed) + PLAIN + row("SUCCESS", "0.2", "0.1", "2.000", detail="[]"))
    assert [r.dtype for r in log.rows] == [stored]


def test_mode_and_level_are_those_of_the_title():
    log = parse_runlog(title(mode="cudagraph", level="comprehensive") + PLAIN
                       + row("SUCCESS", "0.2", "0.1", "2.000", detail="[torch.Size([1])]"))
    assert [(r.mode, r.level) for r in log.rows] == [("cudagraph", "comprehensive")]


# ---- figures

def test_small_latencies_in_e_notation():
    log = parse_runlog(title() + PLAIN + row("SUCCESS", "2.4e-05", "1.2e-05", "2.000", detail="[1e-05]"))
    assert (figures(log.rows[0]), log.rows[0].shape) == ((2.4e-05, 1.2e-05, 2.0, None, None, None), "[1e-05]")


@pytest.mark.parametrize("base, gems, kept_base, kept_gems, reason", [
    ("0.2", "inf", 0.2, None, "Gems latency inf ms is no time"),
    ("0.2", "nan", 0.2, None, "Gems latency nan ms is no time"),
    ("0.2", "0.000000", 0.2, None, "Gems latency 0 ms is no time"),
    ("0.2", "-0.001000", 0.2, None, "Gems latency -0.001 ms is no time"),
    ("-inf", "0.1", None, 0.1, "Torch latency -inf ms is no time"),
    ("0.000000", "nan", None, None, "Torch latency 0 ms is no time; Gems latency nan ms is no time"),
    ("0.2", "N/A", 0.2, None, "no Gems latency")])
def test_a_latency_that_is_no_time_is_invalid_and_gives_no_ratio(base, gems, kept_base, kept_gems, reason):
    log = parse_runlog(title() + ALL + row("SUCCESS", base, gems, "2.000", "1.0", "2.0", "3.0", detail="[torch.Size([1])]"))
    assert [(r.status, r.reason) + figures(r) for r in log.rows] == [
        ("INVALID", reason, kept_base, kept_gems, None, None, None, None)]


@pytest.mark.parametrize("printed, speedup", [("0.000", 0.0001), ("nan", 0.0001), ("N/A", None), ("0.001", 0.001)])
def test_a_speedup_too_small_for_three_decimals_comes_from_the_latencies(printed, speedup):
    log = parse_runlog(title() + PLAIN + row("SUCCESS", "0.001", "10.0", printed, detail="[torch.Size([1])]"))
    assert log.rows[0].status == "SUCCESS"
    assert log.rows[0].speedup == pytest.approx(speedup)


def test_na_is_none_and_never_zero():
    log = parse_runlog(title() + ALL + row("SUCCESS", "N/A", "0.1", "N/A", "N/A", "N/A", "nan", detail="[torch.Size([1])]"))
    assert [(r.status,) + figures(r) for r in log.rows] == [("SUCCESS", None, 0.1, None, None, None, None)]


def test_a_detail_of_na_is_no_figure():
    log = parse_runlog(title() + PLAIN + row("SUCCESS", "0.2", "0.1", "2.000", detail="N/A"))
    assert [(r.shape,) + figures(r) for r in log.rows] == [("N/A", 0.2, 0.1, 2.0, None, None, None)]


# ---- what the report plugin adds

def test_a_folded_table_is_unfolded():
    assert [r.shape for r in parse_runlog(FOLDED).rows] == [
        "([torch.Size([384]), torch.Size([384, 384]), torch.float16], {'alpha': 1e-05})",
        "([torch.Size([512]), torch.Size([384, 384]), #3], {'alpha': 1e-05})"]


def test_a_legend_belongs_to_its_own_table():
    log = parse_runlog(FOLDED + title("other") + PLAIN + row("SUCCESS", "0.2", "0.1", "2.000", detail="[#1]"))
    assert log.rows[2].shape == "[#1]"


def test_a_rescued_table_keeps_its_good_rows_and_names_the_bad_one():
    log = parse_runlog(RESCUED)
    assert [(r.dtype, r.shape, r.status, r.speedup, r.reason) for r in log.rows] == [
        ("float16", "[torch.Size([1])]", "SUCCESS", 2.0, ""),
        ("float16", "[torch.Size([2])]", "SUCCESS", 2.0, ""),
        ("float32", "[torch.Size([1])]", "SUCCESS", 4.0, ""),
        ("float32", "[torch.Size([2])]", "FAILED", None, "RuntimeError: got <<<x>>> and "),
        ("bfloat16", "", "NOT_MEASURED", None, "after failure of torch.float32")]
    assert (log.rows[4].mode, log.rows[4].level) == ("kernel", "core")


def test_upstreams_own_failed_line_is_a_note_and_no_row():
    # It is red, and prints the names of its variables instead of their values (a missing f).
    log = parse_runlog("benchmark/test_mm.py \x1b[31mFAILED\x1b[0m: Operator=mm dtype={dtype} err=<<<{e}>>>\n"
                       "FAILED: Operator=int4pack dtype=torch.int8 err=<<<no such\nshape>>>\n")
    assert log.rows == []
    assert log.notes == ["upstream could not make an input of mm (dtype={dtype} err={e})",
                         "upstream could not make an input of int4pack (dtype=torch.int8 err=no such)"]


def test_a_failed_row_without_its_table_is_kept():
    log = parse_runlog("==== gemscreen begin ====\nmode: operator\nlevel: core\n====\n"
                       "FAILED: Operator=mm dtype=torch.float32 row=4 err=<<<ValueError: x>>>\n")
    assert log.rows == [Row("mm", "float32", "operator", "core", "N/A", "FAILED", "ValueError: x")]


def test_the_reason_goes_to_the_newest_table_of_that_operator():
    table = title("mm", "torch.float32") + PLAIN + row("FAILED", "N/A", "N/A", "N/A", detail="N/A")
    failure = "FAILED: Operator=mm dtype=torch.float32 row=1 err=<<<{}>>>\n"
    log = parse_runlog(table + failure.format("first") + table + failure.format("second"))
    assert [(r.shape, r.reason) for r in log.rows] == [("N/A", "first"), ("N/A", "second")]


def test_ansi_and_carriage_returns_do_not_matter():
    plain = title() + PLAIN + row("SUCCESS", "0.2", "0.1", "2.000", detail="[torch.Size([1])]")
    dressed = plain.replace("SUCCESS", "\x1b[1;32mSUCCESS\x1b[0m").replace("\n", "\r\n")
    assert parse_runlog(dressed).rows == parse_runlog(plain).rows != []


def test_words_of_pytest_are_no_rows():
    log = parse_runlog(title() + PLAIN + row("SUCCESS", "0.2", "0.1", "2.000", detail="[torch.Size([1])]") + "\n.F\n"
                       "=========================== short test summary info ============================\n"
                       "FAILED benchmark/test_mm.py::test_mm - Failed: x\nERROR benchmark/test_b.py\n"
                       "FAILED  0.1  0.2  0.3  [after the tables]\n")
    assert [r.status for r in log.rows] == ["SUCCESS"]


# ---- banners


def test_banners_are_read_back():
    log = parse_runlog(BANNERS.format(""))
    assert log.header == {"schema": "1", "repo": "main", "op": "mm", "nodes": "benchmark/test_mm.py::test_mm[a: b]",
                          "shapes": "", "cache": "cold"}
    assert log.footer == {"pytest_exit": "1", "seconds": "2.5"}
    assert log.notes == [] and not log.is_cut


# ---- pytest's own errors

def test_pytests_errors_are_kept_for_the_classifier():
    log = parse_runlog("ERROR: not found: benchmark/test_a.py::test_nope\n(no match in any of [<Module test_a.py>])\n"
                       "ImportError while loading conftest 'benchmark/conftest.py'.\n"
                       "E   ModuleNotFoundError: No module named 'flag_gems'\nE       assert 1 == 2\n"
                       "python -m pytest: error: unrecognized arguments: --bad\n")
    assert log.errors == ["ERROR: not found: benchmark/test_a.py::test_nope",
                          "ImportError while loading conftest 'benchmark/conftest.py'.",
                          "E   ModuleNotFoundError: No module named 'flag_gems'",
                          "python -m pytest: error: unrecognized arguments: --bad"]


# ---- TIMER lines

TIMED = """
Operator: mm  Performance Test (dtype=torch.float16, mode=kernel,level=core)
Status       Torch Latency (ms)    Gems Latency (ms)         Gems Speedup          Size Detail
-----------------------------------------------------------------------------------------------
SUCCESS               0.020000            0.010000               2.000          [torch.Size([8, 8])]
SUCCESS               0.020000                 nan                 nan          [torch.Size([9, 9])]
SUCCESS               0.020000            0.010000               2.000          [torch.Size([7, 7])]
TIMER: Operator=mm dtype=torch.float16 row=1 timer=graph cache=cold how=flush launches=250 gap_us=0.85 nodes=2 host_us=61.25 \
host_us_base=4.9 reason=<<<>>>
TIMER: Operator=mm dtype=torch.float16 row=2 timer=graph cache=cold reason=<<<gems: empty capture>>>
TIMER: Operator=mm dtype=torch.float16 row=3 timer=do_bench cache=cold host_us=1.2e+03 \
reason=<<<gems: no graph: phase=capture reason=E: x>>>
"""


def test_timer_lines_label_the_rows_of_their_table():
    first, second, third = parse_runlog(TIMED).rows
    assert (first.timer, first.cache, first.host_us, first.launch, first.reason) == ("graph", "cold", 61.25, (0.85, 2.0), "")
    assert (second.status, second.host_us) == ("INVALID", None)
    assert second.reason == "Gems latency nan ms is no time; gems: empty capture"
    assert (third.status, third.timer, third.host_us, third.launch) == ("SUCCESS", "do_bench", 1200.0, None)
    assert third.reason == "gems: no graph: phase=capture reason=E: x"


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_timer_line_that_is_cut_labels_nothing(cut):
    last = parse_runlog(TIMED[:-1 - cut]).rows[-1]
    assert (last.status, last.timer, last.reason) == ("SUCCESS", "", "")


def test_a_timer_line_of_another_table_labels_nothing():
    log = parse_runlog(TIMED.replace("row=3 timer", "row=4 timer"))
    assert log.rows[2].timer == "" and log.notes == [
        "a TIMER line names a row that is not there: TIMER: Operator=mm dtype=torch.float16 row=4 timer=do_bench cache=cold "
        "host_us=1"]
