"""smlaunch: launch distributed training on Amazon SageMaker, and on this machine, from one job file.

The public names are loaded on first use, so that ``import smlaunch`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "AccountError": "smlaunch.errors",
    "Channel": "smlaunch.job",
    "Checkpoints": "smlaunch.job",
    "Compute": "smlaunch.job",
    "EndpointError": "smlaunch.errors",
    "Job": "smlaunch.job",
    "JobError": "smlaunch.errors",
    "LimitReached": "smlaunch.errors",
    "MachineError": "smlaunch.errors",
    "Limits": "smlaunch.job",
    "Plan": "smlaunch.planning.plan",
    "Run": "smlaunch.runs.run",
    "SegmentChange": "smlaunch.job",
    "SegmentCompute": "smlaunch.job",
    "ServiceError": "smlaunch.errors",
    "SmlaunchError": "smlaunch.errors",
    "StoppedByUser": "smlaunch.errors",
    "Target": "smlaunch.runs.target",
    "TrainingFailed": "smlaunch.errors",
    "Workload": "smlaunch.job",
    "launch": "smlaunch.runs.api",
    "local_target": "smlaunch.place",
    "plan": "smlaunch.runs.api",
}

__all__ = ["__version__", *sorted(_PUBLIC)]

if TYPE_CHECKING:
    from smlaunch.errors import AccountError as AccountError
    from smlaunch.errors import EndpointError as EndpointError
    from smlaunch.errors import JobError as JobError
    from smlaunch.errors import LimitReached as LimitReached
    from smlaunch.errors import MachineError as MachineError
    from smlaunch.errors import ServiceError as ServiceError
    from smlaunch.errors import SmlaunchError as SmlaunchError
    from smlaunch.errors import StoppedByUser as StoppedByUser
    from smlaunch.errors import TrainingFailed as TrainingFailed
    from smlaunch.job import Channel as Channel
    from smlaunch.job import Checkpoints as Checkpoints
    from smlaunch.job import Compute as Compute
    from smlaunch.job import Job as Job
    from smlaunch.job import Limits as Limits
    from smlaunch.job import SegmentChange as SegmentChange
    from smlaunch.job import SegmentCompute as SegmentCompute
    from smlaunch.job import Workload as Workload
    from smlaunch.place import local_target as local_target
    from smlaunch.planning.plan import Plan as Plan
    from smlaunch.runs.api import launch as launch
    from smlaunch.runs.api import plan as plan
    from smlaunch.runs.run import Run as Run
    from smlaunch.runs.target import Target as Target


def __getattr__(name: str) -> Any:
    try:
        module = _PUBLIC[name]
    except KeyError:
        raise AttributeError(f"module 'smlaunch' has no attribute {name!r}") from None
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
