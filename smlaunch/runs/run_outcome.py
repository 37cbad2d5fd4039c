"""How a job ended, derived from its description: status, exit code, first failure. Pure.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from smlaunch.chain.workflow import RULE_BY_ENDING, classify_ending
from smlaunch.contract.failure_reason import Failure, parse_failure
from smlaunch.contract.progress_line import DATA_WAIT_METRIC
from smlaunch.contract.segment import CHECKPOINTS_URI_VARIABLE, INTERNAL_METRIC_PREFIX
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
from smlaunch.runs.data_wait_advice import DataWait, assess_data_wait
from smlaunch.runs.job_poller import host_count

if TYPE_CHECKING:
    from smlaunch.chain.next_action import FinishRun


@dataclass(frozen=True)
class JobOutcome:
    """State or end of one job of a run. Times are seconds since the epoch."""

    name: str
    arn: str
    status: str
    secondary_status: str
    exit_code: int | None
    """None while the job runs."""
    created: float | None
    """Seconds since the epoch; None if unknown."""
    started: float | None
    """When the training started; None before that."""
    ended: float | None
    """When the job ended; None while it runs."""
    training_seconds: int | None
    billable_seconds: int | None
    """Less than ``training_seconds`` on spot capacity."""
    failure: Failure | None
    failure_reason: str
    model_artifacts: str | None
    output_uri: str | None
    checkpoints_uri: str | None
    metrics: Mapping[str, float] = field(hash=False)
    """Final value of each metric, by name."""
    data_wait: DataWait | None = None
    """How long the training waited for its data; None where it did not report that."""
    instance_type: str | None = None
    """None where the hosts are of several types."""
    host_count: int | None = None
    warnings: tuple[str, ...] = ()
    """What the job's hosts have warned of in its log, as far as that was read."""

    @property
    def is_finished(self) -> bool:
        return self.exit_code is not None

    def to_dict(self) -> dict[str, Any]:
        """Return one entry of ``jobs`` in ``run --json`` and ``show --json``."""
        return {
            "name": self.name,
            "arn": self.arn,
            "status": self.status,
            "secondary_status": self.secondary_status,
            "created": _format_iso_time(self.created),
            "started": _format_iso_time(self.started),
            "ended": _format_iso_time(self.ended),
            "training_seconds": self.training_seconds,
            "billable_seconds": self.billable_seconds,
            "failure": self.failure._asdict() if self.failure else None,
        }


