"""CUDA's libdevice functions (``__nv_*``) in numpy.

Triton's interpreter has none of them. Directed roundings other than division towards zero are taken as nearest.
"""

import math

import numpy as np

from .errors import UnsupportedOnHost

ROUNDINGS = {"n": np.rint, "z": np.trunc, "d": np.floor, "u": np.ceil}
BIT_VIEWS = {
    "int": np.int32,
    "uint": np.uint32,
    "float": np.float32,
    "longlong": np.int64,
    "double": np.float64,
}


def per_element(function, at_pole=math.nan):
    """Lift a float function of the math module. It raises out of its domain, where C returns ``at_pole``."""

    def safe(x):
        try:
            return function(x)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.copysign(math.inf, x) if x == 0 else at_pole

    return np.vectorize(safe, otypes=[np.float64])


def divide_toward_zero(x, y):
    quotient = (x / y).astype(x.dtype)
    exact = quotient.astype(np.float64) * y.astype(np.float64)
    too_far = np.isfinite(quotient) & (np.abs(exact) > np.abs(x.astype(np.float64)))
    return np.where(too_far, np.nextafter(quotient, np.zeros_like(quotient)), quotient)


def round_half_away(x):
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole)


def power_of_ten(x):
    return np.power(x.dtype.type(10), x)


def count_leading_zeros(x):
    unsigned = x.view(f"u{x.itemsize}")
    return np.vectorize(lambda v: x.itemsize * 8 - int(v).bit_length(), otypes=[np.int32])(unsigned)


def count_bits(x):
    unsigned = x.view(f"u{x.itemsize}")
    return np.vectorize(lambda v: bin(int(v)).count("1"), otypes=[np.int32])(unsigned)


def reverse_bits(x):
    width = x.itemsize * 8
    reverse = np.vectorize(lambda v: int(f"{int(v):0{width}b}"[::-1], 2), otypes=[np.uint64])
    return reverse(x.view(f"u{x.itemsize}")).astype(f"u{x.itemsize}").view(x.dtype)


def high_product(x, y):
    """Upper half of a 32-bit product."""
    wide = np.int64 if x.dtype.kind == "i" else np.uint64
    return (x.astype(wide) * y.astype(wide)) >> wide(32)


def from_scipy(name):
    """A special function that only scipy has; scipy is not a requirement of the host device."""

    def call(*args):
        try:
            from scipy import special
        except ImportError:
            raise UnsupportedOnHost(f"libdevice special function {name} needs scipy: pip install scipy") from None
        return getattr(special, name)(*args)

    return call


FUNCTIONS = {
    "abs": np.abs, "fabs": np.abs, "llabs": np.abs,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint, "nearbyint": np.rint,
    "round": round_half_away, "llrint": np.rint, "llround": round_half_away,
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt, "rcbrt": lambda x: 1 / np.cbrt(x),
    "exp": np.exp, "exp2": np.exp2, "exp10": power_of_ten, "expm1": np.expm1,
    "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
    "logb": lambda x: np.floor(np.log2(np.abs(x))), "ilogb": lambda x: np.frexp(x)[1] - 1,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "sinpi": lambda x: np.sin(np.pi * x), "cospi": lambda x: np.cos(np.pi * x),
    "pow": np.power, "powi": lambda x, y: np.power(x, y.astype(x.dtype)),
    "fmod": np.fmod, "remainder": lambda x, y: x - np.rint(x / y) * y,
    "fdim": lambda x, y: np.maximum(x - y, 0), "fmax": np.fmax, "fmin": np.fmin,
    "copysign": np.copysign, "hypot": np.hypot, "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "nextafter": np.nextafter, "ldexp": np.ldexp, "scalbn": np.ldexp, "fma": lambda x, y, z: x * y + z,
    "fdivide": np.divide, "div_rn": np.divide, "div_rd": np.divide, "div_ru": np.divide,
    "div_rz": divide_toward_zero, "saturate": lambda x: np.clip(x, 0, 1),
    "isnan": np.isnan, "isinf": np.isinf, "finite": np.isfinite, "isfinite": np.isfinite, "signbit": np.signbit,
    "erf": per_element(math.erf), "erfc": per_element(math.erfc),
    "lgamma": per_element(math.lgamma, at_pole=math.inf), "tgamma": per_element(math.gamma),
    "clz": count_leading_zeros, "clzll": count_leading_zeros, "popc": count_bits, "popcll": count_bits,
    "brev": reverse_bits, "brevll": reverse_bits, "mulhi": high_product, "umulhi": high_product,
    "j0": from_scipy("j0"), "j1": from_scipy("j1"), "y0": from_scipy("y0"), "y1": from_scipy("y1"),
    "erfinv": from_scipy("erfinv"), "erfcinv": from_scipy("erfcinv"),
    "normcdf": from_scipy("ndtr"), "normcdfinv": from_scipy("ndtri"),
    "cyl_bessel_i0": from_scipy("i0"), "cyl_bessel_i1": from_scipy("i1"),
}  # fmt: skip

ARITHMETIC = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "rcp": lambda x: 1 / x, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip


def find_libdevice(symbol):
    """The numpy function for ``__nv_sinf`` and the like, or None.

    Names carry their type as a suffix (``f`` float, ``d`` double for the predicates) and their rounding as ``_rn``.
    """
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    for candidate in (name, name.removesuffix("f"), name.removesuffix("d")):
        if candidate in FUNCTIONS:
            return FUNCTIONS[candidate]
    if "_as_" in name:
        view = BIT_VIEWS.get(name.rsplit("_as_", 1)[1])
        return view and (lambda x: x.view(view))
    core, separator, rounding = name.rpartition("_r")
    if separator and rounding in ROUNDINGS:
        return find_rounded(core, rounding)
    return None


def find_rounded(core, rounding):
    """``fdiv``+``z``, ``float2int``+``d``, ``int2float``+``n``: the operation before the rounding suffix."""
    if core in ("fdiv", "ddiv") and rounding == "z":
        return divide_toward_zero
    if core[:1] in ("f", "d") and core[1:] in ARITHMETIC:
        return ARITHMETIC[core[1:]]
    source, separator, destination = core.partition("2")
    if not separator or "half" in core:
        return None
    to_integer = source in ("float", "double") and destination not in ("float", "double", "half")
    return ROUNDINGS[rounding] if to_integer else (lambda x: x)
