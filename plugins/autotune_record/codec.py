"""codec.py - tuning keys and configs as JSON, with their types.

A tuning key is a tuple such as (4096, True, 'torch.float16'). For Python True == 1 == 1.0 and 0.0 == -0.0, for a
compiler they are different arguments: so every value carries its type, and keys are compared by their text.

    (4096, True, -0.0, 'torch.float16')
    [["int", 4096], ["bool", true], ["float", "-0x0.0p+0"], ["str", "torch.float16"]]
"""
import importlib
import inspect
import json

import torch
import triton


class NotReplayable(ValueError):
    """A recorded value of a type that cannot be built again from its text."""


def encode_value(value):
    """[type, text] of one value; what has no text of its own is kept as ["repr", type, repr], for comparing only."""
    if value is None or isinstance(value, (bool, str)):  # bool before int: it is one
        return [type(value).__name__, value]
    if isinstance(value, int) and type(value) is int:
        return ["int", value]
    if isinstance(value, float) and type(value) is float:
        return ["float", value.hex()]
    if isinstance(value, torch.dtype):
        return ["dtype", str(value)]
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, [encode_value(v) for v in value]]
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return ["numpy", value.dtype.name, encode_value(value.item())]
    return ["repr", f"{type(value).__module__}.{type(value).__qualname__}", repr(value)]


def decode_value(encoded):
    """The value of which `encoded` is the text. Raises NotReplayable."""
    kind, *text = encoded
    if kind in ("NoneType", "bool", "str", "int"):
        return text[0]
    if kind == "float":
        return float.fromhex(text[0])
    if kind == "dtype":
        return find_dtype(text[0])
    if kind == "numpy":
        return importlib.import_module("numpy").dtype(text[0]).type(decode_value(text[1]))
    if kind in ("tuple", "list"):
        values = [decode_value(v) for v in text[0]]
        return tuple(values) if kind == "tuple" else values
    raise NotReplayable(f"a value of type {text[0]} ({text[-1]}) cannot be read back")


def find_dtype(name):
    """torch.float16 of "torch.float16". Raises NotReplayable for one that this torch does not have."""
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise NotReplayable(f"torch {torch.__version__} has no dtype {name}")
    return dtype


def encode_key(key):
    """One line of JSON that stands for a tuning key."""
    return json.dumps([encode_value(v) for v in key], separators=(",", ":"))


def encode_config(config):
    """A triton.Config as JSON: kwargs, every other field that this Triton's Config has, and whether it had a hook."""
    fields = {k: v for k, v in vars(config).items() if k not in ("kwargs", "pre_hook")}
    return {"kwargs": {k: encode_value(v) for k, v in config.kwargs.items()},
            "fields": {k: encode_value(v) for k, v in fields.items()},
            "pre_hook": config.pre_hook is not None}


def decode_config(encoded):
    """The triton.Config, without its hook. Raises NotReplayable, also for a field that this Triton does not know."""
    fields = {k: decode_value(v) for k, v in encoded["fields"].items()}
    known = inspect.signature(triton.Config.__init__).parameters
    unknown = [k for k, v in fields.items() if k not in known and v is not None]
    if unknown:
        raise NotReplayable(f"Config of triton {triton.__version__} has no field {', '.join(unknown)}")
    kwargs = {k: decode_value(v) for k, v in encoded["kwargs"].items()}
    return triton.Config(kwargs, **{k: v for k, v in fields.items() if k in known})


def same_config(one, other):
    """True if both configs launch the same kernel: all kwargs equal, by type and value."""
    return encode_config(one)["kwargs"] == encode_config(other)["kwargs"] and one.all_kwargs() == other.all_kwargs()
