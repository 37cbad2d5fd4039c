"""Executors: what the hosts of the local endpoint's jobs are, one class each, loaded on use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smlaunch.catalog.registry import Registry
from smlaunch.errors import EndpointError, JobError

if TYPE_CHECKING:
    from smlaunch.local.executors.executor_base import Executor

DEFAULT_EXECUTOR = "processes"
EXECUTORS = Registry["type[Executor]"](
    "smlaunch.executors",
    "executor",
    "smlaunch.local.executors.executor_base:Executor",
    {
        "processes": "smlaunch.local.executors.process_executor:Processes",
        "containers": "smlaunch.local.executors.container_executor:Containers",
    },
    "--executor",
)
"""Their classes by name."""


def register_executor(executor: type[Executor]) -> None:
    """Add an executor for this process, under its ``name``. Raises ValueError if the name is taken."""
    EXECUTORS.register(executor.name, executor)


def load_executor(name: str) -> type[Executor]:
    """Return an executor's class. Raises EndpointError for an unknown name, and for an executor of another
    package that cannot be loaded."""
    try:
        return EXECUTORS[name]
    except KeyError:
        names = ", ".join(EXECUTORS.names())
        raise EndpointError(f"executor {name!r} is unknown; there is {names}") from None
    except JobError as error:
        raise EndpointError(str(error)) from error
