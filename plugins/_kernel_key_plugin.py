"""pytest plugin: a kernel that names a `tl.constexpr` function gets the same compile-cache key in every process.

Purpose  Triton's key of a kernel holds the text of each global constexpr that it names. If that is a Python function, as
         @tl.constexpr over a def makes it, the text is `<function get_scan_accum_type at 0x7f31...>`: another one in each
         process. So sort, cumsum and their like are compiled anew in every process and never found in a cache. Here the text
         has a digest of the function's code and file in place of the address.
Use      PYTHONPATH=plugins python -m pytest -p _kernel_key_plugin NODE ...
Does     nothing else: what is compiled is the same. The address stays where more than the code decides what a function gives: a
         closure, defaults, or a global that is no module, type, part of Triton or torch, or such a function of the same file; and
         where the file cannot be read.
Limits   Keys made while flag_gems is imported (of 1545 functions of ed2508b that concerns one: copysign's) keep the address.
"""
import functools
import hashlib
import sys
import types

PLAIN_MODULES = ("triton", "torch", "builtins")


def pytest_collection_finish():
    """Once whoever wants to has imported Triton; most keys are made at a first launch."""
    constexpr = getattr(sys.modules.get("triton.language"), "constexpr", None)
    if constexpr is None:
        return
    show = constexpr.__repr__

    def show_stably(self):
        text = name_function(self.value) if isinstance(self.value, types.FunctionType) else ""
        return f"constexpr[{text}]" if text else show(self)

    constexpr.__repr__ = show_stably


@functools.lru_cache(maxsize=None)
def name_function(function):
    """`<function MODULE.NAME of DIGEST>`; "" where its code is not all that decides."""
    if not is_plain(function, function.__code__.co_filename):
        return ""
    try:
        with open(function.__code__.co_filename, "rb") as file:
            digest = hashlib.sha256(file.read() + describe_code(function.__code__).encode())
    except OSError:
        return ""
    return f"<function {function.__module__}.{function.__qualname__} of {digest.hexdigest()}>"


def list_names(code):
    """The globals and attributes that `code` names, and the functions in it."""
    inner = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in list_names(const)]
    return [*code.co_names, *inner]


def describe_code(code):
    """Text that two functions have in common only if they do the same: two lambdas of one line have one name."""
    consts = [describe_code(const) if isinstance(const, types.CodeType) else repr(const) for const in code.co_consts]
    return repr((code.co_name, code.co_firstlineno, code.co_code.hex(), code.co_names, code.co_varnames, consts))


def is_plain(value, file, asked=()):
    """Whether `value` means the same in every process that has the same `file`; `asked`: functions that wait for this answer."""
    if isinstance(value, types.FunctionType) and value.__code__.co_filename == file:
        if value.__closure__ or value.__defaults__ or value.__kwdefaults__:
            return False
        named = [value.__globals__[name] for name in list_names(value.__code__) if name in value.__globals__]
        asked = (*asked, value)
        return all(any(each is one for one in asked) or is_plain(each, file, asked) for each in named)
    module = getattr(value, "__module__", None) or type(value).__module__
    return isinstance(value, (types.ModuleType, type)) or (callable(value) and module.partition(".")[0] in PLAIN_MODULES)
