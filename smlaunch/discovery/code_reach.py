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
"""How certainly code runs."""

_ANY_MODULE = -1

_EXITS = ("exit", "quit", "_exit")
_FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef)


class CodeReach(NamedTuple):
    """Nodes of syntax trees."""

    certain: frozenset[ast.AST]
    """What runs whenever the program does, unless an earlier line fails."""

    possible: frozenset[ast.AST]
    """These, and what may run."""


class _Definition(NamedTuple):
    """The body of a function, which runs where something names the function or its class."""

    module_number: int
    body: Sequence[ast.AST]
    max_certainty: int = _CERTAIN


@dataclass
class _Walk:
    """Follows the code from the statements of the modules into the functions that they name."""

    certainty_by_node: dict[ast.AST, int] = field(default_factory=dict)
    pending: list[tuple[ast.AST, int, int]] = field(default_factory=list)
    """Nodes with the number of their module and their certainty."""

    definitions: dict[str, list[_Definition]] = field(default_factory=lambda: defaultdict(list))
    certainty_by_mention: dict[tuple[int, str], int] = field(default_factory=dict)
    """How certainly a module names something, by its number and the name. ``_ANY_MODULE``: it is named as an
    attribute, which may be any module's."""

    def add_nodes(self, nodes: Iterable[ast.AST | None], module_number: int, certainty: int) -> None:
        self.pending += [(node, module_number, certainty) for node in nodes if node is not None and certainty]

    def add_block(self, statements: Sequence[ast.AST], module_number: int, certainty: int) -> None:
        """Add statements that run one after the other. After one that may end the function or the program,
        none is certain."""
        for statement in statements:
            self.add_nodes((statement,), module_number, certainty)
            if isinstance(statement, ast.If) and _may_end_well(statement):
                certainty = min(certainty, _POSSIBLE)

    def mention(self, name: str, module_number: int, certainty: int) -> None:
        """Record that the code of a module names a function or class."""
        self.certainty_by_mention[module_number, name] = max(
            certainty, self.certainty_by_mention.get((module_number, name), _NEVER)
        )

    def run(self) -> None:
        while self.pending:
            while self.pending:
                node, module_number, certainty = self.pending.pop()
                if self.certainty_by_node.get(node, _NEVER) < certainty:
                    self.certainty_by_node[node] = certainty
                    self.visit(node, module_number, certainty)
            self.visit_mentioned_functions()

    def visit_mentioned_functions(self) -> None:
        """Go on in the bodies of the functions that the visited code names. A name that a module does not
        define itself is of another one."""
        for (module_number, name), certainty in self.certainty_by_mention.items():
            all_definitions = self.definitions.get(name, [])
            own_definitions = [each for each in all_definitions if each.module_number == module_number]
            for definition in own_definitions or all_definitions:
                body_certainty = min(certainty, definition.max_certainty)
                first_statement = next(iter(definition.body), None)
                if (
                    first_statement is not None
                    and self.certainty_by_node.get(first_statement, _NEVER) < body_certainty
                ):
                    self.add_block(definition.body, definition.module_number, body_certainty)

    def visit(self, node: ast.AST, module_number: int, certainty: int) -> None:
        """Add the nodes below a node, each with how certainly it runs if the node itself runs with this
        certainty."""
        at_most_possible = min(certainty, _POSSIBLE)
        if isinstance(node, (*_FUNCTION_NODES, ast.ClassDef)):
            self.visit_definition(node, module_number, certainty)
        elif isinstance(node, ast.Lambda):
            self.add_nodes((node.args,), module_number, certainty)
            self.add_nodes((node.body,), module_number, at_most_possible)
        elif isinstance(node, ast.If):
            body_certainty, else_certainty = self.certainty_of_branches(node.test, module_number, certainty)
            self.add_nodes((node.test,), module_number, certainty)
            self.add_block(node.body, module_number, body_certainty)
            self.add_block(node.orelse, module_number, else_certainty)
        elif isinstance(node, ast.IfExp):
            self.add_nodes((node.test,), module_number, certainty)
            self.add_nodes((node.body, node.orelse), module_number, at_most_possible)
        elif isinstance(node, ast.BoolOp):
            self.add_nodes(node.values[:1], module_number, certainty)
            self.add_nodes(node.values[1:], module_number, at_most_possible)
        elif isinstance(node, ast.Try):
            # A handler that goes on with the program hides that its body did not run to the end.
            handlers_end_program = all(map(_fails_anyway, node.handlers))
            body_certainty = certainty if handlers_end_program else at_most_possible
            self.add_block(node.body, module_number, body_certainty)
            self.add_block(node.orelse, module_number, body_certainty)
            self.add_nodes(node.handlers, module_number, at_most_possible)
            self.add_block(node.finalbody, module_number, certainty)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self.add_nodes(node.items, module_number, certainty)
            suppresses_errors = any("suppress" in _last_name(item.context_expr) for item in node.items)
            self.add_block(node.body, module_number, at_most_possible if suppresses_errors else certainty)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self.add_nodes(ast.iter_child_nodes(node), module_number, certainty)
        elif isinstance(node, ast.match_case):
            self.add_nodes((node.pattern, node.guard), module_number, at_most_possible)
            self.add_block(node.body, module_number, at_most_possible)
        else:
            self.visit_expression(node, module_number, certainty)

    def visit_definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, module_number: int, certainty: int
    ) -> None:
        """Add what the definition of a function or class runs, and record the bodies, which run once the code
        names it."""
        self.add_nodes(node.decorator_list, module_number, certainty)
        if isinstance(node, ast.ClassDef):
            self.add_nodes((*node.bases, *node.keywords), module_number, certainty)
            methods = [item for item in node.body if isinstance(item, _FUNCTION_NODES)]
            self.add_nodes([item for item in node.body if item not in methods], module_number, certainty)
            for method in methods:
                self.visit_definition(method, module_number, certainty)
                # Of a class that is used, these certainly run.
                is_certain = method.name in ("__init__", "__new__", "__call__", "__enter__")
                max_certainty = _CERTAIN if is_certain else _POSSIBLE
                self.definitions[node.name].append(_Definition(module_number, method.body, max_certainty))
                # A base class or a decorator may call any method.
                if node.bases or node.decorator_list:
                    self.add_nodes(method.body, module_number, min(certainty, _POSSIBLE))
            return
        self.add_nodes((node.args,), module_number, certainty)
        self.definitions[node.name].append(_Definition(module_number, node.body))
        if node.decorator_list:  # it may be registered somewhere
            self.add_nodes(node.body, module_number, min(certainty, _POSSIBLE))

    def visit_expression(self, node: ast.AST, module_number: int, certainty: int) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self.mention(node.id, module_number, certainty)
        elif isinstance(node, ast.Attribute):
            self.mention(node.attr, _ANY_MODULE, certainty)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            self.mention(
                node.value, _ANY_MODULE, min(certainty, _POSSIBLE)
            )  # getattr(module_number, "train")
        self.add_nodes(ast.iter_child_nodes(node), module_number, certainty)

    def certainty_of_branches(self, test: ast.expr, module_number: int, certainty: int) -> tuple[int, int]:
        """Return how certainly the body of an ``if`` runs, and its ``else``."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            body, otherwise = self.certainty_of_branches(test.operand, module_number, certainty)
            return otherwise, body
        known_value: bool | None = None
        if isinstance(test, ast.Constant):
            known_value = bool(test.value)
        elif _last_name(test) == "TYPE_CHECKING":
            known_value = False
        elif is_main_test(test):
            known_value = module_number == 0  # the entry script's
        if known_value is None:
            return min(certainty, _POSSIBLE), min(certainty, _POSSIBLE)
        return (certainty, _NEVER) if known_value else (_NEVER, certainty)


def find_reach(trees: Sequence[ast.Module]) -> CodeReach:
    """Return what of a program certainly runs and what may run. The first tree is the entry script's."""
    walk = _Walk()
    for number, tree in enumerate(trees):
        walk.add_block(tree.body, number, _CERTAIN)
    walk.run()
    return CodeReach(
        frozenset(node for node, certainty in walk.certainty_by_node.items() if certainty == _CERTAIN),
        frozenset(walk.certainty_by_node),
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
    """Return the last part of a name, or of the name of what is called: ``exit`` of ``sys.exit(1)``."""
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
        if not isinstance(node, (*_FUNCTION_NODES, ast.Lambda, ast.ClassDef)):
            pending += ast.iter_child_nodes(node)


def _is_exit(node: ast.AST, *, succeeds: bool) -> bool:
    """Whether a node is a call such as ``sys.exit()``, that ends the program well or with a failure."""
    if not isinstance(node, ast.Call) or _last_name(node) not in _EXITS:
        return False
    argument = node.args[0] if node.args else None
    fails = isinstance(argument, ast.Constant) and argument.value not in (0, None)
    return fails is not succeeds


def _may_end_well(statement: ast.If) -> bool:
    """Whether the function or the program may end well in a statement."""
    return any(
        isinstance(node, ast.Return) or _is_exit(node, succeeds=True)
        for node in _nodes_of_same_function(statement)
    )


def _fails_anyway(handler: ast.ExceptHandler) -> bool:
    """Whether the program fails or is interrupted where this handler runs."""
    if handler.type is not None and _last_name(handler.type) == "KeyboardInterrupt":
        return True
    last_statement = handler.body[-1]
    is_failing_exit = isinstance(last_statement, ast.Expr) and _is_exit(last_statement.value, succeeds=False)
    return is_failing_exit or isinstance(last_statement, ast.Raise)
