"""scan_tests.py - what the source of benchmark/ and tests/ says about the tests in it, without importing any of it.

PURPOSE  The reading half of rebuild_inventory.py: test functions with their marks, skip guards and, for benchmarks, the
         Benchmark class, op_name, dtypes and shape key that they use.
OUTPUT   scan_tests(tree, "benchmark") -> {node: SourceTest}, e.g.
           benchmark/test_mul.py::test_mul_inplace
             marks ("mul_",)  guards ("skipif flag_gems.vendor_name == 'tsingmicro': Issue #4131: not working",)
             benches (Bench("BinaryPointwiseBenchmark", ("mul_",), ("float16", "float32", "bfloat16"), "DEFAULT_SHAPES"),)
NEEDS    The standard library and PyYAML (core_shapes.yaml).
LIMITS   Names are resolved through assignments, parameters of helper functions, `super().__init__` and parametrize lists of
         one file and of benchmark/{base,consts}.py. What depends on the machine or is made at run time stays unknown:
         empty marks, None for dtypes. Pytest's defaults for names are assumed (test_*.py, *_test.py, test*, Test*).
"""

import ast
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

# Marks of pytest and of its common plugins: never an operator's name.
BUILTIN_MARKS = frozenset("parametrize skip skipif xfail usefixtures filterwarnings timeout tryfirst trylast asyncio flaky "
                          "performance slow".split())
DTYPE_ALIASES = {"half": "float16", "float": "float32", "double": "float64", "cfloat": "complex64", "cdouble": "complex128",
                 "short": "int16", "int": "int32", "long": "int64"}
MAX_DEPTH = 6    # of helpers calling helpers, and of names standing for names


@dataclass(frozen=True)
class Bench:
    """One Benchmark object that a test makes. `op_names` is empty and `dtypes` None where the source does not say."""
    class_name: str
    op_names: tuple
    dtypes: tuple
    shape_key: str


@dataclass(frozen=True)
class SourceTest:
    """One test function. Marks in pytest's order: the decorator next to `def` first, then class, then module."""
    node: str
    marks: tuple
    param_marks: tuple
    guards: tuple
    benches: tuple = ()


@dataclass
class Scope:
    """Names and what they stand for: {name: (expression, the scope to read it in)}; `parent` is looked up next."""
    names: dict = field(default_factory=dict)
    parent: object = None

    def find(self, name):
        return self.names.get(name) or (self.parent.find(name) if self.parent else None)


@dataclass
class Module:
    """A parsed file: its scope, classes and functions by name."""
    tree: ast.Module
    scope: Scope
    classes: dict
    functions: dict


# ---- files and names

def find_test_files(folder):
    """Files in `folder` that pytest takes for tests, sorted."""
    found = {*Path(folder).rglob("test_*.py"), *Path(folder).rglob("*_test.py")}
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


def parse_module(path, parent=None):
    """Parse one file. SyntaxError if it is no Python."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"), filename=str(path))
    scope = Scope(parent=parent)
    module = Module(tree, scope, {}, {})
    for statement in flatten(tree.body):
        if isinstance(statement, ast.ClassDef):
            module.classes[statement.name] = statement
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            module.functions[statement.name] = statement
        bind_assignment(statement, scope)
    return module


def flatten(body):
    """Statements of a block and of the if, try, with, for and while blocks in it, but not of functions and classes."""
    for statement in body:
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for name in ("body", "orelse", "finalbody"):
                yield from flatten(getattr(statement, name, []))
            for handler in getattr(statement, "handlers", []):
                yield from flatten(handler.body)


def bind_assignment(statement, scope):
    """Enter `name = expression` into `scope`. A name that is assigned twice stands for nothing that is known."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)) or statement.value is None:
        return
    for target in targets:
        if isinstance(target, ast.Name):
            is_new = target.id not in scope.names and not isinstance(statement, ast.AugAssign)
            scope.names[target.id] = (statement.value, scope) if is_new else (ast.Constant(None), scope)


