"""scan_benches.py - the Benchmark objects that a test function makes, as its source shows them.

PURPOSE  Part of scan_tests.py: class, op_name, dtypes and shape key, without importing anything.
OUTPUT   BenchReader(tree).read_benches(function, module, scope), e.g. for `abs`
           (Bench("UnaryPointwiseBenchmark", ("abs",), ("float16", "float32", "bfloat16"), "DEFAULT_SHAPES"),)
NEEDS    The standard library and PyYAML (core_shapes.yaml).
LIMITS   Objects are found in the function, in the functions of its file that it calls, and through `super().__init__`.
         Classes and dtype lists are looked up in the file and in benchmark/{base,consts}.py. What depends on the machine
         or is made at run time stays unknown: no op_names, None for dtypes.
"""

import ast
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from ops.reading.scan_source import MAX_DEPTH, Scope, bind_assignment, bind_parameters, flatten, is_call, is_constant
from ops.reading.scan_source import last_name, one_line, parse_module, read_strings

DTYPE_ALIASES = {"half": "float16", "float": "float32", "double": "float64", "cfloat": "complex64", "cdouble": "complex128",
                 "short": "int16", "int": "int32", "long": "int64"}


@dataclass(frozen=True)
class Bench:
    """One Benchmark object that a test makes. `op_names` is empty and `dtypes` None where the source does not say."""
    class_name: str
    op_names: tuple
    dtypes: tuple
    shape_key: str


class BenchReader:
    """Finds the Benchmark objects that a test makes, directly, in helper functions or through `super().__init__`."""

    def __init__(self, tree):
        folder = Path(tree) / "benchmark"
        self.consts = parse_module(folder / "consts.py") if (folder / "consts.py").is_file() else None
        self.base = parse_module(folder / "base.py") if (folder / "base.py").is_file() else None
        self.shape_keys = set()
        if (folder / "core_shapes.yaml").is_file():
            shapes = yaml.load((folder / "core_shapes.yaml").read_text(encoding="utf-8"), Loader=_yaml_loader())
            self.shape_keys = set(shapes or {})

    def read_benches(self, function, module, scope):
        """The benches of a test function, each once."""
        return tuple(dict.fromkeys(self._find(function, module, Scope(parent=scope), 0)))

    def _find(self, function, module, scope, depth):
        local_classes = {item.name: item for item in flatten(function.body) if isinstance(item, ast.ClassDef)}
        module = replace(module, classes={**module.classes, **local_classes})
        for statement in flatten(function.body):
            bind_assignment(statement, scope)
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            chain = self._class_chain(last_name(call.func), module)
            if chain and chain[-1] == "Benchmark":
                yield self._read_bench(chain, call, module, scope)
            elif isinstance(call.func, ast.Name) and call.func.id in module.functions and depth < MAX_DEPTH:
                helper = module.functions[call.func.id]
                if helper is not function:
                    yield from self._find(helper, module, bind_parameters(helper, call, scope, module.scope), depth + 1)

    def _class_of(self, name, module):
        return module.classes.get(name) or (self.base.classes.get(name) if self.base else None)

    def _class_chain(self, name, module, depth=0):
        """`name` and its bases, nearest first, as far as the file and base.py know them; [] if it is no class."""
        node = self._class_of(name, module)
        if node is None or depth > MAX_DEPTH:
            return []
        chain = [name]
        for base in map(last_name, node.bases):
            if base != name or node is not (self.base and self.base.classes.get(name)):
                chain += [found for found in self._class_chain(base, module, depth + 1) if found not in chain]
        return chain

    def _read_bench(self, chain, call, module, scope):
        words = self._constructor_words(chain, call, module, scope)
        op_names = read_strings(*words["op_name"]) if "op_name" in words else []
        if "is_backward" in words and is_constant(True, *words["is_backward"]):
            op_names = [name if "_backward" in name else f"{name}_backward" for name in op_names]
        if "dtypes" in words and not is_constant(None, *words["dtypes"]):
            dtypes = self.read_dtypes(*words["dtypes"])
        else:
            dtypes = self._default_dtypes(chain, module)
        return Bench(chain[0], tuple(op_names), tuple(dict.fromkeys(dtypes)) if dtypes else None,
                     self._shape_key(chain, op_names, module))

    def _constructor_words(self, chain, call, module, scope):
        """{parameter: (expression, scope)} that reach Benchmark.__init__, through `super().__init__` of the chain."""
        words = {word.arg: (word.value, scope) for word in call.keywords if word.arg}
        words.update((name, (value, scope)) for name, value in zip(("op_name", "torch_op", "dtypes"), call.args))
        for name in chain[:-1]:
            init = next((item for item in self._class_of(name, module).body
                         if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
            inner = next((node for node in ast.walk(init) if is_call(node, "__init__")), None) if init else None
            if inner and not any(isinstance(arg, ast.Starred) for arg in inner.args):
                bound = bind_parameters(init, call, scope, module.scope, skip=1)
                passed = {word.arg: (word.value, bound) for word in inner.keywords if word.arg}
                passed.update((key, (value, bound)) for key, value in zip(("op_name", "torch_op", "dtypes"), inner.args))
                return {**words, **passed}
        return words

    def _default_dtypes(self, chain, module):
        for name in chain:
            for item in self._class_of(name, module).body:
                if isinstance(item, ast.Assign) and "DEFAULT_DTYPES" in map(last_name, item.targets):
                    return self.read_dtypes(item.value, module.scope)
        return None

    def _shape_key(self, chain, op_names, module):
        for name in chain[:-1]:
            own = next((item for item in self._class_of(name, module).body
                        if isinstance(item, ast.FunctionDef) and item.name == "set_shapes"), None)
            if own and not any(is_call(node, "set_shapes") for node in ast.walk(own)):
                return "own"
        keys = [key for key in [*op_names, *chain] if key in self.shape_keys]
        return keys[0] if keys else "DEFAULT_SHAPES" if op_names else ""

    def read_dtypes(self, node, scope, depth=0):
        """The dtypes an expression stands for, as names without `torch.`, or None if the source does not say."""
        if depth > 2 * MAX_DEPTH:
            return None
        deeper = depth + 1
        if isinstance(node, ast.Attribute) and last_name(node.value) == "torch":
            return [DTYPE_ALIASES.get(node.attr, node.attr)]
        if isinstance(node, (ast.List, ast.Tuple)):
            parts = [self.read_dtypes(item, scope, deeper) for item in node.elts]
            return None if None in parts else [name for part in parts for name in part]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.read_dtypes(ast.List([node.left, node.right], ast.Load()), scope, deeper)
        if isinstance(node, ast.Call) and last_name(node.func) in ("list", "tuple") and len(node.args) == 1:
            return self.read_dtypes(node.args[0], scope, deeper)
        if isinstance(node, ast.Starred) or (isinstance(node, ast.Subscript) and one_line(node.slice) == ":"):
            return self.read_dtypes(node.value, scope, deeper)
        if isinstance(node, (ast.Name, ast.Attribute)):
            found = scope.find(node.id) if isinstance(node, ast.Name) else None
            found = found or (self.consts and self.consts.scope.find(last_name(node)))
            return self.read_dtypes(*found, deeper) if found else None
        return None


def _yaml_loader():
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)
