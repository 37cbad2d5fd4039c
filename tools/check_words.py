"""Check the project's words: no private words in names, help and documents, no class name in two packages.

    python tools/check_words.py [--list WORD]

``tools/words.txt`` has the words and what to write instead; ``tools/words_allowed.txt`` has the uses
that stay, each with its reason. ``tools/words_tests.txt`` has the words for names in tests. ``--list``
prints every use of a word.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MOST_ALLOWED = 100

_NAME_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|<[^>]*>", re.DOTALL)
EXEMPT = ("docs/attacks/", "docs/evidence/")


class Rule(NamedTuple):
    """A word that is not used. ``where``: ``name`` (the whole of a name), ``text``
    (help and documents) or ``both`` (any word of a name, and text)."""

    word: str
    where: str
    instead: str


class Use(NamedTuple):
    """``path``: relative to the root."""

    path: str
    line: int
    word: str
    context: str


def read_rules(path: Path) -> list[Rule]:
    rules = []
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            word, where, instead = (cell.strip() for cell in line.split("|"))
            rules.append(Rule(word, where, instead))
    return rules


def read_allowed(path: Path) -> dict[tuple[str, str], str]:
    """Reasons by path and word."""
    allowed = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            where, word, reason = (cell.strip() for cell in line.split("|"))
            allowed[where, word] = reason
    return allowed


def names_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names that a file gives, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def help_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Texts of ``help=`` and of commands' docstrings, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="help", value=ast.Constant(value=str(text))):
                yield text, node.value.lineno
            case ast.FunctionDef(decorator_list=[_, *_]) if ast.get_docstring(node):
                yield ast.get_docstring(node) or "", node.lineno


def uses_in_module(path: str, source: str, rules: list[Rule]) -> Iterator[Use]:
    tree = ast.parse(source)
    alone = {rule.word for rule in rules if rule.where == "name"}
    anywhere = {rule.word for rule in rules if rule.where == "both"}
    for name, line in names_in(tree):
        words = [part.lower() for part in _NAME_WORD.findall(name)]
        for word in sorted(anywhere.intersection(words) | alone.intersection(["_".join(words)])):
            yield Use(path, line, word, name)
    if path.startswith("smlaunch/cli/"):
        for text, line in help_in(tree):
            yield from uses_in_text(path, text, rules, line)


def uses_in_text(path: str, text: str, rules: list[Rule], first_line: int = 1) -> Iterator[Use]:
    prose = _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)
    for rule in rules:
        if rule.where != "name":
            for match in re.finditer(rf"\b{re.escape(rule.word)}\b", prose, re.IGNORECASE):
                line = prose.count("\n", 0, match.start())
                context = text.splitlines()[line].strip()
                yield Use(path, first_line + line, rule.word, context)


def uses_in_test(path: str, source: str, rules: list[Rule]) -> Iterator[Use]:
    """Uses in the names of a module of tests. Names of tests themselves are free: documents cite them."""
    for use in uses_in_module(path, source, rules):
        if not use.context.startswith("test_"):
            yield use


def list_files(*folders: str) -> list[str]:
    """Paths, relative to the root, of the files that git knows below ``folders``."""
    command = ["git", "ls-files", *folders]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def class_packages(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Packages of smlaunch by the names of the public classes they define."""
    packages = defaultdict(set)
    for path, source in sources.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                packages[node.name].add(path.split("/")[1])
    return packages


def main(arguments: list[str]) -> int:
    rules = read_rules(ROOT / "tools" / "words.txt")
    test_rules = read_rules(ROOT / "tools" / "words_tests.txt")
    allowed = read_allowed(ROOT / "tools" / "words_allowed.txt")
    listed = list_files("smlaunch", "docs", "README.md", "CONTRIBUTING.md")
    paths = [path for path in listed if not path.startswith(EXEMPT)]
    modules = {path: (ROOT / path).read_text() for path in paths if path.endswith(".py")}
    uses = [use for path, source in modules.items() for use in uses_in_module(path, source, rules)]
    for path in paths:
        if path.endswith(".md"):
            uses += uses_in_text(path, (ROOT / path).read_text(), rules)
    for path in list_files("tests"):
        if path.endswith(".py"):
            uses += uses_in_test(path, (ROOT / path).read_text(), test_rules)
    if arguments[:1] == ["--list"]:
        uses = [use for use in uses if use.word == arguments[1]]
        allowed = {}
    instead = {rule.word: rule.instead for rule in rules}
    instead_in_tests = {rule.word: rule.instead for rule in test_rules}
    problems = [
        f"{use.path}:{use.line}: {use.word!r} in {use.context!r}: write "
        f"{(instead_in_tests if use.path.startswith('tests/') else instead)[use.word]}"
        for use in uses
        if (use.path, use.word) not in allowed
    ]
    used = {(use.path, use.word) for use in uses}
    problems += [
        f"tools/words_allowed.txt: {path} has no {word!r}"
        for path, word in allowed
        if (path, word) not in used
    ]
    if len(allowed) > MOST_ALLOWED:
        problems.append(f"tools/words_allowed.txt: {len(allowed)} exceptions, {MOST_ALLOWED} at most")
    problems += [
        f"class {name} is defined in {', '.join(sorted(packages))}: one name for one thing"
        for name, packages in sorted(class_packages(modules).items())
        if len(packages) > 1
    ]
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
