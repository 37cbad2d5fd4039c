"""Finds the files outside the source folder that a script names by its own path, ``__file__``.

Such a path has the same place on every machine where the files beside the script are the same; on the hosts
only the source folder is.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from smlaunch.discovery.protected_folders import protected_folder_reason
from smlaunch.discovery.source_modules import SourceProgram
from smlaunch.facts.source_place import OutsideFile, SourcePlace

_SAME_PATH = ("absolute", "resolve", "abspath", "realpath", "Path", "PurePath", "str", "fspath", "normpath")
"""Methods and functions that return the same file's path."""


def find_outside_file(program: SourceProgram) -> OutsideFile | None:
    """Return the first file or folder outside the source that the script names by a path relative to its own
    and that exists here; None without one, and for a script that cannot be parsed."""
    if not program.modules:
        return None
    script, source_root = program.entry, program.source_root
    root = os.path.realpath(source_root)
    try:
        paths_and_lines = sorted(
            _PathFinder(script).find_paths(program.modules[0].tree),
            key=lambda path_and_line: path_and_line[1],
        )
    except RecursionError:  # an expression that is nested too deeply
        return None
    for path, line in paths_and_lines:
        if not Path(path).is_relative_to(root) and os.path.lexists(path):
            place = SourcePlace(os.path.relpath(script, source_root), line)
            return OutsideFile(os.path.relpath(path, root), place, _folder_with_both(path, root))
    return None


def _folder_with_both(path: str, root: str) -> str:
    """Return the folder that holds the source and the other file, relative to the working directory; empty
    for one that is never sent, such as a home folder."""
    folder = os.path.commonpath([path, root])
    return "" if protected_folder_reason(Path(folder)) else os.path.relpath(folder)


class _PathFinder:
    """Evaluates expressions of paths, as far as they consist of ``__file__``, names for it, and constants."""

    def __init__(self, script: Path) -> None:
        self._script = os.path.realpath(script)
        self._path_by_name: dict[str, str] = {}

    def find_paths(self, tree: ast.Module) -> Iterator[tuple[str, int]]:
        """Yield path and line of each expression that appends something to a folder above the script."""
        for statement in tree.body:  # names of the module, such as ROOT
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                path = self._evaluate(statement.value)
                if path is not None:
                    self._path_by_name[statement.targets[0].id] = path
        for node in ast.walk(tree):
            is_join = isinstance(node, ast.BinOp) or (
                isinstance(node, ast.Call) and _called_name(node) in ("join", "joinpath")
            )
            if isinstance(node, (ast.BinOp, ast.Call)) and is_join:
                path = self._evaluate(node)
                if path is not None:
                    yield path, node.lineno

    def _evaluate(self, node: ast.expr) -> str | None:
        """Return the path that an expression stands for; None where that is not known."""
        if isinstance(node, ast.Name):
            return self._script if node.id == "__file__" else self._path_by_name.get(node.id)
        if isinstance(node, ast.Attribute) and node.attr == "parent":
            return _parent(self._evaluate(node.value), 1)
        if isinstance(node, ast.Subscript):
            return self._evaluate_parents(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return _join(self._evaluate(node.left), [node.right])
        return self._evaluate_call(node) if isinstance(node, ast.Call) else None

    def _evaluate_parents(self, node: ast.Subscript) -> str | None:
        """Return the path that ``path.parents[1]``, for example, stands for; None for another expression."""
        index = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(node.value, ast.Attribute) and node.value.attr == "parents" and isinstance(index, int):
            return _parent(self._evaluate(node.value.value), index + 1)
        return None

    def _evaluate_call(self, node: ast.Call) -> str | None:
        """Return the path that a call returns, such as ``os.path.join(path, "data")``; None where that is not
        known."""
        name = _called_name(node)
        # Of a method, such as path.resolve(), the path is the object; of a function the first argument.
        if name in ("absolute", "resolve", "joinpath") and isinstance(node.func, ast.Attribute):
            path = self._evaluate(node.func.value)
            return _join(path, node.args) if name == "joinpath" else path
        if not node.args:
            return None
        path = self._evaluate(node.args[0])
        if name == "dirname":
            return _parent(path, 1)
        if name in ("join", *_SAME_PATH):
            return _join(path, node.args[1:])
        return None


def _called_name(node: ast.Call) -> str:
    """Return the last name of what is called: ``join`` of ``os.path.join``."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _parent(path: str | None, count: int) -> str | None:
    """Return the folder ``count`` levels above a path."""
    for _ in range(count):
        path = None if path is None else os.path.dirname(path)  # noqa: PTH120
    return path


def _join(path: str | None, nodes: list[ast.expr]) -> str | None:
    """Return the path with the constants appended; None if one of them is no constant."""
    for node in nodes:
        if path is None or not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            return None
        path = os.path.normpath(Path(path, node.value))
    return path
