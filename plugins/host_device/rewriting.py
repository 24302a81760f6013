"""Rewrites a kernel's Python so that running it means what compiling it means.

Upstream's rewriter turns ``x = value`` into a tensor assignment and leaves the rest to Python. Python's own ``and``,
``or``, ``not``, ``min``, ``max`` and ``range`` then run on block tensors, whose truth value is always True: a mask
``rows and cols`` silently becomes ``cols``.
"""

import ast
import functools
import types

import numpy as np
import triton.language as tl
from triton.language.extra import libdevice as generic_libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime import interpreter as triton_interpreter

from .floats import storage_dtype


class KernelTransformer(triton_interpreter.ASTTransformer):
    """Upstream's transformer, plus boolean operators as calls."""

    def visit_Assign(self, node):
        node.value = self.visit(node.value)  # upstream does not descend into the right-hand side
        return super().visit_Assign(node)

    def visit_BoolOp(self, node):
        """``a and b`` -> ``_host_all(lambda: a, lambda: b)``: Python values still short-circuit."""
        self.generic_visit(node)
        name = "_host_all" if isinstance(node.op, ast.And) else "_host_any"
        return ast.copy_location(call_name(name, [make_thunk(value) for value in node.values]), node)

    def visit_UnaryOp(self, node):
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.copy_location(call_name("_host_not", [node.operand]), node)


def call_name(name, args):
    return ast.Call(func=ast.Name(name, ast.Load()), args=args, keywords=[])


def make_thunk(expression):
    empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(args=empty, body=expression)


def host_all(*thunks):
    """``and`` as compiled: elementwise on tensors, Python's own on constants."""
    value = thunks[0]()
    for thunk in thunks[1:]:
        if isinstance(value, tl.tensor):
            value = value.logical_and(thunk())
        elif value:
            value = thunk()
        else:
            return value
    return value


def host_any(*thunks):
    """``or`` as compiled: elementwise on tensors, Python's own on constants."""
    value = thunks[0]()
    for thunk in thunks[1:]:
        if isinstance(value, tl.tensor):
            value = value.logical_or(thunk())
        elif value:
            return value
        else:
            value = thunk()
    return value


def host_not(value):
    if isinstance(value, tl.tensor):
        return triton_interpreter.interpreter_semantic.not_(value)
    return not value


def host_min(*values):
    """Compiled code takes ``min`` for tl.minimum; Python's would ask a block tensor for its truth."""
    if any(isinstance(value, tl.tensor) for value in values):
        return tl.core.builtin_min(*values)
    return min(*values)


def host_max(*values):
    if any(isinstance(value, tl.tensor) for value in values):
        return tl.core.builtin_max(*values)
    return max(*values)


def host_range(first, second=None, step=1, **hints):
    """``range`` and tl.range as compiled: the index is a scalar tensor of the bounds' promoted integer type, so that it
    promotes and wraps as on the GPU. (tl.static_range unrolls: its index stays a Python int.)"""
    semantic = triton_interpreter.interpreter_semantic
    bounds = [semantic.to_tensor(value) for value in ((0, first) if second is None else (first, second))]
    bounds.append(semantic.to_tensor(step))
    dtype = functools.reduce(semantic.integer_promote_impl, [bound.dtype for bound in bounds])
    for index in range(*[int(bound.handle.data.item()) for bound in bounds]):
        data = np.array([index], dtype=storage_dtype(dtype))
        yield tl.tensor(triton_interpreter.TensorHandle(data, dtype), dtype)


KERNEL_BUILTINS = {
    "_host_all": host_all,
    "_host_any": host_any,
    "_host_not": host_not,
    "min": host_min,
    "max": host_max,
    "range": host_range,
}


def with_semantic(builtin):
    """A Triton builtin that a kernel's module imported by name (``pow = libdevice.pow``), given the interpreter's
    semantic: patching triton.language does not reach it."""

    def call(*args, **kwargs):
        kwargs["_semantic"] = triton_interpreter.interpreter_semantic
        return builtin(*args, **kwargs)

    call.__name__ = getattr(builtin, "__name__", "builtin")
    call.__triton_builtin__ = True
    return call


def libdevice_stubs():
    """Names of triton.language.extra.libdevice, whose empty functions the compiler replaces by the target's own."""
    return [name for name in vars(generic_libdevice) if hasattr(cuda_libdevice, name) and not name.startswith("_")]


def resolve_stub(value):
    """A function imported by name from the generic libdevice -> that of the target; anything else unchanged."""
    if getattr(value, "__module__", None) == generic_libdevice.__name__:
        return getattr(cuda_libdevice, value.__name__, value)
    return value


def kernel_globals(fn):
    """The names a rewritten kernel sees: a copy, because upstream writes about 60 names into the user's module."""
    names = dict(KERNEL_BUILTINS)
    names.update(fn.__globals__)
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet: the kernel does not use it on this path
            continue
    for name, value in vars(triton_interpreter).items():
        if not name.startswith("__"):
            names.setdefault(name, value)
    for name, value in list(names.items()):
        value = names[name] = resolve_stub(value)
        if callable(value) and not isinstance(value, type) and tl.core.is_builtin(value):
            names[name] = with_semantic(value)
    return names


def compile_rewritten(rewriter, tree):
    """Replaces FunctionRewriter._compile_and_exec: executes the definition in ``kernel_globals``."""
    namespace = dict(rewriter.kwargs)
    exec(compile(tree, filename=rewriter.filename, mode="exec"), kernel_globals(rewriter.fn), namespace)
    return namespace[rewriter.fn.__name__]


def rewrite_function(fn):
    """The Python function of a JITFunction -> one that the interpreter can call."""
    rewriter = triton_interpreter.FunctionRewriter(fn)
    rewriter.ast_transformer = KernelTransformer()
    rewriter._compile_and_exec = types.MethodType(compile_rewritten, rewriter)
    rewritten = rewriter.rewrite_ast()
    rewritten.__annotations__ = dict(fn.__annotations__)
    return rewritten
