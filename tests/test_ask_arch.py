"""The architecture that the dismiss list and compile-ahead go by, asked of a stub torch: only its answers are made up."""
import sys

import pytest

from common.ask_torch import ask_arch
from common.devices import select_devices

TORCH = """
class version: hip = {hip}
class cuda:
    def get_device_properties(index): return type("Properties", (), {{"gcnArchName": {name}}})
    def get_device_capability(index): return (9, 0)
    def get_device_name(index): return "A card"
    def is_available(): return True
    def device_count(): return 1
"""


@pytest.mark.parametrize("hip, name, arch", [
    (None, "NVIDIA H200", "9.0"),       # as torch 2.11 has it: the card's name
    ("6.4", "gfx942:sramecc+:xnack-", "gfx942")])
def test_the_name_of_an_architecture_is_asked_of_amd_alone(tmp_path, hip, name, arch):
    (tmp_path / "torch.py").write_text(TORCH.format(hip=repr(hip), name=repr(name)))
    environ = {"PYTHONPATH": str(tmp_path), "GEMS_VENDOR": "nvidia"}
    assert ask_arch(sys.executable, environ) == arch
    assert [device.arch for device in select_devices(environ, sys.executable)] == [arch]    # without a second question
