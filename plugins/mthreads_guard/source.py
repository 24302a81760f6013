"""source.py - the skip guards of a test file that ask torch.cuda.is_available(), and how pure each one is.

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA required")
    def test_a(): ...                                      decorator, scope test_a, pure
    pytestmark = pytest.mark.skipif(not HAS_CUDA, ...)     module, scope "", pure if HAS_CUDA = torch.cuda.is_available()
    if not torch.cuda.is_available(): pytest.skip("...")   body, scope of the function around it, pure
    skipif(not (torch.cuda.is_available() and SM90), ...)  joined: dropping it would drop the capability check too

A condition is pure if it says "no CUDA" and nothing else, also through a constant or a function of the same file.
Whatever this cannot follow counts as joined. The file is only parsed, never imported; standard library only.
"""
import ast
from dataclasses import dataclass

AVAILABLE, UNAVAILABLE, MIXED = "available", "unavailable", "mixed"
FORMS = ("decorator", "module", "class", "body", "param")
OPPOSITE = {AVAILABLE: UNAVAILABLE, UNAVAILABLE: AVAILABLE}


@dataclass(frozen=True)
class Guard:
    """One guard. `line` to `end` is the skipif() or pytest.skip() call; `reason` is None if it is no plain text."""

    line: int
    end: int
    form: str
    scope: str
    reason: str | None
    pure: bool
    condition: str


def find_guards(text):
    """All guards of the source `text` that ask for CUDA, by line. SyntaxError if it is no Python."""
    return sorted(_Finder(ast.parse(text)).guards(), key=lambda guard: (guard.line, guard.scope))


def picks_device(text):
    """True if the file takes "cpu" where torch.cuda.is_available() is false: unskipped, it would measure the CPU."""
    tree = ast.parse(text)
    names = _Names(tree)
    return any(isinstance(node, ast.IfExp) and names.mentions(node.test)
               and any(isinstance(part, ast.Constant) and part.value == "cpu" for part in ast.walk(node))
               for node in ast.walk(tree))


def dotted(node):
    """`torch.cuda.is_available` of that expression, "" of any other one."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return head and f"{head}.{node.attr}"
    return ""


class _Names:
    """What the constants and functions of one file say about CUDA."""

    def __init__(self, tree):
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.values, self.top_level = {}, set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.values.setdefault(node.targets[0].id, []).append(node.value)
                if node in tree.body:
                    self.top_level.add(node.targets[0].id)

    def constant(self, name):
        """The one value of a module-level name, or None if it has several or is set under a condition."""
        values = self.values.get(name, ())
        return values[0] if len(values) == 1 and name in self.top_level else None

    def mentions(self, node):
        """True if CUDA's availability takes part in the expression, also through names of this file."""
        waiting, seen = [node], set()
        while waiting:
            for part in ast.walk(waiting.pop()):
                if is_question(part):
                    return True
                if isinstance(part, ast.Name) and part.id not in seen:
                    seen.add(part.id)
                    waiting += self.values.get(part.id, ())
                    waiting += [self.functions[part.id]] if part.id in self.functions else []
        return False

    def judge(self, node, seen=frozenset()):
        """AVAILABLE or UNAVAILABLE if the expression says exactly that, MIXED if CUDA takes part, else None."""
        if is_question(node):
            return AVAILABLE
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.judge(node.operand, seen)
            return OPPOSITE.get(inner, inner)
        if isinstance(node, ast.BoolOp):
            parts = {self.judge(value, seen) for value in node.values}
            if len(parts) == 1:
                return parts.pop()
        followed = self.follow(node, seen)
        if followed is not None:
            return self.judge(*followed)
        return MIXED if self.mentions(node) else None

    def follow(self, node, seen):
        """(expression, names seen) that a name, a string condition or a one-line function stands for, or None."""
        if isinstance(node, ast.Name) and node.id not in seen and self.constant(node.id) is not None:
            return self.constant(node.id), seen | {node.id}
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                return ast.parse(node.value, mode="eval").body, seen
            except SyntaxError:
                return None
        if isinstance(node, ast.Call) and not node.args and not node.keywords and isinstance(node.func, ast.Name):
            function = self.functions.get(node.func.id)
            body = [s for s in function.body if not _is_docstring(s)] if function else []
            if len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value and node.func.id not in seen:
                return body[0].value, seen | {node.func.id}
        return None


