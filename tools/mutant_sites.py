"""Where a source file can be changed by one small mistake, and how many of its mistakes each package gets.

A site is one edit of the text: a comparison, a boolean operator, an arithmetic operator, a constant off by
one, a `not` added or removed, a return value, a deleted statement, two swapped branches. Docstrings,
annotations, f-strings, log calls and code that only a type checker reads have no sites.
"""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: (r"==", "!="),
    ast.NotEq: (r"!=", "=="),
    ast.Lt: (r"<", "<="),
    ast.LtE: (r"<=", "<"),
    ast.Gt: (r">", ">="),
    ast.GtE: (r">=", ">"),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
    ast.Mult: (r"\*", "+"),
    ast.Div: (r"/", "*"),
    ast.FloorDiv: (r"//", "*"),
    ast.Mod: (r"%", "*"),
    ast.Pow: (r"\*\*", "*"),
    ast.LShift: (r"<<", ">>"),
    ast.RShift: (r">>", "<<"),
    ast.BitAnd: (r"&", "|"),
    ast.BitOr: (r"\|", "&"),
}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
LOGGERS = {"log", "logger", "logging", "_log"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Site:
    """One edit. `file` is relative to the repository; `start` and `end` are offsets in bytes."""

    file: str
    function: str
    line: int
    operator: str
    before: str
    after: str
    start: int
    end: int
    lines: tuple[int, int]
    """First and last line of the statement, or of its header where it has a body."""
    in_function: bool

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]

    def is_valid(self, source: bytes) -> bool:
        """Whether the edit gives another program that Python can parse."""
        try:
            changed = ast.parse(self.apply(source))
        except SyntaxError:
            return False
        return ast.dump(changed) != ast.dump(ast.parse(source))


