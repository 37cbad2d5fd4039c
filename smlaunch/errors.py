"""Everything smlaunch raises, and the exit code each error ends a command with.

    SmlaunchError
    ├── JobError            2   the job cannot work as written; carries every problem found
    ├── AccountError        3   refused by the account: role, permission, quota, a cap reached before start
    ├── ServiceError        4   no capacity, or the service failed after retries
    ├── TrainingFailed      1   the training itself failed
    ├── StoppedByUser       5   a person stopped the run
    ├── LimitReached        6   a cost or time cap ended the run
    └── MachineError        8   this machine cannot: a full disk, a damaged or foreign state directory
        └── EndpointError   8   the local endpoint cannot be started or reached

A command that was interrupted while its run goes on ends with 130.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from smlaunch.masking import mask_text

EXIT_COMPLETED = 0
EXIT_TRAINING_FAILED = 1
EXIT_BAD_JOB = 2
EXIT_REFUSED = 3
EXIT_SERVICE = 4
EXIT_STOPPED = 5
EXIT_LIMIT = 6
EXIT_MACHINE = 8
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, what, and what to do about it.

    ``path`` names the field as the user wrote it (``inputs.train.mode``); it may be empty when the
    problem belongs to the job as a whole.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SmlaunchError(Exception):
    """Base of all errors raised on purpose. ``exit_code`` is what the command line ends with."""

    exit_code = EXIT_SERVICE

    def __init__(self, *args: Any) -> None:
        """Whoever shows it, a notebook or a log: the secrets in what it quotes are masked."""
        super().__init__(*(mask_text(arg) if isinstance(arg, str) else arg for arg in args))


class JobError(SmlaunchError):
    """The job, the command or a planner's rule makes this impossible. Lists every problem at once.

    ``mapping``: the job as it was written, where some of its fields could not be read, so that the others can
    still be looked at (``smlaunch.job_rest``).
    """

    exit_code = EXIT_BAD_JOB

    def __init__(self, problems: Iterable[Problem], mapping: Mapping[str, Any] | None = None) -> None:
        self.problems = tuple(problems)
        self.mapping = mapping
        super().__init__("\n".join(str(problem) for problem in self.problems))


class AccountError(SmlaunchError):
    exit_code = EXIT_REFUSED


class ServiceError(SmlaunchError):
    exit_code = EXIT_SERVICE


class TrainingFailed(SmlaunchError):
    exit_code = EXIT_TRAINING_FAILED


class StoppedByUser(SmlaunchError):
    exit_code = EXIT_STOPPED


class LimitReached(SmlaunchError):
    exit_code = EXIT_LIMIT


class MachineError(SmlaunchError):
    """This machine cannot do it, whatever the job and the account are: its disk, its files, its rights."""

    exit_code = EXIT_MACHINE


class EndpointError(MachineError):
    """The local endpoint cannot be started or reached."""


DISK_FULL = "the disk of this machine is full"
"""How a sentence begins that says so, also after a job's FailureReason's class."""
_SQLITE_FULL = "database or disk is full"
_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_disk_full(error: BaseException) -> bool:
    """Whether it, or what led to it, is a disk or a quota without room."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _FULL:
            return True
        if str(seen).startswith(_SQLITE_FULL):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def disk_full(folder: object, said: object) -> str:
    """``folder``: below which to make room."""
    return f"{DISK_FULL} ({said}): make room below {folder}, then do it again"


ERROR_NAMES: Mapping[int, str] = {
    error.exit_code: f"smlaunch.{error.__name__}"
    for error in (TrainingFailed, JobError, AccountError, ServiceError, StoppedByUser, LimitReached)
}
"""The name under which a run that ended with an exit code fails in an orchestrator."""