def is_question(node):
    """True of `torch.cuda.is_available()`, however the file imported it."""
    return isinstance(node, ast.Call) and dotted(node.func) in ("torch.cuda.is_available", "cuda.is_available")


def _is_docstring(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


class _Finder:
    """Walks one file's scopes and yields its guards."""

    def __init__(self, tree):
        self.tree, self.names = tree, _Names(tree)

    def guards(self):
        taken = set()
        for guard, call in self.walk(self.tree, ""):
            taken.add(call)
            yield guard
        for node in ast.walk(self.tree):    # skipif in pytest.param(marks=...) and other places that no scope owns
            if node not in taken and is_skipif(node) and not self.is_alias(node):
                yield from (guard for guard, _ in self.from_mark(node, "param", ""))

    def walk(self, node, scope):
        """(guard, its call) of a scope and the scopes inside it."""
        form = "class" if isinstance(node, ast.ClassDef) else "module"
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in find_pytestmarks(node):
                yield from self.from_mark(mark, form, scope)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = f"{scope}.{child.name}" if scope else child.name
                own = "class" if isinstance(child, ast.ClassDef) else "decorator"
                for mark in child.decorator_list:
                    yield from self.from_mark(mark, own, inner)
                yield from self.walk(child, inner)
            else:
                if isinstance(child, ast.If):
                    yield from self.from_condition(child, scope)
                yield from self.walk(child, scope)

    def from_mark(self, mark, form, scope):
        """The guard of a skipif mark, which may stand for one under a module-level name."""
        call = mark if is_skipif(mark) else self.names.constant(dotted(mark))
        if not is_skipif(call) or not call.args:
            return
        judged = self.names.judge(call.args[0])
        if judged is not None:
            reason = next((word.value for word in call.keywords if word.arg == "reason"), None)
            yield self.build(call, form, scope, reason, call.args[0], judged == UNAVAILABLE), call

    def from_condition(self, node, scope):
        """The guards `if <no CUDA>: pytest.skip(...)`, or the same in an else."""
        judged = self.names.judge(node.test)
        if judged is None:
            return
        for body, wanted in ((node.body, UNAVAILABLE), (node.orelse, AVAILABLE)):
            for statement in body:
                call = statement.value if isinstance(statement, ast.Expr) else None
                if isinstance(call, ast.Call) and dotted(call.func) == "pytest.skip":
                    reason = call.args[0] if call.args else next(
                        (word.value for word in call.keywords if word.arg in ("reason", "msg")), None)
                    yield self.build(call, "body", scope, reason, node.test, judged == wanted), call

    def build(self, call, form, scope, reason, condition, pure):
        text = reason.value if isinstance(reason, ast.Constant) and isinstance(reason.value, str) else None
        return Guard(call.lineno, call.end_lineno, form, scope, text, pure, " ".join(ast.unparse(condition).split()))

    def is_alias(self, call):
        """True of the value of `requires_cuda = pytest.mark.skipif(...)`: its uses are the guards."""
        return any(call is value for values in self.names.values.values() for value in values)


def is_skipif(node):
    return isinstance(node, ast.Call) and dotted(node.func) in ("pytest.mark.skipif", "mark.skipif")


def find_pytestmarks(node):
    """The marks that `pytestmark = ...` in a module or class sets: one, or a list of them."""
    for statement in node.body if hasattr(node, "body") and isinstance(node.body, list) else ():
        if isinstance(statement, ast.Assign) and any(dotted(target) == "pytestmark" for target in statement.targets):
            value = statement.value
            yield from value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
