"""batch_summary.py: through its command line, over screens written here file by file."""

import csv
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "batch_summary.py"

HEAD = ("Status       Torch Latency (ms)    Gems Latency (ms)         Gems Speedup           Size Detail\n"
        "-----------------------------------------------------------------------------------------------\n")
HEAD_ALL = ("Status       Torch Latency (ms)    Gems Latency (ms)         Gems Speedup               TFLOPS"
            "          Torch GBPS            Gems GBPS           Size Detail\n" + "-" * 158 + "\n")


def title(op, dtype="float16", mode="kernel"):
    return f"\nOperator: {op}  Performance Test (dtype=torch.{dtype}, mode={mode},level=core)\n"


def row(status, *figures, detail="[torch.Size([64])]"):
    return f"{status:<10}" + "".join(f"{figure:>20}" for figure in figures) + " " * 10 + detail + "\n"


def run_log(op, tables, repo="main", pytest_exit=0, cache="cold", host_target="", end=True):
    text = (f"==== gemscreen begin ====\nschema: 1\nrepo: {repo}\nop: {op}\nlevel: core\nmode: kernel\ntimer: do_bench\n"
            f"cache: {cache}\ndevice: 0\nattempt: 1\nfallback:\nhost_target: {host_target}\n====\ncollected 1 item\n{tables}")
    return text + (f"==== gemscreen end ====\npytest_exit: {pytest_exit}\nseconds: 1\n====\n" if end else "")


class Screen:
    """A screen directory as run_batch.py leaves it."""

    def __init__(self, path):
        self.path = path
        self.plan = []
        path.mkdir()
        (path / "screen.json").write_text(json.dumps({
            "schema": 1, "created": "2026-11-30T06:29:00Z", "repos": {"main": {"tree": "/x", "commit": "ed2508b"}},
            "knobs": {}, "devices": ["0", "1"], "run_id": "r"}))
        self.write_plan()

    def write_plan(self):
        lines = [",".join(["schema", "repo", "op", "status", "device", "nodes", "reason"])] + self.plan
        (self.path / "plan.csv").write_text("\n".join(lines) + "\n")

    def add(self, op, status=None, tables=None, log=None, plan="planned", reason="", attempt=1, repo="main", **marker):
        """Plan `op`; with `tables` or `log` write its run.log, with `status` its marker."""
        self.plan.append(f"1,{repo},{op},{plan},0,benchmark/test_{op}.py::test_{op},{reason if plan != 'planned' else ''}")
        self.write_plan()
        if tables is not None:
            log = run_log(op, tables, repo)
        if log is not None:
            self.log_path(op, attempt, repo).parent.mkdir(parents=True)
            self.log_path(op, attempt, repo).write_text(log)
        if status:
            (self.path / repo / op).mkdir(parents=True, exist_ok=True)
            (self.path / repo / op / ".complete").write_text(json.dumps({
                "schema": 1, "status": status, "finished": "2026-11-30T06:30:00Z", "inputs_sha256": "0", "attempt": attempt,
                "fallback": "", "reason": reason, "signature": "", "seconds": 2, "device": "1", **marker}))
        return self

    def log_path(self, op, attempt=1, repo="main"):
        return self.path / repo / op / "attempts" / str(attempt) / "run.log"


@pytest.fixture
def screen(tmp_path):
    return Screen(tmp_path / "screen-a")


