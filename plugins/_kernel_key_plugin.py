"""pytest plugin: a kernel that names a `tl.constexpr` function gets the same compile-cache key in every process.

Purpose  Triton's key of a kernel holds the text of each global constexpr that it names. If that is a Python function, as
         @tl.constexpr over a def makes it, the text is `<function get_scan_accum_type at 0x7f31...>`: another one in each
         process. So sort, cumsum and their like are compiled anew in every process and never found in a cache. Here the text
         has the digest of the function's file in place of the address.
Use      PYTHONPATH=plugins python -m pytest -p _kernel_key_plugin NODE ...
Does     nothing else: what is compiled is the same, and where the file cannot be read the address stays.
Limits   A function that calls one of another file keeps its key when only that file changes, and defaults or closures that
         differ between two functions of one name are not told apart. FlagGems 5.0.2 has none of either.
"""
import functools
import hashlib
import sys
import types


def pytest_collection_finish():
    """Once whoever wants to has imported Triton; keys are made at a first launch."""
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
    """`<function MODULE.NAME of DIGEST>`, "" where its file cannot be read."""
    try:
        with open(function.__code__.co_filename, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""
    return f"<function {function.__module__}.{function.__qualname__} of {digest}>"
