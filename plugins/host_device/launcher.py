"""One launch on the host: bind the arguments as the compiled kernel would see them, then execute.

Triton calls a launcher as ``(gx, gy, gz, stream, function, packed_metadata, launch_metadata, enter_hook,
exit_hook, *args)``, the same from 3.4 to 3.9. What the arguments *are* is read from the compiled kernel's own
signature and constants, never guessed from Python's types: two of the silent wrong results came from guessing.
"""

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

from .errors import HostDeviceError
from .floats import storage_dtype, to_storage


class HostLauncher:
    """Executes the launches of one compiled kernel. Built by Triton from (source, metadata)."""

    def __init__(self, host_device, src, metadata):
        self.host_device = host_device
        self.name = metadata.name
        self.hash = metadata.hash
        self.kernel = src.fn
        self.signature = list(src.signature.values())
        self.constants = dict(src.constants)

    def __call__(
        self, gx, gy, gz, stream, function, packed, launch_metadata, enter_hook, exit_hook, *args
    ):
        device = self.host_device
        if device.probing() or gx * gy * gz == 0:  # a tuner's trial is no launch, and an empty grid never starts
            return
        with device.interpreter.lock:
            if enter_hook is not None:
                enter_hook(launch_metadata)
            device.recorder.count_launch(self.hash, self.name)
            if device.target.executes:
                values = self.bind(args)
                device.interpreter.run(self.kernel.fn, self.name, values, (gx, gy, gz), args)
            if exit_hook is not None:
                exit_hook(launch_metadata)

    def bind(self, args):
        """Parameter name -> value for the interpreter.

        FlagGems' LibEntry passes every argument on Triton 3.6 and only the non-constexpr ones from 3.7 on
        (constexpr defaults were silently taken from the wrong position); both are accepted, nothing else is.
        """
        params = self.kernel.params
        dynamic = [p for p in params if not p.is_constexpr]
        if len(args) == len(params):
            given = dict(zip((p.name for p in params), args))
        elif len(args) == len(dynamic):
            given = dict(zip((p.name for p in dynamic), args))
        else:
            raise HostDeviceError(
                f"kernel {self.name}: launched with {len(args)} arguments; it has {len(params)} parameters, "
                f"{len(dynamic)} of them not constexpr"
            )
        return {
            p.name: self.convert(given.get(p.name), self.signature[i], (i,)) for i, p in enumerate(params)
        }

    def convert(self, value, type_name, path):
        """One argument, as the compiled kernel has it: a constant, a pointer, a typed scalar, or a tuple of them."""
        if type_name == "constexpr":
            constant = self.constants.get(path, value)
            return constant.value if isinstance(constant, tl.constexpr) else constant
        if isinstance(type_name, (tuple, list)):
            parts = [self.convert(v, t, path + (i,)) for i, (v, t) in enumerate(zip(value, type_name))]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if type_name.startswith(("tensordesc", "nvTmaDesc")):
            return triton_interpreter._implicit_cvt(value)
        if type_name.startswith("*"):
            return make_scalar(value.data_ptr(), tl.str_to_ty(type_name, None))
        return make_scalar(value, tl.str_to_ty(type_name, None))


def make_scalar(value, dtype):
    """A 0-d tl.tensor of exactly ``dtype``.

    Upstream leaves floats as Python floats, so ``fp16_block * scale`` stayed fp16 where compiled code computes in
    fp32, and widens bools to int32. Both are silent.
    """
    if dtype.is_ptr() or not dtype.is_floating():
        data = np.array([value], dtype=storage_dtype(dtype))
    else:
        data = to_storage(np.array([value], dtype=np.float64), dtype)
    return tl.tensor(triton_interpreter.TensorHandle(data, dtype), dtype)
