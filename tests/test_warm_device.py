"""The warm parent of a real device, as far as a machine without one shows it: flag_gems is imported without a device.

A stand-in for the plugin that finds the vendor says "nvidia" to the process that the parent asks, with an H200's
properties; torch has no CUDA here, so that anything that would initialise it fails. The first fork then fails too.
"""
import pytest

from warm_parent import ROOT, Parent

GUARD = """
import types
import torch
def find_vendor(torch, environ):
    seen = types.SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, L2_cache_size=62914560,
                                 total_memory=150 << 30, warp_size=32, shared_memory_per_block_optin=232448)
    answers = {"is_available": True, "device_count": 1, "current_device": 0, "get_device_name": "NVIDIA H200",
               "get_device_capability": (9, 0), "is_bf16_supported": True, "get_device_properties": seen}
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    return types.SimpleNamespace(vendor="VENDOR", why="", backend=torch.cuda)
def find_given_vendor(environ):
    return None
"""
GREEDY = "import torch\nprint('free', torch.cuda.mem_get_info())\n"
MODEST = "import os, torch\nassert torch.cuda.get_device_capability() == (9, 0) and os.environ['GEMS_VENDOR'] == 'nvidia'\n"


def start(folder, vendor, gems=None):
    """(last state, log) of a parent on a "device" of `vendor`; `gems` is the source of a stand-in for flag_gems."""
    site = folder / "site"
    site.mkdir()
    (site / "_device_guard_plugin.py").write_text(GUARD.replace("VENDOR", vendor))
    if gems:
        (site / "flag_gems.py").write_text(gems)
    parent = Parent(folder, HOST_TARGET="", PYTHONPATH=f"{site}:{ROOT / 'plugins'}")
    parent.process.wait(timeout=60)
    return parent.read_state(), (parent.warm / "log").read_text()


@pytest.mark.parametrize("gems", [None, MODEST])
def test_flag_gems_is_imported_without_touching_the_device(tmp_path, gems):
    state, log = start(tmp_path, "nvidia", gems)
    assert state.startswith("broken a first fork cannot compute: AssertionError: Torch not compiled with CUDA enabled"), log
    assert "asks for" not in log and "Error" not in log.partition("Unsafe")[0], log


def test_one_that_asks_for_more_is_left_to_the_forks(tmp_path):
    state, log = start(tmp_path, "nvidia", GREEDY)
    assert "importing flag_gems asks for " in log or "the accelerator is not initialised here" in log
    assert state.startswith("broken a first fork cannot compute"), log      # it got that far, without flag_gems


def test_a_vendor_of_which_nothing_is_known_gets_plain_processes(tmp_path):
    state, _ = start(tmp_path, "metax")
    assert state == "broken whether a device of metax survives a fork is not known; known is: nvidia"
