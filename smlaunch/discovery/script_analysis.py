"""Analyzes a script without running it: its imports, and texts and calls that show how it works."""

from __future__ import annotations

import ast
import re
import shlex
import stat
import sys
import warnings
from collections.abc import Collection, Iterable
from pathlib import Path

from smlaunch.contract.progress_line import PROGRESS_LINE_START
from smlaunch.contract.segment import CHECKPOINTS_VARIABLE
from smlaunch.discovery.code_reach import find_reach
from smlaunch.discovery.script_features import find_features
from smlaunch.discovery.source_modules import (
    SourceProgram,
    find_library_imports,
    map_alias_to_imported_name,
    parse_python,
)
from smlaunch.facts.discovered_facts import FeatureLocation, ScriptFacts
from smlaunch.facts.launcher_lines import find_launcher_lines
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


def missing_path_text(path: Path, given_path: str) -> str:
    """Return the error about a path that does not exist, with the folder in which it was searched: a wrong
    working directory is the usual cause. ``given_path``: as the user has written it."""
    if path.is_symlink():
        return f"{given_path} is a link to {path.readlink()}, which does not exist"
    place = "" if path.is_absolute() else f" in {Path.cwd()}"
    return f"{given_path} does not exist{place}{nearest_path_hint(path)}"


def nearest_path_hint(path: Path) -> str:
    """Return a clause for the error about a missing path: that its folder is missing too, or the most similar
    name in that folder. Empty where there is none."""
    folder = path.parent
    try:
        if not folder.is_dir():
            return f" (nor does its folder {folder})"
        names = [item.name for item in folder.iterdir() if not _is_running_program(item)]
        similar_name = nearest_match(path.name, names)  # None: no such name
    except OSError:
        return ""  # the folder cannot be read: there is only no suggestion
    return f", did you mean {str(folder / similar_name)!r}?" if similar_name else ""


