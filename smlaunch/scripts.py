"""What reading a script shows, without running it: its imports, and the texts that tell how it works."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from smlaunch.job import DEFAULT_CHECKPOINT_PATH
from smlaunch.planning.surroundings import ScriptFacts, Sign
from smlaunch.protocol.segment import CHECKPOINTS
from smlaunch.script_signs import signs
from smlaunch.suggest import nearest


def closed(path: Path) -> str | None:
    """Why nobody can say what is there, as behind a folder that is shut; None where it is known."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return None


def near_path(path: Path) -> str:
    """A clause naming the nearest thing in the deepest folder that does exist."""
    folder = path.parent
    try:
        if not folder.is_dir():
            return f" (nor does its folder {folder})"
        match = nearest(path.name, (item.name for item in folder.iterdir()))
    except OSError:
        return ""  # only a suggestion depends on it
    return f", did you mean {str(folder / match)!r}?" if match else ""


def read_script(path: Path) -> ScriptFacts:
    """Parses the script, runs nothing. A shell script has no imports."""
    if (shut := closed(path)) is not None:
        return ScriptFacts(problem=shut)
    if not path.is_file():
        what = f"{path} is a folder; name the script in it" if path.is_dir() else f"{path} does not exist"
        return ScriptFacts(exists=False, problem=what + ("" if path.is_dir() else near_path(path)))
    try:
        content = path.read_bytes()
    except OSError as error:
        return ScriptFacts(problem=f"{path} cannot be read: {error.strerror}")
    if path.suffix != ".py":
        return ScriptFacts(
            reads_resource_config=b"resourceconfig.json" in content,
            names_checkpoints=any(text.encode() in content for text in _CHECKPOINT_TEXTS),
        )
    try:
        tree = ast.parse(content, filename=str(path))
    except SyntaxError as error:
        return ScriptFacts(problem=f"{path}, line {error.lineno}: {error.msg}")
    except ValueError as error:  # NUL bytes, or an encoding that is none
        return ScriptFacts(problem=f"{path} is not Python: {error}")
    texts = _texts(tree)
    return ScriptFacts(
        imports=frozenset(_imports(tree)),
        reads_resource_config=any("resourceconfig.json" in text for text in texts),
        names_checkpoints=_names_checkpoints(texts),
        signs=signs(tree, _bound(tree)),
    )


_CHECKPOINT_TEXTS = (DEFAULT_CHECKPOINT_PATH, CHECKPOINTS)
_MOST_MODULES = 500


def _texts(tree: ast.Module) -> list[str]:
    nodes = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [value for value in nodes if isinstance(value, str)]


def _names_checkpoints(texts: Iterable[str]) -> bool:
    return any(word in text for text in texts for word in _CHECKPOINT_TEXTS)


def modules_name_checkpoints(entry: Path, root: Path) -> bool:
    """Whether the script, or a module of the source that it imports, names the checkpoint directory."""
    return any(_names_checkpoints(_texts(tree)) for _, tree in _reached(entry, root))


def reached_imports(entry: Path, root: Path) -> frozenset[str]:
    """What the source's own modules import that ``entry`` imports, directly or through one another. Looked
    for where Python would: beside the script, and in the source's root. A module that cannot be parsed says
    nothing."""
    found: set[str] = set()
    for _, tree in _reached(entry, root):
        found |= _imports(tree)
    return frozenset(found)


def absent_packages(entry: Path, root: Path) -> tuple[str, ...]:
    """What the script imports first of all, not only if or should it be there, and this Python does not have.
    Nothing is imported for it."""
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
    own = [folder / name for folder in (entry.parent, root) for name in names]
    ours = {place.name for place in own if place.is_dir() or place.with_suffix(".py").is_file()}
    return tuple(name for name in names if name not in ours and not _is_here(name))


def _is_here(name: str) -> bool:
    if name in sys.modules:
        return True
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a finder that fails says nothing against it
        return True


def reached_signs(entry: Path, root: Path) -> dict[str, Sign]:
    """The signs of the script, and of the source's modules that it imports, with their files: what is not in
    the script may be in one of those."""
    found: dict[str, Sign] = {}
    for path, tree in _reached(entry, root):
        file = "" if path == entry else os.path.relpath(path, root)
        for name, sign in signs(tree, _bound(tree), file).items():
            found.setdefault(name, sign)
    return found


def _reached(entry: Path, root: Path) -> Iterator[tuple[Path, ast.Module]]:
    """The script and the modules of its source that it imports, directly or through one another."""
    if entry.suffix != ".py" or not entry.is_file():
        return
    folders = list(dict.fromkeys((entry.parent, root)))
    pending, seen = [entry], {entry}
    while pending and len(seen) <= _MOST_MODULES:
        path = pending.pop()
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except (OSError, SyntaxError, ValueError):
            continue
        yield path, tree
        places = [folder.joinpath(*name.split(".")) for name in _imports(tree) for folder in folders]
        for module in _files([*places, *_relative(tree, path)], folders):
            if module not in seen:
                seen.add(module)
                pending.append(module)


def _relative(tree: ast.Module, path: Path) -> Iterator[Path]:
    """Where ``from .model import Net`` leads to from this file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(path.parents):
            base = path.parents[node.level - 1].joinpath(*filter(None, (node.module or "").split(".")))
            yield from (base, *(base / alias.name for alias in node.names))


def _files(places: Iterable[Path], folders: Collection[Path]) -> Iterator[Path]:
    """The modules at these places, packages on the way to them included."""
    for place in places:
        for part in (place, *place.parents):
            if part in folders or not part.name:
                break
            yield from (file for file in (part.with_suffix(".py"), part / "__init__.py") if file.is_file())


def _imports(tree: ast.Module) -> set[str]:
    """Dotted names that are imported, or reached through something imported."""
    found: set[str] = set()
    bound = _bound(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = _dotted(node, bound)
            if dotted:
                # Of torch.distributed.init_process_group, torch.distributed is what others look for.
                found.update(dotted.rsplit(".", cut)[0] for cut in range(dotted.count(".")))
    return found


def _bound(tree: ast.Module) -> dict[str, str]:
    """What the imported names of a module stand for."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                bound[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return bound


def _dotted(node: ast.Attribute, bound: Mapping[str, str]) -> str | None:
    names: list[str] = []
    current: ast.expr = node
    while isinstance(current, ast.Attribute):
        names.append(current.attr)
        current = current.value
    if isinstance(current, ast.Name) and current.id in bound:
        return ".".join([bound[current.id], *reversed(names)])
    return None
