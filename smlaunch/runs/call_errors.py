"""Errors of a service become those that the user sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smlaunch.aws.interfaces import CallError
from smlaunch.aws.service_errors import to_user_error
from smlaunch.contract.formats import FormatError
from smlaunch.errors import JobError, Problem
from smlaunch.runs.launch_target import Target


@contextmanager
def translate_call_errors(target: Target) -> Iterator[None]:
    """Turn a CallError into the error that the user sees."""
    try:
        yield
    except CallError as error:
        raise to_user_error(error, target.location, target.credential_source) from error
    except FormatError as error:
        raise JobError([Problem("", str(error))]) from error
