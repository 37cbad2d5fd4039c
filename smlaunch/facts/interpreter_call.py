"""What a command makes an interpreter run: a script or a module, with its arguments. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_SHELL = re.compile(r"(ba|da|k|z)?sh")
_OPTIONS_WITH_VALUE = ("-W", "-X", "-o", "-O")
"""Options of an interpreter whose value is the next argument: of Python, and of a shell."""


class InterpreterCall(NamedTuple):
    """A command that Python or a shell runs."""

    is_python: bool
    script: str | None = None
    module: str | None = None
    arguments: tuple[str, ...] = ()
    """What the script or module finds behind its own name in ``sys.argv``."""


def arguments_of_python_file(command: Sequence[str]) -> tuple[str, ...] | None:
    """Return the arguments that a command gives the Python script or module that it runs; None where that is
    not certain, as in the command of another launcher."""
    call = interpreter_call(command)
    if call is None:
        return tuple(command[1:]) if "/" in command[0] and command[0].endswith(".py") else None
    return call.arguments if call.is_python and (call.script or call.module) else None


def interpreter_call(command: Sequence[str]) -> InterpreterCall | None:
    """Return the script or module that a command runs by Python or a shell; neither for a program text
    (``python -c "..."``). Returns None for a command that starts another program."""
    program = PurePosixPath(command[0]).name
    is_python = _PYTHON.fullmatch(program) is not None
    if not is_python and _SHELL.fullmatch(program) is None:
        return None
    index = 1
    while index < len(command):
        argument = command[index]
        if argument == "-c":
            break
        if argument == "-m" and is_python and index + 1 < len(command):
            return InterpreterCall(is_python, None, command[index + 1], tuple(command[index + 2 :]))
        if not argument.startswith("-"):
            return InterpreterCall(is_python, argument, None, tuple(command[index + 1 :]))
        index += 2 if argument in _OPTIONS_WITH_VALUE else 1
    return InterpreterCall(is_python)
