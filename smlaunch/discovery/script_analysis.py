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
from smlaunch.facts.discovered_facts import FeatureLocation, ScriptFacts
from smlaunch.job.model import DEFAULT_CHECKPOINT_PATH
from smlaunch.text.did_you_mean import nearest_match


def unreadable_path_reason(path: Path) -> str | None:
    """Return why the path cannot be checked, such as a closed folder above it; None where it can."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return None


def nearest_path_hint(path: Path) -> str:
    """Return a clause for the error about a missing path: that its folder is missing too, or the most similar
    name in that folder. Empty where there is none."""
    folder = path.parent
    try:
        if not folder.is_dir():
            return f" (nor does its folder {folder})"
        similar_name = nearest_match(
            path.name, (item.name for item in folder.iterdir())
        )  # None: no such name
    except OSError:
        return ""  # the folder cannot be read: there is only no suggestion
    return f", did you mean {str(folder / similar_name)!r}?" if similar_name else ""


def read_script_facts(path: Path) -> ScriptFacts:
    """Return what the user's entry script shows without running it. A script that cannot be read or parsed
    has a ``problem``.

    Of any script: whether its text mentions the checkpoint directory, or resourceconfig.json, in which
    SageMaker lists a job's hosts. Of a Python script, from its syntax tree: its imports, and its features,
    which are signs of how it distributes its work.
    """
    unreadable_reason = unreadable_path_reason(path)
    if unreadable_reason is not None:
        return ScriptFacts(problem=unreadable_reason)
    if path.is_dir():
        return ScriptFacts(exists=False, problem=f"{path} is a folder; name the script in it")
    if not path.is_file():
        return ScriptFacts(exists=False, problem=f"{path} does not exist{nearest_path_hint(path)}")
    try:
        content = path.read_bytes()
    except OSError as error:
        return ScriptFacts(problem=f"{path} cannot be read: {error.strerror}")
    if path.suffix != ".py":  # a shell script, for example
        return ScriptFacts(
            reads_resource_config=b"resourceconfig.json" in content,
            # The texts are ways to name the directory: its path, and the variable that has it.
            names_checkpoint_dir=any(text.encode() in content for text in _CHECKPOINT_DIR_TEXTS),
        )
    try:
        syntax_tree = ast.parse(content, filename=str(path))
    except SyntaxError as error:
        return ScriptFacts(problem=f"{path}, line {error.lineno}: {error.msg}")
    except ValueError as error:  # NUL bytes, or an unknown encoding
        return ScriptFacts(problem=f"{path} is not Python: {error}")
    texts = _string_constants(syntax_tree)  # all literals in the script
    return ScriptFacts(
        imports=frozenset(_find_dotted_names_of_imports(syntax_tree)),
        reads_resource_config=any("resourceconfig.json" in text for text in texts),
        names_checkpoint_dir=_mentions_checkpoint_dir(texts),
        features=find_features(syntax_tree, _map_alias_to_imported_name(syntax_tree)),
    )


_CHECKPOINT_DIR_TEXTS = (DEFAULT_CHECKPOINT_PATH, CHECKPOINTS_VARIABLE)
_MAX_MODULES = 500


def _string_constants(tree: ast.Module) -> list[str]:
    nodes = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [value for value in nodes if isinstance(value, str)]


def _mentions_checkpoint_dir(texts: Iterable[str]) -> bool:
    return any(mention in text for text in texts for mention in _CHECKPOINT_DIR_TEXTS)


def modules_mention_checkpoints(entry: Path, root: Path) -> bool:
    """Return whether the script, or a module of the source that it imports, names the checkpoint
    directory."""
    return any(
        _mentions_checkpoint_dir(_string_constants(tree)) for _, tree in _parse_reachable_modules(entry, root)
    )


def transitive_imports(entry: Path, root: Path) -> frozenset[str]:
    """Return the dotted names that the script imports, directly or through the source's own modules.

    Modules are searched where Python would: beside the script, and in the source's root. A module that cannot
    be parsed is skipped.
    """
    imports: set[str] = set()
    for _, tree in _parse_reachable_modules(entry, root):
        imports |= _find_dotted_names_of_imports(tree)
    return frozenset(imports)


def find_missing_packages(entry: Path, source_root: Path) -> tuple[str, ...]:
    """Return the top-level packages that the entry script imports unconditionally, and that neither the
    source folder nor this Python has. Nothing is imported; a script that cannot be parsed has none.

    Imports inside of functions, ``if`` and ``try`` do not count: the script may work without them.
    """
    if entry.suffix != ".py" or not entry.is_file():
        return ()
    try:
        syntax_tree = ast.parse(entry.read_bytes(), filename=str(entry))
    except (OSError, SyntaxError, ValueError):
        return ()
    packages: dict[str, None] = {}  # in the order of the imports
    for statement in syntax_tree.body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                packages[alias.name.split(".")[0]] = None
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
            packages[statement.module.split(".")[0]] = None
    own_folders = (entry.parent, source_root)  # where Python searches first
    return tuple(
        package
        for package in packages
        if not any(_has_module(folder, package) for folder in own_folders) and not _is_importable(package)
    )


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


def transitive_features(entry: Path, source_root: Path) -> dict[str, FeatureLocation]:
    """Return the features of the entry script and of the source's modules that it imports, each with the file
    and line where it is found first. A feature is a sign, such as ``process-group``, of how a script
    distributes its work."""
    location_by_feature: dict[str, FeatureLocation] = {}
    for path, syntax_tree in _parse_reachable_modules(entry, source_root):
        file = "" if path == entry else os.path.relpath(path, source_root)  # empty for the entry script
        features_of_file = find_features(syntax_tree, _map_alias_to_imported_name(syntax_tree), file)
        for feature, location in features_of_file.items():
            location_by_feature.setdefault(feature, location)
    return location_by_feature


def _parse_reachable_modules(entry: Path, source_root: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Yield path and syntax tree of the entry script and of each module of the source folder that it imports,
    directly or through another one, up to a number of modules. Those that cannot be parsed are skipped."""
    if entry.suffix != ".py" or not entry.is_file():
        return
    import_folders = list(dict.fromkeys((entry.parent, source_root)))  # where Python would search
    pending_paths, known_paths = [entry], {entry}
    while pending_paths and len(known_paths) <= _MAX_MODULES:
        path = pending_paths.pop()
        try:
            syntax_tree = ast.parse(path.read_bytes(), filename=str(path))
        except (OSError, SyntaxError, ValueError):
            continue
        yield path, syntax_tree
        module_paths = [
            folder.joinpath(*dotted_name.split("."))
            for dotted_name in _find_dotted_names_of_imports(syntax_tree)
            for folder in import_folders
        ]
        module_paths += _iter_relative_import_paths(syntax_tree, path)
        for module_file in _find_module_files(module_paths, import_folders):
            if module_file not in known_paths:
                known_paths.add(module_file)
                pending_paths.append(module_file)


