"""Finds the file of the user's program: the script, the module's file, or the script that a command names."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path, PurePosixPath
from shutil import which

from smlaunch.facts.interpreter_call import interpreter_call
from smlaunch.facts.script_program import UnknownCommand
from smlaunch.job.model import Entry, Job
from smlaunch.text.did_you_mean import nearest_match
from smlaunch.text.home_folder import expand_home


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
    call = interpreter_call(command)
    if call is not None:
        if call.script is not None:
            return _path_in_source(call.script, source_root)
        path = None if call.module is None else _module_file(call.module, source_root)
        return path if path is not None and path.is_file() else None
    if "/" in program:
        return _path_in_source(program, source_root)
    for argument in arguments:
        if argument.endswith((".py", ".sh")) and (source_root / argument).is_file():
            return _path_in_source(argument, source_root)
    return None


def find_unknown_command(
    command: tuple[str, ...], sent_files: Collection[str], path: str | None
) -> UnknownCommand | None:
    """Return the program of a command that is a bare name and that neither ``path`` nor, without it, the name
    itself makes known. ``path``: where the hosts search programs, if that is known here; else only a script
    of the source that the name may mean makes it suspect."""
    name = command[0]
    if "/" in name or interpreter_call(command) is not None or which(name, path=path) is not None:
        return None
    by_name = {PurePosixPath(file).name: file for file in sorted(sent_files, reverse=True)}
    is_script = name.endswith((".py", ".sh"))
    similar_name = nearest_match(name, by_name, cutoff=0.75)
    if path is None and not (is_script and similar_name is not None):
        return None
    return UnknownCommand(name, None if similar_name is None else by_name[similar_name], path is not None)


def _path_in_source(path: str, source_root: Path) -> Path | None:
    """None for an absolute path, which is one of the image."""
    return None if Path(path).is_absolute() else source_root / path
