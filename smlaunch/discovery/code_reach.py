"""Which code of a program certainly runs, and which may run, as its syntax trees show. Nothing is executed.

A rule may refuse a job only for code that certainly runs: not under a condition, not where an exception is
handled, not in a function that nothing calls. Functions are followed by their names.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_NEVER, _POSSIBLE, _CERTAIN = 0, 1, 2

_EXITS = ("exit", "quit", "_exit")
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


class CodeReach(NamedTuple):
    """Nodes of syntax trees."""

    certain: frozenset[ast.AST]
    """What runs whenever the program does, unless an earlier line fails."""

    possible: frozenset[ast.AST]
    """These, and what may run."""


class _Definition(NamedTuple):
    """The body of a function, which runs where something names the function or its class."""

    module: int
    body: Sequence[ast.AST]
    max_level: int = _CERTAIN


@dataclass
class _Walk:
    """Follows the code from the statements of the modules into the functions that they name."""

    levels: dict[ast.AST, int] = field(default_factory=dict)
    pending: list[tuple[ast.AST, int, int]] = field(default_factory=list)
    """Nodes with their module's number and level."""

    definitions: dict[str, list[_Definition]] = field(default_factory=lambda: defaultdict(list))
    named: dict[tuple[int, str], int] = field(default_factory=dict)
    """Level at which a module names something; module -1: as an attribute, which may be any module's."""

    def push(self, nodes: Iterable[ast.AST | None], module: int, level: int) -> None:
        self.pending += [(node, module, level) for node in nodes if node is not None and level]

    def push_block(self, statements: Sequence[ast.AST], module: int, level: int) -> None:
        """After a statement that may end the function or the program, nothing is certain."""
        for statement in statements:
            self.push((statement,), module, level)
            if isinstance(statement, ast.If) and _may_end(statement):
                level = min(level, _POSSIBLE)

    def mention(self, name: str, module: int, level: int) -> None:
        """The code of ``module`` names a function or class."""
        self.named[module, name] = max(level, self.named.get((module, name), _NEVER))

    def run(self) -> None:
        while self.pending:
            while self.pending:
                node, module, level = self.pending.pop()
                if self.levels.get(node, _NEVER) < level:
                    self.levels[node] = level
                    self.visit(node, module, level)
            self.enter_functions()

    def enter_functions(self) -> None:
        """Go on in the bodies of named functions, once all code that has been reached is read. A name that a
        module does not define itself is of another one."""
        for (module, name), level in self.named.items():
            definitions = self.definitions.get(name, [])
            for each in [each for each in definitions if each.module == module] or definitions:
                body_level = min(level, each.max_level)
                if each.body and self.levels.get(each.body[0], _NEVER) < body_level:
                    self.push_block(each.body, each.module, body_level)

    def visit(self, node: ast.AST, module: int, level: int) -> None:
        maybe = min(level, _POSSIBLE)
        if isinstance(node, (*_Function, ast.ClassDef)):
            self.visit_definition(node, module, level)
        elif isinstance(node, ast.Lambda):
            self.push((node.args,), module, level)
            self.push((node.body,), module, maybe)
        elif isinstance(node, ast.If):
            body, otherwise = self.levels_of_branches(node.test, module, level)
            self.push((node.test,), module, level)
            self.push_block(node.body, module, body)
            self.push_block(node.orelse, module, otherwise)
        elif isinstance(node, ast.IfExp):
            self.push((node.test,), module, level)
            self.push((node.body, node.orelse), module, maybe)
        elif isinstance(node, ast.BoolOp):
            self.push(node.values[:1], module, level)
            self.push(node.values[1:], module, maybe)
        elif isinstance(node, ast.Try):
            body = level if all(map(_fails_anyway, node.handlers)) else maybe
            self.push_block(node.body, module, body)
            self.push_block(node.orelse, module, body)
            self.push(node.handlers, module, maybe)
            self.push_block(node.finalbody, module, level)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self.push(node.items, module, level)
            suppresses = any("suppress" in _last_name(item.context_expr) for item in node.items)
            self.push_block(node.body, module, maybe if suppresses else level)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self.push(ast.iter_child_nodes(node), module, level)
        elif isinstance(node, ast.match_case):
            self.push((node.pattern, node.guard), module, maybe)
            self.push_block(node.body, module, maybe)
        else:
            self.visit_expression(node, module, level)

    def visit_definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, module: int, level: int
    ) -> None:
        self.push(node.decorator_list, module, level)
        if isinstance(node, ast.ClassDef):
            self.push((*node.bases, *node.keywords), module, level)
            methods = [each for each in node.body if isinstance(each, _Function)]
            self.push([each for each in node.body if each not in methods], module, level)
            for method in methods:
                self.visit_definition(method, module, level)
                certain = method.name in ("__init__", "__new__", "__call__", "__enter__")
                definition = _Definition(module, method.body, _CERTAIN if certain else _POSSIBLE)
                self.definitions[node.name].append(definition)
                # A base class or a decorator may call any method.
                if node.bases or node.decorator_list:
                    self.push(method.body, module, min(level, _POSSIBLE))
            return
        self.push((node.args,), module, level)
        self.definitions[node.name].append(_Definition(module, node.body))
        if node.decorator_list:  # it may be registered somewhere
            self.push(node.body, module, min(level, _POSSIBLE))

    def visit_expression(self, node: ast.AST, module: int, level: int) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self.mention(node.id, module, level)
        elif isinstance(node, ast.Attribute):
            self.mention(node.attr, -1, level)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            self.mention(node.value, -1, min(level, _POSSIBLE))  # getattr(module, "train")
        self.push(ast.iter_child_nodes(node), module, level)

    def levels_of_branches(self, test: ast.expr, module: int, level: int) -> tuple[int, int]:
        """Levels of what an ``if`` does and of its ``else``."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            body, otherwise = self.levels_of_branches(test.operand, module, level)
            return otherwise, body
        value = None
        if isinstance(test, ast.Constant):
            value = bool(test.value)
        elif _last_name(test) == "TYPE_CHECKING":
            value = False
        elif is_main_test(test):
            value = module == 0  # the entry script's
        if value is None:
            return min(level, _POSSIBLE), min(level, _POSSIBLE)
        return (level, _NEVER) if value else (_NEVER, level)


def find_reach(trees: Sequence[ast.Module]) -> CodeReach:
    """Return what of a program certainly runs and what may run. The first tree is the entry script's."""
    walk = _Walk()
    for number, tree in enumerate(trees):
        walk.push_block(tree.body, number, _CERTAIN)
    walk.run()
    return CodeReach(
        frozenset(node for node, level in walk.levels.items() if level == _CERTAIN),
        frozenset(walk.levels),
    )


