"""Which accelerator the host device stands in for: HOST_TARGET and HOST_MODE.

    HOST_TARGET=cuda:90           what kernels are compiled for; unset or empty: no host device
    HOST_MODE=execute|compile     execute (default): compile, then interpret each launch on CPU tensors
                                  compile: compile and count only; outputs are undefined
    COMPILE_PASS=1                with compile: FlagGems' operators for this very chip (Hopper's) are chosen, too
"""

from dataclasses import dataclass, field

from .errors import HostDeviceError

# Figures of the real cards (A100 80 GB SXM, H200 SXM, from NVIDIA's data sheets and deviceQuery). Kernels see
# them through get_device_properties: FlagGems sizes grids by the number of multiprocessors.
CHIPS = {
    80: dict(
        name="Host device (sm_80)",
        multi_processor_count=108,
        total_memory=80 << 30,
        L2_cache_size=40 << 20,
        shared_memory_per_block_optin=166912,
        shared_memory_per_multiprocessor=167936,
        clock_rate=1410000,
        memory_clock_rate=1593000,
        memory_bus_width=5120,
    ),
    90: dict(
        name="Host device (sm_90)",
        multi_processor_count=132,
        total_memory=141 << 30,
        L2_cache_size=50 << 20,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        clock_rate=1980000,
        memory_clock_rate=3201000,
        memory_bus_width=6144,
    ),
}
COMMON_PROPERTIES = dict(
    warp_size=32,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=49152,
)
MODES = ("execute", "compile")


@dataclass(frozen=True)
class HostTarget:
    """A Triton target (``backend:arch``) and what to do with a launch (``mode``)."""

    backend: str
    arch: int
    mode: str = "execute"
    is_specialised: bool = False
    properties: dict = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self):
        major, minor = self.capability
        facts = dict(CHIPS[self.arch], major=major, minor=minor, **COMMON_PROPERTIES)
        object.__setattr__(self, "properties", facts)

    def __str__(self):
        return f"{self.backend}:{self.arch}"

    @property
    def capability(self):
        """(major, minor), as torch.cuda.get_device_capability gives it."""
        return divmod(self.arch, 10)

    @property
    def executes(self):
        return self.mode == "execute"


def parse_target(text, mode="execute", is_specialised=False):
    """'cuda:90' -> HostTarget. Raises HostDeviceError (code 2) that names what is allowed."""
    allowed = ", ".join(f"cuda:{arch}" for arch in CHIPS)
    backend, _, arch = text.partition(":")
    if backend != "cuda" or not arch.isdigit() or int(arch) not in CHIPS:
        raise HostDeviceError(f"HOST_TARGET: {text!r} is no target of the host device; use one of: {allowed}", code=2)
    if mode not in MODES:
        raise HostDeviceError(f"HOST_MODE: {mode!r} is not known; use one of: {', '.join(MODES)}", code=2)
    return HostTarget(backend, int(arch), mode, is_specialised and mode == "compile")


def read_target(environ):
    """The target that the environment asks for, or None where HOST_TARGET is unset or empty."""
    text = environ.get("HOST_TARGET", "").strip()
    if not text:
        return None
    return parse_target(text, environ.get("HOST_MODE", "").strip() or "execute", environ.get("COMPILE_PASS") == "1")
