"""batch_summary.py: through its command line, over screens written here file by file (summary_screen.py)."""

import hashlib
import json
import os
import re
import subprocess
import sys
from urllib.parse import unquote

import pytest

from summary_screen import GOOD, HEAD, HEAD_ALL, SCRIPT, Screen, columns, read_summary, row, run_log, summarize, title


@pytest.fixture
def screen(tmp_path):
    return Screen(tmp_path / "screen-a")


# ---- the whole of it: one op of each status

def add_all_statuses(screen):
    screen.add("abs", "ok", title("abs") + HEAD_ALL
               + row("SUCCESS", "0.200000", "0.100000", "2.000", "1.500", "10.000", "20.000", detail="[torch.Size([64, 64])]")
               + row("SUCCESS", "0.100000", "0.200000", "0.500", "1.500", "10.000", "20.000", detail="[torch.Size([128, 64])]")
               + title("abs_backward", "float32") + HEAD + row("SUCCESS", "0.300000", "0.100000", "3.000"))
    screen.add("mm", "partial", log=run_log("mm", title("mm") + "Legend: #1 = torch.Size([64, 64])\n" + HEAD
               + row("SUCCESS", "0.400000", "0.100000", "4.000", detail="[torch.Size([8, 64]), #1]")
               + row("FAILED", "N/A", "N/A", "N/A", detail="[torch.Size([9, 64]), #1]")
               + "FAILED: Operator=mm dtype=torch.float16 row=2 err=<<<RuntimeError: out, of \"memory\">>>\n"
               + "NOT MEASURED: Operator=mm dtype=torch.float32 reason=<<<after failure of torch.float16>>>\n", pytest_exit=1),
               reason="RuntimeError: out; 1 of 3 rows measured", fallback="subset", attempt=3)
    screen.add("sort", "failed", "", reason="no-data: pytest passed without a measured row")
    screen.add("conv2d", "timeout", log=run_log("conv2d", title("conv2d") + HEAD + row("SUCCESS", "0.2", "0.1", "2.000"),
               end=False), reason="stopped at its time limit; 1 row measured")
    screen.add("topk", "crashed", log=run_log("topk", title("topk") + HEAD + "SUCCESS               0.01", end=False),
               reason="killed by SIGSEGV; 0 rows measured")
    screen.add("silu", "skipped", "", reason="needs SM90")
    screen.add("gone", "not_found", "", reason="not found: benchmark/test_gone.py::test_gone")
    screen.add("lost", plan="not_found", reason="no benchmark node in the tree")
    screen.add("evil", plan="dismissed", reason="hangs the host")
    screen.add("half", log=run_log("half", title("half") + HEAD + row("SUCCESS", "0.2", "0.1", "2.000"), end=False))
    screen.add("never", repo="vllm")
    return screen


GOLDEN = '''\
schema,repo,op,status,dtype,mode,level,timer,cache,shape,latency_base_ms,latency_ms,speedup,host_us,tflops,gbps_base,gbps,\
row_status,attempt,fallback,device,reason
1,main,abs,ok,float16,kernel,core,do_bench,cold,"[torch.Size([64, 64])]",0.2,0.1,2.0,,1.5,10.0,20.0,SUCCESS,1,,1,
1,main,abs,ok,float16,kernel,core,do_bench,cold,"[torch.Size([128, 64])]",0.1,0.2,0.5,,1.5,10.0,20.0,SUCCESS,1,,1,
1,main,abs,ok,float32,kernel,core,do_bench,cold,abs_backward: [torch.Size([64])],0.3,0.1,3.0,,,,,SUCCESS,1,,1,
1,main,conv2d,timeout,float16,kernel,core,do_bench,cold,[torch.Size([64])],0.2,0.1,2.0,,,,,SUCCESS,1,,1,\
stopped at its time limit; 1 row measured
1,main,evil,dismissed,,,,,,,,,,,,,,,,,0,hangs the host
1,main,gone,not_found,,kernel,core,do_bench,cold,,,,,,,,,,1,,1,not found: benchmark/test_gone.py::test_gone
1,main,half,interrupted,float16,kernel,core,do_bench,cold,[torch.Size([64])],0.2,0.1,2.0,,,,,SUCCESS,1,,0,not finished
1,main,lost,not_found,,,,,,,,,,,,,,,,,0,no benchmark node in the tree
1,main,mm,partial,float16,kernel,core,do_bench,cold,"[torch.Size([8, 64]), torch.Size([64, 64])]",0.4,0.1,4.0,,,,,SUCCESS,3,\
subset,1,RuntimeError: out; 1 of 3 rows measured
1,main,mm,partial,float16,kernel,core,do_bench,cold,"[torch.Size([9, 64]), torch.Size([64, 64])]",,,,,,,,FAILED,3,\
subset,1,"RuntimeError: out, of ""memory"""
1,main,mm,partial,float32,kernel,core,do_bench,cold,,,,,,,,,NOT_MEASURED,3,subset,1,after failure of torch.float16
1,main,silu,skipped,,kernel,core,do_bench,cold,,,,,,,,,,1,,1,needs SM90
1,main,sort,failed,,kernel,core,do_bench,cold,,,,,,,,,,1,,1,no-data: pytest passed without a measured row
1,main,topk,crashed,float16,kernel,core,do_bench,cold,,,,,,,,,TRUNCATED,1,,1,the row is cut
1,vllm,never,interrupted,,,,,,,,,,,,,,,,,0,not started
'''


