"""shape_form.py - what a benchmark does with one shape: how many values it unpacks, and whether they are all sizes.

PURPOSE  Part of scan_shapes.py and merge_shapes.py. Reads the source of get_input_iter and of what it hands the shape to.
OUTPUT   Form(counts=(4,), least=4, flat=False, note="b, m, n, k")   of   for b, m, n, k in self.shapes: ...
         Form(counts=(), least=0, flat=True, note="")                of   torch.randn(shape, ...): any number of sizes
         Form(counts=(), least=2, flat=True, note="shape[1]")        of   torch.randn(shape); shape[1]
NEEDS    The standard library.
LIMITS   Follows names, plain calls and `self.input_fn`. A use that depends on len(shape), or that this cannot follow, gives
         known=False: nothing is checked then, unless ops/shape_hand.csv says how many values it takes.
"""

import ast
from dataclasses import dataclass

MAX_DEPTH = 8
# Calls that take a shape of any kind; a shape handed to any other call as a whole is taken for tensor sizes.
NEUTRAL = frozenset("len list tuple isinstance print prod str repr sum max min enumerate reversed zip sorted set any all map "
                    "deepcopy copy append".split())


@dataclass(frozen=True)
class Form:
    """`counts`: allowed numbers of values, () is any; `least`: at least so many; `flat`: all are sizes, hence integers."""

    counts: tuple = ()
    least: int = 0
    flat: bool = False
    note: str = ""
    known: bool = True

    def find_fault(self, shape):
        """What is wrong with `shape` (a list) for this form, or ""."""
        if not self.known:
            return ""
        has = f"has {len(shape)} value{'s' if len(shape) != 1 else ''}"
        names = f" ({self.note})" if self.note else ""
        if self.counts and len(shape) not in self.counts:
            return f"{has}, {' or '.join(map(str, self.counts))} are unpacked{names}"
        if len(shape) < self.least:
            return f"{has}, at least {self.least} are needed{names}"
        wrong = [value for value in shape if not isinstance(value, int) or isinstance(value, bool)] if self.flat else []
        return f"holds {wrong[0]!r}, and every value is a tensor's size" if wrong else ""


UNKNOWN = Form(known=False)


def join_forms(forms):
    """The form of a shape that is used in all these ways. Two counts that exclude each other are not known."""
    counts, least, flat, notes = None, 0, False, []
    for form in forms:
        if not form.known:
            return Form(known=False, note=form.note)
        if form.counts:
            counts = set(form.counts) if counts is None else counts & set(form.counts)
        least, flat = max(least, form.least), flat or form.flat
        notes += [form.note] if form.note else []
    if counts == set():
        return Form(known=False, note="unpacked in several ways")
    exact = [form.note for form in forms if form.counts and form.note]
    return Form(tuple(sorted(counts or ())), least, flat, (exact or notes or [""])[0])


def form_of_target(target):
    """The form that `for TARGET in shapes` or `TARGET = shape` asks for; None if it is one name."""
    if not isinstance(target, ast.Tuple | ast.List):
        return None
    note = ", ".join(ast.unparse(item) for item in target.elts)
    if any(isinstance(item, ast.Starred) for item in target.elts):
        return Form(least=len(target.elts) - 1, note=note)
    return Form(counts=(len(target.elts),), least=len(target.elts), note=note)


