"""_mthreads_guard_plugin on a synthetic Moore Threads tree: stub torch and flag_gems, real pytest runs."""
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "plugins"))
from mthreads_guard import source  # noqa: E402

STUB_TORCH = '''
class cuda:
    @staticmethod
    def is_available(): return False
    @staticmethod
    def get_device_capability(): return (9, 0)

class device:
    def __init__(self, type): self.type = type

class Tensor:
    def __init__(self, where): self.device = device(where)
'''
STUB_GEMS = 'vendor_name = "{vendor}"\ndevice = "musa"\n'
HEAD = "import pytest, torch, flag_gems\n"
BASE = '''
import flag_gems
class Benchmark:
    def get_latency(self, op, *args, **kwargs): return 1.0
'''
FILES = {
    "test_decorator.py": '''
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA required")
@pytest.mark.parametrize("size", [1, 2])
def test_pinned(size): assert torch.cuda.is_available() is False

@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA is not available")
def test_wrong_reason(): pass

@pytest.mark.skipif(True, reason="vendor not supported")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA required")
def test_second_guard(): pass
''',
    "test_wrong_file.py": '''
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA required")
def test_not_pinned(): pass
''',
    "test_module.py": '''
HAS_CUDA = torch.cuda.is_available()
pytestmark = [pytest.mark.skipif(not HAS_CUDA, reason="CUDA device required")]
def test_first(): pass
def test_second(): pass
''',
    "test_class.py": '''
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA only")
class TestPinned:
    def test_inside(self): pass

class TestOther:
    pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() and flag_gems.device == "cuda"), reason="CUDA only")
    def test_joined_class(self): pass
''',
    "test_body.py": '''
def test_pinned():
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    ran = True

def test_joined_body():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 10:
        pytest.skip("needs CUDA")

def test_other_skip():
    pytest.skip("needs vLLM")
''',
    "test_joined.py": '''
SM90 = torch.cuda.get_device_capability()[0] >= 9
def has_fp8(): 
    if not torch.cuda.is_available(): return False
    return SM90

@pytest.mark.skipif(not (torch.cuda.is_available() and SM90), reason="CUDA required")
def test_and(): pass

@pytest.mark.skipif(not has_fp8(), reason="CUDA required")
def test_function(): pass

@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA required")
@pytest.mark.skipif(not (torch.cuda.is_available() and SM90), reason="CUDA required")
def test_both(): pass
''',
    "test_unverified.py": '''
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA required")
def test_candidate(): pass
''',
    "test_grid_sample.py": '''
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA is required.")
def test_left(): pass
''',
    "test_cpu.py": '''
from base import Benchmark
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

def test_measures_the_cpu():
    assert Benchmark().get_latency(None, torch.Tensor(device.type), other=[torch.Tensor("cpu")]) == 1.0

def test_measures_the_card():
    assert Benchmark().get_latency(None, torch.Tensor("musa"), torch.Tensor("cpu")) == 1.0
''',
}
PINS = '''# scanned from a synthetic tree
schema,repo,file,reason,guards,status,date,device,commit,note
1,main,benchmark/test_decorator.py,CUDA required,,verified,2026-10-09,MTT S5000,ed2508b,
1,main,benchmark/test_module.py,CUDA device required,,verified,2026-10-09,MTT S5000,ed2508b,
1,main,benchmark/test_class.py,CUDA only,,verified,2026-10-09,MTT S5000,ed2508b,
1,main,benchmark/test_body.py,needs CUDA,,verified,2026-10-09,MTT S5000,ed2508b,
1,main,benchmark/test_joined.py,CUDA required,,verified,2026-10-09,MTT S5000,ed2508b,
1,main,benchmark/test_unverified.py,CUDA required,,unverified,,,,
1,main,benchmark/test_grid_sample.py,CUDA is required.,,left,,,,device defaults to cuda
'''


