"""Hint for a failed run: the missing file was excluded from the upload."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TypeVar

from smlaunch.aws.interfaces import CallError
from smlaunch.contract.names import parse_job_name
from smlaunch.runs.outcome import RunOutcome
from smlaunch.runs.run_state import RunFolder
from smlaunch.runs.target import Target

AnyOutcome = TypeVar("AnyOutcome", bound=RunOutcome)

_MISSING_FILE_MESSAGE = re.compile(
    r"(?i)no such file|not found|cannot find|can't (?:open|find)|does not exist|no module named"
    r"|cannot import name|filenotfound"
)
_QUOTED = re.compile(r"""["']([^"'\n]{1,400})["']""")
_UNQUOTED = re.compile(r"""[^\s"'():,;<>`]+""")
_MISSING_MODULE = re.compile(r"No module named '([\w.]+)'|cannot import name '(\w+)' from '([\w.]+)'")


def add_missing_file_hint(outcome: AnyOutcome, target: Target) -> AnyOutcome:
    """Return the outcome with a hint when its failure names a file that was excluded from the upload."""
    failure = outcome.last_job.failure
    text = "" if failure is None else f"{failure.cause}\n{failure.traceback}"
    task = parse_job_name(outcome.last_job.name)
    if task is None or not _MISSING_FILE_MESSAGE.search(text):
        return outcome
    try:
        folder = RunFolder.from_description(task.run, target.control.describe(outcome.last_job.name))
        excluded_files = {} if folder is None else folder.load_excluded_files(target.storage)
    except (CallError, ValueError, KeyError, AttributeError):
        return outcome  # only a hint depends on it
    return replace(outcome, hint=missing_file_hint(text, excluded_files))


def missing_file_hint(text: str, excluded_files: Mapping[str, str]) -> str:
    """Return a sentence about the excluded file that ``text`` reports as missing; empty when there is none.

    ``excluded_files`` maps relative paths to the reason, a clause.
    """
    if _MISSING_FILE_MESSAGE.search(text):
        for path in _paths_in_text(text):
            for name, reason in excluded_files.items():
                if _is_same_path(path, PurePosixPath(name)):
                    return f"{name} was not sent: it {reason}"
    return ""


def _paths_in_text(text: str) -> Iterator[PurePosixPath]:
    """Yield possible paths in a failure's text. Modules are yielded as the files that define them."""
    for module, attribute, package in _MISSING_MODULE.findall(text):
        for dotted in (module,) if module else (f"{package}.{attribute}", package):
            path = dotted.replace(".", "/")
            yield PurePosixPath(f"{path}.py")
            yield PurePosixPath(path)
    for path_text in (*_QUOTED.findall(text), *_UNQUOTED.findall(text)):
        yield PurePosixPath(path_text.strip())


def _is_same_path(path: PurePosixPath, name: PurePosixPath) -> bool:
    """Return whether one path ends in the other, or ``path`` lies in the folder ``name``.

    A script may run in any folder, so that the text may show an absolute path or a shorter one.
    """
    parts = tuple(part for part in path.parts if part not in ("/", ".", ".."))
    name_parts = name.parts
    if not parts or not name_parts:
        return False
    shorter, longer = sorted((parts, name_parts), key=len)
    if longer[-len(shorter) :] == shorter:
        return True
    return any(
        parts[start : start + len(name_parts)] == name_parts for start in range(len(parts) - len(name_parts))
    )
