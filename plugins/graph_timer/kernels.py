"""kernels.py - clear, copy and compare memory without a single torch operator.

Inside flag_gems.use_gems() torch's own zero_, copy_ and eq are FlagGems' kernels: a timer that used them would measure
them, or be measured by them. A Triton launch does not pass torch's dispatcher. All sizes are in bytes, all addresses
are multiples of 8.
"""
import triton
import triton.language as tl

import torch

BLOCK = 4096  # words of 8 bytes
WORD = 8


class Pointer:
    """What Triton takes for a pointer: an address and the type it points to."""

    def __init__(self, address, dtype):
        self.address, self.dtype = address, dtype

    def data_ptr(self):
        return self.address


@triton.jit(do_not_specialize=["words"])
def gemscreen_clear(target, words, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + offsets, tl.zeros([BLOCK], tl.int64), mask=offsets < words)


@triton.jit(do_not_specialize=["count", "stride"])
def gemscreen_copy(target, source, count, stride, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    tl.store(target + tl.program_id(1).to(tl.int64) * stride + offsets, tl.load(source + offsets, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["count"])
def gemscreen_compare(one, other, count, flag, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    differ = (tl.load(one + offsets, mask=inside, other=0) != tl.load(other + offsets, mask=inside, other=0)).to(tl.int32)
    if tl.max(differ, axis=0) > 0:
        tl.store(flag, 1)


def clear(address, size):
    """Set the whole words in `size` bytes at `address` to 0."""
    words = size // WORD
    gemscreen_clear[(triton.cdiv(words, BLOCK),)](Pointer(address, torch.int64), words, BLOCK=BLOCK)


def replicate(target, source, size, stride, count):
    """Copy `size` bytes at `source` to target, target + stride, ... `count` times."""
    for dtype, width, start, end in split_words(size):
        number = (end - start) // width
        grid = (triton.cdiv(number, BLOCK), count)
        gemscreen_copy[grid](Pointer(target + start, dtype), Pointer(source + start, dtype), number, stride // width, BLOCK=BLOCK)


def compare(one, other, size, flag):
    """Set the int32 at `flag` to 1 if `size` bytes at `one` and `other` differ, bit by bit."""
    for dtype, width, start, end in split_words(size):
        number = (end - start) // width
        gemscreen_compare[(triton.cdiv(number, BLOCK),)](
            Pointer(one + start, dtype), Pointer(other + start, dtype), number, Pointer(flag, torch.int32), BLOCK=BLOCK)


def split_words(size):
    """(dtype, width, start, end) of the whole words in `size` bytes, and of the bytes that are left."""
    whole = size // WORD * WORD
    parts = [(torch.int64, WORD, 0, whole)] if whole else []
    return parts + ([(torch.int8, 1, whole, size)] if size > whole else [])