def test_summary_csv_of_all_nine_statuses(screen):
    done = summarize(add_all_statuses(screen).path, expect=1)
    assert (screen.path / "summary.csv").read_text() == GOLDEN
    assert {line.split(",")[3] for line in GOLDEN.splitlines()[1:]} == {
        "ok", "partial", "failed", "timeout", "crashed", "skipped", "not_found", "dismissed", "interrupted"}
    assert done.stderr == ""    # whatever was killed has a cut log: nothing to warn of


def test_the_terminal_table(screen):
    done = summarize(add_all_statuses(screen).path, expect=1)
    assert done.stdout == f'''\
repo  op      status       dtype    fallback  measured how               rows  bad rows  geomean speedup  of rows    min    max
main  abs     ok           float16            kernel core do_bench cold     2                      1.000        2  0.500  2.000
main  abs     ok           float32            kernel core do_bench cold     1                      3.000        1  3.000  3.000
main  conv2d  timeout      float16            kernel core do_bench cold     1                      2.000        1  2.000  2.000
main  evil    dismissed                                                     0
main  gone    not_found                       kernel core do_bench cold     0
main  half    interrupted  float16            kernel core do_bench cold     1                      2.000        1  2.000  2.000
main  lost    not_found                                                     0
main  mm      partial      float16  subset    kernel core do_bench cold     2         1            4.000        1  4.000  4.000
main  mm      partial      float32  subset    kernel core do_bench cold     1         1
main  silu    skipped                         kernel core do_bench cold     0
main  sort    failed                          kernel core do_bench cold     0
main  topk    crashed      float16            kernel core do_bench cold     1         1
vllm  never   interrupted                                                   0
fallback: not the dtypes that were asked for, but those of them that the operator supports (subset), or its own (own)

failed      main/sort: no-data: pytest passed without a measured row
crashed     main/topk: killed by SIGSEGV; 0 rows measured
timeout     main/conv2d: stopped at its time limit; 1 row measured
partial     main/mm: RuntimeError: out; 1 of 3 rows measured
not_found   main/gone: not found: benchmark/test_gone.py::test_gone
not_found   main/lost: no benchmark node in the tree
interrupted main/half: not finished
interrupted vllm/never: not started
11 ops: 1 ok, 1 partial, 1 failed, 1 timeout, 1 crashed, 1 skipped, 2 not_found, 1 dismissed, 2 interrupted
summary: {screen.path}/summary.csv
'''


def test_columns_that_are_empty_throughout_are_left_out_and_the_host_device_says_why(screen):
    done = summarize(screen.add("abs", "ok", log=run_log("abs", GOOD, cache="host")).path)
    assert done.stdout == '''\
repo  op   status  dtype    measured how               rows
main  abs  ok      float16  kernel core do_bench host     1
no speedups: on the host device kernels are compiled for a GPU and executed on the CPU, so that times are no times

1 op: 1 ok
summary: {screen.path}/summary.csv
'''.format(screen=screen)
    for name in ("summary.md", "report.html"):
        text = (screen.path / name).read_text()
        assert "No speedups: on the host device kernels are compiled for a GPU and executed on the CPU, so that times" in text
        assert "geomean speedup" not in text and "fallback" not in text


