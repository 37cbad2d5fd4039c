"""Finds the file of the user's program: the script, the module's file, or the script that a command names."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from smlaunch.job.model import Entry, Job
from smlaunch.text.did_you_mean import nearest_match
from smlaunch.text.home_folder import expand_home

_INTERPRETER = re.compile(r"(python|pypy)[0-9.]*|(ba|da|k|z)?sh")
_OPTIONS_WITH_VALUE = ("-W", "-X", "-o", "-O")
"""Options of an interpreter whose value is the next argument: of Python, and of a shell."""


def source_folder(job: Job) -> Path:
    """Return the folder that is uploaded with the job's entry: the one that the job names, or else that of
    the script. A module or a command is of the working directory."""
    if job.source is not None:
        return expand_home(job.source)
    if job.entry is not None and job.entry.script is not None:
        return expand_home(job.entry.script).parent
    return Path()


def find_program_file(entry: Entry, source_root: Path) -> Path | None:
    """Return the path of the program's file, which may not exist; None for a command that names no file of
    the source."""
    if entry.script is not None:
        return expand_home(entry.script)
    if entry.module is not None:
        return _module_file(entry.module, source_root)
    return _command_file(entry.command, source_root)


def _module_file(module: str, source_root: Path) -> Path:
    path = source_root.joinpath(*module.split("."))
    return path / "__main__.py" if path.is_dir() else path.with_name(f"{path.name}.py")


def missing_module_reason(module: str, source_root: Path) -> str:
    """Return a sentence about a module whose file is not in the source folder."""
    path = source_root.joinpath(*module.split("."))
    name = Path(*module.split("."))
    if path.is_dir():
        return f"{name} is a package without __main__.py; name a module in it"
    folder_text = "this folder" if source_root == Path() else str(source_root)
    beginning = f"there is no module {module} in {folder_text}, which would hold {name}.py"
    similar_module = _most_similar_module(module, path.parent)
    if similar_module is not None:
        return f"{beginning}; did you mean {similar_module!r}?"
    return (
        f"{beginning}; start in the folder that holds {module.split('.')[0]}, or name it as the source (for "
        f"an installed module: the command python -m {module})"
    )


def _most_similar_module(module: str, package_folder: Path) -> str | None:
    """Return the module of the same package whose name is most similar; None without one."""
    package, _, name = module.rpartition(".")
    with suppress(OSError):
        files = (item for item in package_folder.iterdir() if item.suffix == ".py" or item.is_dir())
        similar_name = nearest_match(name, [file.stem for file in files])
        if similar_name is not None:
            return f"{package}.{similar_name}" if package else similar_name
    return None


def _command_file(command: tuple[str, ...], source_root: Path) -> Path | None:
    """Return the script that an interpreter is to run, a program that is named by its path in the source, or
    the first script of the source among the arguments of another program."""
    program, *arguments = command
    if _INTERPRETER.fullmatch(Path(program).name):
        return _interpreter_file(arguments, source_root)
    if "/" in program:
        return _path_in_source(program, source_root)
    for argument in arguments:
        if argument.endswith((".py", ".sh")) and (source_root / argument).is_file():
            return _path_in_source(argument, source_root)
    return None


def _interpreter_file(arguments: list[str], source_root: Path) -> Path | None:
    """Return the file that Python or a shell runs with these arguments; None for a program text, for an
    installed module, and without a file."""
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "-m":
            path = _module_file(next(remaining, "-"), source_root)
            return path if path.is_file() else None
        if argument == "-c":
            return None
        if argument in _OPTIONS_WITH_VALUE:
            next(remaining, None)
        elif not argument.startswith("-"):
            return _path_in_source(argument, source_root)
    return None


def _path_in_source(path: str, source_root: Path) -> Path | None:
    """None for an absolute path, which is one of the image."""
    return None if Path(path).is_absolute() else source_root / path