def _is_running_program(path: Path) -> bool:
    """Whether a file is the program that asks, which no job means."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return file is not None and path.resolve() == Path(file).resolve()


SCRIPT_SUFFIXES = (".py", ".sh")
"""A script is started by its interpreter; any other file must be executable."""


def read_script_facts(
    path: Path,
    has_interpreter: bool = False,
    source_root: Path | None = None,
    starts_itself: bool = False,
) -> ScriptFacts:
    """Return what the user's entry script shows without running it. A script that cannot be read or compiled
    has a ``problem``. ``has_interpreter``: the job's command says what runs the file. ``source_root``: the
    folder that is sent, if it is not the script's own. ``starts_itself``: the job's command names the file as
    its program, also one that an interpreter would otherwise run.

    Of any script: whether it mentions the checkpoint directory, or names resourceconfig.json, in which
    SageMaker lists a job's hosts (of a shell script, their variables too). Of a Python script, from its
    syntax tree: its imports, and its features, which are signs of how it distributes its work.
    """
    unreadable_reason = unreadable_path_reason(path)
    if unreadable_reason is not None:
        return ScriptFacts(problem=unreadable_reason)
    if path.is_dir():
        return ScriptFacts(exists=False, problem=f"{path} is a folder; name the script in it")
    if not path.exists():
        return ScriptFacts(exists=False, problem=missing_path_text(path, str(path)))
    if not path.is_file():
        return ScriptFacts(problem=f"{path} is no ordinary file; name a script or a program")
    try:
        content = path.read_bytes()
        is_executable = bool(path.stat().st_mode & stat.S_IXUSR)
    except OSError as error:
        return ScriptFacts(problem=f"{path} cannot be read: {error.strerror}")
    interpreter = {".py": "python", ".sh": "bash"}.get(path.suffix)
    if starts_itself and interpreter is not None and not is_executable:
        return ScriptFacts(
            problem=f"{path} cannot be executed; begin the command with {interpreter}, or let it be executed "
            f"(chmod +x {shlex.quote(str(path))})"
        )
    if path.suffix not in SCRIPT_SUFFIXES and not is_executable and not has_interpreter:
        return ScriptFacts(
            problem=f"{path} is no program: it is neither a .py or .sh script nor executable; name a script, "
            f"or let the file be executed (chmod +x {shlex.quote(str(path))})"
        )
    if path.suffix != ".py":  # a shell script, for example
        return ScriptFacts(
            reads_resource_config=_shell_script_reads_hosts(content),
            # The texts are ways to name the directory: its path, and the variable that has it.
            names_checkpoint_dir=any(text.encode() in content for text in _CHECKPOINT_DIR_TEXTS),
            names_progress_line=PROGRESS_LINE_START.encode() in content,
            launcher_lines=find_launcher_lines(content.decode("utf-8", "replace").splitlines(True), path.name)
            if path.suffix == ".sh"
            else (),
        )
    try:
        syntax_tree = parse_python(content, path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the user's code
            compile(content, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        return ScriptFacts(syntax_mistake=f"{path}, line {error.lineno}: {error.msg}")
    except ValueError as error:  # NUL bytes, or an unknown encoding
        return ScriptFacts(problem=f"{path} is not Python: {error}")
    except (RecursionError, MemoryError):
        return ScriptFacts(problem=f"{path} is nested too deeply: Python cannot compile it")
    if syntax_tree is None:
        return ScriptFacts()
    reach = find_reach((syntax_tree,))
    imports = find_library_imports((syntax_tree,), (path.parent, source_root or path.parent), reach)
    return ScriptFacts(
        imports=imports.names,
        optional_imports=imports.optional,
        reads_resource_config=_names_resource_config(syntax_tree, reach.possible),
        names_checkpoint_dir=_mentions_any(_CHECKPOINT_DIR_TEXTS, (syntax_tree,)),
        names_progress_line=_mentions_any((PROGRESS_LINE_START,), (syntax_tree,)),
        features=find_features(syntax_tree, map_alias_to_imported_name(syntax_tree)),
    )


_SHELL_MESSAGE = re.compile(rb"^[ \t]*(?:#|(?:echo|printf)\b[^|<>`();&\\\n]*$).*$", re.MULTILINE)
"""A line that is a comment, or only prints."""

_PEER_TEXTS_OF_SHELL_SCRIPTS = (
    b"resourceconfig.json",
    b"SM_HOSTS",
    b"SM_CURRENT_HOST",
    b"SM_RESOURCE_CONFIG",
)
_CHECKPOINT_DIR_TEXTS = (DEFAULT_CHECKPOINT_PATH, CHECKPOINTS_VARIABLE)


def _shell_script_reads_hosts(content: bytes) -> bool:
    """Whether a shell script names its host or the others, other than in what it only prints."""
    code = _SHELL_MESSAGE.sub(b"", content)
    return any(text in code for text in _PEER_TEXTS_OF_SHELL_SCRIPTS)


_RESOURCE_CONFIG_PATH = re.compile(r"\S*resourceconfig\.json")
_WRITERS_OF_MESSAGES = ("print", "debug", "info", "warning", "warn", "error", "exception", "critical", "log")


def _names_resource_config(tree: ast.Module, nodes_that_may_run: Collection[ast.AST]) -> bool:
    """Whether a text of the script is the path of resourceconfig.json, other than in a docstring or in what
    the script only prints."""
    messages: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            messages.add(node.value)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in _WRITERS_OF_MESSAGES:
                messages.update(node.args)
    return any(
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and _RESOURCE_CONFIG_PATH.fullmatch(node.value) is not None
        and node in nodes_that_may_run
        for node in ast.walk(tree)
        if node not in messages
    )


def _string_constants(tree: ast.Module) -> list[str]:
    nodes = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [value for value in nodes if isinstance(value, str)]


def _mentions_any(mentions: Collection[str], trees: Iterable[ast.Module]) -> bool:
    texts = (text for tree in trees for text in _string_constants(tree))
    return any(mention in text for text in texts for mention in mentions)


def modules_mention_checkpoints(program: SourceProgram) -> bool:
    """Return whether the script, or a module of the source that it imports, names the checkpoint
    directory."""
    return _mentions_any(_CHECKPOINT_DIR_TEXTS, (module.tree for module in program.modules))


def modules_mention_progress(program: SourceProgram) -> bool:
    """Return the same for the beginning of the line that reports a training step."""
    return _mentions_any((PROGRESS_LINE_START,), (module.tree for module in program.modules))


def transitive_features(program: SourceProgram) -> dict[str, FeatureLocation]:
    """Return the features of the entry script and of the source's modules that it imports, each with the file
    and line where it is found first. A feature is a sign, such as ``process-group``, of how a script
    distributes its work."""
    location_by_feature: dict[str, FeatureLocation] = {}
    for module in program.modules:
        file = "" if module.is_entry else module.file  # empty for the entry script
        features_of_file = find_features(module.tree, module.imported_names, file)
        for feature, location in features_of_file.items():
            location_by_feature.setdefault(feature, location)
    return location_by_feature