def summarize(*arguments, expect=0, environment=()):
    done = subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, "NO_COLOR": "1", **dict(environment)})
    assert done.returncode == expect, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def read_summary(path):
    with open(path / "summary.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def columns(rows, *names):
    return [tuple(line[name] for name in names) for line in rows]


GOOD = title("abs") + HEAD + row("SUCCESS", "0.200000", "0.100000", "2.000")


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
schema,repo,op,status,dtype,mode,level,timer,cache,shape,latency_base_ms,latency_ms,speedup,host_us,tflops,gbps_base,gbps,row_status,attempt,fallback,device,reason
1,main,abs,ok,float16,kernel,core,do_bench,cold,"[torch.Size([64, 64])]",0.2,0.1,2.0,,1.5,10.0,20.0,SUCCESS,1,,1,
1,main,abs,ok,float16,kernel,core,do_bench,cold,"[torch.Size([128, 64])]",0.1,0.2,0.5,,1.5,10.0,20.0,SUCCESS,1,,1,
1,main,abs,ok,float32,kernel,core,do_bench,cold,abs_backward: [torch.Size([64])],0.3,0.1,3.0,,,,,SUCCESS,1,,1,
1,main,conv2d,timeout,float16,kernel,core,do_bench,cold,[torch.Size([64])],0.2,0.1,2.0,,,,,SUCCESS,1,,1,stopped at its time limit; 1 row measured
1,main,evil,dismissed,,,,,,,,,,,,,,,,,0,hangs the host
1,main,gone,not_found,,kernel,core,do_bench,cold,,,,,,,,,,1,,1,not found: benchmark/test_gone.py::test_gone
1,main,half,interrupted,float16,kernel,core,do_bench,cold,[torch.Size([64])],0.2,0.1,2.0,,,,,SUCCESS,1,,0,not finished
1,main,lost,not_found,,,,,,,,,,,,,,,,,0,no benchmark node in the tree
1,main,mm,partial,float16,kernel,core,do_bench,cold,"[torch.Size([8, 64]), torch.Size([64, 64])]",0.4,0.1,4.0,,,,,SUCCESS,3,subset,1,RuntimeError: out; 1 of 3 rows measured
1,main,mm,partial,float16,kernel,core,do_bench,cold,"[torch.Size([9, 64]), torch.Size([64, 64])]",,,,,,,,FAILED,3,subset,1,"RuntimeError: out, of ""memory"""
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
    (screen.path / "main/abs/.complete").write_text('{"schema": 1, "status": "failed", "attempt": 1, "reason": "a\\n b\\r\\n\\nc"}')
    assert "\nfailed      main/abs: a b c\n1 op: 1 failed\nsummary: " in summarize(screen.path, expect=1).stdout


FACTS = ("created 2026-11-30T06:29:00Z", "devices 0, 1: NVIDIA H200, NVIDIA L4", "driver 570.86.15",
         "torch 2.11.0, triton 3.6.0, flag_gems 5.0.2, python 3.11.7", "main at ed2508bcb5a0", "vllm at an unknown commit",
         "sample tree of gemscreen 98a2b83")


def test_summary_md(screen):
    info = json.loads((screen.path / "screen.json").read_text())
    info |= {"models": ["NVIDIA H200", "NVIDIA L4"], "driver": "570.86.15", "harness": "98a2b83",
             "versions": {"flag_gems": "5.0.2", "python": "3.11.7", "torch": "2.11.0", "triton": "3.6.0", "triton *.so": [1, 2, 3]},
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


# ---- planned = reported

def test_a_result_that_no_plan_names_is_an_integrity_error(screen):
    screen.add("abs", "ok", GOOD).add("mm", "ok", GOOD)
    screen.plan.pop()
    screen.write_plan()
    done = summarize(screen.path, expect=4)
    assert done.stderr == (f"batch_summary.py: error: {screen.path}: 1 ops have results but are not in plan.csv: main/mm; "
                           "move their directories away, or plan them again\n")
    assert not (screen.path / "summary.csv").exists()


@pytest.mark.parametrize("plan, message", [
    (None, "missing, so that nobody knows which ops lack"),
    ("schema,repo,op,status,device,nodes,reason\n", "no op is planned"),
    ("schema,repo,op,device,nodes,reason\n1,main,abs,0,x,\n", "column 'status' is missing"),
    ("schema,repo,op,status,device,nodes,reason\n1,main,abs,planned,0,x,\n1,main,abs,planned,0,x,\n",
     "line 3: main/abs is planned in line 2 already"),
    ("schema,repo,op,status,device,nodes,reason\n2,main,abs,planned,0,x,\n", "line 2: '2,main,abs,planned,0,x,': no row of schema 1"),
    ("schema,repo,op,status,device,nodes,reason\n1,main,ab", "line 2: '1,main,ab,None,None,None,None': no row of schema 1"),
    ("schema,repo,op,status,device,nodes,reason\n1,main,abs,great,0,x,\n", "main/abs: status 'great' is unknown"),
    ("", "column 'schema' is missing"),
    ("schema,repo,op,status,device,nodes,reason\n1,main,..,planned,0,x,\n", "line 2: '1,main,..,planned,0,x,': no row of schema 1"),
    ("schema,repo,op,status,device,nodes,reason\n1,main,a/b,planned,0,x,\n", "line 2: '1,main,a/b,planned,0,x,': no row of schema 1"),
    ("schema,repo,op,status,device,nodes,reason\n1,main,\x01,planned,0,x,\n", "line 2: "),
    ("schema,repo,op,status,device,nodes,reason\n1,main,abs," + 200000 * "x", "field larger than field limit"),
    ("\x00\n", "")], ids=lambda value: "")
def test_a_damaged_plan_is_an_integrity_error(screen, plan, message):
    screen.add("abs", "ok", GOOD)
    (screen.path / "plan.csv").unlink()
    if plan is not None:
        (screen.path / "plan.csv").write_text(plan)
    done = summarize(screen.path, expect=4)
    assert done.stderr.startswith(f"batch_summary.py: error: {screen.path / 'plan.csv'}: {message}")
    assert "start the same screen again" in done.stderr and done.stderr.count("\n") == 1


def test_the_check_on_the_rows_themselves_can_fail():
    sys.path.insert(0, str(ROOT))
    from batch_summary import check_every_op_reported
    from common.errors import UserError
    from screen.results import OpResult, Run
    run = Run("r", {}, [OpResult("main", "abs", "ok"), OpResult("main", "mm", "ok")])
    check_every_op_reported(run, [(1, "main", "abs"), (1, "main", "mm")])
    with pytest.raises(UserError, match="planned and reported ops differ: main/mm") as caught:
        check_every_op_reported(run, [(1, "main", "abs")])
    assert caught.value.code == 4


# ---- logs that cannot be trusted cost their own op only

def test_an_unreadable_log_marks_its_op_and_no_other(screen):
    screen.add("abs", "ok", GOOD).add("mm", "ok", GOOD).add("sum", "ok", GOOD)
    screen.log_path("mm").unlink()
    screen.log_path("mm").mkdir()
    screen.log_path("sum").unlink()
    done = summarize(screen.path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "op", "status", "speedup", "reason") == [
        ("abs", "ok", "2.0", ""), ("mm", "failed", "", "run.log cannot be read (the op ended as ok)"),
        ("sum", "failed", "", "run.log cannot be read (the op ended as ok)")]
    assert done.stderr.splitlines() == [
        f"batch_summary.py: warning: main/mm: {screen.log_path('mm')}: Is a directory: the run log cannot be read; "
        "make it readable, or run its operator again",
        f"batch_summary.py: warning: main/sum: {screen.log_path('sum')}: No such file or directory: the run log cannot be "
        "read; make it readable, or run its operator again"]


def test_an_op_that_failed_before_it_had_a_log_keeps_its_reason(screen):
    screen.add("abs", "failed", reason="NODE: x: no file").add("mm", "crashed", "", reason="killed by SIGSEGV")
    screen.log_path("mm").unlink()
    screen.log_path("mm").mkdir()
    done = summarize(screen.path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "op", "status", "reason") == [
        ("abs", "failed", "NODE: x: no file"), ("mm", "crashed", "killed by SIGSEGV")]
    assert done.stderr.count("\n") == 1 and "main/mm: " in done.stderr
    assert "main/abs/attempts" not in (screen.path / "report.html").read_text()


def test_a_cut_log_is_partial_whatever_its_marker_says(screen):
    two = title("abs") + HEAD + row("SUCCESS", "0.2", "0.1", "2.000") + row("SUCCESS", "0.4", "0.1", "4.000")
    screen.add("abs", "ok", two).add("mm", "ok", GOOD)
    whole = screen.log_path("abs").read_text()
    screen.log_path("abs").write_text(whole[:whole.index("4.000")])
    done = summarize(screen.path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "op", "status", "row_status", "speedup", "reason") == [
        ("abs", "partial", "SUCCESS", "2.0", "run.log is cut or lacks rows (the op ended as ok)"),
        ("abs", "partial", "TRUNCATED", "", "the row is cut"), ("mm", "ok", "SUCCESS", "2.0", "")]
    assert done.stderr == (
        f"batch_summary.py: warning: main/abs: {screen.log_path('abs')}: the log ends in the middle of a line; the log has "
        "no end banner; the rows before it are kept, run the operator again for the rest\n")


def test_an_ok_without_a_measured_row_is_failed(screen):
    screen.add("abs", "ok", title("abs") + HEAD + row("SUCCESS", "0.2", "inf", "0.000"))
    summarize(screen.path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "status", "row_status", "latency_base_ms", "latency_ms", "speedup", "reason") == [
        ("failed", "INVALID", "0.2", "", "", "Gems latency inf ms is no time")]


def test_binary_rubbish_in_a_log_is_no_row(screen):
    screen.add("abs", "failed", "", reason="x").add("mm", "ok", GOOD)
    screen.log_path("abs").write_bytes(bytes(range(256)) * 10)
    summarize(screen.path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "op", "status", "row_status") == [
        ("abs", "failed", ""), ("mm", "ok", "SUCCESS")]


def test_a_damaged_marker_is_an_interrupted_op(screen):
    screen.add("abs", "ok", GOOD).add("mm", "ok", GOOD).add("sum", "ok", GOOD).add("cos", "ok", GOOD)
    (screen.path / "main/abs/.complete").write_text('{"schema": 1, "stat')
    (screen.path / "main/mm/.complete").write_text('{"schema": 1, "status": "splendid"}')
    (screen.path / "main/sum/.complete").unlink()
    (screen.path / "main/sum/.complete").mkdir()
    done = summarize(screen.path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "op", "status", "speedup", "reason") == [
        ("abs", "interrupted", "2.0", "not finished"), ("cos", "ok", "2.0", ""),
        ("mm", "interrupted", "2.0", "not finished"), ("sum", "interrupted", "2.0", "not finished")]
    assert [line.split(": cut or unknown")[0] for line in done.stderr.splitlines()] == [
        f"batch_summary.py: warning: {screen.path}/main/{op}/.complete" for op in ("abs", "mm", "sum")]


@pytest.mark.parametrize("part", [
    {"status": ["ok"]}, {"attempt": "../../x"}, {"attempt": 1.5}, {"attempt": True}, {"attempt": {"a": 1}}, {"reason": ["x"]},
    {"fallback": {"a": 1}}, {"reason": 5}])
def test_a_marker_with_wrong_types_is_an_interrupted_op_too(screen, part):
    screen.add("abs", "ok", GOOD, **{key: value for key, value in part.items() if key not in ("status", "attempt", "reason")})
    marker = json.loads((screen.path / "main/abs/.complete").read_text()) | part
    (screen.path / "main/abs/.complete").write_text(json.dumps(marker))
    done = summarize(screen.path, expect=1)
    assert columns(read_summary(screen.path), "op", "status", "speedup", "reason") == [("abs", "interrupted", "2.0", "not finished")]
    assert done.stderr.count("\n") == 1 and "main/abs/.complete: cut or unknown" in done.stderr


@pytest.mark.parametrize("content", [
    "[]", "1", '"x"', "null", '{"repos": [1], "devices": {"0": 1}, "versions": 3, "models": [], "driver": 5, "created": []}',
    '{"repos": {"main": null, "samples": [1]}, "devices": [[1], null], "versions": {"torch": 1}}', "[" * 100000], ids=range(7))
def test_a_damaged_screen_json_costs_the_headings_only(screen, content):
    screen.add("abs", "ok", GOOD)
    (screen.path / "screen.json").write_text(content)
    summarize(screen.path)
    assert columns(read_summary(screen.path), "op", "speedup") == [("abs", "2.0")]


def test_what_is_no_unicode_is_replaced(screen):
    screen.add("abs", "failed", "", reason="x")
    (screen.path / "main/abs/.complete").write_text('{"schema": 1, "status": "failed", "attempt": 1, "reason": "a\\ud800b"}')
    assert "main/abs: a?b\n" in summarize(screen.path, expect=1, environment={"PYTHONIOENCODING": "ascii"}).stdout
    assert columns(read_summary(screen.path), "reason") == [("a?b",)]


def test_a_missing_screen_json_costs_the_headings_only(screen):
    screen.add("abs", "ok", GOOD)
    (screen.path / "screen.json").write_text("{")
    done = summarize(screen.path, "--quiet")
    assert done.stderr == (f"batch_summary.py: warning: {screen.path / 'screen.json'}: missing or cut; devices and commits "
                           "are left out\n")
    assert columns(read_summary(screen.path), "op", "speedup") == [("abs", "2.0")]


# ---- what counts

def test_the_attempt_of_the_marker_counts_and_the_last_one_without_a_marker(screen):
    for op, status in (("abs", "ok"), ("mm", None)):
        for attempt in (1, 2, 10):
            path = screen.log_path(op, attempt)
            path.parent.mkdir(parents=True)
            path.write_text(run_log(op, title(op) + HEAD + row("SUCCESS", f"{attempt}.0", "1.0", f"{attempt}.000")))
        screen.add(op, status, attempt=2)
    summarize(screen.path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "op", "status", "attempt", "speedup") == [
        ("abs", "ok", "2", "2.0"), ("mm", "interrupted", "10", "10.0")]


def test_different_modes_are_never_averaged(screen):
    tables = (title("abs") + HEAD + row("SUCCESS", "0.4", "0.1", "4.000") + title("abs", mode="operator") + HEAD
              + row("SUCCESS", "0.1", "0.1", "1.000") + title("abs") + HEAD + row("SUCCESS", "0.1", "0.1", "1.000"))
    done = summarize(screen.add("abs", "ok", tables).path)
    assert done.stdout.splitlines()[1:3] == [
        "main  abs  ok      float16  kernel core do_bench cold       2            2.000        2  1.000  4.000",
        "main  abs  ok      float16  operator core do_bench cold     1            1.000        1  1.000  1.000"]


def test_a_geometric_mean_rests_on_the_rows_that_have_a_ratio(screen):
    tables = (title("abs") + HEAD + row("SUCCESS", "0.8", "0.1", "8.000") + row("SUCCESS", "0.1", "0.1", "1.000")
              + row("SUCCESS", "0.1", "0.1", "1.000") + row("SUCCESS", "N/A", "0.1", "N/A")
              + row("SUCCESS", "0.1", "nan", "nan") + row("FAILED", "N/A", "N/A", "N/A"))
    done = summarize(screen.add("abs", "partial", tables, reason="x").path, expect=1)
    assert done.stdout.splitlines()[1] == (
        "main  abs  partial  float16  kernel core do_bench cold     6         2            2.000        3  1.000  8.000")


@pytest.mark.parametrize("log", [{"cache": "host"}, {"host_target": "cuda:90"}])
def test_no_ratio_is_ever_reported_from_the_host_device(screen, log):
    tables = title("abs") + HEAD_ALL + row("SUCCESS", "0.2", "0.1", "2.000", "1.5", "10.0", "20.0") + row(
        "SUCCESS", "0.2", "0.1", "N/A")
    done = summarize(screen.add("abs", "ok", log=run_log("abs", tables, **log)).path)
    assert columns(read_summary(screen.path), "cache", "latency_ms", "speedup", "tflops", "gbps_base", "gbps", "row_status") == [
        ("host", "0.1", "", "", "", "", "SUCCESS")] * 2
    assert done.stdout.splitlines()[1].split() == ["main", "abs", "ok", "float16", "kernel", "core", "do_bench", "host", "2"]


def test_rows_after_an_illegal_access_are_its_cascade(screen):
    error = "RuntimeError: CUDA error: an illegal memory access was encountered"
    tables = "".join(title("abs", dtype) + HEAD + row("FAILED", "N/A", "N/A", "N/A")
                     + f"FAILED: Operator=abs dtype=torch.{dtype} row=1 err=<<<{error}>>>\n"
                     for dtype in ("float16", "float32", "int8")) + title("abs", "bool") + HEAD + row("SUCCESS", "0.2", "0.1", "2.000")
    summarize(screen.add("abs", "partial", tables, reason=error).path, "--quiet", expect=1)
    assert columns(read_summary(screen.path), "dtype", "row_status", "reason") == [
        ("float16", "FAILED", error), ("float32", "NOT_MEASURED", "cascade: " + error),
        ("int8", "NOT_MEASURED", "cascade: " + error), ("bool", "SUCCESS", error)]


def test_the_order_is_repo_op_and_table_whatever_the_plan_says(screen):
    both = title("b", "int8") + HEAD + row("SUCCESS", "0.2", "0.1", "2.000") + title("b", "bool") + HEAD + row("SUCCESS", "0.2", "0.1", "2.000")
    screen.add("b", "ok", both, repo="vllm").add("c", "ok", GOOD).add("b", "ok", both).add("a", plan="dismissed", reason="x")
    summarize(screen.path, "--quiet")
    assert columns(read_summary(screen.path), "repo", "op", "dtype") == [
        ("main", "a", ""), ("main", "b", "int8"), ("main", "b", "bool"), ("main", "c", "float16"),
        ("vllm", "b", "int8"), ("vllm", "b", "bool")]


# ---- runs made by hand

def write_hand_run(directory, log, pytest_exit=None, tests=()):
    directory.mkdir(parents=True)
    (directory / "run.log").write_text(log)
    if pytest_exit is not None:
        (directory / "exit.json").write_text(json.dumps({"schema": 1, "pytest_exit": pytest_exit}))
    (directory / "tests.jsonl").write_text("".join(json.dumps(test) + "\n" for test in tests) + '{"cut')


def test_every_run_log_below_a_directory_is_a_run(tmp_path):
    write_hand_run(tmp_path / "h/main/abs", run_log("abs", GOOD), 0)
    (tmp_path / "h/main/abs/session.jsonl").write_text('{"event": "started"}\n{"event": "finished", "exit": 0}\n')
    write_hand_run(tmp_path / "h/main/abs-2", run_log("abs", GOOD.replace("2.000", "3.000"), cache="warm"), 0)
    write_hand_run(tmp_path / "h/main/abs-10", run_log("abs", GOOD.replace("2.000", "4.000")), 0)
    write_hand_run(tmp_path / "h/main/mm", run_log("mm", ""), 0, [{"outcome": "skipped", "reason": "needs SM90"}])
    write_hand_run(tmp_path / "h/main/sort", run_log("sort", "", pytest_exit=1), None, [{"outcome": "failed", "error": "KeyError: 1"}])
    write_hand_run(tmp_path / "h/main/topk", run_log("topk", GOOD, end=False))
    write_hand_run(tmp_path / "h/main/bare", GOOD, 0)
    done = summarize(tmp_path / "h", expect=1)
    unchecked = "not checked for lost rows: there is no session.jsonl"
    assert columns(read_summary(tmp_path / "h"), "repo", "op", "status", "attempt", "cache", "speedup", "reason") == [
        ("main", "abs", "ok", "1", "cold", "2.0", ""), ("main", "abs", "ok", "2", "warm", "3.0", unchecked),
        ("main", "abs", "ok", "3", "cold", "4.0", unchecked), ("main", "bare", "ok", "1", "", "2.0", unchecked),
        ("main", "mm", "skipped", "1", "cold", "", "needs SM90"), ("main", "sort", "failed", "1", "cold", "", "KeyError: 1"),
        ("main", "topk", "crashed", "1", "cold", "2.0",
         "it never ended by itself (no exit.json, no exit status); 1 row measured")]
    # Two runs of one op are two lines: they are never averaged.
    assert [line.split()[1:3] for line in done.stdout.splitlines()[1:4]] == [["abs", "ok"], ["abs", "#2"], ["abs", "#3"]]
    assert "\n7 runs: 4 ok, 1 failed, 1 crashed, 1 skipped\n" in done.stdout


def test_one_run_directory_is_a_run_too(tmp_path):
    write_hand_run(tmp_path / "main/abs", run_log("abs", GOOD), 0)
    assert "\n1 op: 1 ok\n" in summarize(tmp_path / "main/abs").stdout
    assert columns(read_summary(tmp_path / "main/abs"), "repo", "op", "status") == [("main", "abs", "ok")]


def test_a_tests_jsonl_with_wrong_types_says_what_it_can(tmp_path):
    write_hand_run(tmp_path / "h/main/abs", run_log("abs", "", pytest_exit=1), 1, [
        {"outcome": "failed", "error": ["x"], "reason": {"a": 1}, "when": 3}, {"outcome": ["failed"], "error": "KeyError: 1"}, [1], 5])
    write_hand_run(tmp_path / "h/main/mm", run_log("mm", GOOD), [1])
    summarize(tmp_path / "h", expect=1)
    assert columns(read_summary(tmp_path / "h"), "op", "status") == [("abs", "failed"), ("mm", "ok")]


def test_tests_have_a_row_without_latencies(screen):
    """SUITE=tests: the correctness tests of an op, which measure nothing."""
    log = run_log("abs", "").replace("op: abs\n", "op: abs\nsuite: tests\n")
    done = summarize(screen.add("abs", "ok", log=log).path)
    assert columns(read_summary(screen.path), "op", "status", "mode", "level", "timer", "cache", "row_status", "reason") == [
        ("abs", "ok", "tests", "", "", "", "", "")]
    assert done.stdout.startswith("repo  op   status  measured how  rows\nmain  abs  ok      tests            0\n")


def test_runs_by_hand_say_what_their_logs_say(tmp_path):
    head = "commit: ed2508bcb5a03000e9774734201d840ba362cd11\n"
    for repo in ("main", "samples"):
        write_hand_run(tmp_path / "h" / repo / "abs", run_log("abs", GOOD, repo=repo).replace("op: abs\n", "op: abs\n" + head), 0)
    summarize(tmp_path / "h")
    assert "\n- devices 0\n- main at ed2508bcb5a0\n- sample tree of gemscreen ed2508bcb5a0\n" in (tmp_path / "h/summary.md").read_text()


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


def test_a_reader_that_goes_away_is_no_error(screen):
    for number in range(400):
        screen.plan.append(f"1,main,op{number},dismissed,0,,{'x' * 200}")
    screen.write_plan()
    done = subprocess.run(f"{sys.executable} {SCRIPT} {screen.path} | head -n 1", shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("repo  op") and done.stderr == ""
    assert len(read_summary(screen.path)) == 400
