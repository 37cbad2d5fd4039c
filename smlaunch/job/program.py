"""What a job runs: the user's program, or a command of an image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from smlaunch.errors import Problem
from smlaunch.job.field_types import CommandLine, ModuleName, ScriptPath, TextOrInteger
from smlaunch.job.sections import Section, section


@section
class Entry(Section):
    """The user's program: a script, a Python module, or a command. A bare string is a script."""

    SHORTHAND_FIELD: ClassVar[str] = "script"
    IS_USUALLY_TEXT: ClassVar[bool] = True
    FIELDS_EXCLUDE_EACH_OTHER: ClassVar[bool] = True

    script: ScriptPath | None = None
    """A script, ``.py`` or ``.sh``, or an executable program."""
    module: ModuleName | None = None
    """A Python module such as ``package.module``, which every rank runs as ``python -m`` in the source
    folder. That folder holds the package."""
    command: CommandLine = ()
    """A program and its arguments, as a list, which every rank runs in the source folder. No shell reads
    it."""

    @classmethod
    def find_contradictions(cls, fields: Mapping[str, Any]) -> Iterable[Problem]:
        stated = [name for name in ("script", "module", "command") if fields.get(name)]
        if len(stated) > 1:
            yield Problem("", f"it names {' and '.join(stated)}; keep one of them")
        if not stated:
            yield Problem("", "it names no program; give script, module or command")

    @property
    def program(self) -> str:
        """What messages and generated names call it: the script's path, a module as a path without a suffix,
        the script that a command names, or the command's program."""
        if self.module is not None:
            return self.module.replace(".", "/")
        if self.script is not None:
            return self.script
        scripts = (word for word in self.command if word.endswith((".py", ".sh")))
        return next(scripts, self.command[0])


@section
class Container(Section):
    """The command of an image that brings its own program."""

    entrypoint: CommandLine = ()
    """A program and its arguments, as a list, in place of the image's own entry point."""
    arguments: tuple[TextOrInteger, ...] = ()
    """Arguments of the entry point. The same as ``args``, of which a job states one."""
