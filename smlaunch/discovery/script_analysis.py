"""Analyzes a script without running it: its imports, and texts and calls that show how it works."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from smlaunch.contract.segment import CHECKPOINTS_VARIABLE
from smlaunch.discovery.script_features import find_features
from smlaunch.job.model import DEFAULT_CHECKPOINT_PATH
from smlaunch.planner.facts import FeatureLocation, ScriptFacts
from smlaunch.text.did_you_mean import nearest_match


def unreadable_reason(path: Path) -> str | None:
    """Return why the path cannot be checked, such as a closed folder above it; None where it can."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return None


def nearest_path_hint(path: Path) -> str:
    """Return a clause with the most similar name in the deepest folder that exists."""
    folder = path.parent
    try:
        if not folder.is_dir():
            return f" (nor does its folder {folder})"
        match = nearest_match(path.name, (item.name for item in folder.iterdir()))
    except OSError:
        return ""  # only a suggestion depends on it
    return f", did you mean {str(folder / match)!r}?" if match else ""


def read_script(path: Path) -> ScriptFacts:
    """Return the facts of a script from its syntax tree. A shell script has no imports."""
    if (unreadable := unreadable_reason(path)) is not None:
        return ScriptFacts(problem=unreadable)
    if not path.is_file():
        problem = f"{path} is a folder; name the script in it" if path.is_dir() else f"{path} does not exist"
        return ScriptFacts(exists=False, problem=problem + ("" if path.is_dir() else nearest_path_hint(path)))
    try:
        content = path.read_bytes()
    except OSError as error:
        return ScriptFacts(problem=f"{path} cannot be read: {error.strerror}")
    if path.suffix != ".py":
        return ScriptFacts(
            reads_resource_config=b"resourceconfig.json" in content,
            names_checkpoint_dir=any(text.encode() in content for text in _CHECKPOINT_DIR_TEXTS),
        )
    try:
        tree = ast.parse(content, filename=str(path))
    except SyntaxError as error:
        return ScriptFacts(problem=f"{path}, line {error.lineno}: {error.msg}")
    except ValueError as error:  # NUL bytes, or an unknown encoding
        return ScriptFacts(problem=f"{path} is not Python: {error}")
    texts = _string_constants(tree)
    return ScriptFacts(
        imports=frozenset(_imported_dotted_names(tree)),
        reads_resource_config=any("resourceconfig.json" in text for text in texts),
        names_checkpoint_dir=_names_checkpoints(texts),
        features=find_features(tree, _imported_names(tree)),
    )


_CHECKPOINT_DIR_TEXTS = (DEFAULT_CHECKPOINT_PATH, CHECKPOINTS_VARIABLE)
_MAX_MODULES = 500


def _string_constants(tree: ast.Module) -> list[str]:
    nodes = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [value for value in nodes if isinstance(value, str)]


def _names_checkpoints(texts: Iterable[str]) -> bool:
    return any(mention in text for text in texts for mention in _CHECKPOINT_DIR_TEXTS)


def modules_mention_checkpoints(entry: Path, root: Path) -> bool:
    """Return whether the script, or a module of the source that it imports, names the checkpoint
    directory."""
    return any(
        _names_checkpoints(_string_constants(tree)) for _, tree in _parse_reachable_modules(entry, root)
    )


def transitive_imports(entry: Path, root: Path) -> frozenset[str]:
    """Return the dotted names that the script imports, directly or through the source's own modules.

    Modules are searched where Python would: beside the script, and in the source's root. A module that cannot
    be parsed is skipped.
    """
    imports: set[str] = set()
    for _, tree in _parse_reachable_modules(entry, root):
        imports |= _imported_dotted_names(tree)
    return frozenset(imports)


