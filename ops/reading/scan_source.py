"""scan_source.py - a Python file read without running it: its names, and the literal values they stand for.

PURPOSE  What scan_tests.py and scan_benches.py share.
NEEDS    The standard library.
LIMITS   A name means something only if it is assigned once at the level it is read on; nothing is computed.
"""

import ast
from dataclasses import dataclass, field
from pathlib import Path

MAX_DEPTH = 6    # of helpers calling helpers, and of names standing for names
UNKNOWN = ast.Constant(...)


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


def parse_module(path, parent=None):
    """Parse one file. SyntaxError if it is no Python."""
    try:
        tree = ast.parse(Path(path).read_bytes(), filename=str(path))
    except ValueError as error:     # a zero byte, before Python 3.12
        raise SyntaxError(str(error), (str(path), 1, 1, "")) from None
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
            scope.names[target.id] = (statement.value, scope) if is_new else (UNKNOWN, scope)


def last_name(node):
    """`X` of X, a.X, a.b.X; None for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def is_call(node, name):
    return isinstance(node, ast.Call) and last_name(node.func) == name


def one_line(node):
    return " ".join(ast.unparse(node).split())


def follow_names(node, scope):
    """(expression, its scope) that a name stands for in the end; what is no known name stands for itself."""
    for _ in range(MAX_DEPTH):
        found = scope.find(node.id) if isinstance(node, ast.Name) else None
        if not found:
            break
        node, scope = found
    return node, scope


def is_constant(value, node, scope):
    """True if the expression is literally `value` (None or True), or a name for it."""
    node = follow_names(node, scope)[0]
    return isinstance(node, ast.Constant) and node.value is value


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
