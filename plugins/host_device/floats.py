"""Float formats that numpy lacks: bfloat16 kept in uint16, float8 kept in uint8 (Triton's own storage).

    widen(data, dtype)        storage -> float32 (other formats are returned as they are)
    to_storage(data, dtype)   numbers -> storage, rounded to nearest even

Upstream's interpreter computes on the raw bits of bfloat16 in places and truncates where the GPU rounds.
"""

import functools

import numpy as np
import triton.language as tl

from .errors import UnsupportedOnHost

# name -> (mantissa bits, exponent bias, highest finite code, NaN code). Codes above are infinity or NaN.
FLOAT8 = {
    "fp8e4nv": (3, 7, 0x7E, 0x7F),
    "fp8e5": (2, 15, 0x7B, 0x7F),
}


STORAGE = {
    name: np.dtype(kind)
    for kind, names in {
        "bool": ("int1",),
        "int8": ("int8",),
        "int16": ("int16",),
        "int32": ("int32",),
        "int64": ("int64",),
        "uint8": ("uint8", "fp8e4nv", "fp8e5", "fp8e4b15", "fp8e4b8", "fp8e5b16"),
        "uint16": ("uint16", "bf16"),
        "uint32": ("uint32",),
        "uint64": ("uint64", "pointer"),
        "float16": ("fp16",),
        "float32": ("fp32",),
        "float64": ("fp64",),
    }.items()
    for name in names
}


def storage_dtype(dtype):
    """The numpy dtype that holds elements of a Triton scalar, block or pointer type."""
    scalar = dtype.scalar
    return STORAGE["pointer"] if scalar.is_ptr() else STORAGE[scalar.name]


def is_bfloat16(dtype):
    return dtype.scalar == tl.bfloat16


def is_float8(dtype):
    return dtype.scalar.name in FLOAT8


def is_narrow(dtype):
    """Held as bits that numpy cannot compute with."""
    return is_bfloat16(dtype) or is_float8(dtype)


def refuse_other_float8(dtype):
    """Formats that no listed target computes with: their bits must not be taken for integers."""
    if dtype.scalar.is_fp8():
        raise UnsupportedOnHost(f"float format {dtype.scalar}")


def widen(data, dtype):
    """Storage -> float32 for bfloat16 and float8; any other data unchanged."""
    if is_bfloat16(dtype):
        return widen_bfloat16(data)
    if is_float8(dtype):
        return widen_float8(data, dtype.scalar.name)
    refuse_other_float8(dtype)
    return data


def to_storage(data, dtype):
    """Numbers -> the storage of ``dtype``, rounding floats to nearest even."""
    if is_bfloat16(dtype):
        return round_to_bfloat16(data)
    if is_float8(dtype):
        return round_to_float8(data, dtype.scalar.name)
    refuse_other_float8(dtype)
    return np.asarray(data).astype(storage_dtype(dtype.scalar), copy=False)


def widen_bfloat16(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_to_bfloat16(values):
    """To nearest even; every NaN becomes the quiet NaN 0x7FC0."""
    values = np.asarray(values, dtype=np.float32)
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    bias = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    rounded = ((bits + bias) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


@functools.lru_cache(maxsize=None)
def float8_values(name):
    """The values of the codes 0x00..highest finite, ascending (float32)."""
    mantissa, bias, highest, _ = FLOAT8[name]
    codes = np.arange(highest + 1)
    exponent, fraction = codes >> mantissa, codes & ((1 << mantissa) - 1)
    normal = np.ldexp(1.0 + fraction / (1 << mantissa), exponent - bias)
    subnormal = np.ldexp(fraction / (1 << mantissa), 1 - bias)
    return np.where(exponent > 0, normal, subnormal).astype(np.float32)


def widen_float8(bits, name):
    values, highest = float8_values(name), FLOAT8[name][2]
    code = bits & np.uint8(0x7F)
    magnitude = values[np.minimum(code, highest)]
    beyond = np.where((name == "fp8e5") & (code == 0x7C), np.float32(np.inf), np.float32(np.nan))
    magnitude = np.where(code > highest, beyond, magnitude).astype(np.float32)
    return np.where(bits & np.uint8(0x80), -magnitude, magnitude)


def round_to_float8(values, name):
    """To nearest even, saturating at the highest finite value, as ``cvt.rn.satfinite`` does on sm_89 and later."""
    values = np.asarray(values, dtype=np.float32)
    table, (_, _, _, nan_code) = float8_values(name), FLOAT8[name]
    halfway = (table[:-1] + table[1:]) / 2
    magnitude = np.abs(values)
    code = np.searchsorted(halfway, magnitude, side="left")
    tie = (code < len(halfway)) & (halfway[np.minimum(code, len(halfway) - 1)] == magnitude)
    code = np.where(tie & (code % 2 == 1), code + 1, code)
    code = np.where(np.isnan(values), nan_code, code).astype(np.uint8)
    return code | (np.signbit(values).astype(np.uint8) << np.uint8(7))


def round_toward_zero(values, dtype):
    """Numbers -> storage of a narrower float, truncated (``fp_downcast_rounding="rtz"``)."""
    nearest = to_storage(values, dtype)
    bits = nearest.view(f"u{nearest.itemsize}")
    too_far = np.abs(widen(nearest, dtype).astype(np.float64)) > np.abs(np.asarray(values, dtype=np.float64))
    return np.where(too_far, bits - 1, bits).astype(bits.dtype).view(nearest.dtype)