@dataclass(frozen=True, repr=False)
class RunOutcome:
    """State or end of a run."""

    run: str
    jobs: tuple[JobOutcome, ...]
    """Oldest first."""
    is_chain: bool = False
    """Further jobs may follow, so that ``final_result``, and not a job, ends the run."""
    final_result: FinishRun | None = None
    """How a chain ended; None while it goes on."""
    step: int | None = None
    """The newest complete checkpoint in S3; None where there is none or it was not read."""
    execution: str | None = None
    """The orchestrator's execution that creates the jobs; empty where it is not stated, None for a run that
    smlaunch drives."""
    hint: str = ""
    """What helps the user: why a file that the failure names was not uploaded, or what continues a chain that
    was stopped, has reached a limit, or is not driven. Empty where nothing is known."""

    def __repr__(self) -> str:
        """Return one line: a notebook shows it below the cell that waited, and the jobs say the same at
        length."""
        return f"{type(self).__name__}({self.run!r}, {self.status}, {count_jobs(self.jobs)})"

    @property
    def last_job(self) -> JobOutcome:
        return self.jobs[-1]

    @property
    def individual_outcomes(self) -> tuple[RunOutcome, ...]:
        """The runs that have results of their own."""
        return (self,)

    @property
    def status(self) -> str:
        """Status of the run, in the words of TrainingJobStatus. A chain is a run of several consecutive jobs;
        between two of them it is InProgress."""
        if not self.is_chain:
            return self.last_job.status
        if self.final_result is not None:
            return self.final_result.status
        return self.last_job.status if self.last_job.status == "Stopping" else "InProgress"

    @property
    def exit_code(self) -> int | None:
        if not self.is_chain:
            return self.last_job.exit_code
        return None if self.final_result is None else self.final_result.exit_code

    @property
    def model_artifacts(self) -> str | None:
        """The final model. None for a chain that goes on or has not completed: a segment's artifacts, which
        ``jobs`` has, are not the final model."""
        if self.is_chain and self.exit_code != 0:
            return None
        model_job = "" if self.final_result is None else self.final_result.model_job
        for job in self.jobs:
            if job.name == model_job:
                return job.model_artifacts
        if model_job and self.last_job.output_uri:  # its record was deleted
            output_uri = self.last_job.output_uri.rstrip("/")  # of all jobs of the run
            return f"{output_uri}/{model_job}/output/model.tar.gz"
        return self.last_job.model_artifacts

    @property
    def metrics(self) -> Mapping[str, float]:
        """The newest reported metrics. A job that has just begun has none, so that an earlier job's count."""
        return next((job.metrics for job in reversed(self.jobs) if job.metrics), {})

    @property
    def data_wait(self) -> DataWait | None:
        """Of the newest job that reported it."""
        return next((job.data_wait for job in reversed(self.jobs) if job.data_wait is not None), None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the hosts have warned of in the jobs' logs, as far as these were read; each once."""
        return tuple(dict.fromkeys(warning for job in self.jobs for warning in job.warnings))

    def to_dict(self) -> dict[str, Any]:
        """Return the document of ``run --json`` and ``show --json``."""
        return {
            "run": self.run,
            "status": self.status,
            "exit_code": self.exit_code,
            "because": summarize_run(self),
            "hint": self.hint,
            "jobs": [job.to_dict() for job in self.jobs],
            "model_artifacts": self.model_artifacts,
            "checkpoints": self.last_job.checkpoints_uri,
            "step": self.step,
            "driver": self.execution,
            "metrics": dict(self.metrics),
            "data_wait": self.data_wait.to_dict() if self.data_wait is not None else None,
            "warnings": list(self.warnings),
        }

    def describe_end(self, result: FinishRun) -> str:
        """Return one line for the user about how a chain ended."""
        failure = self.last_job.failure
        if result.status == "Failed" and failure is not None and failure.host is not None:
            # The failed process says more than the chain's own summary. The note is about the other jobs.
            return summarize_job(self.last_job) + result.run_note
        return result.summary

    @property
    def error(self) -> SmlaunchError | None:
        """The exception for a run that did not complete; None for one that completed or still runs."""
        code = self.exit_code
        if not code:
            return None
        class_by_code: dict[int, type[SmlaunchError]] = {
            EXIT_STOPPED: StoppedByUser,
            EXIT_LIMIT: LimitReached,
            EXIT_SERVICE: ServiceError,
            EXIT_MACHINE: MachineError,
        }
        hint_text = f"; {self.hint}" if self.hint else ""
        error = class_by_code.get(code, TrainingFailed)(f"run {self.run}: {summarize_run(self)}{hint_text}")
        error.exit_code = code
        return error


def outcome_from_description(
    description: Mapping[str, Any], metrics: Mapping[str, float] | None = None, *, on_instances: bool = True
) -> JobOutcome:
    """Return how a training job ended, or its current state.

    ``description`` is DescribeTrainingJob's response. ``metrics`` are the last ones of the job's progress
    lines; the service's own final metrics override them. ``on_instances``: hosts are machines of the instance
    type, and not processes of this machine, whose waits for data say nothing about that type.
    """
    status = str(description["TrainingJobStatus"])
    secondary_status = str(description.get("SecondaryStatus", status))
    failure_reason = str(description.get("FailureReason", ""))
    final_metrics = {
        metric["MetricName"]: float(metric["Value"])
        for metric in description.get("FinalMetricDataList", [])
        # Internal ones only tell a pipeline's conditions how the job ended.
        if not metric["MetricName"].startswith(INTERNAL_METRIC_PREFIX)
    }
    all_metrics = {**(metrics or {}), **final_metrics}
    data_wait = None
    if DATA_WAIT_METRIC in all_metrics:  # how long the training waited for its data
        # Says whether the waits are too long for the instance type.
        data_wait = assess_data_wait(all_metrics[DATA_WAIT_METRIC], description, has_real_hosts=on_instances)
    model_uri = description.get("ModelArtifacts", {}).get("S3ModelArtifacts")
    return JobOutcome(
        name=str(description["TrainingJobName"]),
        arn=str(description.get("TrainingJobArn", "")),
        status=status,
        secondary_status=secondary_status,
        exit_code=_exit_code_of_ending(status, secondary_status, failure_reason),  # for smlaunch to return
        created=_seconds_since_epoch(description.get("CreationTime")),
        started=_seconds_since_epoch(description.get("TrainingStartTime")),
        ended=_seconds_since_epoch(description.get("TrainingEndTime")),
        training_seconds=description.get("TrainingTimeInSeconds"),
        billable_seconds=description.get("BillableTimeInSeconds"),
        # The process that failed first, as smlaunch's program on the hosts has reported it.
        failure=_parse_failure_reason(failure_reason) if status == "Failed" else None,
        failure_reason=failure_reason,
        model_artifacts=str(model_uri) if model_uri else None,
        output_uri=description.get("OutputDataConfig", {}).get("S3OutputPath"),
        checkpoints_uri=checkpoints_uri_of_job(description),
        metrics=all_metrics,
        data_wait=data_wait,
        instance_type=description.get("ResourceConfig", {}).get("InstanceType"),
        host_count=host_count(description),
    )


def checkpoints_uri_of_job(description: Mapping[str, Any]) -> str | None:
    """Return where the job stores checkpoints, through the service's sync or by its ranks."""
    synced_uri = description.get("CheckpointConfig", {}).get("S3Uri")
    uri = synced_uri or description.get("Environment", {}).get(CHECKPOINTS_URI_VARIABLE)
    return str(uri) if uri else None


def count_jobs(jobs: Sequence[object]) -> str:
    return f"{len(jobs)} job{'' if len(jobs) == 1 else 's'}"


def summarize_run(outcome: RunOutcome) -> str:
    """Return one line for the user about how the run ended, or about its current state.

    A chain is a run of several consecutive jobs. Its ``final_result`` is None while it goes on.
    """
    last_job, final_result = outcome.last_job, outcome.final_result
    if not outcome.is_chain:
        return summarize_job(last_job)
    if final_result is None:
        return f"{last_job.name}: {summarize_job(last_job)}{_what_follows_text(outcome)}"
    return outcome.describe_end(final_result)


def _what_follows_text(outcome: RunOutcome) -> str:
    """Return a clause about who creates the chain's next job; empty while a job runs."""
    if not outcome.last_job.is_finished:
        return ""
    if outcome.execution is None:
        return "; the next job is due"
    from smlaunch.chain.orchestrator_execution import describe_driver

    return f"; what follows is up to {describe_driver(outcome.execution)}"


def summarize_job(job: JobOutcome) -> str:
    """Return one line for the user about how a training job ended, or about its current state."""
    if job.status == "Failed":
        return _summarize_failure(job)
    if job.secondary_status == "MaxRuntimeExceeded":
        return "stopped at its max_runtime"
    if job.secondary_status == "MaxWaitTimeExceeded":
        return "stopped at its max_wait: spot capacity was not available for long enough"
    text_by_status = {
        "Completed": "completed",
        "Stopped": "stopped",
        "Stopping": "stopping",
        "Deleting": "being deleted",
    }
    return text_by_status.get(job.status, f"in progress ({job.secondary_status})")


def _summarize_failure(job: JobOutcome) -> str:
    """Return one line about a failed job: which process failed first, with which exit code, and why."""
    failure = job.failure
    if failure is None or failure.host is None:
        # No process failed first: the failure is the service's, which states it in the first line.
        first_line = job.failure_reason.partition("\n")[0]
        if failure is not None and failure.is_silent:  # "AlgorithmError: , exit code: 7"
            return f"the container exited with code {failure.exit_code}, and left no message"
        return first_line or "failed; the service gave no reason"
    if failure.service is not None:  # a helper program that runs beside the training on each host
        failed_process = f"service {failure.service} on {failure.host}"
    elif failure.rank is not None:
        failed_process = f"rank {failure.rank} on {failure.host}"
    else:
        failed_process = failure.host
    if failure.signal is not None:
        exit_text = f" was killed by {failure.signal}"
    else:
        exit_text = " failed" if failure.exit_code is None else f" exited with code {failure.exit_code}"
    cause_text = f": {failure.cause}" if failure.cause else ""
    return f"{failed_process}{exit_text}{cause_text}"


def _exit_code_of_ending(status: str, secondary_status: str, reason: str) -> int | None:
    ending = classify_ending(status, secondary_status, reason)
    return None if ending is None else RULE_BY_ENDING[ending].exit_code


def _parse_failure_reason(reason: str) -> Failure:
    return parse_failure(reason) if reason else Failure(cause="the service gave no reason")


def _seconds_since_epoch(value: Any) -> float | None:
    return value.timestamp() if isinstance(value, datetime) else None


def _format_iso_time(value: float | None) -> str | None:
    if value is None:
        return None
    from datetime import timezone

    return (
        datetime.fromtimestamp(value, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
