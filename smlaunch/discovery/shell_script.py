"""Reads which channels a shell script, or a Python file that it names, shows that it reads. Nothing is
executed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from smlaunch.discovery.script_program import TEXTS_OF_CHANNELS, read_program
from smlaunch.discovery.source_modules import read_source_program
from smlaunch.facts.script_program import NO_PROGRAM, ProgramFacts, VariableUse
from smlaunch.facts.source_place import SourcePlace

_COMMENT = re.compile(r"(?:^|\s)#.*")
_CHANNEL_READ = re.compile(r"\$\{?(SM_CHANNEL_[A-Z0-9_]+)")
_CHANNEL_SET = re.compile(r"(SM_CHANNEL_[A-Z0-9_]+):?=")
"""An assignment, or ``${NAME:=default}``."""

_PYTHON_FILE = re.compile(r"[\w./-]+\.py\b")


def read_shell_script(path: Path, source_root: Path) -> ProgramFacts:
    """Return the channels that a shell script reads, none of which is certainly required, and whether it, or
    a Python file that it names, may read any."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return NO_PROGRAM
    file = Path(os.path.relpath(path, source_root)).as_posix()
    code_lines = [_COMMENT.sub("", line) for line in lines]
    code = "\n".join(code_lines)
    reads_any_channel = any(word in _CHANNEL_READ.sub("", code) for word in TEXTS_OF_CHANNELS)
    variable_uses: dict[str, VariableUse] = {}
    for number, line in enumerate(code_lines, 1):
        for variable in _CHANNEL_READ.findall(line):
            variable_uses.setdefault(variable, VariableUse(SourcePlace(file, number), is_required=False))
    for python_file in dict.fromkeys(_PYTHON_FILE.findall(code)):
        program = read_program(read_source_program(source_root / python_file, source_root))
        reads_any_channel = reads_any_channel or program.reads_any_channel
        for variable, use in program.variable_uses.items():
            if variable.startswith("SM_CHANNEL_"):
                variable_uses.setdefault(variable, use._replace(is_required=False))
    for variable in _CHANNEL_SET.findall(code):  # the script itself sets it
        variable_uses.pop(variable, None)
    return ProgramFacts(variable_uses=variable_uses, reads_any_channel=reads_any_channel)
