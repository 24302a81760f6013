"""ops/aliases.csv where it is used: an operator asked for under another of upstream's names is named."""
import subprocess
import sys

import pytest

from screen_stub import ROOT, StubScreen

TABLE = '''# names
schema,repo,kind,name,op,reason
1,main,id,_to_copy,to_copy,pytest has no marks that begin with an underscore
1,main,id,div_mode,div_tensor_mode,one id for two overloads
1,main,id,div_mode,div_scalar_mode,one id for two overloads
1,main,id,clone,,no benchmark carries this mark
1,main,op_name,div_floor,div_tensor_mode,the table names the mode
1,main,op,svd,svd,no id of its own
1,vllm,id,moe,fused_moe,another repo's
'''


@pytest.fixture
def stub(tmp_path):
    screen = StubScreen(tmp_path, ops=("to_copy", "div_tensor_mode", "div_scalar_mode", "svd"))
    (screen.ops_dir / "aliases.csv").write_text(TABLE)
    return screen


def look_up(stub, name):
    return subprocess.run([sys.executable, "-m", "common.inventory", "nodes", "main", name, "--ops-dir", stub.ops_dir],
                          cwd=ROOT, capture_output=True, text=True)


CASES = [
    ("_to_copy", "_to_copy is to_copy here: pytest has no marks that begin with an underscore"),
    ("div_mode", "div_mode is div_tensor_mode and div_scalar_mode here: one id for two overloads"),
    ("div_floor", "div_floor is div_tensor_mode here: the table names the mode"),
    ("clone", "clone cannot be run: no benchmark carries this mark"),
]


@pytest.mark.parametrize("name, told", CASES)
def test_lookup_by_hand_says_what_the_name_is_here(stub, name, told):
    done = look_up(stub, name)
    assert done.returncode == 2
    assert done.stderr == f"inventory.py: error: OP: {name}: not in {stub.ops_dir}/inventory_main.csv; {told}\n"


@pytest.mark.parametrize("name, told", CASES)
def test_screen_says_what_the_name_is_here(stub, name, told):
    for asked in (name, f"main/{name}"):
        assert stub.run("--ops", asked, "--dry-run") == 2
        assert stub.output() == f"run_batch.py: error: OPS: {asked}: {told}\n"


def test_operators_themselves_and_other_repos_names_are_left_alone(stub):
    assert look_up(stub, "svd").stdout == "benchmark/test_svd.py::test_svd\n"
    assert "did you mean" in look_up(stub, "div_tensor_mod").stderr
    assert "here:" not in look_up(stub, "moe").stderr


def test_broken_table_is_named(stub):
    (stub.ops_dir / "aliases.csv").write_text("schema,name\n")
    done = look_up(stub, "clone")
    assert done.returncode == 2
    assert "aliases.csv: line 1: no column repo" in done.stderr


def test_real_table_knows_the_underscored_operators():
    done = subprocess.run([sys.executable, "-m", "common.inventory", "nodes", "main", "_flash_attention_forward"], cwd=ROOT,
                          capture_output=True, text=True)
    assert "_flash_attention_forward is underscore_flash_attention_forward here: " in done.stderr
    done = subprocess.run([sys.executable, "-m", "common.inventory", "nodes", "samples", "to_copy"], cwd=ROOT,
                          capture_output=True, text=True)
    assert "to_copy is _to_copy here: " in done.stderr
