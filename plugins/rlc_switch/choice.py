"""choice.py - which lowerings of a kernel a phase mask allows, and which of them is kept.

A layout conversion stays where two anchors demand different layouts. Each phase removes one anchor, lowers the kernel
a second time, and the result is kept only if its loop-weighted number of converts is strictly lower than stock's.

    bit 0 (1)   without Coalesce: kernels of rank <= 1 tensors, no loop      rand, uniform, dropout, pad
    bit 1 (2)   without Coalesce: kernels of rank <= 1 tensors, with loops   masked_select, sort's sweep
    bit 2 (4)   without Coalesce: kernels with a tensor of rank >= 2         topk's second stage, index_select
    bit 3 (8)   only the last RemoveLayoutConversions ("late")               randperm's scatter
A kernel with tt.dot is never eligible: its layouts are the tensor cores'.
"""
import re
from dataclasses import dataclass

from ttgir_text import Converts, count_converts, strip_noise

_DOT = re.compile(r"(?:^|=)\s*\"?tt\.dot(?:_scaled)?\b")
_LOOP = re.compile(r"(?:^|=)\s*\"?scf\.(?:for|while)\b")
_RANK2 = re.compile(r"tensor<\d+x\d+x")


@dataclass(frozen=True)
class Lowering:
    """A way through make_ttgir: with or without Coalesce, and which of the calls of RemoveLayoutConversions run."""
    name: str
    coalesce: bool
    calls: tuple


STOCK = Lowering("stock", True, (True, True, True))
NO_COALESCE = Lowering("nocoalesce", False, (True, True, True))
LATE = Lowering("late", True, (False, False, True))


def list_eligible(ttir, mask):
    """The Lowerings to try for a kernel, given as TTIR text."""
    lines = [strip_noise(line) for line in ttir.splitlines() if not line.startswith("#loc")]
    if any(_DOT.search(line) for line in lines):
        return []
    has_rank2 = any(_RANK2.search(line) for line in lines)
    has_loop = any(_LOOP.search(line) for line in lines)
    bit = 4 if has_rank2 else 2 if has_loop else 1
    return ([NO_COALESCE] if mask & bit else []) + ([LATE] if mask & 8 else [])


@dataclass(frozen=True)
class Lowered:
    """What a Lowering made of a kernel: the TTGIR module, its converts, and the metadata that make_ttgir left."""
    name: str
    module: object
    metadata: dict
    converts: Converts


def describe_lowered(lowering, module, metadata):
    return Lowered(lowering.name, module, metadata, count_converts(str(module)))


def choose(stock, alternatives):
    """The one with the lowest loop-weighted count; a tie keeps stock, byte for byte."""
    return min([stock, *alternatives], key=lambda lowered: lowered.converts.weighted)
