"""Hint for a failed run: the missing file was not uploaded, or the missing package is named."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TypeVar

from smlaunch.aws.interfaces import CallError
from smlaunch.contract.run_names import parse_job_name
from smlaunch.facts.discovered_facts import ignored_reason
from smlaunch.facts.script_program import distribution_of
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_folder import RunFolder, UnsentFiles
from smlaunch.runs.run_outcome import RunOutcome

AnyOutcome = TypeVar("AnyOutcome", bound=RunOutcome)

_MESSAGE_ABOUT_MISSING_FILE = re.compile(
    r"(?i)no such file|not found|cannot find|can't (?:open|find)|does not exist|no module named"
    r"|cannot import name|filenotfound"
)
_QUOTED_WORDS = re.compile(r"""["']([^"'\n]{1,400})["']""")
_UNQUOTED_WORD = re.compile(r"""[^\s"'():,;<>`]+""")
_MISSING_PATH = re.compile(r"FileNotFoundError: .*No such file or directory: '([^'\n]+)'")
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([A-Za-z_][\w.]*)'")
_MODULE_IMPORT_ERROR = re.compile(r"No module named '([\w.]+)'|cannot import name '(\w+)' from '([\w.]+)'")


def add_missing_file_hint(outcome: AnyOutcome, target: Target) -> AnyOutcome:
    """Return the outcome of a failed run with a hint, if its failure reports as missing a file that was
    excluded from the upload (as a likely secret, for example), or a package; else the same outcome."""
    failure = outcome.last_job.failure
    failure_text = "" if failure is None else f"{failure.cause}\n{failure.traceback}"
    job_name = parse_job_name(outcome.last_job.name)
    # None: the job's name is not one that smlaunch gives. The pattern: "No such file", for example.
    if job_name is None or not reports_missing_file(failure_text):
        return outcome
    try:
        # The run's folder in S3 lists the files that were excluded when it was launched.
        run_folder = RunFolder.from_description(
            job_name.run, target.control_plane.describe_job(outcome.last_job.name)
        )
        unsent = UnsentFiles() if run_folder is None else run_folder.load_unsent_files(target.storage)
    except (CallError, ValueError, KeyError, AttributeError):
        unsent = UnsentFiles()  # the list cannot be read: without it there is only no hint of them
    hint = (
        missing_file_hint(failure_text, unsent.reasons)
        or unsent_data_hint(failure_text, unsent)
        or missing_package_hint(failure_text)
        or relative_path_hint(failure_text)
    )
    return replace(outcome, hint=hint or outcome.hint)


def reports_missing_file(failure_text: str) -> bool:
    """Whether a failure's text reports a file, folder or module as missing."""
    return _MESSAGE_ABOUT_MISSING_FILE.search(failure_text) is not None


def relative_path_hint(failure_text: str) -> str:
    """Return a clause about a relative path that Python reports as missing; empty where there is none."""
    match = _MISSING_PATH.search(failure_text)
    if match is None or PurePosixPath(match[1]).is_absolute() or "://" in match[1]:
        return ""
    first_folder = PurePosixPath(match[1]).parts[0]
    is_channel_name = re.fullmatch(r"[A-Za-z0-9_-]{1,64}", first_folder) is not None
    channel = first_folder if is_channel_name else "train"
    return (
        "relative paths start in the source folder, as it was sent; data comes as an input (--input "
        f"{channel}=FOLDER), which the hosts have in /opt/ml/input/data/{channel}; results go to "
        'os.environ["SM_MODEL_DIR"]'
    )


def missing_package_hint(failure_text: str) -> str:
    """Return a clause about the module that a failure's text reports as missing: what to add. Empty where
    there is none."""
    match = _MISSING_MODULE.search(failure_text)
    if match is None:
        return ""
    module = match[1].partition(".")[0]
    return (
        f"the hosts' Python finds no {module}: if it is a package to install, add the line "
        f"{distribution_of(module)} to requirements.txt beside the script; a module of your own belongs "
        "beside the script or at the top of the source"
    )


