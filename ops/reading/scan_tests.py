"""scan_tests.py - what the source of benchmark/ and tests/ says about the tests in it, without importing any of it.

PURPOSE  The reading half of rebuild_inventory.py: test functions with their marks and skip guards, and for benchmarks the
         Benchmark objects that they make (scan_benches.py).
OUTPUT   scan_tests(tree, "benchmark") -> {node: SourceTest}, e.g.
           benchmark/test_mul.py::test_mul_inplace
             marks ("mul_",)  guards ("skipif flag_gems.vendor_name == 'tsingmicro': Issue #4131: not working",)
             benches (Bench("BinaryPointwiseBenchmark", ("mul_",), ("float16", "float32", "bfloat16"), "DEFAULT_SHAPES"),)
NEEDS    The standard library and PyYAML.
LIMITS   Marks that are made at run time stay unknown. Pytest's defaults for names are assumed (test_*.py, *_test.py,
         test*, Test*), and a test function that a file imports from another is not seen.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

from ops.reading.scan_benches import BenchReader
from ops.reading.scan_source import MAX_DEPTH, Scope, flatten, is_call, last_name, one_line, parse_module, read_strings

# Marks of pytest and of its common plugins: never an operator's name.
BUILTIN_MARKS = frozenset("parametrize skip skipif xfail usefixtures filterwarnings timeout tryfirst trylast asyncio flaky "
                          "performance slow".split())


@dataclass(frozen=True)
class SourceTest:
    """One test function. Marks in pytest's order: the decorator next to `def` first, then class, then module."""
    node: str
    marks: tuple
    param_marks: tuple
    guards: tuple
    benches: tuple = ()


# ---- files

def find_test_files(folder):
    """Files in `folder` that pytest takes for tests, sorted."""
    found = {*Path(folder).rglob("test_*.py"), *Path(folder).rglob("*_test.py")}
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


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
