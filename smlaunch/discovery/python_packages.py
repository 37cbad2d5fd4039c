"""Finds packages that a script needs and this Python does not have. Nothing is imported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from smlaunch.discovery.source_modules import SourceModule, read_source_modules
from smlaunch.facts.script_program import MissingPackage


def find_missing_packages(entry: Path, source_root: Path) -> tuple[MissingPackage, ...]:
    """Return the top-level packages that the script imports unconditionally, itself or through modules of the
    source, and that neither the source nor this Python has.

    Imports inside of functions, ``if`` and ``try`` do not count: the script may work without them.
    """
    modules = read_source_modules(entry, source_root)
    if not modules:
        return ()
    own_folders = (entry.parent, source_root)  # where Python searches first
    missing_by_name: dict[str, MissingPackage] = {}
    for module in _unconditionally_imported(modules, own_folders):
        for statement in module.tree.body:
            for package in _top_level_packages(statement):
                is_own = any(_has_module(folder, package) for folder in own_folders)
                if package not in missing_by_name and not is_own and not _is_importable(package):
                    missing_by_name[package] = MissingPackage(package, module.place_of(statement))
    return tuple(missing_by_name.values())


def _unconditionally_imported(
    modules: Sequence[SourceModule], own_folders: tuple[Path, ...]
) -> Iterator[SourceModule]:
    """Yield the entry script and the modules of the source that it certainly imports."""
    module_by_path = {module.path: module for module in modules}
    pending, known = [modules[0]], {modules[0].path}
    while pending:
        module = pending.pop(0)
        yield module
        for statement in module.tree.body:
            for dotted_name in _imported_modules(statement):
                for folder in _folders_of(statement, module, own_folders):
                    base = folder.joinpath(*dotted_name.split(".")) if dotted_name else folder
                    for path in (base.with_suffix(".py"), base / "__init__.py"):
                        if path in module_by_path and path not in known:
                            known.add(path)
                            pending.append(module_by_path[path])


def _folders_of(statement: ast.stmt, module: SourceModule, own_folders: tuple[Path, ...]) -> tuple[Path, ...]:
    """Where a statement's modules are searched."""
    if isinstance(statement, ast.ImportFrom) and 0 < statement.level <= len(module.path.parents):
        return (module.path.parents[statement.level - 1],)
    return own_folders


def _imported_modules(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        prefix = f"{statement.module}." if statement.module else ""
        return [statement.module or "", *(f"{prefix}{alias.name}" for alias in statement.names)]
    return []


def _top_level_packages(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name.split(".")[0] for alias in statement.names]
    if isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
        return [statement.module.split(".")[0]]
    return []


def _has_module(folder: Path, name: str) -> bool:
    path = folder / name
    return path.is_dir() or path.with_suffix(".py").is_file()


def _is_importable(package: str) -> bool:
    """Return whether this Python has a top-level package. It is searched for and not imported."""
    if package in sys.modules:
        return True
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # a finder's failure does not mean that the package is missing
        return True
