"""A service of jobs whose ends are written down before, driven by a machine or by the driver's function."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smlaunch.api.request import CREATE_PROCESSING_JOB, name_member, operation_of
from smlaunch.contract.names import JobName, parse_job_name
from smlaunch.contract.outcome import (
    CONTINUE,
    FINISHED,
    OUTCOME_PATH_PREFIX,
    SegmentOutcome,
    find_newest_outcome,
)
from smlaunch.contract.segment import (
    FROM_FILES_VARIABLE,
    FROM_REPORTED_VARIABLE,
    FROM_STEP_VARIABLE,
    STOP_AFTER_VARIABLE,
)
from smlaunch.planner.reconcile import Finish, ObservedJob, ObservedRun, Submit, next_action
from smlaunch.planner.workflow import ENDING_BY_FAILURE, Ending, Workflow, classify_ending
from tests.export.asl_interpreter import Execution, Failed

RUN = "nightly"
NOW = 1_800_000_000.0
REASONS = {ending: word for word, ending in ENDING_BY_FAILURE.items()}


@dataclass(frozen=True)
class Fate:
    """How a job is to end. ``gain``: steps more than it began with, which it tells of where ``says``."""

    ending: Ending
    gain: int = 10
    result: str = CONTINUE
    says: bool = True
    repeats: bool = False
    seconds: int = 3600
    billed: int = 3600


OVER = Fate(Ending.COMPLETED, result=FINISHED)


@dataclass
class Service:
    """``refusals``: what creates are answered with first. ``lost``: numbers of creates (from 1) whose answer
    is lost although the job was made."""

    fates: Sequence[Fate]
    job_hash: str
    refusals: list[tuple[str, str]] = field(default_factory=list)
    lost: frozenset[int] = frozenset()
    made: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    outcomes: dict[str, bytes] = field(default_factory=dict)
    """By their paths below the checkpoint directory."""

    step: int = 0
    foreign: bool = False
    machine: dict[str, Any] = field(default_factory=dict)
    executions: list[str] = field(default_factory=list)
    objects: Mapping[str, str] = field(default_factory=dict)
    """What the machine itself reads, by URI."""

    written: dict[str, Any] = field(default_factory=dict)
    """What it wrote."""

    may_write: bool = True
    refuses_starts: str = ""

    own_files: bool = False
    """Checkpoints are the script's own, and nobody can tell a step. A job that tells of its end has saved."""

    saved: int = 0

    reports: bool = False
    """What is told of is a step in progress lines, and no committed one."""

    keeps: bool = True
    """Whether anybody keeps checkpoints, and an outcome."""

    def fate(self, index: int) -> Fate:
        return self.fates[index] if index < len(self.fates) else OVER

    def create(self, request: Mapping[str, Any]) -> Fate:
        """The job is over at once."""
        assert name_of(request) not in map(name_of, self.made)
        fate = self.fate(len(self.made))
        self.made.append(dict(request))
        if fate.says and self.keeps:
            task = parse_job_name(name_of(request))
            assert task is not None
            said = SegmentOutcome(
                fate.result, None, RUN, name_of(request), task.segment, task.attempt, ranks_succeeded=True
            )
            if self.reports:
                said = said._replace(reported_step=self.step + fate.gain, repeats_steps=fate.repeats)
            elif not self.own_files:
                said = said._replace(step=self.step + fate.gain)
            self.outcomes[said.path] = said.to_bytes()
            self.step = said.step or said.reported_step or self.step
            self.saved += self.own_files
        return fate

    def description(self, name: str) -> dict[str, Any]:
        for index, request in enumerate(self.made):
            if name_of(request) == name:
                seen = {**status_of(self.fate(index)), "TrainingJobArn": f"arn:{name}"}
                return {
                    **request,
                    **(as_processing(seen) if operation_of(request) == CREATE_PROCESSING_JOB else seen),
                }
        raise Failed("SageMaker.SageMakerException", "Requested resource not found. (Service: SageMaker)")

    def __call__(self, integration: str, given: dict[str, Any]) -> Any:
        self.calls.append((integration, given))
        if integration.startswith("sagemaker:create"):
            return self._create(given)
        if integration.startswith("aws-sdk:sagemaker:describe"):
            return self.description(name_of(given))
        if integration == "aws-sdk:sagemaker:listTags":
            digest = "another" if self.foreign else self.job_hash
            return {"Tags": [{"Key": "x", "Value": "y"}, {"Key": "smlaunch:job", "Value": digest}]}
        if integration == "aws-sdk:s3:getObject":
            path = given["Key"][given["Key"].index(OUTCOME_PATH_PREFIX) :]
            if path not in self.outcomes:
                raise Failed("S3.NoSuchKeyException", "The specified key does not exist.")
            return {"Body": self.outcomes[path].decode()}
        if integration == "s3:getObject":
            return {"Body": self.objects[f"s3://{given['Bucket']}/{given['Key']}"]}
        if integration == "states:startExecution.sync:2":
            return self._go_on(given)
        if integration == "aws-sdk:s3:putObject":
            if not self.may_write:
                raise Failed("S3.S3Exception", "Access Denied (Service: S3, Status Code: 403)")
            self.written[f"s3://{given['Bucket']}/{given['Key']}"] = given["Body"]
            return {}
        assert integration == "aws-sdk:s3:deleteObject"
        del self.outcomes[given["Key"][given["Key"].index(OUTCOME_PATH_PREFIX) :]]
        return {}

    def _go_on(self, given: dict[str, Any]) -> Any:
        if self.refuses_starts:
            raise Failed("StepFunctions.AccessDeniedException", self.refuses_starts)
        assert given["StateMachineArn"] == "arn:machine"
        assert given["Name"] not in self.executions
        self.executions.append(given["Name"])
        try:
            return {"Output": Execution(self.machine, self, given["Name"]).run(given["Input"])}
        except Failed as error:
            told = {"Error": error.error, "Cause": error.cause, "Status": "FAILED"}
            raise Failed("States.TaskFailed", json.dumps(told)) from None

    def _create(self, given: dict[str, Any]) -> Any:
        if name_of(given) in map(name_of, self.made):
            raise Failed("SageMaker.ResourceInUseException", "Training job names must be unique")
        if self.refusals:
            raise Failed(*self.refusals.pop(0))
        fate = self.create(given)
        if len(self.made) in self.lost:
            raise Failed("SageMaker.SdkClientException", "Unable to execute HTTP request: Read timed out")
        if fate.ending is not Ending.COMPLETED:
            raise Failed("States.TaskFailed", json.dumps(self.description(name_of(given))))
        return self.description(name_of(given))


