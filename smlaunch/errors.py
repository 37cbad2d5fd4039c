"""All exceptions that smlaunch raises, and the exit code of each.

    SmlaunchError
    ├── JobError            2   the job cannot work as written; has every problem found
    ├── AccountError        3   refused by the account: role, permission, quota, a cap reached before start
    ├── ServiceError        4   no capacity, or the service failed after retries
    ├── TrainingFailed      1   the training itself failed
    │   └── FunctionError   1   a submitted function raised an exception that cannot be rebuilt here
    ├── StoppedByUser       5   a person stopped the run
    ├── LimitReached        6   a cost or time cap ended the run
    └── MachineError        8   this machine cannot: a full disk, a damaged or foreign state directory
        └── EndpointError   8   the local endpoint cannot be started or reached

A command that is interrupted while its run goes on ends with 130.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from smlaunch.secrets.masking import mask_text

EXIT_COMPLETED = 0
EXIT_TRAINING_FAILED = 1
EXIT_BAD_JOB = 2
EXIT_REFUSED = 3
EXIT_SERVICE = 4
EXIT_STOPPED = 5
EXIT_LIMIT = 6
EXIT_MACHINE = 8
EXIT_INTERRUPTED = 130


class Problem(NamedTuple):
    """One mistake: where it is, what it is, and what to do about it."""

    path: str
    """The field as the user wrote it (``inputs.train.mode``); empty for a problem of the whole job."""
    message: str

    change: str = ""
    """The one change that is enough, for a person or a program to apply: ``FILE:LINE: NEW TEXT OF THE LINE``
    in the source, or an option of the command, ``--hosts 2``. Empty where no single change is."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SmlaunchError(Exception):
    """Base of all errors that smlaunch raises on purpose. ``exit_code`` is the command line's exit code."""

    exit_code = EXIT_SERVICE

    def __init__(self, *args: Any) -> None:
        """Secrets in the arguments are masked, because a notebook or a log may show them."""
        super().__init__(*(mask_text(arg) if isinstance(arg, str) else arg for arg in args))


class JobError(SmlaunchError):
    """The job, the command or a planner's rule makes the run impossible. Lists every problem at once."""

    exit_code = EXIT_BAD_JOB

    def __init__(self, problems: Iterable[Problem], job_mapping: Mapping[str, Any] | None = None) -> None:
        self.problems = tuple(problems)
        self.job_mapping = job_mapping
        """The job as it was written, where some fields are invalid, so that the others can be checked too
        (``smlaunch.job.partial``)."""
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[JobError], tuple[Any, ...]]:
        """Pickle the problems: Exception would pickle the message in their place."""
        return type(self), (self.problems, self.job_mapping)


def wrong_type_error(value: object, expected: str, example: str) -> JobError:
    """Return the error for an argument of a function, which the ``example`` calls rightly."""
    return JobError([Problem("", f"{expected} is needed, not {type(value).__name__}: {example}")])


class AccountError(SmlaunchError):
    """The account refuses it: a missing permission, role or region, a quota, or a cap reached before the
    start."""

    exit_code = EXIT_REFUSED


class ServiceError(SmlaunchError):
    """The service had no capacity, or failed after retries."""

    exit_code = EXIT_SERVICE


class TrainingFailed(SmlaunchError):
    """The training itself failed. The message names the process that failed first and its exit code."""

    exit_code = EXIT_TRAINING_FAILED


class FunctionError(TrainingFailed):
    """What a submitted function raised or returned cannot be rebuilt in this process."""

    def __init__(self, message: str, *, type_name: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        """Of the exception, with its module; empty where it is not known."""
        self.traceback = mask_text(traceback)
        """On the host; empty where it is not known."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, {"type_name": self.type_name, "traceback": self.traceback}


class StoppedByUser(SmlaunchError):
    """A person has stopped the run."""

    exit_code = EXIT_STOPPED


class LimitReached(SmlaunchError):
    """The run has ended at its limit of time or cost."""

    exit_code = EXIT_LIMIT


class MachineError(SmlaunchError):
    """This machine cannot do it, whatever the job and the account are: its disk, its files, its
    permissions."""

    exit_code = EXIT_MACHINE


class EndpointError(MachineError):
    """The local endpoint cannot be started or reached."""


DISK_FULL = "the disk of this machine is full"
"""Beginning of a message about a full disk, also after the class in a job's FailureReason."""
_SQLITE_DISK_FULL = "database or disk is full"
_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


def is_disk_full(error: BaseException) -> bool:
    """Return whether the error, or an error that caused it, is a full disk or disk quota."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, OSError) and current.errno in _DISK_FULL_ERRNOS:
            return True
        if str(current).startswith(_SQLITE_DISK_FULL):
            return True
        current = current.__cause__ or current.__context__
    return False


def disk_full_message(folder: object, reason: object) -> str:
    """Return the message. ``folder`` is where the user can free space."""
    return f"{DISK_FULL} ({reason}): free space below {folder}, then run the command again"


def write_error(field: str, path: object, error: OSError) -> SmlaunchError:
    """Return the error of a file or folder that the user named and that cannot be written: this machine's if
    the disk is full, otherwise one of the command or the job. ``field``: the option or argument."""
    reason = error.strerror or error
    if is_disk_full(error):
        return MachineError(disk_full_message(path, reason))
    return JobError([Problem(field, f"{path} cannot be written: {reason}")])


ERROR_NAMES: Mapping[int, str] = {
    error.exit_code: f"smlaunch.{error.__name__}"
    for error in (TrainingFailed, JobError, AccountError, ServiceError, StoppedByUser, LimitReached)
}
"""Name of the error with which an exported run fails in an orchestrator, by exit code."""