def missing_packages(entry: Path, root: Path) -> tuple[str, ...]:
    """Return the packages that the script imports unconditionally and that this Python lacks. Imports
    nothing."""
    if entry.suffix != ".py" or not entry.is_file():
        return ()
    try:
        tree = ast.parse(entry.read_bytes(), filename=str(entry))
    except (OSError, SyntaxError, ValueError):
        return ()
    names: dict[str, None] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            names.update(dict.fromkeys(alias.name.split(".")[0] for alias in node.names))
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names[node.module.split(".")[0]] = None
    candidates = [folder / name for folder in (entry.parent, root) for name in names]
    own_modules = {
        candidate.name
        for candidate in candidates
        if candidate.is_dir() or candidate.with_suffix(".py").is_file()
    }
    return tuple(name for name in names if name not in own_modules and not _is_importable(name))


def _is_importable(name: str) -> bool:
    if name in sys.modules:
        return True
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a finder's failure does not mean that the package is missing
        return True


def transitive_features(entry: Path, root: Path) -> dict[str, FeatureLocation]:
    """Return the features of the script and of the source's modules that it imports, with their files."""
    features: dict[str, FeatureLocation] = {}
    for path, tree in _parse_reachable_modules(entry, root):
        file = "" if path == entry else os.path.relpath(path, root)
        for name, location in find_features(tree, _imported_names(tree), file).items():
            features.setdefault(name, location)
    return features


def _parse_reachable_modules(entry: Path, root: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the script and the modules of its source that it imports, directly or through one another."""
    if entry.suffix != ".py" or not entry.is_file():
        return
    folders = list(dict.fromkeys((entry.parent, root)))
    pending, known_modules = [entry], {entry}
    while pending and len(known_modules) <= _MAX_MODULES:
        path = pending.pop()
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except (OSError, SyntaxError, ValueError):
            continue
        yield path, tree
        import_paths = [
            folder.joinpath(*name.split(".")) for name in _imported_dotted_names(tree) for folder in folders
        ]
        for module in _module_files([*import_paths, *_relative_import_paths(tree, path)], folders):
            if module not in known_modules:
                known_modules.add(module)
                pending.append(module)


def _relative_import_paths(tree: ast.Module, path: Path) -> Iterator[Path]:
    """Yield the paths that imports such as ``from .model import Net`` in this file refer to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(path.parents):
            base = path.parents[node.level - 1].joinpath(*filter(None, (node.module or "").split(".")))
            yield from (base, *(base / alias.name for alias in node.names))


def _module_files(module_paths: Iterable[Path], folders: Collection[Path]) -> Iterator[Path]:
    """Yield the modules at these paths, including the packages above them."""
    for module_path in module_paths:
        for package_path in (module_path, *module_path.parents):
            if package_path in folders or not package_path.name:
                break
            yield from (
                file
                for file in (package_path.with_suffix(".py"), package_path / "__init__.py")
                if file.is_file()
            )


def _imported_dotted_names(tree: ast.Module) -> set[str]:
    """Return the dotted names that are imported, or are attributes of imported names."""
    dotted_names: set[str] = set()
    imported_names = _imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            dotted_names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            dotted_names.add(node.module)
            dotted_names.update(f"{node.module}.{alias.name}" for alias in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted_name = _dotted_name(node, imported_names)
            if dotted_name:
                # For torch.distributed.init_process_group, callers search for torch.distributed.
                dotted_names.update(dotted_name.rsplit(".", cut)[0] for cut in range(dotted_name.count(".")))
    return dotted_names


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """Return what the imported names of a module refer to."""
    imported_names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top_package = alias.name.split(".")[0]
                imported_names[alias.asname or top_package] = alias.name if alias.asname else top_package
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                imported_names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return imported_names


def _dotted_name(node: ast.Attribute, imported_names: Mapping[str, str]) -> str | None:
    names: list[str] = []
    current: ast.expr = node
    while isinstance(current, ast.Attribute):
        names.append(current.attr)
        current = current.value
    if isinstance(current, ast.Name) and current.id in imported_names:
        return ".".join([imported_names[current.id], *reversed(names)])
    return None