def test_a_reason_is_one_line(screen):
    done = summarize(screen.add("abs", "failed", "", reason="RuntimeError:").path, expect=1)
    assert "\nfailed      main/abs: RuntimeError:\n" in done.stdout
    marker = '{"schema": 1, "status": "failed", "attempt": 1, "reason": "a\\n b\\r\\n\\nc"}'
    (screen.path / "main/abs/.complete").write_text(marker)
    assert "\nfailed      main/abs: a b c\n1 op: 1 failed\nsummary: " in summarize(screen.path, expect=1).stdout


FACTS = ("created 2026-11-30T06:29:00Z", "devices 0, 1: NVIDIA H200, NVIDIA L4", "driver 570.86.15",
         "torch 2.11.0, triton 3.6.0, flag_gems 5.0.2, python 3.11.7", "main at ed2508bcb5a0", "vllm at an unknown commit",
         "sample tree of gemscreen 98a2b83")


def test_summary_md(screen):
    info = json.loads((screen.path / "screen.json").read_text())
    info |= {"models": ["NVIDIA H200", "NVIDIA L4"], "driver": "570.86.15", "harness": "98a2b83",
             "versions": {"flag_gems": "5.0.2", "python": "3.11.7", "torch": "2.11.0", "triton": "3.6.0",
                          "triton *.so": [1, 2, 3]},
             "repos": {"main": {"tree": "/x", "commit": "ed2508bcb5a03000e9774734201d840ba362cd11", "changes": ""},
                       "vllm": {"tree": "/v", "commit": ""}, "samples": {"tree": "/s", "commit": ""}}}
    (screen.path / "screen.json").write_text(json.dumps(info))
    summarize(add_all_statuses(screen).path, expect=1)
    text = (screen.path / "summary.md").read_text()
    assert text.startswith("# screen-a\n\n11 ops: 1 ok, 1 partial,")
    assert "".join(f"\n- {fact}".replace("_", "\\_") for fact in FACTS) in text
    assert "| main | abs | ok | float16 |  | kernel core do\\_bench cold | 2 |  | 1.000 | 2 | 0.500 | 2.000 |\n" in text
    assert "| main | mm | partial | float32 | subset | kernel core do\\_bench cold | 1 | 1 |  |  |  |  |\n" in text
    assert "| main | silu | skipped |  |  | kernel core do\\_bench cold | 0 |  |  |  |  |  |\n" in text
    assert "\n- crashed main/topk: killed by SIGSEGV; 0 rows measured\n" in text
    assert "above 1 where Gems is faster" in text
    page = (screen.path / "report.html").read_text()
    assert "".join(f"<li>{fact}</li>" for fact in FACTS) in page
    assert '<td>float32</td><td>subset</td><td>kernel core do_bench cold</td>' in page
    assert re.findall(r'<tr data-status="(\w+)"', page)[:5] == ["failed", "crashed", "timeout", "partial", "partial"]


# ---- exit status

def test_exit_0_if_all_is_good_and_1_also_when_quiet(screen):
    screen.add("abs", "ok", GOOD).add("b", "skipped", "", reason="x").add("c", plan="dismissed", reason="y")
    assert summarize(screen.path, expect=0).stdout != ""
    screen.add("d", "failed", "", reason="z")
    assert summarize(screen.path, "--quiet", expect=1).stdout == ""
    assert columns(read_summary(screen.path), "op", "status") == [
        ("abs", "ok"), ("b", "skipped"), ("c", "dismissed"), ("d", "failed")]


@pytest.mark.parametrize("make, message", [
    (lambda path: None, "no such directory; give the directory of a screen, as in runs/latest-screen"),
    (lambda path: path.mkdir(), "neither plan.csv nor a run.log below; give the directory of a screen or of runs by hand"),
    (lambda path: path.write_text(""), "no such directory")])
def test_usage_errors_name_the_directory(tmp_path, make, message):
    make(tmp_path / "run")
    done = summarize(tmp_path / "run", expect=2)
    assert done.stderr.startswith(f"batch_summary.py: error: {tmp_path / 'run'}: {message}")
    assert done.stderr.count("\n") == 1