def _iter_relative_import_paths(syntax_tree: ast.Module, path: Path) -> Iterator[Path]:
    """Yield the paths, without a suffix, of modules that a file may mean by imports such as ``from .model
    import Net``: ``model``, and ``model/Net``. ``path`` is the file's own."""
    for node in ast.walk(syntax_tree):
        # The level is the number of dots: 1 is the file's own folder, 2 the one above it.
        if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(path.parents):
            package_folder = path.parents[node.level - 1]
            module_path = package_folder.joinpath(*(node.module.split(".") if node.module else ()))
            yield module_path
            for alias in node.names:
                yield module_path / alias.name


def _find_module_files(module_paths: Iterable[Path], import_folders: Collection[Path]) -> Iterator[Path]:
    """Yield the existing Python files of modules and of the packages that contain them, which Python imports
    too. ``module_paths`` have no suffix; ``import_folders``, where Python searches, are no packages."""
    for module_path in module_paths:
        for path in (module_path, *module_path.parents):  # upwards
            if path in import_folders or not path.name:  # without a name: the root of the file system
                break
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file.is_file():
                    yield file


def _find_dotted_names_of_imports(syntax_tree: ast.Module) -> set[str]:
    """Return the dotted names that a module imports, or that are attributes of imported names: for a call of
    ``torch.distributed.init_process_group`` also ``torch.distributed``, which callers search for."""
    dotted_names: set[str] = set()
    for node in ast.walk(syntax_tree):
        if isinstance(node, ast.Import):
            dotted_names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            dotted_names.add(node.module)
            dotted_names.update(f"{node.module}.{alias.name}" for alias in node.names)
    imported_name_by_alias = _map_alias_to_imported_name(syntax_tree)
    for node in ast.walk(syntax_tree):
        if isinstance(node, ast.Attribute):
            dotted_name = _resolve_dotted_name(node, imported_name_by_alias)  # None: not of an import
            while dotted_name and "." in dotted_name:
                dotted_names.add(dotted_name)
                dotted_name = dotted_name.rpartition(".")[0]
    return dotted_names


def _map_alias_to_imported_name(syntax_tree: ast.Module) -> dict[str, str]:
    """Return, by each name that a module's imports define, the full name that it stands for: ``torch.nn`` by
    ``nn`` after ``from torch import nn``. Relative imports are omitted."""
    imported_name_by_alias: dict[str, str] = {}
    for node in ast.walk(syntax_tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    imported_name_by_alias[alias.asname] = alias.name
                else:  # ``import a.b`` defines ``a``
                    top_package = alias.name.split(".")[0]
                    imported_name_by_alias[top_package] = top_package
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                imported_name_by_alias[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return imported_name_by_alias


def _resolve_dotted_name(node: ast.Attribute, imported_name_by_alias: Mapping[str, str]) -> str | None:
    """Return the full name that an expression such as ``nn.parallel.DDP`` stands for; None where its first
    name is not imported."""
    attributes: list[str] = []
    expression: ast.expr = node
    while isinstance(expression, ast.Attribute):
        attributes.append(expression.attr)
        expression = expression.value
    if isinstance(expression, ast.Name) and expression.id in imported_name_by_alias:
        return ".".join([imported_name_by_alias[expression.id], *reversed(attributes)])
    return None
