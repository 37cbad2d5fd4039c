"""Finds packages that a script needs and this Python does not have. Nothing is imported."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Container, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from smlaunch.discovery.source_modules import SourceModule, SourceProgram
from smlaunch.facts.script_program import MissingPackage


def find_missing_packages(
    program: SourceProgram, sent_files: Container[str] | None = None
) -> tuple[MissingPackage, ...]:
    """Return the top-level packages that the script imports unconditionally, itself or through modules of the
    source, and that neither the source nor this Python has; also modules that packages of the source lack.

    Imports inside of functions, ``if`` and ``try`` do not count: the script may work without them. Once the
    program changes ``sys.path``, a module anywhere in the source may be what it means. ``sent_files``: those
    of the source that are sent, relative to it; a module that only the others have is missing.
    """
    modules, source_root, own_folders = program.modules, program.source_root, program.import_folders
    if not modules:
        return ()
    changes = [change for module in modules for change in _changes_of_search_path(module)]
    if any(_may_leave_source(module, change) for module, change in changes):
        return ()
    modules_of_source = _module_names(source_root) if changes else frozenset()
    missing_by_name: dict[str, MissingPackage] = {}
    for module in _unconditionally_imported(modules, own_folders):
        for statement in _unconditional_statements(module.tree):
            for missing in _missing_submodules(statement, module, program, sent_files):
                missing_by_name.setdefault(missing.name, missing)
            for package in _top_level_packages(statement):
                if package in missing_by_name or _is_importable(package):
                    continue
                found = [path for folder in own_folders for path in _module_paths(folder, package)]
                not_sent = [] if sent_files is None else _paths_not_sent(found, source_root, sent_files)
                if found and len(not_sent) == len(found):
                    missing_by_name[package] = MissingPackage(
                        package, module.place_of(statement), not_sent[0]
                    )
                elif not found and package not in modules_of_source:
                    missing_by_name[package] = MissingPackage(package, module.place_of(statement))
    return tuple(missing_by_name.values())


def _unconditional_statements(tree: ast.Module | ast.ClassDef) -> Iterator[ast.stmt]:
    """Yield the statements of a module, with those in the bodies of its classes."""
    for statement in tree.body:
        yield statement
        if isinstance(statement, ast.ClassDef):
            yield from _unconditional_statements(statement)


def _missing_submodules(
    statement: ast.stmt, module: SourceModule, program: SourceProgram, sent_files: Container[str] | None
) -> Iterator[MissingPackage]:
    """Yield each module that a statement imports from a package of the source, and that the package lacks or
    that is not sent. What ``from package import name`` names may also be no module."""
    certain = {statement.module or ""} if isinstance(statement, ast.ImportFrom) else None
    is_relative = isinstance(statement, ast.ImportFrom) and statement.level > 0
    for dotted_name in filter(None, _imported_modules(statement)):
        for folder in _folders_of(statement, module, program.import_folders):
            *packages, name = dotted_name.split(".")
            package_folder = folder.joinpath(*packages)
            init = package_folder / "__init__.py"
            if not (packages or is_relative) or not package_folder.is_dir():
                continue
            if not init.is_file() and packages and _is_importable(packages[0]):
                continue  # an installed package comes before a folder without __init__.py
            found = _module_paths(package_folder, name)
            is_certain = certain is None or dotted_name in certain
            package_text = init.read_text("utf-8", "replace") if init.is_file() else ""
            if not is_certain and name in package_text:
                break
            not_sent = [] if sent_files is None else _paths_not_sent(found, program.source_root, sent_files)
            if found and len(not_sent) == len(found):
                yield MissingPackage(dotted_name, module.place_of(statement), not_sent[0])
            elif not found and is_certain and init.is_file() and not _may_find_elsewhere(package_text):
                yield MissingPackage(dotted_name, module.place_of(statement), package=package_folder.name)
            break


def _may_find_elsewhere(package_text: str) -> bool:
    """Whether a package's ``__init__.py`` may define modules, or search them in other folders."""
    return "__path__" in package_text or "modules" in package_text


def _paths_not_sent(paths: Sequence[Path], source_root: Path, sent_files: Container[str]) -> list[str]:
    """Those of the modules that are files of the source which are not sent, relative to it."""
    relative_paths = [
        Path(os.path.relpath(path, source_root)).as_posix() for path in paths if path.suffix == ".py"
    ]
    return [path for path in relative_paths if path not in sent_files]


def _changes_of_search_path(module: SourceModule) -> Iterator[tuple[SourceModule, ast.AST]]:
    """Yield each statement or call by which a module changes where Python searches modules."""
    for node in module.nodes:
        if isinstance(node, ast.Call):
            name = module.name_of(node.func)
            if name == "site.addsitedir" or name.startswith("sys.path."):
                yield module, node
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            # sys.path = ..., sys.path[:0] = ...
            values = [each.value if isinstance(each, ast.Subscript) else each for each in targets]
            if any(module.name_of(value) == "sys.path" for value in values):
                yield module, node


_PLACES_OUTSIDE = ("environ", "getenv", "expanduser", "home", "argv")


def _may_leave_source(module: SourceModule, change: ast.AST) -> bool:
    """Whether a change of ``sys.path`` may add a folder outside the source, with unknown modules."""
    for node in ast.walk(change):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value[:1] in ("/", "~"):
            if not _is_appended(module, node):
                return True
        elif isinstance(node, (ast.Attribute, ast.Name)):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name in _PLACES_OUTSIDE:
                return True
    return False


def _is_appended(module: SourceModule, node: ast.AST) -> bool:
    """``"/src"`` in ``os.getcwd() + "/src"`` and in an f-string behind its first value."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.JoinedStr):
        return parent.values[0] is not node
    return isinstance(parent, ast.BinOp) and parent.right is node


_MAX_FOLDERS = 5000


def _module_names(source_root: Path) -> frozenset[str]:
    """Return the names of all modules and packages in the source, in any folder."""
    names: set[str] = set()
    for count, (_, folders, files) in enumerate(os.walk(source_root)):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        names.update(folders)
        names.update(name.partition(".")[0] for name in files if name.endswith((".py", ".so", ".pyd")))
        if count >= _MAX_FOLDERS:
            break
    return frozenset(names)


def _unconditionally_imported(
    modules: Sequence[SourceModule], own_folders: tuple[Path, ...]
) -> Iterator[SourceModule]:
    """Yield the entry script and the modules of the source that it certainly imports."""
    module_by_path = {module.path: module for module in modules}
    pending, known = [modules[0]], {modules[0].path}
    while pending:
        module = pending.pop(0)
        yield module
        for statement in _unconditional_statements(module.tree):
            for dotted_name in _imported_modules(statement):
                for folder in _folders_of(statement, module, own_folders):
                    path_without_suffix = folder.joinpath(*dotted_name.split("."))
                    paths = [path_without_suffix / "__init__.py"]
                    if dotted_name:  # not ``from . import name``
                        paths.append(path_without_suffix.with_suffix(".py"))
                    for path in paths:
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


def _module_paths(folder: Path, name: str) -> list[Path]:
    """The file of a module, or the package's; the folder for a package without ``__init__.py``."""
    paths = [folder / f"{name}.py", folder / name / "__init__.py"]
    paths += [] if paths[1].is_file() else [folder / name]
    return [path for path in paths if path.exists()] + sorted(folder.glob(f"{name}.*.so"))


def _is_importable(package: str) -> bool:
    """Return whether this Python has a top-level package. It is searched for and not imported."""
    if package in sys.modules:
        return True
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # a finder's failure does not mean that the package is missing
        return True
