#!/usr/bin/env python3
"""scan_shapes.py - which benchmark takes which shapes: rebuilds ops/shape_uses.csv from a tree.

PURPOSE  Says for every Benchmark object of a tree whether it reads the shape file at all, under which keys, and how many
         values of a shape it unpacks, so that a shape set can be checked without running anything.
USAGE    ops/scan_shapes.py [--repo REPO] [--tree DIR] [--out FILE]       FILE: default ops/shape_uses.csv
           without --tree: every repo that has one (FLAGGEMS_DIR, FLAGGEMS_VLLM_DIR), else the sample tree
INPUT    benchmark/**.py of the tree, parsed and never imported; ops/shape_hand.csv.
OUTPUT   The file, with this repo's rows new and the others' as they were (ops/reading/shape_uses.py describes it). On stdout:
           ops/shape_uses.csv: main: 1091 uses; 265 set their own shapes, 826 read the file; of these 44 are not checked
EXIT     0 done, 2 usage.  NEEDS PyYAML.  FlagGems at ed2508b: 3 s.  LIMITS those of scan_tests.py and shape_form.py.
"""

import argparse
import ast
import os
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.errors import UserError, run_main  # noqa: E402
from ops.reading import shape_uses  # noqa: E402
from ops.reading.scan_benches import BenchReader  # noqa: E402
from ops.reading.scan_source import MAX_DEPTH, flatten, is_call, last_name, parse_module  # noqa: E402
from ops.reading.scan_tests import (find_test_files, is_test_class, is_test_function, parametrized_scope,  # noqa: E402
                                    read_decorators)
from ops.reading.shape_form import Form, Tracer, join_forms, mentions_shapes  # noqa: E402
from ops.reading.shape_uses import Use  # noqa: E402
from ops.reading.targets import choose_targets  # noqa: E402

# ---- reading the source

def scan_uses(tree):
    """All uses of the benchmarks of `tree`, sorted. UserError names a file that is no Python."""
    reader = UseReader(tree)
    uses = {}
    for path in find_test_files(Path(tree) / "benchmark"):
        try:
            module = parse_module(path)
        except SyntaxError as error:
            raise UserError(f"{path}: line {error.lineno}: is no Python ({error.msg}); mend the tree") from None
        reader.file = path.relative_to(tree).as_posix()
        for function in find_functions(module.tree.body):
            scope = parametrized_scope(read_decorators(function, module.scope), module.scope)
            for use in reader.read_benches(function, module, scope):
                uses.setdefault((use.op_name, use.classes, use.reads, use.has_default, use.form), use)
    return sorted(uses.values(), key=lambda use: (use.op_name, use.classes, use.where))


def find_functions(body):
    """Test functions of a module or of the test classes in it."""
    for statement in flatten(body):
        if isinstance(statement, ast.ClassDef) and is_test_class(statement):
            yield from find_functions(statement.body)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and is_test_function(statement):
            yield statement


class UseReader(BenchReader):
    """A BenchReader that reads how each Benchmark object takes its shapes instead of its dtypes."""

    def __init__(self, tree):
        super().__init__(tree)
        self.file, self.folder, self.siblings = "", Path(tree) / "benchmark", {}

    def find_upstream_key(self, op_name, chain):
        return next((key for key in (op_name, *chain) if key in self.shape_keys), "")

    def find_function(self, module, name):
        """The function `name` of benchmark/<module>.py, or None."""
        path = self.folder / f"{module}.py"
        if module not in self.siblings:
            self.siblings[module] = parse_module(path).functions if path.is_file() else {}
        return self.siblings[module].get(name)

    def _find(self, function, module, scope, depth):
        inner = {node.name: node for node in ast.walk(function) if isinstance(node, ast.FunctionDef) and node is not function}
        for found in super()._find(function, replace(module, functions={**module.functions, **inner}), scope, depth):
            yield from found if isinstance(found, tuple) else (found,)

    def _read_bench(self, chain, call, module, scope):
        """The uses of one constructor call, one per op_name."""
        bench = super()._read_bench(chain, call, module, scope)
        source = Source(self, chain, module, self._constructor_words(chain, call, module, scope).get("input_fn"), scope)
        form, reads = source.read_form(), source.read_file()
        origin = "ast" if form.known else "unknown", f"{self.file}:{call.lineno}"
        return tuple(Use(name, tuple(chain), self.find_upstream_key(name, chain), reads, source.has_default(), form, *origin)
                     for name in bench.op_names or ("",))


