"""compare_screens.py: through its command line, over two summaries written here."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ("schema,repo,op,status,dtype,mode,level,timer,cache,shape,latency_base_ms,latency_ms,speedup,host_us,tflops,gbps_base,"
           "gbps,row_status,attempt,fallback,device,reason").split(",")


def line(op, ms="", base="", shape="[8]", **more):
    """A line of summary.csv: of a measured row if `ms` is given, else of an operator without a table."""
    row = {"schema": 1, "repo": "main", "op": op, "status": "ok", "dtype": "float16", "mode": "kernel", "level": "core",
           "timer": "graph", "cache": "cold", "shape": shape, "latency_base_ms": base, "latency_ms": ms,
           "row_status": "SUCCESS" if ms else "", "attempt": 1, "device": "0"}
    if not ms:
        row |= {"dtype": "", "shape": ""}
    return {**row, **more}


def write_screen(path, lines, models=("NVIDIA H200",), commit="a" * 40, **more):
    path.mkdir(parents=True)
    with open(path / "summary.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(lines)
    if models is not None:
        (path / "screen.json").write_text(json.dumps({
            "schema": 1, "created": "2026-11-30T06:29:00Z", "repos": {"main": {"tree": "/x", "commit": commit}}, "devices": ["0"],
            "models": models, "versions": {"torch": "2.11.0", "triton": "3.6.0"}, "knobs": {}, **more}))
    return path


def compare(old, new, *arguments, expect, **environ):
    done = subprocess.run([sys.executable, ROOT / "compare_screens.py", old, new, *map(str, arguments)], capture_output=True,
                          text=True, env={**os.environ, "BAND": "", "NOISE": "", "OUT": "", **environ})
    assert done.returncode == expect, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def compare_lines(tmp_path, old, new, *arguments, expect, **environ):
    """[(verdict, op, shape, old, new, ratio, reason)] of the changes between two lists of lines."""
    olds, news = write_screen(tmp_path / "old", old), write_screen(tmp_path / "new", new)
    compare(olds, news, "--out", tmp_path / "out", *arguments, expect=expect, **environ)
    return read_changes(tmp_path / "out")


def read_changes(folder):
    with open(folder / "compare.csv", newline="") as stream:
        return [(each["verdict"], each["op"], each["shape"], each["old"], each["new"], each["ratio"][:6], each["reason"])
                for each in csv.DictReader(stream)]


# ---- the whole of it

def test_what_is_worse_comes_first(tmp_path):
    old = write_screen(tmp_path / "old", [
        line("abs", 0.1, 0.2), line("abs", 0.1, 0.2, "[9]"), line("add", 0.1, 0.2), line("mm", 0.4, 0.2), line("gone", 0.1, 0.2),
        line("sort", status="failed", reason="KeyError: 1")])
    new = write_screen(tmp_path / "new", [
        line("abs", 0.12, 0.2), line("abs", 0.104, 0.2, "[9]"), line("add", 0.05, 0.2),
        line("mm", status="failed", reason="RuntimeError: out of memory"), line("sort", 0.1, 0.2), line("topk", 0.1, 0.2)],
        commit="b" * 40)
    done = compare(old, new, expect=1)
    assert done.stdout == f'''\
old: {old} (created 2026-11-30T06:29:00Z; devices 0: NVIDIA H200; torch 2.11.0, triton 3.6.0; main at aaaaaaaaaaaa)
new: {new} (created 2026-11-30T06:29:00Z; devices 0: NVIDIA H200; torch 2.11.0, triton 3.6.0; main at bbbbbbbbbbbb)
differs: main at aaaaaaaaaaaa -> bbbbbbbbbbbb

verdict  repo/op    dtype    measured how       old     new     ratio  torch  shape and reason
worse    main/mm                                ok      failed                RuntimeError: out of memory; 1 rows gone
missing  main/gone                              ok
slower   main/abs   float16  kernel graph cold  0.1     0.12    1.200  1.000  [8]
better   main/sort                              failed  ok                    1 rows new
new      main/topk                                      ok
faster   main/add   float16  kernel graph cold  0.1     0.05    0.500  1.000  [8]

operators: 2 same, 1 missing, 1 worse, 1 better, 1 new
rows: 2 missing row, 2 new row, 1 slower, 1 same, 1 faster
'''


def test_nothing_worse_is_0_and_every_row_is_in_the_csv(tmp_path):
    lines = [line("abs", 0.1, 0.2), line("abs", 0.1, 0.2, "[9]"), line("mm", status="skipped", reason="needs SM90")]
    assert compare_lines(tmp_path, lines, lines, expect=0) == [
        ("same", "abs", "", "ok", "ok", "", ""), ("same", "mm", "", "skipped", "skipped", "", "needs SM90"),
        ("same", "abs", "[8]", "0.1", "0.1", "1.0", ""), ("same", "abs", "[9]", "0.1", "0.1", "1.0", "")]
    done = compare(tmp_path / "old/summary.csv", tmp_path / "new/summary.csv", expect=0)
    assert done.stdout.endswith("differs: nothing that screen.json knows of\n\noperators: 2 same\nrows: 2 same\n")


def test_a_knob_that_only_one_screen_knows_and_that_is_empty_is_no_difference(tmp_path):
    lines = [line("abs", 0.1, 0.2)]
    write_screen(tmp_path / "old", lines)
    write_screen(tmp_path / "new", lines, knobs={"BUDGET": "", "LEVEL": "core"})
    assert "\ndiffers: LEVEL - -> core\n" in compare(tmp_path / "old", tmp_path / "new", expect=0).stdout


def test_compiler_switches_are_compared_where_both_screens_tell_them(tmp_path):
    lines = [line("abs", 0.1, 0.2)]
    for name, more in (("older", {}), ("old", {"switches": {}}), ("new", {"switches": {"DISABLE_LLVM_OPT": "1"}}),
                       ("empty", {"switches": {"TRITON_DEBUG": ""}})):
        write_screen(tmp_path / name, lines, **more)
    said = compare(tmp_path / "old", tmp_path / "new", expect=0).stdout
    assert "\ndiffers: DISABLE_LLVM_OPT - -> 1\n" in said and "triton 3.6.0; switches DISABLE_LLVM_OPT=1; main at" in said
    assert "\ndiffers: TRITON_DEBUG - -> ''\n" in compare(tmp_path / "old", tmp_path / "empty", expect=0).stdout
    assert "\ndiffers: nothing that screen.json knows of\n" in compare(tmp_path / "older", tmp_path / "new", expect=0).stdout


@pytest.mark.parametrize("old, new, verdict", [
    ("ok", "failed", "worse"), ("ok", "skipped", "worse"), ("ok", "interrupted", "worse"), ("partial", "crashed", "worse"),
    ("skipped", "timeout", "worse"), ("failed", "partial", "better"), ("crashed", "ok", "better"), ("skipped", "ok", "better"),
    ("failed", "crashed", "changed"), ("failed", "skipped", "changed"), ("ok", "dismissed", "changed"),
    ("dismissed", "failed", "changed"), ("ok", "left_out", "changed"), ("left_out", "failed", "changed"),
    ("interrupted", "ok", "changed"), ("timeout", "timeout", "same"),
    ("ok", "ok subset", "worse"), ("ok own", "ok", "better")])
def test_statuses(tmp_path, old, new, verdict):
    sides = [[line("abs", status=text.split()[0], fallback=text.partition(" ")[2])] for text in (old, new)]
    changes = compare_lines(tmp_path, *sides, expect=1 if verdict == "worse" else 0)
    assert [change[0] for change in changes] == [verdict]


def test_an_operator_that_was_not_asked_for_is_missing_but_nothing_is_worse(tmp_path):
    old = write_screen(tmp_path / "old", [line("abs", 0.1), line("mm", 0.1)])
    new = write_screen(tmp_path / "new", [line("abs", 0.1)], knobs={"OPS": "abs"})
    assert "missing  main/mm" in compare(old, new, expect=0).stdout


# ---- rows

@pytest.mark.parametrize("old, new, verdict, reason", [
    ({}, {"ms": 0.2}, "slower", ""),
    ({"base": 0.1}, {"ms": 0.2, "base": 0.21}, "unclear", "torch's own latency moved alike"),
    ({"base": 0.1}, {"ms": 0.2, "base": 0.11}, "slower", ""),
    ({}, {"ms": 0.2, "reason": "throttled: hw_slowdown"}, "unclear", "throttled: hw_slowdown"),
    ({}, {"ms": 0.2, "reason": "gems: launch gap 1.20 us, it was 0.85 before: so much of the figure is the launch"}, "unclear",
     "gems: launch gap 1.20 us, it was 0.85 before: so much of the figure is the launch"),
    ({"reason": "gems: the times moved by +3.1% while they were taken"}, {"ms": 0.2}, "unclear",
     "gems: the times moved by +3.1% while they were taken"),
    ({}, {"ms": 0.105}, "same", ""), ({}, {"ms": 0.09}, "faster", ""),
    ({}, {"ms": "", "row_status": "FAILED", "reason": "boom"}, "worse", "boom"),
    ({"ms": "", "row_status": "INVALID"}, {}, "better", ""),
    ({"ms": "", "row_status": "INVALID"}, {"ms": "", "row_status": "FAILED"}, "same", ""),
    ({}, {"ms": 9, "timer": "do_bench"}, "not compared", "timer graph against do_bench"),
    ({}, {"ms": 9, "cache": "warm"}, "not compared", "cache cold against warm"),
    ({"cache": "host", "timer": "host"}, {"ms": 9, "cache": "host", "timer": "host"}, "not compared",
     "the host device measures no time"),
    ({}, {"ms": 9, "models": ["NVIDIA L4"]}, "not compared", "NVIDIA H200 against NVIDIA L4"),
    ({}, {"ms": 9, "models": ["NVIDIA H200", "NVIDIA L4"]}, "not compared",
     "the card's model is not known of NEW (screen.json, autotune.json)"),
    ({"timer": "do_bench"}, {"ms": 9, "timer": "do_bench"}, "not compared",
     "no noise band for timer do_bench: give BAND or NOISE"),
    ({}, {"ms": 9, "reason": "replay forced from /x"}, "not compared", "a record was replayed by force")])
def test_a_row(tmp_path, old, new, verdict, reason):
    sides = []
    for name, change in (("old", dict(old)), ("new", dict(new))):
        models = change.pop("models", ["NVIDIA H200"])
        row = line("abs", 1) | {"latency_ms": 0.1} | {{"ms": "latency_ms", "base": "latency_base_ms"}.get(k, k): v
                                                      for k, v in change.items()}
        sides.append(write_screen(tmp_path / name, [row], models=models))
    done = compare(*sides, "--out", tmp_path / "out", expect=1 if verdict in ("worse", "slower") else 0)
    change = read_changes(tmp_path / "out")[1]
    assert (change[0], change[-1]) == (verdict, reason)
    assert bool(change[5]) == (verdict in ("slower", "faster", "same", "unclear") and "FAILED" not in change)
    if verdict == "not compared":
        assert f"not compared: 1 rows: {reason}\n" in done.stdout


def test_rows_with_one_key_are_told_apart_by_their_order_and_never_guessed(tmp_path):
    twice = [line("abs", 0.1), line("abs", 0.3)]
    changes = compare_lines(tmp_path / "a", twice, [line("abs", 0.1), line("abs", 0.6)], expect=1)[1:]
    assert [change[:6] for change in changes] == [
        ("same", "abs", "[8]", "0.1", "0.1", "1.0"), ("slower", "abs", "[8] #2", "0.3", "0.6", "2.0")]
    assert [change[0::6] for change in compare_lines(tmp_path / "b", twice, twice[1:], expect=0)][1:] == [
        ("not compared", "2 such rows against 1")]


def test_a_row_is_one_line_whatever_its_shape(tmp_path):
    shape = "[8,\n 'ü']" + 200_000 * "x"
    old, new = (write_screen(tmp_path / name, [line("abs", ms, shape=shape)]) for name, ms in (("old", 1), ("new", 2)))
    stdout = compare(old, new, expect=1, PYTHONIOENCODING="ascii").stdout
    assert "  2.000         [8, '?']xxx" in stdout and stdout.count("\n") == 9


def write_record(screen, model="NVIDIA H200", **configs):
    folder = screen / "main/abs/attempts/1"
    folder.mkdir(parents=True)
    (folder / "autotune.json").write_text(json.dumps({"schema": 1, "meta": {"device": model}, "entries": [
        {"kernel": "k", "key": key, "config": config} for key, config in configs.items()]}))


def test_a_tuner_that_chose_otherwise_makes_a_change_unclear(tmp_path):
    """And the record names the card where screen.json does not."""
    old = write_screen(tmp_path / "old", [line("abs", 0.1), line("abs", 0.1, shape="[9]")], models=())
    new = write_screen(tmp_path / "new", [line("abs", 0.2), line("abs", 0.1, shape="[9]")], models=())
    write_record(old, a=1, b=2, only_old=3)
    write_record(new, a=1, b=4, only_new=3)
    compare(old, new, "--out", tmp_path / "out", expect=0)
    assert [change[0::6] for change in read_changes(tmp_path / "out")][1:] == [
        ("unclear", "tuned anew: 1 of 2 configs differ"), ("same", "")]


# ---- the band

def write_noise(path, **timers):
    path.write_text(json.dumps({"schema": 1, "device": "NVIDIA H200", "processes": 6, "timers": {
        name.replace("_cold", " cold"): {"rows": 9, "band": 0.9, "between_p95": value} for name, value in timers.items()}}))
    return path


@pytest.mark.parametrize("arguments, environ, verdict", [
    ((), {}, "slower"), (("--band", "0.2"), {}, "same"), ((), {"BAND": "0.2"}, "same"), ((), {"BAND": "0.01"}, "slower"),
    ((), {"NOISE": "noise.json"}, "same")])
def test_the_band_is_that_of_band_or_noise(tmp_path, arguments, environ, verdict):
    """NOISE: 0.04 * sqrt(2) * 1.96 is 0.111 for one row: 1.1 lies within."""
    write_noise(tmp_path / "noise.json", graph_cold=0.04)
    environ = {name: value.replace("noise", str(tmp_path / "noise")) for name, value in environ.items()}
    changes = compare_lines(tmp_path, [line("abs", 0.1)], [line("abs", 0.11)], *arguments, expect=int(verdict == "slower"),
                            **environ)
    assert changes[1][0] == verdict


def test_a_study_that_lacks_a_timer_compares_the_others(tmp_path):
    noise = write_noise(tmp_path / "noise.json", do_bench_cold=0.1)
    changes = compare_lines(tmp_path, [line("abs", 0.1), line("mm", 0.1, timer="do_bench")],
                            [line("abs", 9), line("mm", 9, timer="do_bench")], "--noise", noise, expect=1)
    assert changes[2][0] == "not compared" and "says nothing of timer graph with cold L2 (do_bench cold)" in changes[2][-1]
    assert changes[3][0] == "slower"


def test_a_study_of_another_card_is_refused(tmp_path):
    noise = write_noise(tmp_path / "noise.json", graph_cold=0.1)
    noise.write_text(noise.read_text().replace("H200", "L4"))
    old, new = (write_screen(tmp_path / name, [line("abs", 0.1)]) for name in ("old", "new"))
    assert "made on NVIDIA L4, this is NVIDIA H200" in compare(old, new, "--noise", noise, expect=3).stderr


# ---- mistakes and damage

def test_mistakes_are_named(tmp_path):
    good = write_screen(tmp_path / "good", [line("abs", 0.1)])
    assert f"{tmp_path}/none: no such file" in compare(good, tmp_path / "none", expect=2).stderr
    (tmp_path / "empty").mkdir()
    assert f"make summarize RUN={tmp_path}/empty" in compare(tmp_path / "empty", good, expect=2).stderr
    for band in ("x", "-1", "0", "nan"):
        assert "BAND" in compare(good, good, f"--band={band}", expect=2).stderr


@pytest.mark.parametrize("change", [
    lambda text: text[:-30], lambda text: "", lambda text: text.replace("schema,", ""), lambda text: text.replace("0.1", "zero"),
    lambda text: text.replace("0.1", "0.0"), lambda text: text.replace("0.1", '"0.1'), lambda text: text + "\x00"])
def test_a_damaged_summary_is_an_integrity_error(tmp_path, change):
    good, bad = (write_screen(tmp_path / name, [line("abs", 0.1)]) for name in ("good", "bad"))
    (bad / "summary.csv").write_text(change((bad / "summary.csv").read_text()))
    stderr = compare(good, bad, expect=4).stderr
    assert f"{bad}/summary.csv: " in stderr and f"make summarize RUN={bad}" in stderr


@pytest.mark.parametrize("content", [
    "{", "[]", '{"models": 3, "knobs": [], "versions": null, "repos": {"main": 1}, "devices": "0"}'])
def test_a_damaged_screen_json_costs_the_times_only(tmp_path, content):
    good, bad = (write_screen(tmp_path / name, [line("abs", 0.1), line("mm", status="failed")]) for name in ("good", "bad"))
    (bad / "screen.json").write_text(content)
    stdout = compare(good, bad, expect=0).stdout
    assert "operators: 2 same\n" in stdout and "the card's model is not known of NEW" in stdout
