"""What a job's description says about how it ended: status, exit code, first failure. Pure.

    Completed                                  0
    Failed, AlgorithmError                     1   the training failed
    Failed, ClientError                        2   data, image or artifact: the job cannot work as written
    Failed, ClientError: the disk of this machine is full   8   the local endpoint's disk
    Failed, CapacityError, InternalServerError 4   no capacity, or a fault of the service
    Stopped                                    5   by a person
    Stopped, MaxRuntimeExceeded or MaxWaitTimeExceeded   6

Source: SecondaryStatus and FailureReason of the SageMaker API reference, DescribeTrainingJob.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from smlaunch.errors import (
    EXIT_LIMIT,
    EXIT_MACHINE,
    EXIT_SERVICE,
    EXIT_STOPPED,
    LimitReached,
    MachineError,
    ServiceError,
    SmlaunchError,
    StoppedByUser,
    TrainingFailed,
)
from smlaunch.planning.input_bound import DataWait, data_wait
from smlaunch.planning.orchestrated import words_for
from smlaunch.planning.reconcile import Finish
from smlaunch.planning.workflow import RULES, ending_of
from smlaunch.protocol.failure import Failure, parse_failure
from smlaunch.protocol.progress import DATA_WAIT
from smlaunch.protocol.segment import CHECKPOINTS_URI, OWN_METRICS


@dataclass(frozen=True)
class JobOutcome:
    """One job of a run. ``exit_code`` is None while it runs. Times are seconds since the epoch."""

    name: str
    arn: str
    status: str
    secondary_status: str
    exit_code: int | None
    created: float | None
    started: float | None
    ended: float | None
    training_seconds: int | None
    billable_seconds: int | None
    failure: Failure | None
    failure_reason: str
    model_artifacts: str | None
    output: str | None
    checkpoints: str | None
    metrics: Mapping[str, float]
    data_wait: DataWait | None = None
    """None where the training has not told how long it waits for its data."""

    @property
    def finished(self) -> bool:
        return self.exit_code is not None

    def to_dict(self) -> dict[str, Any]:
        """One entry of ``jobs`` in ``run --json`` and ``show --json``."""
        return {
            "name": self.name,
            "arn": self.arn,
            "status": self.status,
            "secondary_status": self.secondary_status,
            "created": _iso(self.created),
            "started": _iso(self.started),
            "ended": _iso(self.ended),
            "training_seconds": self.training_seconds,
            "billable_seconds": self.billable_seconds,
            "failure": self.failure._asdict() if self.failure else None,
        }


@dataclass(frozen=True)
class RunOutcome:
    """A run as its jobs left it, oldest first.

    ``chain``: jobs may follow on one another, and the run ends with its ``verdict`` rather than with a job;
    None while it goes on. ``step``: the newest checkpoint that is whole in S3, None when nobody looked or
    there is none. ``driver``: the orchestrator's execution that asks for its jobs, empty where it has not
    said which it is; None for a run that smlaunch itself drives.
    """

    run: str
    jobs: tuple[JobOutcome, ...]
    chain: bool = False
    verdict: Finish | None = None
    step: int | None = None
    driver: str | None = None
    hint: str = ""
    """Why a file that the failure speaks of was not there; empty where nobody looked, or nothing is known."""

    @property
    def last(self) -> JobOutcome:
        return self.jobs[-1]

    @property
    def each(self) -> tuple[RunOutcome, ...]:
        """The runs that have results of their own."""
        return (self,)

    @property
    def status(self) -> str:
        if not self.chain:
            return self.last.status
        if self.verdict is not None:
            return self.verdict.status
        return self.last.status if self.last.status == "Stopping" else "InProgress"

    @property
    def exit_code(self) -> int | None:
        if not self.chain:
            return self.last.exit_code
        return None if self.verdict is None else self.verdict.exit_code

    @property
    def model_artifacts(self) -> str | None:
        """Of a run that goes on there is no model yet, only what a segment left."""
        return self.last.model_artifacts if not self.chain or self.exit_code is not None else None

    @property
    def metrics(self) -> Mapping[str, float]:
        """The last ones that were told; a job that has only just begun has none."""
        return next((job.metrics for job in reversed(self.jobs) if job.metrics), {})

    @property
    def data_wait(self) -> DataWait | None:
        """Of the newest job that told."""
        return next((job.data_wait for job in reversed(self.jobs) if job.data_wait is not None), None)

    def to_dict(self) -> dict[str, Any]:
        """The document of ``run --json`` and ``show --json``."""
        return {
            "run": self.run,
            "status": self.status,
            "exit_code": self.exit_code,
            "because": headline_of(self),
            "hint": self.hint,
            "jobs": [job.to_dict() for job in self.jobs],
            "model_artifacts": self.model_artifacts,
            "checkpoints": self.last.checkpoints,
            "step": self.step,
            "driver": self.driver,
            "metrics": dict(self.metrics),
            "data_wait": self.data_wait.to_dict() if self.data_wait is not None else None,
        }

    def error(self) -> SmlaunchError | None:
        """The exception for a run that did not complete; None when it did, or still runs."""
        code = self.exit_code
        if not code:
            return None
        kinds: dict[int, type[SmlaunchError]] = {
            EXIT_STOPPED: StoppedByUser,
            EXIT_LIMIT: LimitReached,
            EXIT_SERVICE: ServiceError,
            EXIT_MACHINE: MachineError,
        }
        more = f"; {self.hint}" if self.hint else ""
        error = kinds.get(code, TrainingFailed)(f"run {self.run}: {headline_of(self)}{more}")
        error.exit_code = code
        return error


def outcome(
    description: Mapping[str, Any], metrics: Mapping[str, float] | None = None, *, machines: bool = True
) -> JobOutcome:
    """``metrics``: what progress lines said last; the service's own final metrics come on top. ``machines``:
    hosts are machines of the instance type, and not processes of this one."""
    status = str(description["TrainingJobStatus"])
    secondary = str(description.get("SecondaryStatus", status))
    reason = str(description.get("FailureReason", ""))
    final = {
        row["MetricName"]: float(row["Value"])
        for row in description.get("FinalMetricDataList", [])
        if not row["MetricName"].startswith(OWN_METRICS)  # for a pipeline's conditions
    }
    told = {**(metrics or {}), **final}
    artifacts = description.get("ModelArtifacts", {}).get("S3ModelArtifacts")
    return JobOutcome(
        name=str(description["TrainingJobName"]),
        arn=str(description.get("TrainingJobArn", "")),
        status=status,
        secondary_status=secondary,
        exit_code=_exit_code(status, secondary, reason),
        created=_seconds(description.get("CreationTime")),
        started=_seconds(description.get("TrainingStartTime")),
        ended=_seconds(description.get("TrainingEndTime")),
        training_seconds=description.get("TrainingTimeInSeconds"),
        billable_seconds=description.get("BillableTimeInSeconds"),
        failure=_failure(reason) if status == "Failed" else None,
        failure_reason=reason,
        model_artifacts=str(artifacts) if artifacts else None,
        output=description.get("OutputDataConfig", {}).get("S3OutputPath"),
        checkpoints=checkpoints_of(description),
        metrics=told,
        data_wait=data_wait(told[DATA_WAIT], description, machines=machines) if DATA_WAIT in told else None,
    )


def checkpoints_of(description: Mapping[str, Any]) -> str | None:
    """Where the job keeps them: by the service, or its ranks by themselves."""
    kept = description.get("CheckpointConfig", {}).get("S3Uri")
    uri = kept or description.get("Environment", {}).get(CHECKPOINTS_URI)
    return str(uri) if uri else None


def headline_of(result: RunOutcome) -> str:
    """How the run ended, or where it is, in one line."""
    last = result.last
    if not result.chain:
        return headline(last)
    if result.verdict is None:
        open_end = last.finished and result.driver is not None
        more = f"; what follows is up to {words_for(result.driver or '')}" if open_end else ""
        return f"{last.name}: {headline(last)}{more}"
    failed = result.verdict.status == "Failed" and last.failure is not None and last.failure.host is not None
    if failed:
        return headline(last) + result.verdict.more
    return result.verdict.sentence


def headline(job: JobOutcome) -> str:
    """How the job ended, or where it is, in one line."""
    if job.status == "Failed":
        return _failed_line(job)
    if job.secondary_status == "MaxRuntimeExceeded":
        return "stopped at its max_runtime"
    if job.secondary_status == "MaxWaitTimeExceeded":
        return "stopped at its max_wait: spot capacity did not come, or did not last"
    words = {
        "Completed": "completed",
        "Stopped": "stopped",
        "Stopping": "stopping",
        "Deleting": "being deleted",
    }
    return words.get(job.status, f"in progress ({job.secondary_status})")


def _failed_line(job: JobOutcome) -> str:
    failure = job.failure
    if failure is None or failure.host is None:
        first = job.failure_reason.partition("\n")[0]
        return first or "failed; the service gave no reason"
    who = f"rank {failure.rank} on {failure.host}" if failure.rank is not None else failure.host
    if failure.service is not None:
        who = f"service {failure.service} on {failure.host}"
    code = f" exited with code {failure.exit_code}" if failure.exit_code is not None else " failed"
    return f"{who}{code}: {failure.cause}" if failure.cause else who + code


def _exit_code(status: str, secondary: str, reason: str) -> int | None:
    ending = ending_of(status, secondary, reason)
    return None if ending is None else RULES[ending].exit_code


def _failure(reason: str) -> Failure:
    return parse_failure(reason) if reason else Failure(cause="the service gave no reason")


def _seconds(value: Any) -> float | None:
    return value.timestamp() if isinstance(value, datetime) else None


def _iso(value: float | None) -> str | None:
    if value is None:
        return None
    from datetime import timezone

    return (
        datetime.fromtimestamp(value, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
