"""What a function's run brings along: the folder of the user's modules, and the files of the call.

The folder is that of the function's own module, as it would be a script's; the files of the call are added to
its archive below ``.smlaunch``, a folder that is never sent otherwise.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import keyword
import os
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterable
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

from smlaunch.discovery.code_reach import is_main_test
from smlaunch.discovery.protected_folders import protected_folder_reason
from smlaunch.discovery.source_modules import parse_python
from smlaunch.functions.host_program import CALL_FILE, LIBRARY_FOLDER, PICKLING_FILE, PROGRAM_FILE
from smlaunch.functions.pickled_call import PickledCall, library_files, load_cloudpickle

_INSTALLED_FOLDERS = ("site-packages", "dist-packages")


def call_files(call: PickledCall) -> dict[str, bytes]:
    """Return the files that the hosts need to make the call, by their paths in the source archive."""
    library = library_files(load_cloudpickle())
    return {
        PROGRAM_FILE: files("smlaunch.functions").joinpath("host_program.py").read_bytes(),
        PICKLING_FILE: files("smlaunch.functions").joinpath("script_pickling.py").read_bytes(),
        CALL_FILE: call.content,
        **{f"{LIBRARY_FOLDER}/{path}": content for path, content in library.items()},
    }


def unwrap_function(function: Any) -> Any:
    """Return the function that a partial or a bound method calls."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        else:
            return function


def function_name(function: Any) -> str:
    """Return what messages and run names call the function."""
    inner = unwrap_function(function)
    name = getattr(inner, "__name__", type(inner).__name__)
    return "function" if name == "<lambda>" else str(name)


class FunctionSource:
    """Where a function comes from."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = unwrap_function(function)
        module = sys.modules.get(getattr(self._function, "__module__", None) or "")
        main_module = sys.modules["__main__"]
        self._module = module if module is not None and user_file(module) is not None else main_module

    def folder(self) -> Path | None:
        """Return the folder that its modules are imported from: that of the file, or above its package; in a
        notebook and at a prompt the working directory. None for a working directory that cannot be sent, such
        as the home folder: a notebook often lies there, and has no modules beside it."""
        file = user_file(self._module)
        if file is None:
            folder = Path.cwd()
            return None if protected_folder_reason(folder) else folder
        spec = getattr(self._module, "__spec__", None)
        dotted_name = self._module.__name__ if spec is None else spec.name
        depth = 0 if dotted_name == "__main__" else dotted_name.count(".")
        if file.name == "__init__.py":
            depth += 1
        return file.parents[depth]

    @property
    def shown_name(self) -> str:
        """What messages call the file that ``analyzed_text`` comes from."""
        file = user_file(self._module)
        return "the function" if file is None else file.name

    def analyzed_text(self, modules: Iterable[str]) -> str:
        """Return a script that stands for the function where the plan looks for what a script imports and
        calls: the file that defines it, or the function's own source in a notebook, and imports of the
        modules that the pickled function refers to."""
        file = user_file(self._module)
        defines_function = self._module.__name__ == getattr(self._function, "__module__", None)
        text = ""
        # A function of C has no source, for example, and a notebook's cell may be no Python.
        with contextlib.suppress(OSError, TypeError, ValueError, SyntaxError):
            if file is None or not defines_function:
                text = textwrap.dedent(inspect.getsource(self._function))
            elif self._module.__name__ == "__main__":
                text = definitions_of(file.read_text("utf-8"))
            else:
                text = file.read_text("utf-8")
        names = (
            name
            for name in sorted(modules)
            if name not in ("__main__", "builtins") and all(map(str.isidentifier, name.split(".")))
        )
        name = getattr(self._function, "__name__", "")
        is_name = name.isidentifier() and not keyword.iskeyword(name)
        mention = [name] if is_name else []  # the host calls it, whatever the file does
        return "\n".join([text, *(f"import {name}" for name in names), *mention]) + "\n"


_DEFINING_STATEMENTS = (
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.If, ast.Try),  # around an import, or a definition
)


def definitions_of(script: str) -> str:
    """Return the text of a script with empty lines for what the hosts do not run of it: a function of the
    script and the globals that it uses travel by value, and the script's other statements stay here. Raises
    SyntaxError or ValueError for what Python rejects."""
    tree = parse_python(script.encode("utf-8", "surrogateescape"), Path("function.py"))
    lines = script.splitlines()
    for statement in () if tree is None else tree.body:
        is_main_block = isinstance(statement, ast.If) and is_main_test(statement.test)
        if is_main_block or not isinstance(statement, _DEFINING_STATEMENTS):
            first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
            lines[first:last] = [""] * (last - first)
    return "\n".join(lines) + "\n"


def script_in(folder: Path | None) -> str | None:
    """Return the path in the folder of the script that runs, whose functions travel by value; None if it does
    not lie there, as for a notebook."""
    file = user_file(sys.modules["__main__"])
    if folder is None or file is None or not _is_below(file, folder):
        return None
    return Path(os.path.relpath(os.path.realpath(file), os.path.realpath(folder))).as_posix()


def user_file(module: ModuleType) -> Path | None:
    """Return the file of a module of the user's own; None for one that is installed, built in, or without a
    file."""
    path = getattr(module, "__file__", None)
    if not path or not path.endswith(".py") or module.__name__.partition(".")[0] == "smlaunch":
        return None
    file = Path(path).absolute()
    if any(part in _INSTALLED_FOLDERS for part in file.parts):
        return None
    # A virtual environment may lie in the user's folder, and the user's folder never below the library.
    return None if file.is_relative_to(sysconfig.get_path("stdlib")) else file


def modules_outside(modules: Iterable[str], folder: Path | None) -> dict[str, Path]:
    """Return those of the modules that are the user's own and not in the folder that is sent, by name."""
    outside = {}
    for name in sorted(modules):
        module = sys.modules.get(name)
        file = None if module is None or name == "__main__" else user_file(module)
        if file is not None and (folder is None or not _is_below(file, folder)):
            outside[name] = file
    return outside


def _is_below(file: Path, folder: Path) -> bool:
    return Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder))