class Source:
    """The methods and functions that one Benchmark object's shapes go through."""

    def __init__(self, reader, chain, module, input_fn, scope):
        self.reader, self.chain, self.module, self.input_fn, self.scope = reader, chain, module, input_fn, scope

    def methods(self, name):
        """[(class name, FunctionDef)] of a method, nearest first."""
        found = []
        for holder in self.chain:
            node = self.reader._class_of(holder, self.module)
            found += [(holder, item) for item in node.body if isinstance(item, ast.FunctionDef) and item.name == name]
        return found

    def read_file(self):
        """`yes`, `no` (a class sets its shapes itself, or its inputs need none) or `fit` (it replaces shapes that do not fit)."""
        answer = "yes"
        for name in ("set_shapes", "init_user_config"):
            for holder, method in self.methods(name):
                if holder != "Benchmark" and replaces_shapes(method, method.body):
                    return "no"
                blocks = [node.body for node in ast.walk(method) if isinstance(node, ast.If)]
                if holder != "Benchmark" and any(replaces_shapes(method, block) for block in blocks):
                    answer = "fit"
        inputs = self.methods("get_input_iter")
        if inputs and not mentions_shapes(inputs[0][1]) and not self.tracer(inputs[0]).trace_shapes(inputs[0][1]):
            return "no"
        return answer

    def has_default(self):
        """True if a class has DEFAULT_SHAPES of its own."""
        nodes = [self.reader._class_of(holder, self.module) for holder in self.chain if holder != "Benchmark"]
        return any(isinstance(item, ast.Assign) and "DEFAULT_SHAPES" in map(last_name, item.targets)
                   for node in nodes for item in node.body)

    def read_form(self):
        inputs = self.methods("get_input_iter")
        if not inputs:
            return Form(known=False, note="no get_input_iter in the sources")
        forms = self.tracer(inputs[0]).trace_shapes(inputs[0][1])
        return join_forms(forms) if forms else Form(known=False, note="no loop over self.shapes")

    def tracer(self, holder):
        return Tracer(lambda expression: self.resolve(expression, holder[0]))

    def resolve(self, expression, holder):
        """(function, parameters to skip) of a called expression; (None, 0) for an unknown input_fn; None if it is not ours."""
        if isinstance(expression, ast.Lambda):
            return expression, 0
        name = last_name(expression)
        owner = last_name(getattr(expression, "value", None)) if isinstance(expression, ast.Attribute) else None
        if owner == "self" and name == "input_fn":
            return self.resolve_input() or (None, 0)
        if isinstance(expression, ast.Attribute) and is_call(expression.value, "super"):
            later = [method for where, method in self.methods(name) if self.chain.index(where) > self.chain.index(holder)]
            return (later[0], 1) if later else None
        if owner == "self" or owner in self.chain:
            found = self.methods(name)
            static = found and any(last_name(item) == "staticmethod" for item in found[0][1].decorator_list)
            return (found[0][1], 0 if static else 1) if found else None
        if isinstance(expression, ast.Name) and name in self.module.functions:
            return self.module.functions[name], 0
        found = self.reader.find_function(owner or find_import(self.module.tree, name) or "base", name)
        return (found, 0) if found else None

    def resolve_input(self):
        """The function that input_fn stands for: a name, a lambda, partial(f), or what a factory of this file returns."""
        expression, scope = self.input_fn or (None, None)
        for _ in range(MAX_DEPTH):
            found = scope.find(expression.id) if isinstance(expression, ast.Name) else None
            if found is None or expression.id in self.module.functions:
                break
            expression, scope = found
        if isinstance(expression, ast.Call) and last_name(expression.func) == "partial" and expression.args:
            found = self.resolve(expression.args[0], self.chain[0])
            return (found[0], found[1] + len(expression.args) - 1) if found else None
        if isinstance(expression, ast.Call):
            maker = self.resolve(expression.func, self.chain[0])
            return (find_returned(maker[0]), 0) if maker and maker[0] is not None and find_returned(maker[0]) else None
        return self.resolve(expression, self.chain[0]) if expression is not None else None


def find_import(tree, name):
    """The last part of the module that a file imports `name` from, or None."""
    return next((node.module.rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
                 and any((alias.asname or alias.name) == name for alias in node.names)), None)


def find_returned(function):
    """The inner function or lambda that a factory returns, or None."""
    inner = {node.name: node for node in ast.walk(function) if isinstance(node, ast.FunctionDef) and node is not function}
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Lambda):
            return node.value
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Name) and node.value.id in inner:
            return inner[node.value.id]
    return None


def replaces_shapes(method, block):
    """True if a set_shapes or init_user_config does not ask its base class, or a statement of `block` throws its shapes away."""
    if not any(is_call(node, method.name) for node in ast.walk(method)):
        return True
    return any(isinstance(node, ast.Assign) and any(mentions_shapes(target) for target in node.targets)
               and not mentions_shapes(node.value) and not is_filtered(node.value, method) for node in block)


def is_filtered(value, method):
    """True of a name that the method fills from self.shapes (`kept = []; for shape in self.shapes: ...`)."""
    return isinstance(value, ast.Name) and any(
        isinstance(node, ast.For | ast.comprehension) and mentions_shapes(node.iter) for node in ast.walk(method))


def main(argv):
    parser = argparse.ArgumentParser(description="Rebuild ops/shape_uses.csv from the trees.", allow_abbrev=False)
    parser.add_argument("--repo", choices=("main", "vllm", "samples"))
    parser.add_argument("--tree", help="checkout; default: FLAGGEMS_DIR, FLAGGEMS_VLLM_DIR, else the sample tree")
    parser.add_argument("--out", type=Path, default=shape_uses.USES)
    args = parser.parse_args(argv)
    for repo, tree, _ in choose_targets(argparse.Namespace(repo=args.repo, tree=args.tree, out=None), os.environ):
        uses = shape_uses.apply_hand(scan_uses(tree), shape_uses.read_hand(repo))
        shape_uses.write_uses(args.out, repo, uses)
        reading = [use for use in uses if use.reads != "no"]
        print(f"{args.out}: {repo}: {len(uses)} uses; {len(uses) - len(reading)} set their own shapes, {len(reading)} read the "
              f"file; of these {sum(not use.form.known for use in reading)} are not checked")


if __name__ == "__main__":
    run_main(main)
