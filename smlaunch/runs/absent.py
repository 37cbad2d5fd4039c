"""A run that failed for a file which was not sent: the failure names the file, and the plan knew why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TypeVar

from smlaunch.ports import CallError
from smlaunch.protocol.names import parse_task_name
from smlaunch.runs.lineage import RunFolder
from smlaunch.runs.outcome import RunOutcome
from smlaunch.runs.target import Target

Found = TypeVar("Found", bound=RunOutcome)

_MISSING = re.compile(
    r"(?i)no such file|not found|cannot find|can't (?:open|find)|does not exist|no module named"
    r"|cannot import name|filenotfound"
)
_QUOTED = re.compile(r"""["']([^"'\n]{1,400})["']""")
_WORD = re.compile(r"""[^\s"'():,;<>`]+""")
_MODULE = re.compile(r"No module named '([\w.]+)'|cannot import name '(\w+)' from '([\w.]+)'")


def with_hint(result: Found, target: Target) -> Found:
    """The outcome, with the file that it lacked, where that was left out of what was sent."""
    failure = result.last.failure
    text = "" if failure is None else f"{failure.cause}\n{failure.traceback}"
    task = parse_task_name(result.last.name)
    if task is None or not _MISSING.search(text):
        return result
    try:
        folder = RunFolder.found(task.run, target.control.describe(result.last.name))
        left_out = {} if folder is None else folder.load_left_out(target.storage)
    except (CallError, ValueError, KeyError, AttributeError):
        return result  # only a hint depends on it
    return replace(result, hint=hint(text, left_out))


def hint(text: str, left_out: Mapping[str, str]) -> str:
    """A sentence about the file that a failure's text says is missing; empty where none was left out.
    ``left_out``: why, a clause, by the path in its folder."""
    if _MISSING.search(text):
        for path in _named(text):
            for name, why in left_out.items():
                if _is_about(path, PurePosixPath(name)):
                    return f"{name} was not sent: it {why}"
    return ""


def _named(text: str) -> Iterator[PurePosixPath]:
    """What may be a path, and modules as the files they lie in."""
    for module, attribute, package in _MODULE.findall(text):
        for dotted in (module,) if module else (f"{package}.{attribute}", package):
            path = dotted.replace(".", "/")
            yield PurePosixPath(f"{path}.py")
            yield PurePosixPath(path)
    for found in (*_QUOTED.findall(text), *_WORD.findall(text)):
        yield PurePosixPath(found.strip())


def _is_about(path: PurePosixPath, name: PurePosixPath) -> bool:
    """One is the other's end (a script may run in any folder), or ``name`` a folder that ``path`` lies in."""
    parts = tuple(part for part in path.parts if part not in ("/", ".", ".."))
    own = name.parts
    if not parts or not own:
        return False
    short, long = sorted((parts, own), key=len)
    if long[-len(short) :] == short:
        return True
    return any(parts[at : at + len(own)] == own for at in range(len(parts) - len(own)))