class Tracer:
    """Follows a shape through functions. `resolve(expression)` gives (function or lambda, leading parameters to skip) of what
    is called, or None if it is not in the sources."""

    def __init__(self, resolve):
        self.resolve = resolve

    def trace_shapes(self, function, depth=0):
        """Forms of all loops over `self.shapes` in `function`; [] if there is none."""
        forms = []
        for node in ast.walk(function):
            if isinstance(node, ast.For | ast.comprehension) and mentions_shapes(node.iter):
                target = node.target
                if isinstance(node.iter, ast.Call) and getattr(node.iter.func, "id", "") == "enumerate":
                    target = target.elts[1] if isinstance(target, ast.Tuple) else target
                unpacked = form_of_target(target)
                if unpacked is not None:
                    forms.append(unpacked)
                elif isinstance(target, ast.Name) and isinstance(node, ast.For):
                    forms.append(self.trace_name(node.body, target.id, depth + 1))
                elif isinstance(target, ast.Name):
                    forms.append(Form())
            elif is_super_call(node) or is_self_call(node, "get_input_iter", getattr(function, "name", "")):
                found = self.resolve(node.func)
                forms += self.trace_shapes(found[0], depth + 1) if found and found[0] and depth < MAX_DEPTH else []
        return forms

    def trace_name(self, body, name, depth):
        """The form that the statements `body` ask of the variable `name`."""
        if depth > MAX_DEPTH:
            return UNKNOWN
        names = {name}
        nodes = [node for statement in body for node in ast.walk(statement)]
        for node in nodes:
            if isinstance(node, ast.Assign) and stands_for(node.value, names):
                names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        if any(is_len_of(node, names) for node in nodes):
            return Form(known=False, note=f"depends on len({name})")
        return join_forms([form for node in nodes for form in self.trace_node(node, names, depth)])

    def trace_node(self, node, names, depth):
        """Forms that one expression or statement asks of the variables `names`."""
        if isinstance(node, ast.Assign) and stands_for(node.value, names):
            yield from (form for form in map(form_of_target, node.targets) if form is not None)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in names:
            index = node.slice.operand if isinstance(node.slice, ast.UnaryOp) else node.slice
            if isinstance(index, ast.Constant) and isinstance(index.value, int):
                least = index.value + (0 if isinstance(node.slice, ast.UnaryOp) else 1)
                yield Form(least=least, note=ast.unparse(node))
        elif isinstance(node, ast.Call):
            yield from self.trace_call(node, names, depth)

    def trace_call(self, call, names, depth):
        used = [(place, value) for place, value in enumerate(call.args) if stands_for(value, names)]
        used += [(word.arg, word.value) for word in call.keywords if stands_for(word.value, names)]
        starred = any(isinstance(value, ast.Starred) and stands_for(value.value, names) for value in call.args)
        if not used and not starred:
            return
        found = self.resolve(call.func)
        if found and found[0] is not None:
            function, skip = found
            parameters = [arg.arg for arg in function.args.args][skip:]
            if starred:
                yield form_of_parameters(function, parameters, call)
            for place, _ in used:
                name = parameters[place] if isinstance(place, int) and place < len(parameters) else place
                if isinstance(name, str):
                    body = function.body if isinstance(function.body, list) else [function.body]
                    yield self.trace_name(body, name, depth + 1)
        elif used and found:
            yield Form(known=False, note=f"{ast.unparse(call.func)} is not in the sources")
        elif used and call_name(call) not in NEUTRAL:
            yield Form(flat=True)


def form_of_parameters(function, parameters, call):
    """The form of f(*shape, more): as many values as parameters are left."""
    given = len(call.args) - 1 + len(call.keywords)
    if function.args.vararg or call.args and not isinstance(call.args[0], ast.Starred):
        return UNKNOWN
    most = len(parameters) - given
    fewest = most - min(len(function.args.defaults), most)
    return Form(tuple(range(fewest, most + 1)), fewest, note=", ".join(parameters[:most]))


def stands_for(node, names):
    """True of the variable itself and of list(variable), tuple(variable)."""
    if isinstance(node, ast.Call) and call_name(node) in ("list", "tuple") and len(node.args) == 1:
        return stands_for(node.args[0], names)
    return isinstance(node, ast.Name) and node.id in names


def is_len_of(node, names):
    return isinstance(node, ast.Call) and call_name(node) == "len" and len(node.args) == 1 and stands_for(node.args[0], names)


def call_name(call):
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def is_super_call(node):
    """True of super().ANYTHING(...)."""
    return (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call)
            and call_name(node.func.value) == "super")


def is_self_call(node, *but):
    """True of self.NAME(...) with a NAME that is not in `but`."""
    return (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "self" and node.func.attr not in but)


def mentions_shapes(node):
    """True if `self.shapes` takes part in an expression."""
    return any(isinstance(part, ast.Attribute) and part.attr == "shapes" and isinstance(part.value, ast.Name)
               and part.value.id == "self" for part in ast.walk(node))