def missing_file_hint(failure_text: str, reason_by_excluded_file: Mapping[str, str]) -> str:
    """Return a sentence about the excluded file that a failure's text reports as missing; empty when there is
    none.

    ``reason_by_excluded_file``: why each file or folder was not uploaded, a clause, by its path relative to
    the source.
    """
    if not reports_missing_file(failure_text):
        return ""
    for path in _iter_possible_paths_in_text(failure_text):
        for excluded_file, reason in reason_by_excluded_file.items():
            # One of them may be longer: a path on the host begins with the folder of the source.
            if _may_be_same_path(path, PurePosixPath(excluded_file)):
                return f"{excluded_file} was not sent: it {reason}"
    return ""


def unsent_data_hint(failure_text: str, unsent: UnsentFiles) -> str:
    """Return a sentence about the file that a failure's text reports as missing and that lies, where the run
    was launched, in an input or in what an ignore file names; empty when there is none."""
    for reported in _iter_possible_paths_in_text(failure_text, plain_words=False):
        path = _path_in_source(reported)
        if path is None:
            continue
        for folder in (path, *path.parents):
            channel = unsent.inputs.get(str(folder))
            if channel is not None:
                channel_folder = PurePosixPath("/opt/ml/input/data", channel)
                path_on_host = channel_folder / path.relative_to(folder)
                advice = "" if path == folder else f": name {path_on_host}"
                return (
                    f"{path} was not sent with the source, because {folder} is the input {channel!r}, which "
                    f"the hosts have in {channel_folder}{advice}"
                )
            if str(folder) in unsent.ignored:
                subject = "it" if path == folder else str(folder)
                return f"{path} was not sent: {subject} {ignored_reason(str(folder))}"
    return ""


_SOURCE_ON_HOST = ("ml", "code")
"""Last folders of the place to which hosts unpack the source."""


def _path_in_source(reported: PurePosixPath) -> PurePosixPath | None:
    """Return a path of a failure's text relative to the source, in whose folder programs start; None for a
    path elsewhere."""
    parts = reported.parts
    if not reported.is_absolute():
        return PurePosixPath(*(part for part in parts if part != ".."))
    for index in range(len(parts)):
        if parts[index : index + 2] == _SOURCE_ON_HOST:
            return PurePosixPath(*parts[index + 2 :])
    return None


def _iter_possible_paths_in_text(failure_text: str, plain_words: bool = True) -> Iterator[PurePosixPath]:
    """Yield what may be paths in the text of a failure: every word, or without ``plain_words`` those that are
    quoted or have a slash or dot. Modules that could not be imported are yielded first, as the files that
    would define them."""
    # Either "No module named 'missing_module'" or "cannot import name 'attribute' from 'package'".
    for missing_module, attribute, package in _MODULE_IMPORT_ERROR.findall(failure_text):
        dotted_names = (missing_module,) if missing_module else (f"{package}.{attribute}", package)
        for dotted_name in dotted_names:
            module_path = dotted_name.replace(".", "/")
            yield PurePosixPath(f"{module_path}.py")
            yield PurePosixPath(module_path)
    for word in _QUOTED_WORDS.findall(failure_text):
        yield PurePosixPath(word.strip())
    for word in _UNQUOTED_WORD.findall(failure_text):
        if plain_words or "/" in word or "." in word.strip("."):
            yield PurePosixPath(word.strip())


def _may_be_same_path(reported_path: PurePosixPath, excluded_path: PurePosixPath) -> bool:
    """Return whether one path ends in the other, or ``reported_path`` lies in the folder ``excluded_path``.

    A script may run in any folder, so that a failure may show an absolute path or a shorter one.
    """
    reported_parts = tuple(part for part in reported_path.parts if part not in ("/", ".", ".."))
    excluded_parts = excluded_path.parts
    if not reported_parts or not excluded_parts:
        return False
    shorter, longer = sorted((reported_parts, excluded_parts), key=len)
    if longer[-len(shorter) :] == shorter:
        return True
    # The excluded folder may lie anywhere in the reported path, with the missing file below it.
    excluded_length = len(excluded_parts)
    return any(
        reported_parts[start : start + excluded_length] == excluded_parts
        for start in range(len(reported_parts) - excluded_length)
    )
