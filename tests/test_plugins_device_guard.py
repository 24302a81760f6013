"""_device_guard_plugin: the vendor comes from torch alone, a user's value is kept, and no vendor command is started."""
import os
import signal
import subprocess

import pytest

from common.runlog import parse_runlog
from stub_tree import add_benchmark, make_tree, run_plugin, run_script

PLUGIN = "_device_guard_plugin"
NO_CUDA = "cuda.is_available = staticmethod(lambda: False)\n"
CARD = "class Card:\n    is_available = staticmethod(lambda: {})\n    get_device_name = staticmethod(lambda index: 'S5000')\n"
SAYS = "def test_one():\n    import os; print('vendor is', os.environ.get('GEMS_VENDOR'))"


@pytest.fixture
def tree(tmp_path):
    tree = make_tree(tmp_path / "tree")
    (tree / "test_plain.py").write_text(SAYS)
    return tree


def change_torch(tree, text, **modules):
    """Append `text` to the stub of torch; `modules` are more stubs."""
    with open(tree / "stubs/torch.py", "a") as file:
        file.write(text)
    for name, body in modules.items():
        (tree / f"stubs/{name}.py").write_text(body)


@pytest.mark.parametrize(
    "vendor, why, text",
    [
        ("nvidia", "'NVIDIA H200'", "cuda.get_device_name = staticmethod(lambda index: 'NVIDIA H200')\n"),
        ("metax", "'MetaX C500'", "cuda.get_device_name = staticmethod(lambda index: 'MetaX C500')\n"),
        ("metax", "2.8.0+metax3.7.2.0", "__version__ = '2.8.0+metax3.7.2.0'\n"),
        ("iluvatar", "torch.corex", "corex = True\n"),
        ("hygon", "__hcu_version__", "__hcu_version__ = '1'\nversion.hip = '6'\n"),
        ("hygon", "2.9.0+das.opt1.dtk2604", "__version__ = '2.9.0+das.opt1.dtk2604'\nversion.hip = '6'\n"),
        ("amd", "version.hip is 6.2", "version.hip = '6.2'\ncuda.get_device_name = staticmethod(lambda index: 'gfx942')\n"),
        ("thead", "ppu2.0.0", "__version__ = '2.9.0+ppu2.0.0.oe'\n"),
        ("nvidia", "assumed", "cuda.get_device_name = staticmethod(lambda index: 'Card 9000')\n"),
        ("nvidia", "assumed", "def _fail(index): raise RuntimeError('no')\ncuda.get_device_name = staticmethod(_fail)\n"),
        # Moore Threads: torch.cuda.is_available() is False by design.
        ("mthreads", "torch.musa", NO_CUDA + CARD.format(True) + "musa = Card\n"),
        ("ascend", "torch.npu", CARD.format(True) + "npu = Card\n"),
        ("cambricon", "torch.mlu", NO_CUDA + CARD.format(True) + "mlu = Card\n"),
        ("enflame", "torch.gcu", NO_CUDA + CARD.format(True) + "gcu = Card\n"),
        ("tsingmicro", "torch.txda", NO_CUDA + CARD.format(True) + "txda = Card\n"),
        ("sunrise", "torch.ptpu", NO_CUDA + CARD.format(True) + "ptpu = Card\n"),
        # A vendor's package without its card does not hide the card that is there.
        ("nvidia", "'NVIDIA Stub'", CARD.format(False) + "npu = Card\n"),
    ],
)
def test_vendor_comes_from_torch(tree, vendor, why, text):
    change_torch(tree, text)
    ended = run_plugin(tree, [PLUGIN], "test_plain.py")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"vendor is {vendor}\n" in ended.stdout
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("device guard: GEMS_VENDOR=")]
    assert line.startswith(f"device guard: GEMS_VENDOR={vendor} (") and why in line


def test_vendor_package_is_imported_so_that_torch_knows_it(tree):
    change_torch(tree, NO_CUDA, torch_musa="import torch\n" + CARD.format(True) + "torch.musa = Card\n")
    assert "vendor is mthreads\n" in run_plugin(tree, [PLUGIN], "test_plain.py").stdout


def test_broken_vendor_package_is_said_and_passed_over(tree):
    change_torch(tree, "", torch_npu="raise OSError('libascendcl.so: no such file')\n")
    ended = run_plugin(tree, [PLUGIN], "test_plain.py")
    assert "torch_npu is installed but cannot be imported: OSError: libascendcl.so" in ended.stdout
    assert "vendor is nvidia\n" in ended.stdout


@pytest.mark.parametrize("variable", ["GEMS_VENDOR", "FLAGGEMS_VENDOR", "GEMS_BACKEND"])
def test_users_value_is_kept(tree, variable):
    ended = run_plugin(tree, [PLUGIN], "test_plain.py", **{variable: "metax"})
    assert "vendor is metax\n" in ended.stdout
    assert f"(kept: {variable} was set; torch would say nvidia: the device's name is 'NVIDIA Stub')" in ended.stdout


