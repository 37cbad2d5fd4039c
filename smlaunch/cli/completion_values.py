"""Values that the shell completes. An error gives no completions: a shell has no place to show it."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from types import FrameType
from typing import Any

_MAX_JOBS = 200
"""Newest jobs whose runs are completed."""

_MAX_SECONDS = 4
"""A user who waits longer types the name."""


class _TooSlow(BaseException):
    pass


def run_names(options: Mapping[str, Any]) -> list[str]:
    """Return the newest runs of the target that ``options`` (local, region, profile) name, newest first.
    Without any, --local may still come: then the local runs count where no region answers."""
    target_options = {name: options.get(name) for name in ("local", "region", "profile")}
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(_MAX_SECONDS)
    try:
        names = _list_run_names(target_options)
        if not names and not any(target_options.values()):
            names = _list_run_names({**target_options, "local": True})
    except _TooSlow:
        return []
    finally:
        signal.alarm(0)
    return names


def _list_run_names(target_options: dict[str, Any]) -> list[str]:
    from smlaunch.connection.open_connection import open_connection
    from smlaunch.contract.run_names import parse_any_job_name

    names: dict[str, None] = {}
    with suppress(Exception), open_connection(target_options, read_only=True) as connection:
        target = replace(connection.target, fail_fast=True)
        for job in islice(target.control_plane.list_jobs(), _MAX_JOBS):
            parsed_name = parse_any_job_name(job.name)
            names[parsed_name.run if parsed_name else job.name] = None
    return list(names)


def _give_up(number: int, frame: FrameType | None) -> None:
    raise _TooSlow


def strategies() -> Iterable[str]:
    from smlaunch.catalog.strategies import known_strategies

    return known_strategies()


def algorithms() -> Iterable[str]:
    from smlaunch.catalog.algorithms import known_algorithms

    return known_algorithms()


def instance_types() -> Iterable[str]:
    from smlaunch.catalog.instances import known_types

    return sorted(known_types())


def regions() -> Iterable[str]:
    from botocore.session import Session

    return sorted(Session().get_available_regions("sagemaker"))


def profiles() -> Iterable[str]:
    from botocore.session import Session

    return sorted(Session().available_profiles)