def name_of(request: Mapping[str, Any]) -> str:
    return str(request[name_member(request)])


def as_processing(seen: Mapping[str, Any]) -> dict[str, Any]:
    """What a processing job has of that."""
    words = {"TrainingJobStatus": "ProcessingJobStatus", "TrainingJobArn": "ProcessingJobArn"}
    found = {words.get(key, key): seen[key] for key in (*words, "FailureReason") if key in seen}
    return {**found, "ExitMessage": "ValueError: row 1"} if "FailureReason" in seen else found


def status_of(fate: Fate) -> dict[str, Any]:
    times = {"TrainingTimeInSeconds": fate.seconds, "BillableTimeInSeconds": fate.billed}
    if fate.ending is Ending.COMPLETED:
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
class Played:
    """``asked``: of each job, in order, what may differ. ``error``: None for a run that completed."""

    asked: tuple[tuple[Any, ...], ...]
    error: str | None
    cause: str = ""
    output: Any = None


def what_differs(request: Mapping[str, Any]) -> tuple[Any, ...]:
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


def by_machine(definition: dict[str, Any], service: Service) -> Played:
    service.machine = definition
    service.executions.append(RUN)
    try:
        output = Execution(definition, service, RUN).run({})
    except Failed as error:
        return Played(tuple(map(what_differs, service.made)), error.error, error.cause)
    return Played(tuple(map(what_differs, service.made)), None, output=output)


def by_driver(workflow: Workflow, service: Service, errors: Mapping[int, str]) -> Played:
    """``planning.reconcile.decide``, whose looks at checkpoints find what the outcome told of."""
    seen: list[ObservedJob] = []
    while True:
        said = find_newest_outcome(service.outcomes, service.outcomes.__getitem__, RUN)
        files = str(service.saved) if service.saved else ""
        newest = None if not seen else str(JobName(RUN, seen[-1].segment, seen[-1].attempt))
        own = said if said is not None and said.job == newest else None
        observed = ObservedRun(
            NOW,
            seen,
            0 if service.reports else service.step,
            said,
            None if own is None else own.reported_step,
            own is not None and own.repeats_steps,
            files,
        )
        action = next_action(workflow, observed)
        if isinstance(action, Finish):
            error = errors[action.exit_code] if action.exit_code else None
            return Played(tuple(map(what_differs, service.made)), error, action.summary)
        assert isinstance(action, Submit)
        if action.clears_outcome:
            del service.outcomes[action.clears_outcome]
        fate = service.create(action.request)
        name = parse_job_name(name_of(action.request))
        environment = action.request.get("Environment", {})
        assert name is not None
        seen.append(
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
