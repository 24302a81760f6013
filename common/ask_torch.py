"""What torch says of devices, asked in a child of the children's Python, with a deadline: a driver may hang, and nothing here
imports torch. flag_gems is not asked: it would spawn vendor commands.

Requirements: the standard library; torch in the child. Limits: a vendor that torch does not reveal (neither by a module of its
own nor by the device's name) is "unknown"; GEMS_VENDOR says better.
"""

import json

from common.errors import REFUSED, UserError
from common.process import run_bounded

PROBE_SECONDS = 180     # importing torch takes 4 to 6 s; a vendor stack on a cold network disk far more

# The head of a script for -c, which puts the working directory into sys.path: that is no operator's.
IGNORE_CWD = "import sys\nsys.path[:] = filter(None, sys.path)\n"
_ASK_TORCH = IGNORE_CWD + r"""
import importlib, json, os
import torch
for name in ("torch_npu", "torch_musa", "torch_mlu", "torch_gcu", "torch_txda", "torch_ptpu"):
    try:
        importlib.import_module(name)
    except Exception:
        pass
MODULES = {"ascend": "npu", "cambricon": "mlu", "enflame": "gcu", "mthreads": "musa", "sunrise": "ptpu",
           "tsingmicro": "txda"}
vendor = next((v for v, name in MODULES.items() if hasattr(torch, name)), None)
device = getattr(torch, MODULES[vendor]) if vendor else torch.cuda
count = device.device_count() if vendor or device.is_available() else 0
def ask_vendor():
    if "PPU_SDK" in os.environ:
        return "thead"
    for key in ("GEMS_VENDOR", "FLAGGEMS_VENDOR", "GEMS_BACKEND", "FLAGGEMS_BACKEND"):
        if os.environ.get(key):
            return os.environ[key].lower()
    if vendor:
        return vendor
    if hasattr(torch, "__hcu_version__"):
        return "hygon"
    if hasattr(torch, "corex"):
        return "iluvatar"
    name = device.get_device_name(0).upper() if count else ""
    words = {"NVIDIA": "nvidia", "METAX": "metax", "MXC": "metax", "KUNLUN": "kunlunxin", "AMD": "amd"}
    return next((v for word, v in words.items() if word in name), "unknown")
"""
_COUNT = _ASK_TORCH + r"""
def describe_card(number):
    card = {"model": "", "uuid": "", "arch": ""}
    try:
        # NVIDIA's cards have a gcnArchName too: the card's own name.
        name = device.get_device_properties(number).gcnArchName.split(":")[0] if torch.version.hip else ""
        card["arch"] = name or ".".join(map(str, device.get_device_capability(number)))
    except Exception:
        pass
    try:
        card["model"] = device.get_device_name(number)
        uuid = str(device.get_device_properties(number).uuid).lower()
        card["uuid"] = uuid if uuid.strip("0-") else ""
    except Exception:
        pass
    return card
print("\nGEMSCREEN " + json.dumps({"count": count, "vendor": ask_vendor() if count else None,
                                  "cards": [describe_card(number) for number in range(count)]}))
"""
_MEMORY = _ASK_TORCH + r"""
free, total = device.mem_get_info()
print("\nGEMSCREEN " + json.dumps({"used_share": 1 - free / total}))
"""


def ask_count(python, environ):
    """{"count": devices that torch sees in `environ`, "vendor": its name or None, "cards": [{"model", "uuid",
    "arch"}, ...]}, asked in a child."""
    return _ask(python, environ, _COUNT)


def ask_arch(python, environ):
    """The architecture of the first device that torch sees in `environ` (`9.0`, `gfx942`); None if it does not say."""
    try:
        return find_arch(ask_count(python, environ))
    except UserError:
        return None


def find_arch(answer):
    """That of the first device in ask_count's `answer`, None if it does not say."""
    return next((card["arch"] for card in answer["cards"]), "") or None


def ask_used_share_command(python):
    """A command that prints, for read_used_share, how much of its visible device's memory is in use."""
    return [python, "-c", _MEMORY]


def read_used_share(output):
    """The share of device memory in use (0 to 1) from that command's output, or None where torch cannot say."""
    answer = _read_answer(output)
    return None if answer is None else answer["used_share"]


def _ask(python, environ, script):
    code, output = run_bounded([python, "-c", script], timeout=PROBE_SECONDS,
                               env={**environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    answer = _read_answer(output)
    if code is None:
        raise UserError(f"PYTHON: {python}: torch did not answer within {PROBE_SECONDS} s; a driver hangs, mend it or take "
                        f"the host device: DEVICES=host:0", REFUSED)
    if answer is None:
        last = (output.strip().splitlines() or [f"exit status {code}"])[-1]
        raise UserError(f"PYTHON: {python}: cannot ask torch for devices: {last}; see `make doctor`", REFUSED)
    return answer


def _read_answer(output):
    lines = [line for line in output.splitlines() if line.startswith("GEMSCREEN ")]
    return json.loads(lines[-1].partition(" ")[2]) if lines else None
