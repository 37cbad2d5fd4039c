"""smlaunch: launch distributed training on Amazon SageMaker, and on this machine, from one job file.

The public names are loaded on first use, so that ``import smlaunch`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULE_BY_NAME = {
    "AccountError": "smlaunch.errors",
    "Channel": "smlaunch.job.model",
    "Checkpoints": "smlaunch.job.model",
    "Compute": "smlaunch.job.model",
    "Container": "smlaunch.job.model",
    "EndpointError": "smlaunch.errors",
    "Entry": "smlaunch.job.model",
    "FunctionError": "smlaunch.errors",
    "Future": "smlaunch.functions.future",
    "Job": "smlaunch.job.model",
    "JobError": "smlaunch.errors",
    "JobOutcome": "smlaunch.runs.run_outcome",
    "LimitReached": "smlaunch.errors",
    "Limits": "smlaunch.job.model",
    "LogLine": "smlaunch.runs.job_poller",
    "MachineError": "smlaunch.errors",
    "Metric": "smlaunch.job.model",
    "Output": "smlaunch.job.model",
    "Plan": "smlaunch.render.plan",
    "PollWarning": "smlaunch.runs.job_poller",
    "RemoteFunction": "smlaunch.functions.remote_function",
    "RemoteTraceback": "smlaunch.functions.function_output",
    "Run": "smlaunch.runs.run",
    "RunOutcome": "smlaunch.runs.run_outcome",
    "SegmentChange": "smlaunch.job.model",
    "SegmentCompute": "smlaunch.job.model",
    "ServiceError": "smlaunch.errors",
    "SmlaunchError": "smlaunch.errors",
    "StateChange": "smlaunch.runs.job_poller",
    "StoppedByUser": "smlaunch.errors",
    "Target": "smlaunch.runs.launch_target",
    "TrainingFailed": "smlaunch.errors",
    "TransferProgress": "smlaunch.data.transfer_progress",
    "Workload": "smlaunch.job.model",
    "attach": "smlaunch.runs.attach_run",
    "launch": "smlaunch.runs.launch_plan",
    "local_target": "smlaunch.connection.open_connection",
    "plan": "smlaunch.runs.plan_job",
    "remote": "smlaunch.functions.remote_function",
    "submit": "smlaunch.functions.remote_function",
}

__all__ = ["__version__", *sorted(_MODULE_BY_NAME)]

if TYPE_CHECKING:
    from smlaunch.connection.open_connection import local_target as local_target
    from smlaunch.data.transfer_progress import TransferProgress as TransferProgress
    from smlaunch.errors import AccountError as AccountError
    from smlaunch.errors import EndpointError as EndpointError
    from smlaunch.errors import FunctionError as FunctionError
    from smlaunch.errors import JobError as JobError
    from smlaunch.errors import LimitReached as LimitReached
    from smlaunch.errors import MachineError as MachineError
    from smlaunch.errors import ServiceError as ServiceError
    from smlaunch.errors import SmlaunchError as SmlaunchError
    from smlaunch.errors import StoppedByUser as StoppedByUser
    from smlaunch.errors import TrainingFailed as TrainingFailed
    from smlaunch.functions.function_output import RemoteTraceback as RemoteTraceback
    from smlaunch.functions.future import Future as Future
    from smlaunch.functions.remote_function import RemoteFunction as RemoteFunction
    from smlaunch.functions.remote_function import remote as remote
    from smlaunch.functions.remote_function import submit as submit
    from smlaunch.job.model import Channel as Channel
    from smlaunch.job.model import Checkpoints as Checkpoints
    from smlaunch.job.model import Compute as Compute
    from smlaunch.job.model import Container as Container
    from smlaunch.job.model import Entry as Entry
    from smlaunch.job.model import Job as Job
    from smlaunch.job.model import Limits as Limits
    from smlaunch.job.model import Metric as Metric
    from smlaunch.job.model import Output as Output
    from smlaunch.job.model import SegmentChange as SegmentChange
    from smlaunch.job.model import SegmentCompute as SegmentCompute
    from smlaunch.job.model import Workload as Workload
    from smlaunch.render.plan import Plan as Plan
    from smlaunch.runs.attach_run import attach as attach
    from smlaunch.runs.job_poller import LogLine as LogLine
    from smlaunch.runs.job_poller import PollWarning as PollWarning
    from smlaunch.runs.job_poller import StateChange as StateChange
    from smlaunch.runs.launch_plan import launch as launch
    from smlaunch.runs.launch_target import Target as Target
    from smlaunch.runs.plan_job import plan as plan
    from smlaunch.runs.run import Run as Run
    from smlaunch.runs.run_outcome import JobOutcome as JobOutcome
    from smlaunch.runs.run_outcome import RunOutcome as RunOutcome


def __getattr__(name: str) -> Any:
    try:
        module = _MODULE_BY_NAME[name]
    except KeyError:
        raise AttributeError(f"module 'smlaunch' has no attribute {name!r}") from None
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
