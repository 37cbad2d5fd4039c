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
    search_path_changes = [
        (module, change) for module in modules for change in _changes_of_search_path(module)
    ]
    if any(_may_leave_source(module, change) for module, change in search_path_changes):
        return ()
    other_names_in_source = _module_names(source_root) if search_path_changes else frozenset()
    missing_by_name: dict[str, MissingPackage] = {}
    for module in _unconditionally_imported(modules, own_folders):
        for statement in _unconditional_statements(module.tree):
            for missing in _missing_submodules(statement, module, program, sent_files):
                missing_by_name.setdefault(missing.name, missing)
            for package in _top_level_packages(statement):
                if package in missing_by_name or _is_importable(package):
                    continue
                paths = [path for folder in own_folders for path in _module_paths(folder, package)]
                file_not_sent = _file_not_sent(paths, source_root, sent_files)
                is_unknown = not paths and package not in other_names_in_source
                if is_unknown or file_not_sent is not None:
                    place = module.place_of(statement)
                    missing_by_name[package] = MissingPackage(package, place, file_not_sent)
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
    that is not sent."""
    for dotted_name in filter(None, _imported_modules(statement)):
        package_folder = _find_package_folder(dotted_name, statement, module, program.import_folders)
        if package_folder is None:
            continue
        # What ``from package import name`` names may also be no module.
        is_certainly_module = isinstance(statement, ast.Import) or (
            isinstance(statement, ast.ImportFrom) and dotted_name == statement.module
        )
        name = dotted_name.rpartition(".")[2]
        init_file = package_folder / "__init__.py"
        init_text = init_file.read_text("utf-8", "replace") if init_file.is_file() else ""
        if not is_certainly_module and name in init_text:
            continue
        paths = _module_paths(package_folder, name)
        file_not_sent = _file_not_sent(paths, program.source_root, sent_files)
        is_lacking = not paths and is_certainly_module and init_file.is_file()
        if file_not_sent is not None:
            yield MissingPackage(dotted_name, module.place_of(statement), file_not_sent)
        elif is_lacking and not _may_find_elsewhere(init_text):
            yield MissingPackage(dotted_name, module.place_of(statement), package=package_folder.name)


def _find_package_folder(
    dotted_name: str, statement: ast.stmt, module: SourceModule, own_folders: tuple[Path, ...]
) -> Path | None:
    """Return the folder of the source's package that an imported module is in; None for a module in no
    package, or in one that is installed."""
    packages = dotted_name.split(".")[:-1]
    is_relative = isinstance(statement, ast.ImportFrom) and statement.level > 0
    if not packages and not is_relative:
        return None
    for folder in _folders_of(statement, module, own_folders):
        package_folder = folder.joinpath(*packages)
        if not package_folder.is_dir():
            continue
        # An installed package comes before a folder without __init__.py.
        has_init_file = (package_folder / "__init__.py").is_file()
        if has_init_file or not packages or not _is_importable(packages[0]):
            return package_folder
    return None


def _may_find_elsewhere(package_text: str) -> bool:
    """Whether a package's ``__init__.py`` may define modules, or search them in other folders."""
    return "__path__" in package_text or "modules" in package_text


def _file_not_sent(paths: Sequence[Path], source_root: Path, sent_files: Container[str] | None) -> str | None:
    """Return the first file that a module may be, relative to the source, if none of them is sent; None
    where one is, or may be. ``sent_files``: None if that is not known."""
    if not paths or sent_files is None or any(path.suffix != ".py" for path in paths):
        return None
    files = [Path(os.path.relpath(path, source_root)).as_posix() for path in paths]
    return None if any(file in sent_files for file in files) else files[0]


def _changes_of_search_path(module: SourceModule) -> Iterator[ast.AST]:
    """Yield each statement or call by which a module changes where Python searches modules."""
    for node in module.nodes:
        if isinstance(node, ast.Call):
            name = module.qualified_name_of(node.func)
            if name == "site.addsitedir" or name.startswith("sys.path."):
                yield node
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            # sys.path = ..., sys.path[:0] = ...
            lists = [target.value if isinstance(target, ast.Subscript) else target for target in targets]
            if any(module.qualified_name_of(changed_list) == "sys.path" for changed_list in lists):
                yield node


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
    pending_modules, known_paths = [modules[0]], {modules[0].path}
    while pending_modules:
        module = pending_modules.pop(0)
        yield module
        for statement in _unconditional_statements(module.tree):
            for path in _iter_imported_files(statement, module, own_folders):
                if path in module_by_path and path not in known_paths:
                    known_paths.add(path)
                    pending_modules.append(module_by_path[path])


def _iter_imported_files(
    statement: ast.stmt, module: SourceModule, own_folders: tuple[Path, ...]
) -> Iterator[Path]:
    """Yield the files that the modules of an import may be, whether they exist or not."""
    for dotted_name in _imported_modules(statement):
        for folder in _folders_of(statement, module, own_folders):
            path_without_suffix = folder.joinpath(*dotted_name.split("."))
            yield path_without_suffix / "__init__.py"
            if dotted_name:  # not ``from . import name``
                yield path_without_suffix.with_suffix(".py")


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
