"""A simulated job service with planned results, driven by a state machine or by the driver's function."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smlaunch.api.job_kinds import PROCESSING, job_kind_of, job_name_of
from smlaunch.chain.next_action import FinishRun, SubmitJob, next_action
from smlaunch.chain.observed_run import ObservedJob, ObservedRun
from smlaunch.chain.workflow import ENDING_BY_FAILURE_REASON, JobEnding, Workflow, classify_ending
from smlaunch.contract.run_names import JobName, parse_job_name
from smlaunch.contract.segment import (
    FROM_FILES_VARIABLE,
    FROM_REPORTED_VARIABLE,
    FROM_STEP_VARIABLE,
    STOP_AFTER_VARIABLE,
)
from smlaunch.contract.segment_outcome import (
    CONTINUE,
    FINISHED,
    OUTCOME_PATH_PREFIX,
    SegmentOutcome,
    find_newest_outcome,
)
from tests.export.asl_interpreter import Execution, Failed

RUN = "nightly"
NOW = 1_800_000_000.0
REASONS = {ending: word for word, ending in ENDING_BY_FAILURE_REASON.items()}


@dataclass(frozen=True)
class Fate:
    """How a job ends. ``gain``: steps added by it; its outcome file has them where ``has_outcome``."""

    ending: JobEnding
    gain: int = 10
    result: str = CONTINUE
    has_outcome: bool = True
    repeats: bool = False
    seconds: int = 3600
    billed: int = 3600


FINISHED_JOB = Fate(JobEnding.COMPLETED, result=FINISHED)


@dataclass
class Service:
    fates: Sequence[Fate]
    job_hash: str
    refusals: list[tuple[str, str]] = field(default_factory=list)
    """Errors (code and message) of the first creates."""

    lost_answers: frozenset[int] = frozenset()
    """Numbers of creates, from 1, whose answer is lost although the job was created."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    outcomes: dict[str, bytes] = field(default_factory=dict)
    """By their paths below the checkpoint directory."""

    step: int = 0
    foreign: bool = False
    machine: dict[str, Any] = field(default_factory=dict)
    executions: list[str] = field(default_factory=list)
    objects: Mapping[str, str] = field(default_factory=dict)
    """Texts that the machine itself reads, by URI."""

    written: dict[str, Any] = field(default_factory=dict)
    """Bodies that the machine wrote, by URI."""

    may_write: bool = True
    refuses_starts: str = ""

    own_files: bool = False
    """Whether checkpoints are the script's own files, without a step; a job with an outcome saved them."""

    reporting_jobs: frozenset[int] = frozenset()
    """Numbers of jobs, from 1, that report steps although checkpoints are the script's own files."""

    saved: int = 0

    has_progress_lines: bool = False
    """Whether outcomes have a step reported in progress lines instead of a committed one."""

    has_checkpoints: bool = True
    """Whether jobs save checkpoints and an outcome."""

    def fate(self, index: int) -> Fate:
        return self.fates[index] if index < len(self.fates) else FINISHED_JOB

    def create(self, request: Mapping[str, Any]) -> Fate:
        """Create a job, which ends at once."""
        assert name_of(request) not in map(name_of, self.requests)
        fate = self.fate(len(self.requests))
        self.requests.append(dict(request))
        if fate.has_outcome and self.has_checkpoints:
            task = parse_job_name(name_of(request))
            assert task is not None
            outcome = SegmentOutcome(
                fate.result, None, RUN, name_of(request), task.segment, task.attempt, ranks_succeeded=True
            )
            if self.has_progress_lines or len(self.requests) in self.reporting_jobs:
                outcome = outcome._replace(reported_step=self.step + fate.gain, repeats_steps=fate.repeats)
            elif not self.own_files:
                outcome = outcome._replace(step=self.step + fate.gain)
            self.outcomes[outcome.path] = outcome.to_bytes()
            self.step = outcome.step or outcome.reported_step or self.step
            self.saved += self.own_files
        return fate

    def description(self, name: str) -> dict[str, Any]:
        for index, request in enumerate(self.requests):
            if name_of(request) == name:
                status = {**status_of(self.fate(index)), "TrainingJobArn": f"arn:{name}"}
                return {
                    **request,
                    **(as_processing(status) if job_kind_of(request) is PROCESSING else status),
                }
        raise Failed("SageMaker.SageMakerException", "Requested resource not found. (Service: SageMaker)")

    def __call__(self, integration: str, parameters: dict[str, Any]) -> Any:
        self.calls.append((integration, parameters))
        if integration.startswith("sagemaker:create"):
            return self._create(parameters)
        if integration.startswith("aws-sdk:sagemaker:describe"):
            return self.description(name_of(parameters))
        if integration == "aws-sdk:sagemaker:listTags":
            digest = "another" if self.foreign else self.job_hash
            return {"Tags": [{"Key": "x", "Value": "y"}, {"Key": "smlaunch:job", "Value": digest}]}
        if integration == "aws-sdk:s3:getObject":
            path = parameters["Key"][parameters["Key"].index(OUTCOME_PATH_PREFIX) :]
            if path not in self.outcomes:
                raise Failed("S3.NoSuchKeyException", "The specified key does not exist.")
            return {"Body": self.outcomes[path].decode()}
        if integration == "s3:getObject":
            return {"Body": self.objects[f"s3://{parameters['Bucket']}/{parameters['Key']}"]}
        if integration == "states:startExecution.sync:2":
            return self._start_execution(parameters)
        if integration == "aws-sdk:s3:putObject":
            if not self.may_write:
                raise Failed("S3.S3Exception", "Access Denied (Service: S3, Status Code: 403)")
            self.written[f"s3://{parameters['Bucket']}/{parameters['Key']}"] = parameters["Body"]
            return {}
        assert integration == "aws-sdk:s3:deleteObject"
        del self.outcomes[parameters["Key"][parameters["Key"].index(OUTCOME_PATH_PREFIX) :]]
        return {}

    def _start_execution(self, parameters: dict[str, Any]) -> Any:
        if self.refuses_starts:
            raise Failed("StepFunctions.AccessDeniedException", self.refuses_starts)
        assert parameters["StateMachineArn"] == "arn:machine"
        assert parameters["Name"] not in self.executions
        self.executions.append(parameters["Name"])
        try:
            return {"Output": Execution(self.machine, self, parameters["Name"]).run(parameters["Input"])}
        except Failed as error:
            output = {"Error": error.error, "Cause": error.cause, "Status": "FAILED"}
            raise Failed("States.TaskFailed", json.dumps(output)) from None

    def _create(self, parameters: dict[str, Any]) -> Any:
        if name_of(parameters) in map(name_of, self.requests):
            raise Failed("SageMaker.ResourceInUseException", "Training job names must be unique")
        if self.refusals:
            raise Failed(*self.refusals.pop(0))
        fate = self.create(parameters)
        if len(self.requests) in self.lost_answers:
            raise Failed("SageMaker.SdkClientException", "Unable to execute HTTP request: Read timed out")
        if fate.ending is not JobEnding.COMPLETED:
            raise Failed("States.TaskFailed", json.dumps(self.description(name_of(parameters))))
        return self.description(name_of(parameters))


