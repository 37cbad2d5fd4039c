"""Whether Python code names a script: imports it, or has the path of its file in a text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from smlaunch.discovery.source_modules import parse_python

_IMPORTING_FUNCTIONS = frozenset(("import_module", "__import__", "run_module", "find_spec"))


def names_script(content: bytes, script: str) -> bool:
    """Return whether the code ``content`` may import or start the file ``script``, a path with forward
    slashes. Docstrings do not count. Code that Python rejects may do anything."""
    path = PurePosixPath(script)
    if path.stem.encode() not in content:
        return False
    try:
        tree = parse_python(content, Path(script))
    except (SyntaxError, ValueError):
        return True
    return tree is None or any(_names_in(tree, path))


def _names_in(tree: ast.AST, path: PurePosixPath) -> Iterator[bool]:
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = getattr(node, "module", None) or ""
            names = [module, *(alias.name for alias in node.names)]
            yield any(path.stem in name.split(".") for name in names)
        elif isinstance(node, ast.Call):
            function = (
                node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            )
            texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            yield function in _IMPORTING_FUNCTIONS and any(
                isinstance(text, str) and path.stem in text.split(".") for text in texts
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            words = node.value.split()
            yield any(word == path.name or word.endswith(f"/{path.name}") for word in words)