def test_device_and_memory_are_logged_where_torch_offers_them(tree):
    assert "device guard: device 'NVIDIA Stub', 3.0 of 4.0 GiB free\n" in run_plugin(tree, [PLUGIN], "test_plain.py").stdout
    change_torch(tree, CARD.format(True) + "musa = Card\n")
    assert "device guard: device 'S5000'\n" in run_plugin(tree, [PLUGIN], "test_plain.py").stdout


@pytest.mark.parametrize("device", ["0", "GPU-6f1c", None])
def test_no_accelerator_is_refused(tree, device):
    change_torch(tree, NO_CUDA)
    ended = run_plugin(tree, [PLUGIN], "test_plain.py", DEVICE=device)
    assert ended.returncode == 3 and "vendor is" not in ended.stdout
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"device guard: error: {'DEVICE: ' + device + ': ' if device else ''}torch 2.0.0+stub sees no")
    assert "HOST_TARGET=cuda:90" in line


def test_no_accelerator_is_refused_through_the_script(tree):
    change_torch(tree, NO_CUDA)
    ended = run_script(tree, "one", add_benchmark(tree, "one", SAYS), DEVICE="7")
    assert ended.returncode == 3
    assert "device guard: error: DEVICE: 7: torch 2.0.0+stub sees no accelerator" in (tree / "run/run.log").read_text()
    assert parse_runlog(tree / "run/run.log").footer["pytest_exit"] == "3"


def test_no_torch_is_refused_only_if_a_device_was_asked_for(tree):
    (tree / "stubs/torch.py").write_text("raise ImportError('no libtorch.so')\n")
    asked = run_plugin(tree, [PLUGIN], "test_plain.py", DEVICE="0")
    assert asked.returncode == 3 and "DEVICE: 0: torch cannot be imported (no libtorch.so)" in asked.stderr
    assert run_plugin(tree, [PLUGIN], "test_plain.py").returncode == 0


def test_vendors_that_are_cpus_need_no_accelerator(tree):
    change_torch(tree, NO_CUDA)
    assert "vendor is arm\n" in run_plugin(tree, [PLUGIN], "test_plain.py", GEMS_VENDOR="arm", DEVICE="cpu").stdout


def test_host_device_switches_the_guard_off(tree):
    change_torch(tree, "raise OSError('torch was asked')\n")
    ended = run_plugin(tree, [PLUGIN], "test_plain.py", HOST_TARGET="cuda:90", DEVICE="host:0")
    assert ended.returncode == 0 and "device guard" not in ended.stdout and "vendor is None\n" in ended.stdout


def test_hung_vendor_command_is_never_started(tree, tmp_path):
    """One hangs and ignores TERM, one answers at once; flag_gems asks both where GEMS_VENDOR is unset."""
    commands = tmp_path / "bin"
    commands.mkdir()
    hangs = f"trap '' TERM; echo $$ > {tmp_path}/pid; exec sleep 60"
    for name, body in (("nvidia-smi", hangs), ("mthreads-gmi", "echo MTT S5000")):
        (commands / name).write_text(f"#!/bin/bash\ntouch {tmp_path}/called-{name}\n{body}\n")
        (commands / name).chmod(0o755)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    node = add_benchmark(tree, "one", "def test_one(): make('one').run()")
    ended = run_script(tree, "one", node, PATH=path, timeout=20)
    assert ended.returncode == 0 and "GEMS_VENDOR=nvidia (" in ended.stdout
    assert not list(tmp_path.glob("called-*"))
    with pytest.raises(subprocess.TimeoutExpired):  # without the guard it does hang: the test can fail
        run_plugin(tree, [], node, PATH=path, timeout=3)
    assert [found.name for found in tmp_path.glob("called-*")] == ["called-nvidia-smi"]
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_guard_comes_before_later_plugins_and_conftests(tree):
    (tree / "stubs/early.py").write_text("import flag_gems\nprint('early sees', flag_gems.vendor_name)\n")
    assert "early sees nvidia\n" in run_plugin(tree, [PLUGIN, "early"], "test_plain.py").stdout
    (tree / "stubs/wrong.py").write_text("import os\nos.environ['GEMS_VENDOR'] = 'metax'\n"
                                         "import flag_gems\ndel os.environ['GEMS_VENDOR']\n")
    late = run_plugin(tree, ["wrong", PLUGIN], "test_plain.py", PATH="/usr/bin:/bin")
    assert "flag_gems was imported before this plugin, for metax" in late.stdout
    same = run_plugin(tree, ["early", PLUGIN], "test_plain.py", PATH="/usr/bin:/bin", GEMS_VENDOR="nvidia")
    assert "GEMS_VENDOR=nvidia" in same.stdout and "imported before" not in same.stdout


def test_what_was_imported_is_not_searched_for_garbage(tree):
    (tree / "test_plain.py").write_text("import gc\nat_import = gc.isenabled()\n"
                                       "def test_one():\n"
                                       "    print('collector', at_import, gc.isenabled(), gc.get_freeze_count() > 10_000)\n")
    assert "collector False True True\n" in run_plugin(tree, [PLUGIN], "test_plain.py").stdout