class _Sites(ast.NodeVisitor):
    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.names: list[str] = []
        self.depth = 0
        self.statement = (1, 1)
        self.found: list[Site] = []

    # ---- positions ----

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def add(self, operator: str, start: int, end: int, after: str) -> None:
        before = self.source[start:end].decode()
        line = self.source[:start].count(b"\n") + 1
        site = Site(
            self.file, ".".join(self.names), line, operator, before, after, start, end, self.statement,
            in_function=self.depth > 0,
        )  # fmt: skip
        self.found.append(site)

    def replace(self, operator: str, node: ast.expr | ast.stmt, after: str) -> None:
        self.add(operator, *self.span(node), after)

    def between(
        self, operator: str, left: ast.expr | ast.stmt, right: ast.expr, pattern: str, after: str
    ) -> None:
        """Replaces the token between two expressions, whatever brackets and line ends surround it."""
        start, end = self.span(left)[1], self.span(right)[0]
        match = re.search(pattern, self.source[start:end].decode())
        if match is not None and b"#" not in self.source[start:end]:
            self.add(operator, start + match.start(), start + match.end(), after)

    # ---- what is passed over ----

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            if _only_for_types(node) or _is_log_call(node):
                return
            outer, self.statement = self.statement, _header(node)
            self.statement_sites(node)
            super().visit(node)
            self.statement = outer
        else:
            super().visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Its parts have no positions of their own before Python 3.12."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self.names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self.names.append(node.name)
        self.depth += 1
        for statement in node.body:
            self.visit(statement)
        self.depth -= 1
        self.names.pop()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    # ---- operators ----

    def statement_sites(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Return) and node.value is not None:
            value = node.value.value if isinstance(node.value, ast.Constant) else ...
            if value is not None:
                self.replace(
                    "return value",
                    node.value,
                    str(not value) if isinstance(value, bool) else "None",
                )
        if _deletable(node):
            self.replace("deleted statement", node, "pass")
        if isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, ast.Constant):
            branches = isinstance(node, ast.If) and node.orelse
            if branches or not isinstance(node.test, ast.UnaryOp):
                operator = "swapped branch" if branches else "not"
                self.replace(operator, node.test, f"not ({self.text(node.test)})")

    def visit_IfExp(self, node: ast.IfExp) -> None:
        body, test, other = (self.text(part) for part in (node.body, node.test, node.orelse))
        self.replace("swapped branch", node, f"({other}) if ({test}) else ({body})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for kind, left, right in zip(node.ops, sides[:-1], sides[1:], strict=True):
            self.between("comparison", left, right, *COMPARISONS[type(kind)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        pattern, after = (r"\band\b", "or") if isinstance(node.op, ast.And) else (r"\bor\b", "and")
        self.between("boolean", node.values[0], node.values[1], pattern, after)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_type = isinstance(node.op, ast.BitOr) and self.depth == 0
        if type(node.op) in ARITHMETIC and not is_type and not any(map(_is_text, (node.left, node.right))):
            self.between("arithmetic", node.left, node.right, *ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in ARITHMETIC and not _is_text(node.value):
            pattern, after = ARITHMETIC[type(node.op)]
            self.between("arithmetic", node.target, node.value, pattern + "=", after + "=")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.replace("not", node, f"({self.text(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int or type(node.value) is float:
            self.replace("constant", node, repr(node.value + 1))


def _header(node: ast.stmt) -> tuple[int, int]:
    last = node.end_lineno or node.lineno
    for field in ("body", "cases"):
        inner = getattr(node, field, None)
        if inner:
            first = getattr(inner[0], "lineno", None) or inner[0].pattern.lineno
            last = max(node.lineno, min(last, first - 1))
    return node.lineno, last


def _only_for_types(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        test = ast.unparse(node.test)
        return test in ("TYPE_CHECKING", "typing.TYPE_CHECKING") or "__name__" in test
    if isinstance(node, FUNCTIONS):
        return all(
            isinstance(line, ast.Pass)
            or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
            for line in node.body
        )
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name) and target.id.startswith("__") for target in node.targets)
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _is_log_call(node: ast.stmt) -> bool:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    called = node.value.func
    return (
        isinstance(called, ast.Attribute)
        and called.attr in LOG_METHODS
        and isinstance(called.value, (ast.Name, ast.Attribute))
        and ast.unparse(called.value).rpartition(".")[2] in LOGGERS
    )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    )


def _deletable(node: ast.stmt) -> bool:
    """What leaves no name undefined behind."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Assign):
        return all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
    return isinstance(node, (ast.AugAssign, ast.Raise, ast.Delete, ast.Continue, ast.Break))


def sites(file: str, source: bytes) -> list[Site]:
    visitor = _Sites(file, source)
    visitor.visit(ast.parse(source))
    return visitor.found


def _package(file: Path, root: Path) -> str:
    """`smlaunch/<package>`, or `smlaunch` for a module beside the packages."""
    return "/".join(file.relative_to(root).parts[:-1][:2])


def shares(lines: Mapping[str, int], count: int) -> dict[str, int]:
    """`count` dealt out in proportion, by largest remainder."""
    total = sum(lines.values())
    exact = {name: count * number / total for name, number in lines.items()}
    given = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (given[name] - exact[name], name))
    for name in by_remainder[: count - sum(given.values())]:
        given[name] += 1
    return given


def choose(root: Path, count: int, seed: int) -> list[Site]:
    """Packages in proportion to their lines; in a package files in proportion to theirs, operators evenly."""
    sources = {path: path.read_bytes() for path in sorted((root / "smlaunch").rglob("*.py"))}
    packages: dict[str, dict[Path, int]] = {}
    for path, source in sources.items():
        packages.setdefault(_package(path, root), {})[path] = source.count(b"\n")
    lines = {name: sum(members.values()) for name, members in packages.items()}
    generator = random.Random(seed)
    used: Counter[str] = Counter()
    chosen: list[Site] = []
    for package, share in sorted(shares(lines, count).items()):
        members = packages[package]
        drawn = 0
        while drawn < share:
            path = generator.choices(list(members), list(members.values()))[0]
            file = path.relative_to(root).as_posix()
            site = _draw([site for site in sites(file, sources[path]) if site not in chosen], used, generator)
            if site is not None and site.is_valid(sources[path]):
                chosen.append(site)
                drawn += 1
    return chosen


def _draw(found: list[Site], used: Counter[str], generator: random.Random) -> Site | None:
    """One of an operator that was drawn least so far; every call counts, so no operator is waited for."""
    if not found:
        return None
    least = min(used[site.operator] for site in found)
    operator = generator.choice(sorted({site.operator for site in found if used[site.operator] == least}))
    used[operator] += 1
    return generator.choice([site for site in found if site.operator == operator])
