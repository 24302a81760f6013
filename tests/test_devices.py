"""common/devices.py: what is selected, what is refused, and what a child then sees.

The probing child is real; the torch that it imports is a small stand-in for a machine with accelerators.
"""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from common.ask_torch import ask_used_share_command, read_used_share
from common.devices import ALL_VARIABLES, Device, apply_changes, child_environment, count_cores, select_devices
from common.errors import UserError

# A machine with the devices FAKE_UUIDS, numbered from 0, behind the variable FAKE_VARIABLE. As CUDA does it, the
# first name that does not exist hides those after it, and of MIG instances only one is visible at a time.
TORCH = """
import os, types
MODULE, VARIABLE = os.environ.get("FAKE_MODULE", "cuda"), os.environ.get("FAKE_VARIABLE", "CUDA_VISIBLE_DEVICES")
ALL = [name for name in os.environ.get("FAKE_UUIDS", "").split(",") if name]
def visible():
    value = os.environ.get(VARIABLE)
    if value is None:
        return ALL
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    seen = []
    for name in value.split(","):
        if name.isdigit() and int(name) < len(ALL):
            name = ALL[int(name)]
        if name not in ALL:
            break
        seen.append(name)
    return seen[:1] if seen and seen[0].startswith("MIG") else seen
def module():
    return types.SimpleNamespace(
        is_available=lambda: bool(visible()), device_count=lambda: len(visible()),
        get_device_name=lambda n: os.environ.get("FAKE_NAME", "NVIDIA H200"),
        mem_get_info=lambda: tuple(int(n) for n in os.environ["FAKE_MEMORY"].split(",")))
cuda = types.SimpleNamespace(is_available=lambda: False, device_count=lambda: 0, get_device_name=None)
globals()[MODULE] = module()
print("noise that a vendor's import prints")
"""


@pytest.fixture
def machine(tmp_path):
    """environ(**variables) of a machine with a stand-in torch; by default with 8 NVIDIA devices."""
    (tmp_path / "torch.py").write_text(textwrap.dedent(TORCH))
    uuids = ",".join(f"GPU-{number}" for number in range(8))

    def environ(**variables):
        clean = {name: value for name, value in os.environ.items()
                 if name not in ALL_VARIABLES and name not in ("DEVICES", "HOST_TARGET", "GEMS_VENDOR", "OMP_NUM_THREADS")}
        return {**clean, "PYTHONPATH": str(tmp_path), "FAKE_UUIDS": uuids, **variables}
    return environ


def names(environ):
    return [device.name for device in select_devices(environ, sys.executable)]


def seen_by_child(device, environ):
    """The environment variables that select devices, as a real child sees them."""
    child = apply_changes(environ, child_environment(device, environ))
    script = "import json, os, sys; print(json.dumps({n: os.environ.get(n) for n in sys.argv[1:]}))"
    output = subprocess.run([sys.executable, "-c", script, "HOST_TARGET", "CUDA_DEVICE_ORDER", *ALL_VARIABLES],
                            env=child, check=True, capture_output=True).stdout
    return {name: value for name, value in json.loads(output).items() if value is not None}


def test_all_that_torch_counts_without_a_selection(machine):
    assert select_devices(machine(), sys.executable) == [Device(str(number), "nvidia") for number in range(8)]


def test_the_callers_variable_is_remapped_not_renumbered(machine):
    environ = machine(CUDA_VISIBLE_DEVICES="4,6")
    assert names(environ) == ["4", "6"]
    assert [seen_by_child(Device(name, "nvidia"), environ)["CUDA_VISIBLE_DEVICES"] for name in ("4", "6")] == ["4", "6"]


def test_devices_are_kept_in_the_callers_order(machine):
    assert names(machine(DEVICES="6, 2")) == ["6", "2"]


def test_devices_must_be_in_the_callers_variable(machine):
    assert names(machine(DEVICES="6", CUDA_VISIBLE_DEVICES="4,6")) == ["6"]
    with pytest.raises(UserError, match=r"DEVICES: 0: not in CUDA_VISIBLE_DEVICES=4,6") as caught:
        names(machine(DEVICES="0,1", CUDA_VISIBLE_DEVICES="4,6"))
    assert caught.value.code == 2


def test_uuids_and_mig_instances_stay_opaque(machine):
    assert names(machine(DEVICES="GPU-3,GPU-1")) == ["GPU-3", "GPU-1"]
    mig = machine(FAKE_UUIDS="MIG-a/1/0,MIG-b/2/0", CUDA_VISIBLE_DEVICES="MIG-b/2/0,MIG-a/1/0")
    assert names(mig) == ["MIG-b/2/0", "MIG-a/1/0"]
    assert seen_by_child(Device("MIG-a/1/0", "nvidia"), mig)["CUDA_VISIBLE_DEVICES"] == "MIG-a/1/0"