def last_name(node):
    """`X` of X, a.X, a.b.X; None for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def is_call(node, name):
    return isinstance(node, ast.Call) and last_name(node.func) == name


def one_line(node):
    return " ".join(ast.unparse(node).split())


# ---- marks

def read_marks(node, scope, depth=0):
    """[(name, call or None)] of an expression that gives one mark or a list of them; [] if it is none that is known."""
    if depth > MAX_DEPTH:
        return []
    if isinstance(node, (ast.List, ast.Tuple)):
        return [mark for item in node.elts for mark in read_marks(item, scope, depth + 1)]
    call = node if isinstance(node, ast.Call) else None
    func = call.func if call else node
    if isinstance(func, ast.Attribute) and last_name(func.value) == "mark":
        return [(func.attr, call)]
    if call and is_call(call, "getattr") and len(call.args) > 1 and last_name(call.args[0]) == "mark":
        names = [(name, None) for name in read_strings(call.args[1], scope)]
        return names if len(names) == 1 else []
    if call and is_call(call, "MarkDecorator") and call.args and is_call(call.args[0], "Mark"):
        return [(name, None) for name in read_strings(call.args[0].args[0], scope)]
    if isinstance(func, ast.Call):                              # getattr(pytest.mark, "x")(...)
        return [(name, call) for name, _ in read_marks(func, scope, depth + 1)]
    if isinstance(node, ast.Name) and scope.find(node.id):
        expression, where = scope.find(node.id)
        return read_marks(expression, where, depth + 1)
    return []


def read_decorators(node, scope):
    """Marks of a function or class in pytest's order: nearest to the definition first."""
    return [mark for decorator in reversed(node.decorator_list) for mark in read_marks(decorator, scope)]


def read_param_marks(marks, scope):
    """Names of the marks inside `pytest.param(..., marks=...)` of parametrize decorators."""
    names = []
    for name, call in marks:
        if name == "parametrize" and call:
            for inner in ast.walk(call):
                if is_call(inner, "param"):
                    wanted = [word.value for word in inner.keywords if word.arg == "marks"]
                    names += [found for value in wanted for found, _ in read_marks(value, scope)]
    return tuple(dict.fromkeys(name for name in names if name not in BUILTIN_MARKS))


def describe_guard(name, call, scope):
    """`skip: REASON` or `skipif CONDITION: REASON`, on one line."""
    arguments = list(call.args) if call else []
    words = {word.arg: word.value for word in call.keywords} if call else {}
    condition = ""
    if name == "skipif":
        node = arguments.pop(0) if arguments else words.get("condition")
        condition = f" {one_line(node)}" if node is not None else ""
    reason = words.get("reason") or (arguments[0] if arguments else None)
    texts = read_strings(reason, scope) if reason is not None else []
    text = texts[0] if texts else one_line(reason) if reason is not None else ""
    return f"{name}{condition}: {' '.join(text.split())}"


def read_body_guards(function, scope):
    """`in body: REASON` for each pytest.skip call of the function itself."""
    calls = [node for node in ast.walk(function) if is_call(node, "skip") and last_name(node.func.value) == "pytest"
             ] if function.body else []
    return tuple(f"in body{describe_guard('', call, scope)}" for call in calls)


