"""policy.py - RLC_STOCK_ENHANCE and RLC_STOCK_PHASE_MASK: which cell this process is, and the key that says so.

    ENHANCE=0            off        Triton's own pipeline; the mask does not matter
    ENHANCE=1 MASK=0     mask0      the candidate's code path with no phase enabled: must emit what off emits
    ENHANCE=1 MASK=15    candidate  all phases (default); another mask is `mask<N>`
    rlc-stock-3-5ae19c02-e1-m15     the key: revision, digest of this package's sources, the two values
"""
import hashlib
from dataclasses import dataclass
from pathlib import Path

ENHANCE, MASK = "RLC_STOCK_ENHANCE", "RLC_STOCK_PHASE_MASK"
ALL_PHASES = 15


class SwitchError(Exception):
    """The switch cannot be used as asked; `code` is the exit status (2 usage, 3 environment refused)."""

    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Policy:
    enhance: bool
    mask: int

    @property
    def cell(self):
        return {(False, 0): "off", (True, 0): "mask0", (True, ALL_PHASES): "candidate"}.get(
            (self.enhance, self.mask), f"mask{self.mask}")

    @property
    def key(self):
        """In the compile key, the options and the metadata. mask0's differs from off's: it must be compiled itself."""
        return f"{REVISION}-e{int(self.enhance)}-m{self.mask}"


def read_policy(environ):
    """The Policy that the environment asks for, or None where ENHANCE is unset. SwitchError for a bad value."""
    enhance, mask = environ.get(ENHANCE), environ.get(MASK)
    if enhance is None:
        if mask is not None:
            raise SwitchError(f"{MASK}: {mask}: means nothing without {ENHANCE}; set that to 0 or 1 too", 2)
        return None
    if enhance not in ("0", "1"):
        raise SwitchError(f"{ENHANCE}: {enhance!r}: is neither 0 nor 1", 2)
    mask = str(ALL_PHASES) if mask is None else mask
    if not (mask.isascii() and mask.isdigit() and int(mask) <= ALL_PHASES):
        raise SwitchError(f"{MASK}: {mask!r}: is no number from 0 to {ALL_PHASES}", 2)
    return Policy(enhance == "1", int(mask) if enhance == "1" else 0)


def digest_sources():
    """Eight hex digits for the code that decides: an edited switch must not be served from an old compile cache."""
    here = Path(__file__).resolve().parent
    sources = [*sorted(here.glob("*.py")), here.parent / "ttgir_text.py"]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:8]


REVISION = f"rlc-stock-3-{digest_sources()}"