def is_main_test(test: ast.expr) -> bool:
    """Whether a condition compares ``__name__``, as in ``if __name__ == "__main__"``."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and isinstance(test.ops[0], ast.Eq)
    )


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _nodes_of_same_function(statement: ast.AST) -> Iterable[ast.AST]:
    pending = [statement]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (*_Function, ast.Lambda, ast.ClassDef)):
            pending += ast.iter_child_nodes(node)


def _is_exit(node: ast.AST, *, succeeds: bool) -> bool:
    """Whether a node is a call such as ``sys.exit()``, that ends the program well or with a failure."""
    if not isinstance(node, ast.Call) or _last_name(node) not in _EXITS:
        return False
    argument = node.args[0] if node.args else None
    fails = isinstance(argument, ast.Constant) and argument.value not in (0, None)
    return fails is not succeeds


def _may_end(statement: ast.If) -> bool:
    """Whether the function or the program may end well in a statement."""
    return any(
        isinstance(node, ast.Return) or _is_exit(node, succeeds=True)
        for node in _nodes_of_same_function(statement)
    )


def _fails_anyway(handler: ast.ExceptHandler) -> bool:
    """Whether the program fails or is interrupted where this handler runs."""
    if handler.type is not None and _last_name(handler.type) == "KeyboardInterrupt":
        return True
    last = handler.body[-1]
    return isinstance(last, ast.Raise) or (
        isinstance(last, ast.Expr) and _is_exit(last.value, succeeds=False)
    )
