"""Finds the files of the checkpoint directory that a script names alike on every host."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterator, Sequence

from smlaunch.contract.segment import CHECKPOINTS_VARIABLE
from smlaunch.discovery.saved_files import default_of_option
from smlaunch.discovery.source_modules import SourceModule, literal_of
from smlaunch.facts.script_program import SharedFile
from smlaunch.job.model import DEFAULT_CHECKPOINT_PATH

_CHECKPOINTERS = ("smlaunch.train.Checkpointer", "smlaunch.train.checkpointer.Checkpointer")
_READERS_OF_VARIABLES = ("os.environ.get", "os.getenv")
_JOINING_FUNCTIONS = ("os.path.join", "pathlib.Path", "pathlib.PurePosixPath", "pathlib.PosixPath")
_UNCHANGING_FUNCTIONS = ("str", "os.fspath", "os.path.abspath")
_MOST_STEPS = 8
"""Variables and parts of expressions that are followed, one in another."""


def find_fixed_checkpoint_files(modules: Sequence[SourceModule]) -> Iterator[SharedFile]:
    """Yield each path of a file below the checkpoint directory whose parts are all literals or the
    directory's own variable: ``os.path.join("/opt/ml/checkpoints", "state.json")``. A name with a suffix
    counts as that of a file. A Checkpointer of smlaunch.train without a directory of its own has one too."""
    for module in modules:
        for call in module.calls:
            has_own_directory = any(keyword.arg in ("directory", None) for keyword in call.keywords)
            if module.qualified_name_of(call.func) in _CHECKPOINTERS and not has_own_directory:
                yield SharedFile(module.place_of(call), f"{DEFAULT_CHECKPOINT_PATH}/smlaunch")
        found_paths: set[str] = set()
        for node in module.nodes:
            if not isinstance(node, ast.expr) or node not in module.reach.possible:
                continue
            path = _path_of(module, node, modules)
            if path is None or path in found_paths or not _is_checkpoint_file(path):
                continue
            if _may_be_part_of_longer_path(module, node):
                continue
            found_paths.add(path)
            named_at = module.values_assigned_once[node.id] if isinstance(node, ast.Name) else node
            yield SharedFile(module.place_of(named_at), path)


def _is_checkpoint_file(path: str) -> bool:
    name = path.removeprefix(f"{DEFAULT_CHECKPOINT_PATH}/")
    is_pattern = any(character in name for character in "*?[]{}%")
    suffix = posixpath.splitext(name)[1].lstrip(".")
    return name != path and not is_pattern and bool(suffix) and not suffix.isdigit()  # not of v1.0


def _may_be_part_of_longer_path(module: SourceModule, node: ast.expr) -> bool:
    """Whether the path is a part of an expression that adds something to it, such as a host's name, or gets
    a variable's name, by which such an expression may use it."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.Assign) and all(isinstance(target, ast.Name) for target in parent.targets):
        return True
    if isinstance(parent, (ast.BinOp, ast.FormattedValue, ast.JoinedStr)):
        return True
    if isinstance(parent, ast.Attribute):  # path.with_name(...), path.format(...), and not path.exists()
        return parent.attr in ("format", "joinpath", "with_name", "with_stem", "replace", "join")
    return isinstance(parent, ast.Call) and module.qualified_name_of(parent.func) in _JOINING_FUNCTIONS


def _path_of(
    module: SourceModule, node: ast.expr, modules: Sequence[SourceModule], depth: int = 0
) -> str | None:
    """Return the path that an expression stands for on every host; None where that is not known."""
    if depth > _MOST_STEPS:
        return None

    def join(separator: str, *parts: ast.expr) -> str | None:
        texts = [_path_of(module, part, modules, depth + 1) for part in parts]
        known_texts = [text for text in texts if text is not None]
        if not texts or len(known_texts) < len(texts):
            return None
        return posixpath.join(*known_texts) if separator else "".join(known_texts)

    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        value = module.values_assigned_once.get(node.id)
        is_known = value is not None and not module.is_parameter(node)
        return _path_of(module, value, modules, depth + 1) if is_known and value is not None else None
    if isinstance(node, ast.JoinedStr):
        return join("", *node.values)
    if isinstance(node, ast.FormattedValue):
        return join("", node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
        return join("/" if isinstance(node.op, ast.Div) else "", node.left, node.right)
    if isinstance(node, ast.Subscript) and module.qualified_name_of(node.value) == "os.environ":
        return _directory_of_variable(node.slice)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        default, _ = default_of_option(node.attr, modules)
        return default if default.startswith(DEFAULT_CHECKPOINT_PATH) else None
    if isinstance(node, ast.Call) and not node.keywords:
        function = module.qualified_name_of(node.func)
        if function in _READERS_OF_VARIABLES and node.args:
            return _directory_of_variable(node.args[0])
        if function in _JOINING_FUNCTIONS:
            return join("/", *node.args)
        if function in _UNCHANGING_FUNCTIONS and len(node.args) == 1:
            return join("", *node.args)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "joinpath":
            return join("/", node.func.value, *node.args)
    return None


def _directory_of_variable(name: ast.expr) -> str | None:
    return DEFAULT_CHECKPOINT_PATH if literal_of(name, None) == CHECKPOINTS_VARIABLE else None