def name_of(request: Mapping[str, Any]) -> str:
    return job_name_of(request)


def as_processing(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that a processing job has too, under their names there."""
    words = {"TrainingJobStatus": "ProcessingJobStatus", "TrainingJobArn": "ProcessingJobArn"}
    members = {words.get(key, key): status[key] for key in (*words, "FailureReason") if key in status}
    return {**members, "ExitMessage": "ValueError: row 1"} if "FailureReason" in status else members


def status_of(fate: Fate) -> dict[str, Any]:
    times = {"TrainingTimeInSeconds": fate.seconds, "BillableTimeInSeconds": fate.billed}
    if fate.ending is JobEnding.COMPLETED:
        artifacts = {"S3ModelArtifacts": "s3://b/model.tar.gz"}
        return {
            "TrainingJobStatus": "Completed",
            "SecondaryStatus": "Completed",
            "ModelArtifacts": artifacts,
            **times,
        }
    for secondary in ("MaxRuntimeExceeded", "MaxWaitTimeExceeded", "Stopped"):
        if classify_ending("Stopped", secondary, "") is fate.ending:
            return {"TrainingJobStatus": "Stopped", "SecondaryStatus": secondary, **times}
    reason = f"{REASONS[fate.ending]}: because"
    return {"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed", "FailureReason": reason, **times}


@dataclass(frozen=True)
class RunResult:
    """``requests``: the varying members of each job's request, in order. ``error``: None for a run that
    completed."""

    requests: tuple[tuple[Any, ...], ...]
    error: str | None
    cause: str = ""
    output: Any = None


def varying_members(request: Mapping[str, Any]) -> tuple[Any, ...]:
    environment = request.get("Environment", {})
    return (
        name_of(request),
        request.get("EnableManagedSpotTraining", False),
        request["StoppingCondition"]["MaxRuntimeInSeconds"],
        environment.get(STOP_AFTER_VARIABLE),
        int(environment.get(FROM_STEP_VARIABLE, 0)),
        int(environment.get(FROM_REPORTED_VARIABLE, 0)),
        request.get("HyperParameters", {}),
    )


def run_machine(definition: dict[str, Any], service: Service) -> RunResult:
    service.machine = definition
    service.executions.append(RUN)
    try:
        output = Execution(definition, service, RUN).run({})
    except Failed as error:
        return RunResult(tuple(map(varying_members, service.requests)), error.error, error.cause)
    return RunResult(tuple(map(varying_members, service.requests)), None, output=output)


def run_driver(workflow: Workflow, service: Service, errors: Mapping[int, str]) -> RunResult:
    """Drive the run by ``planner.next_action.next_action``; checkpoints are those of the newest outcome."""
    jobs: list[ObservedJob] = []
    while True:
        outcome = find_newest_outcome(service.outcomes, service.outcomes.__getitem__, RUN)
        files = str(service.saved) if service.saved else ""
        newest = None if not jobs else str(JobName(RUN, jobs[-1].segment, jobs[-1].attempt))
        own = outcome if outcome is not None and outcome.job == newest else None
        observed = ObservedRun(
            NOW,
            jobs,
            0 if service.has_progress_lines or service.own_files else service.step,
            outcome,
            None if own is None else own.reported_step,
            own is not None and own.repeats_steps,
            files,
        )
        action = next_action(workflow, observed)
        if isinstance(action, FinishRun):
            error = errors[action.exit_code] if action.exit_code else None
            return RunResult(tuple(map(varying_members, service.requests)), error, action.summary)
        assert isinstance(action, SubmitJob)
        if action.clears_outcome:
            del service.outcomes[action.clears_outcome]
        fate = service.create(action.request)
        name = parse_job_name(name_of(action.request))
        environment = action.request.get("Environment", {})
        assert name is not None
        jobs.append(
            ObservedJob(
                name.segment,
                name.attempt,
                fate.ending,
                status_of(fate).get("FailureReason", ""),
                NOW - 10_000,
                fate.seconds,
                fate.billed,
                bool(action.request.get("EnableManagedSpotTraining")),
                int(environment.get(FROM_STEP_VARIABLE, 0)),
                int(environment[FROM_REPORTED_VARIABLE]) if FROM_REPORTED_VARIABLE in environment else None,
                environment.get(FROM_FILES_VARIABLE, ""),
            )
        )