@pytest.mark.parametrize("variables, named", [
    ({"DEVICES": "0,9"}, "9"),
    ({"DEVICES": "GPU-1,GPU-x"}, "GPU-x"),
    ({"CUDA_VISIBLE_DEVICES": "1,99"}, "99"),
    ({"CUDA_VISIBLE_DEVICES": "99"}, "99"),
    ({"DEVICES": "0", "FAKE_UUIDS": ""}, "0"),
])
def test_a_device_that_does_not_exist_is_refused_by_name(machine, variables, named):
    with pytest.raises(UserError, match=rf": {named}: does not exist") as caught:
        names(machine(**variables))
    assert caught.value.code == 3


def test_a_device_named_twice_is_refused(machine):
    for variables in ({"DEVICES": "1,2,1"}, {"CUDA_VISIBLE_DEVICES": "1,2,1"}):
        with pytest.raises(UserError, match=": 1: named twice"):
            names(machine(**variables))


@pytest.mark.parametrize("vendor, fake, variables", [
    ("mthreads", {"FAKE_MODULE": "musa"}, ["MUSA_VISIBLE_DEVICES"]),
    ("metax", {"FAKE_NAME": "MetaX C500"}, ["MACA_VISIBLE_DEVICES"]),
    ("ascend", {"FAKE_MODULE": "npu"}, ["ASCEND_RT_VISIBLE_DEVICES", "NPU_VISIBLE_DEVICES"]),
    ("cambricon", {"FAKE_MODULE": "mlu"}, ["MLU_VISIBLE_DEVICES"]),
    ("enflame", {"FAKE_MODULE": "gcu"}, ["TOPS_VISIBLE_DEVICES"]),
    ("iluvatar", {"GEMS_VENDOR": "iluvatar"}, ["CUDA_VISIBLE_DEVICES", "ILUVATAR_VISIBLE_DEVICES"]),
    ("thead", {"PPU_SDK": "/opt/ppu"}, ["CUDA_VISIBLE_DEVICES"]),
])
def test_each_vendor_has_its_own_variable(machine, vendor, fake, variables):
    environ = machine(**fake, FAKE_VARIABLE=variables[0], **{variables[0]: "4,6"})
    assert select_devices(environ, sys.executable) == [Device("4", vendor), Device("6", vendor)]
    seen = seen_by_child(Device("6", vendor), environ)
    assert {name: seen.get(name) for name in variables} == dict.fromkeys(variables, "6")
    assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "HOST_TARGET" not in seen


def test_two_variables_of_one_vendor_must_agree(machine):
    with pytest.raises(UserError, match="ASCEND_RT_VISIBLE_DEVICES=1 and NPU_VISIBLE_DEVICES=2: select different"):
        names(machine(FAKE_MODULE="npu", FAKE_VARIABLE="ASCEND_RT_VISIBLE_DEVICES", ASCEND_RT_VISIBLE_DEVICES="1",
                      NPU_VISIBLE_DEVICES="2"))


def test_without_an_accelerator_there_are_host_slots(machine):
    slots = names(machine(FAKE_UUIDS=""))
    assert slots == [f"host:{number}" for number in range(min(4, count_cores()))]
    assert names(machine(HOST_TARGET="cuda:80")) == slots       # asked for where there are accelerators
    assert names(machine(CUDA_VISIBLE_DEVICES="-1")) == slots


def test_a_host_child_sees_no_accelerator(machine):
    seen = seen_by_child(Device("host:1", "host"), machine(CUDA_VISIBLE_DEVICES="4"))
    assert seen == {**dict.fromkeys(ALL_VARIABLES, ""), "HOST_TARGET": "cuda:90"}
    assert seen_by_child(Device("host:0", "host"), machine(HOST_TARGET="cuda:80"))["HOST_TARGET"] == "cuda:80"


def test_host_slots_share_the_cores():
    device = Device("host:0", "host")
    assert child_environment(device, {}, slots=1)["OMP_NUM_THREADS"] == str(count_cores())
    assert child_environment(device, {}, slots=1000)["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in child_environment(device, {"OMP_NUM_THREADS": "3"})


@pytest.mark.parametrize("text", ["host", "host:x", "0,host:0", "host:0,0"])
def test_host_slots_are_not_mixed_with_devices(machine, text):
    with pytest.raises(UserError, match="host slots are written host:0,host:1"):
        names(machine(DEVICES=text))


def test_a_python_without_torch_is_said(machine, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")
    with pytest.raises(UserError, match="libcudart.so.13: cannot open.*make doctor") as caught:
        names(machine())
    assert caught.value.code == 3


def test_a_driver_that_hangs_is_given_up(machine, tmp_path, monkeypatch):
    monkeypatch.setattr("common.ask_torch.PROBE_SECONDS", 0.5)
    (tmp_path / "torch.py").write_text("import time; time.sleep(600)")
    with pytest.raises(UserError, match="did not answer within 0.5 s"):
        names(machine())


def test_used_share_of_device_memory(machine):
    def ask(**variables):
        return subprocess.run(ask_used_share_command(sys.executable), env=machine(**variables), check=False,
                              capture_output=True, text=True).stdout
    assert read_used_share(ask(FAKE_MEMORY="20,80")) == 0.75
    assert read_used_share(ask(FAKE_MEMORY="no numbers")) is None