def build_tree(root, vendor):
    for name, text in {"site/torch.py": STUB_TORCH, "site/flag_gems.py": STUB_GEMS.format(vendor=vendor),
                       "tree/pytest.ini": "[pytest]\n", "tree/benchmark/conftest.py": "import flag_gems\n",
                       "tree/benchmark/base.py": BASE, "pins.csv": PINS,
                       **{f"tree/benchmark/{name}": HEAD + text for name, text in FILES.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def run(root, **variables):
    environment = {**os.environ, "PYTHONPATH": f"{root / 'site'}:{ROOT / 'plugins'}", "MTHREADS_GUARDS": str(root / "pins.csv"),
                   "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run([sys.executable, "-m", "pytest", "-p", "_mthreads_guard_plugin", "-p", "no:cacheprovider", "-s",
                           "-rs", "--rootdir", str(root / "tree"), "--junitxml", str(root / "junit.xml"),
                           str(root / "tree/benchmark")], cwd=root / "tree", capture_output=True, text=True, env=environment)


def read_outcomes(root):
    """{`file.py::[Class::]test`: outcome} of a run's junit.xml."""
    outcomes = {}
    for case in ElementTree.parse(root / "junit.xml").iter("testcase"):
        _, module, *classes = case.get("classname").split(".")
        kinds = {"skipped": "skipped", "failure": "failed", "error": "error"}
        outcomes["::".join([f"{module}.py", *classes, case.get("name")])] = next(
            (kinds[child.tag] for child in case if child.tag in kinds), "passed")
    return outcomes


@pytest.fixture(scope="module")
def mthreads(tmp_path_factory):
    root = build_tree(tmp_path_factory.mktemp("mthreads"), "mthreads")
    done = run(root)
    done.outcomes = read_outcomes(root)
    return done


def test_only_pinned_pure_guards_are_dropped(mthreads):
    assert mthreads.outcomes == {
        "test_decorator.py::test_pinned[1]": "passed", "test_decorator.py::test_pinned[2]": "passed",
        "test_decorator.py::test_wrong_reason": "skipped", "test_decorator.py::test_second_guard": "skipped",
        "test_wrong_file.py::test_not_pinned": "skipped",
        "test_module.py::test_first": "passed", "test_module.py::test_second": "passed",
        "test_class.py::TestPinned::test_inside": "passed", "test_class.py::TestOther::test_joined_class": "skipped",
        "test_body.py::test_pinned": "passed", "test_body.py::test_joined_body": "skipped",
        "test_body.py::test_other_skip": "skipped",
        "test_joined.py::test_and": "skipped", "test_joined.py::test_function": "skipped",
        "test_joined.py::test_both": "skipped",
        "test_unverified.py::test_candidate": "skipped", "test_grid_sample.py::test_left": "skipped",
        "test_cpu.py::test_measures_the_cpu": "failed", "test_cpu.py::test_measures_the_card": "passed",
    }
    assert "SKIPPED [1] benchmark/test_body.py:10: needs CUDA" in mthreads.stdout  # not a line of the plugin


def test_what_was_dropped_and_kept_is_said(mthreads):
    said = [line.removeprefix("mthreads guard: ") for line in mthreads.stdout.splitlines() if line.startswith("mthreads guard: ")]
    evidence = "(verified 2026-10-09 on MTT S5000 at ed2508b)"
    assert [line for line in said if line.startswith("dropped")] == [
        f"dropped 'CUDA only' from benchmark/test_class.py::TestPinned {evidence}",
        f"dropped 'CUDA required' from benchmark/test_decorator.py::test_pinned, 2 cases {evidence}",
        f"dropped 'CUDA required' from benchmark/test_decorator.py::test_second_guard {evidence}",
        f"dropped 'CUDA device required' from benchmark/test_module.py {evidence}",
    ]
    assert f"mthreads guard: dropped 'needs CUDA' in benchmark/test_body.py:5, test_pinned {evidence}" in mthreads.stdout
    assert ("kept 'CUDA required' on benchmark/test_joined.py::test_and: joined with another check: "
            "not (torch.cuda.is_available() and SM90)") in said
    assert "1 guards have a pin that is not verified and stay: benchmark/test_unverified.py 'CUDA required'" in said


def test_benchmark_on_the_cpu_is_an_error(mthreads):
    assert "all tensors of this measurement are on the CPU" in mthreads.stdout


@pytest.mark.parametrize("vendor", ["nvidia", "metax"])
def test_other_vendor_keeps_every_guard(tmp_path, vendor):
    done = run(build_tree(tmp_path, vendor))
    assert "2 passed, 17 skipped" in done.stdout  # test_cpu.py has no guard
    assert "mthreads guard" not in done.stdout


def test_vendor_of_the_vllm_package_counts_for_its_tree(tmp_path):
    root = build_tree(tmp_path, "mthreads")
    (root / "site/flaggems_vllm.py").write_text('vendor_name = "nvidia"\n')
    (root / "tree/benchmark/conftest.py").write_text("import flag_gems, flaggems_vllm\n")
    assert "mthreads guard" not in run(root).stdout
    (root / "site/flaggems_vllm.py").write_text('vendor_name = "mthreads"\n')
    done = run(root)
    assert "dropped" not in done.stdout  # the pins are of repo main


@pytest.mark.parametrize("line, fault", [
    ("1,main,benchmark/test_a.py,CUDA,,verified,,MTT S5000,ed2508b,", "line 3: verified without date; give the evidence"),
    ("1,main,benchmark/test_a.py,CUDA,,maybe,,,,", "line 3: status: maybe: unknown; valid are unverified, verified, left"),
    ("1,main,benchmark/test_grid_sample.py,CUDA,,verified,2026-10-09,MTT S5000,ed2508b,", "line 3: verified, but its input"),
    ("1,main,tests/test_cutlass_scaled_mm.py,CUDA,,verified,2026-10-09,MTT S5000,ed2508b,",
     "line 3: verified, but its guard asks for vLLM"),
    ("1,main,benchmark/test_a.py", "line 3: 3 values for 10 columns"),
])
def test_bad_pin_is_refused(tmp_path, line, fault):
    root = build_tree(tmp_path, "mthreads")
    (root / "pins.csv").write_text("".join(PINS.splitlines(keepends=True)[:2]) + line + "\n")
    done = run(root)
    assert done.returncode == 4
    assert fault in done.stderr + done.stdout


def test_missing_pin_list_is_refused(tmp_path):
    done = run(build_tree(tmp_path, "mthreads"), MTHREADS_GUARDS="/no/such.csv")
    assert done.returncode == 4
    assert "MTHREADS_GUARDS: /no/such.csv" in done.stderr + done.stdout


@pytest.mark.parametrize("condition, pure", [
    ("not torch.cuda.is_available()", True),
    ("(not torch.cuda.is_available())", True),
    ("not (not (not torch.cuda.is_available()))", True),
    ("'not torch.cuda.is_available()'", True),
    ("NO_CUDA", True),
    ("not has_cuda()", True),
    ("not torch.cuda.is_available() or not torch.cuda.is_available()", True),
    ("torch.cuda.is_available()", False),
    ("not MAYBE", False),
    ("not has_cuda() or torch.version.hip", False),
    ("torch.cuda.is_available() == False", False),
    ("not has_sm90()", False),
])
def test_purity_of_a_condition(condition, pure):
    text = f"""
NO_CUDA = not torch.cuda.is_available()
MAYBE = torch.cuda.is_available()
if torch.version.hip:
    MAYBE = True
def has_cuda():
    "one line"
    return torch.cuda.is_available()
def has_sm90():
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
@pytest.mark.skipif({condition}, reason="CUDA")
def test_a(): pass
"""
    guards = source.find_guards(text)
    assert [(guard.form, guard.scope, guard.reason, guard.pure) for guard in guards] == [("decorator", "test_a", "CUDA", pure)]


def test_guards_that_do_not_ask_for_cuda_are_none():
    assert source.find_guards("@pytest.mark.skipif(flag_gems.device == 'cpu', reason='x')\ndef test_a(): pass") == []


def test_forms_of_a_guard():
    guards = source.find_guards('''
requires = pytest.mark.skipif(not torch.cuda.is_available(), reason="alias")
@requires
def test_a(): pass
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="param"))])
def test_b(x):
    if torch.cuda.is_available():
        pass
    else:
        pytest.skip(reason="else")
if not torch.cuda.is_available():
    pytest.skip("whole file", allow_module_level=True)
''')
    assert [(guard.form, guard.scope, guard.reason, guard.pure) for guard in guards] == [
        ("decorator", "test_a", "alias", True), ("param", "", "param", True),
        ("body", "test_b", "else", True), ("body", "", "whole file", True)]


def scan(root, *words):
    return subprocess.run([sys.executable, str(ROOT / "ops/scan_guards.py"), "--repo", "main", "--tree", str(root / "tree"),
                           "--out", str(root / "list.csv"), *words], capture_output=True, text=True)


def read_list(root):
    lines = (root / "list.csv").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")][1:]


def test_scan_proposes_pure_guards_as_unverified(tmp_path):
    root = build_tree(tmp_path, "mthreads")
    done = scan(root)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("main at unknown: 17 lines of benchmark/ and 0 lines of tests/ ask torch.cuda.is_available(); "
                           "15 guards, 10 of them pure; 9 pins\n")
    assert read_list(root) == [
        "1,main,benchmark/test_body.py,needs CUDA,body:test_pinned,unverified,,,,",
        "1,main,benchmark/test_class.py,CUDA only,class:TestPinned,unverified,,,,",
        "1,main,benchmark/test_decorator.py,CUDA is not available,decorator:test_wrong_reason,unverified,,,,",
        "1,main,benchmark/test_decorator.py,CUDA required,decorator:test_pinned;decorator:test_second_guard,unverified,,,,",
        '1,main,benchmark/test_grid_sample.py,CUDA is required.,decorator:test_left,left,,,,"its input helper\'s device '
        'defaults to the literal ""cuda"": unskipped, all 90 cases fail in aten::empty"',
        "1,main,benchmark/test_joined.py,CUDA required,decorator:test_both,unverified,,,,",
        "1,main,benchmark/test_module.py,CUDA device required,module:,unverified,,,,",
        "1,main,benchmark/test_unverified.py,CUDA required,decorator:test_candidate,unverified,,,,",
        "1,main,benchmark/test_wrong_file.py,CUDA required,decorator:test_not_pinned,unverified,,,,",
    ]


def test_scan_again_keeps_evidence_and_names_what_is_gone(tmp_path):
    root = build_tree(tmp_path, "mthreads")
    (root / "list.csv").write_text(PINS.splitlines()[1] + '''
1,main,benchmark/test_module.py,CUDA device required,old,verified,2026-10-09,MTT S5000,ed2508b,seen to pass
1,main,benchmark/test_old.py,CUDA required,,verified,2026-10-09,MTT S5000,ed2508b,
1,vllm,benchmark/test_other.py,CUDA required,,unverified,,,,
''')
    done = scan(root)
    assert done.returncode == 1
    assert "gone: benchmark/test_old.py 'CUDA required' (verified): no pure guard of that reason in the tree" in done.stdout
    rows = read_list(root)
    seen = "1,main,benchmark/test_module.py,CUDA device required,module:,verified,2026-10-09,MTT S5000,ed2508b,seen to pass"
    assert seen in rows
    assert "1,vllm,benchmark/test_other.py,CUDA required,,unverified,,,," in rows
    assert not [row for row in rows if "test_old.py" in row]


def test_scan_lists_joined_guards_too(tmp_path):
    done = scan(build_tree(tmp_path, "mthreads"), "--list")
    assert "joined benchmark/test_joined.py:8  decorator test_and  'CUDA required'" in done.stdout
    assert not (tmp_path / "list.csv").exists()


def test_scan_of_no_checkout_is_refused(tmp_path):
    (tmp_path / "tree").mkdir()
    done = scan(tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"scan_guards.py: error: --tree: {tmp_path}/tree: is no checkout")