def read_strings(node, scope, depth=0):
    """The literal strings an expression stands for: one, or several if it is a parametrized name; [] if unknown."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.Name) and depth < MAX_DEPTH and scope.find(node.id):
        expression, where = scope.find(node.id)
        items = expression.elts if isinstance(expression, ast.List) else [expression]
        found = [read_strings(item, where, depth + 1) for item in items]
        return [text for texts in found for text in texts] if all(found) else []
    return []


# ---- tests

def scan_tests(tree, folder):
    """{node: SourceTest} of all test functions below `folder` of `tree`. SyntaxError for a file that is no Python."""
    tree = Path(tree)
    reader = BenchReader(tree) if folder == "benchmark" else None
    found = {}
    for path in find_test_files(tree / folder):
        module = parse_module(path)
        prefix = path.relative_to(tree).as_posix()
        file_marks = read_marks(ast.Name("pytestmark"), module.scope)
        for test in scan_block(module.tree.body, module, prefix, file_marks, reader):
            found[test.node] = test     # a second definition of a name replaces the first, as in Python
    return found


def scan_block(body, module, prefix, outer_marks, reader):
    """Yields the tests of a module's or class's body; `outer_marks` are those of what it stands in."""
    for statement in flatten(body):
        if isinstance(statement, ast.ClassDef) and is_test_class(statement):
            marks = read_decorators(statement, module.scope) + read_class_marks(statement, module.scope) + outer_marks
            bases = [module.classes[name] for name in map(last_name, statement.bases) if name in module.classes]
            for holder in [*reversed(bases), statement]:
                yield from scan_block(holder.body, module, f"{prefix}::{statement.name}", marks, reader)
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and is_test_function(statement):
            yield read_test(statement, module, f"{prefix}::{statement.name}", outer_marks, reader)


def is_test_class(node):
    has_init = any(isinstance(item, ast.FunctionDef) and item.name == "__init__" for item in node.body)
    return node.name.startswith("Test") and not has_init


def is_test_function(node):
    decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    return node.name.startswith("test") and "fixture" not in map(last_name, decorators)


def read_class_marks(node, scope):
    values = [item.value for item in node.body if isinstance(item, ast.Assign)
              and "pytestmark" in map(last_name, item.targets)]
    return [mark for value in values for mark in read_marks(value, scope)]


def read_test(function, module, node, outer_marks, reader):
    """The SourceTest of one function; `reader` finds its Benchmark objects, None for accuracy tests."""
    marks = read_decorators(function, module.scope) + outer_marks
    guards = [describe_guard(name, call, module.scope) for name, call in marks if name in ("skip", "skipif")]
    names = tuple(dict.fromkeys(name for name, _ in marks if name not in BUILTIN_MARKS))
    scope = parametrized_scope(marks, module.scope)
    return SourceTest(node, names, read_param_marks(marks, module.scope),
                      tuple(dict.fromkeys([*guards, *read_body_guards(function, module.scope)])),
                      reader.read_benches(function, module, scope) if reader else ())


def parametrized_scope(marks, parent):
    """A scope in which each parametrized name stands for the list of its values (pytest.param(x) is x)."""
    scope = Scope(parent=parent)
    for name, call in marks:
        if name != "parametrize" or not call or len(call.args) < 2:
            continue
        values = call.args[1]
        if isinstance(values, ast.Name) and parent.find(values.id):
            values = parent.find(values.id)[0]
        names = [part.strip() for text in read_strings(call.args[0], parent) for part in text.split(",")]
        if isinstance(values, (ast.List, ast.Tuple)):
            items = [item.args[0] if is_call(item, "param") and item.args else item for item in values.elts]
            values = ast.List(items, ast.Load())
        if len(names) == 1:
            scope.names[names[0]] = values, parent
    return scope


# ---- Benchmark objects

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
        if op_names and "is_backward" in words and getattr(words["is_backward"][0], "value", None) is True:
            op_names = [name if "_backward" in name else f"{name}_backward" for name in op_names]
        if "dtypes" in words and getattr(words["dtypes"][0], "value", 0) is not None:
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


def bind_parameters(function, call, scope, outer, skip=0):
    """The scope of a function that is called so: parameters stand for the caller's expressions, or their defaults."""
    names = [arg.arg for arg in function.args.args][skip:]
    bound = Scope(parent=outer)
    defaults = function.args.defaults
    for name, value in zip(names[len(names) - len(defaults):], defaults):
        bound.names[name] = value, outer
    for arg, value in zip(function.args.kwonlyargs, function.args.kw_defaults):
        if value is not None:
            bound.names[arg.arg] = value, outer
    for name, value in zip(names, call.args):
        bound.names[name] = value, scope
    bound.names.update((word.arg, (word.value, scope)) for word in call.keywords if word.arg)
    return bound


def _yaml_loader():
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)