def test_usage_errors_of_the_command_line(screen):
    assert "RUN" in summarize(expect=2).stderr
    assert "--speed" in summarize(screen.path, "--speed", expect=2).stderr
    (screen.path / "file").write_text("")
    screen.add("abs", "ok", GOOD)
    assert summarize(screen.path, "--out", screen.path / "file", expect=2).stderr == (
        f"batch_summary.py: error: --out: {screen.path / 'file'}: is no directory; give another place\n")
    assert summarize(screen.path, "--out", "/proc/x", expect=3).stderr == (
        "batch_summary.py: error: /proc/x: no such file or directory; name another\n")


# ---- the files

def digest_tree(path):
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(path.rglob("*")) if file.is_file()}


def test_out_writes_elsewhere_and_leaves_the_run_alone(screen, tmp_path):
    add_all_statuses(screen)
    before = digest_tree(screen.path)
    done = summarize(screen.path, "--out", tmp_path / "new/place", expect=1)
    assert digest_tree(screen.path) == before
    assert sorted(os.listdir(tmp_path / "new/place")) == ["report.html", "summary.csv", "summary.md"]
    assert (tmp_path / "new/place/summary.csv").read_text() == GOLDEN
    assert done.stdout.endswith(f"summary: {tmp_path}/new/place/summary.csv\n")


def test_a_second_summary_is_the_same_and_leaves_nothing_else(screen):
    summarize(add_all_statuses(screen).path, "--quiet", expect=1)
    first = digest_tree(screen.path)
    summarize(screen.path, "--quiet", expect=1)
    assert digest_tree(screen.path) == first
    assert not [name for name in first if name.endswith(".tmp")]


def test_the_page_loads_nothing_and_links_every_log(screen, tmp_path):
    add_all_statuses(screen)
    screen.add("w<b>&\"'#?%41", "failed", "", reason="<script>alert(1)</script> @BODY@ &amp;")
    for out in (screen.path, tmp_path / "elsewhere"):
        summarize(screen.path, "--quiet", "--out", out, expect=1)
        page = (out / "report.html").read_text()
        assert not re.search(r"https?:|//[a-z]|\bsrc=|@import|url\(|<link", page)
        assert page.count("<script") == 1 and "default-src 'none'" in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt; @BODY@ &amp;amp;" in page
        assert not re.search(r"@(TITLE|FACTS|STATUSES|HEAD|NOTE)@", page)
        links = [unquote(link.replace("&#x27;", "'")) for link in re.findall(r'<a href="([^"]*run\.log)"', page)]
        assert len(links) == 11     # one per table line that has a log: abs and mm have two
        assert {(out / link).resolve() for link in links} == set(screen.path.resolve().rglob("run.log"))
        assert page.count("<tr data-status=") == 14
        assert '<button class="partial" data-status="partial" aria-pressed="false">1 partial</button>' in page
        assert '<td class="n">4.000</td><td class="n">1</td>' in page


def test_torch_is_not_imported(screen, tmp_path):
    for name in ("torch", "triton", "flag_gems"):
        (tmp_path / "trap" / name).mkdir(parents=True)
        (tmp_path / "trap" / name / "__init__.py").write_text("raise SystemExit('imported')")
    trap = {"PYTHONPATH": str(tmp_path / "trap")}
    summarize(screen.add("abs", "ok", GOOD).path, environment=trap)
    summarize("--help", environment=trap)


def test_without_rich_the_table_is_the_same(screen, tmp_path):
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "rich.py").write_text("raise ImportError('none here')")
    path = add_all_statuses(screen).path
    plain = summarize(path, expect=1, environment={"PYTHONPATH": str(tmp_path / "trap")})
    assert plain.stdout == summarize(path, expect=1).stdout


def test_a_reader_that_goes_away_is_no_error(screen):
    for number in range(400):
        screen.plan.append(f"1,main,op{number},dismissed,0,,{'x' * 200}")
    screen.write_plan()
    done = subprocess.run(f"{sys.executable} {SCRIPT} {screen.path} | head -n 1", shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("repo  op") and done.stderr == ""
    assert len(read_summary(screen.path)) == 400
