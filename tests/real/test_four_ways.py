"""One chain, with the same three faults, driven four ways: the same jobs in the same order, the same weights.

Its script is that of tests/e2e/chains.py. A host is lost in segment 2, spot capacity is taken away in
segment 3, and the first request for segment 4 is throttled.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from smlaunch.contract.run_names import TAG_ATTEMPT, TAG_RUN, TAG_SEGMENT
from smlaunch.export.pipeline import DEFINITION_FILE as PIPELINE
from smlaunch.export.sfn_policies import RARE_ACTIONS
from smlaunch.export.step_functions import DEFINITION_FILE as MACHINE
from smlaunch.export.step_functions import PERMISSIONS_FILE, TRUST_FILE
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.front.call_log import LoggedCall, read_call_log
from tests.conftest import ROOT
from tests.e2e.chains import SCRIPT, SEGMENTS, TRUE_WEIGHTS
from tests.e2e.command import smlaunch
from tests.real.airflow_site import Site
from tests.real.conftest import program
from tests.real.moto_endpoint import QUICK, StepFunctions, moto_python

RUN = "chain"
TASKS = ("s1-a1", "s2-a1", "s2-a2", "s3-a1", "s4-a1", "s5-a1")
NAMES = [f"{RUN}-{task}" for task in TASKS]
LOST_INDEX, INTERRUPTED_INDEX = 1, 3
"""Of TASKS."""
THROTTLED = 5
"""The first create of s4-a1, counted from 1."""
CREATES = ["", "", "", "", "ThrottlingException", "", ""]
MODEL = hashlib.sha256(TRUE_WEIGHTS.encode()).hexdigest()

FAULTS = [
    # In a pipeline the service names the jobs; the letter tells which try of the step it is.
    *({"fault": "host-lost", "jobs": jobs, "after": 0.5} for jobs in ("*-s2-a1", "*-Segment-2-a*")),
    *({"fault": "spot-interruption", "jobs": jobs, "after": 0.5} for jobs in ("*-s3-*", "*-Segment-3-*")),
    {"fault": "throttle", "operations": "CreateTrainingJob", "calls": [THROTTLED]},
]
SETTINGS = {**QUICK, "checkpoint_sync_seconds": 0.2}
JOB = {
    "entry": "train.py",
    "strategy": "custom",
    "compute": {"spot": True},
    "limits": {"max_runtime": "10m", "segment": "60s"},
    # Longer than 0.5 s a segment, so that its faults come before its end.
    "environment": {"TEST_PAUSE": "0.15", "TEST_EVERY": "2"},
}
DAG = """\
from datetime import datetime
from airflow.sdk import DAG
from smlaunch.airflow import SmlaunchOperator

with DAG("four_ways", schedule=None, start_date=datetime(2026, 1, 1)):
    SmlaunchOperator(task_id="train", **{words!r})
"""


class CreatedJob(NamedTuple):
    """A job as the endpoint describes it."""

    name: str
    tags: Mapping[str, str]
    description: Mapping[str, Any]


class FaultyEndpoint:
    """A background endpoint of its own with the faults in FAULTS, and a job file."""

    def __init__(self, folder: Path, python: str) -> None:
        self.home = folder / "smlaunch"
        self.log = folder / "calls.jsonl"
        self.job = folder / "written" / "job.yaml"
        self.job.parent.mkdir()
        by_number = SCRIPT.replace("step - first_step < PER_SEGMENT", "step < PER_SEGMENT * segment.segment")
        assert by_number != SCRIPT, "wherever a segment was broken off, it ends at its own step"
        self.job.with_name("train.py").write_text(by_number)
        self.job.write_text(json.dumps(JOB))
        faults = folder / "faults.json"
        faults.write_text(json.dumps({"seed": 1, "faults": FAULTS}))
        plain = {
            name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SMLAUNCH_"))
        }
        arguments = ["-m", "tests.local.endpoint_process", str(self.home), "plain", "background"]
        result = subprocess.run(
            [python, *arguments, json.dumps({**SETTINGS, "call_log": str(self.log)})],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**plain, "PYTHONPATH": str(ROOT), "SMLAUNCH_FAULTS": str(faults)},
            check=True,
        )
        self.info = EndpointInfo.from_json(result.stdout)
        self.user = StepFunctions(self.info)

    def jobs(self) -> list[CreatedJob]:
        """Returns all jobs ever created, the oldest first."""
        sagemaker = self.user.sagemaker
        rows = sagemaker.list_training_jobs(SortBy="CreationTime", SortOrder="Ascending", MaxResults=100)
        created = []
        for row in rows["TrainingJobSummaries"]:
            tags = sagemaker.list_tags(ResourceArn=row["TrainingJobArn"])["Tags"]
            tag_values = {tag["Key"]: tag["Value"] for tag in tags}
            created.append(
                CreatedJob(row["TrainingJobName"], tag_values, self.user.describe(row["TrainingJobName"]))
            )
        return created

    def model(self, job: CreatedJob) -> str:
        """Returns the SHA-256 of the job's weights."""
        uri = job.description["ModelArtifacts"]["S3ModelArtifacts"]
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        content = self.user.s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            weights = archive.extractfile("weights")
            assert weights is not None
            return hashlib.sha256(weights.read()).hexdigest()

    def creates(self) -> list[str]:
        """Returns the error of each CreateTrainingJob, or an empty text."""
        return [call.error for call in read_call_log(self.log) if call.operation == "CreateTrainingJob"]

    def check(self) -> list[CreatedJob]:
        """Checks all of the jobs but their names, and returns them."""
        jobs = self.jobs()
        assert [int(job.tags[TAG_SEGMENT]) for job in jobs] == [int(task[1]) for task in TASKS]
        assert len({job.tags[TAG_RUN] for job in jobs}) == 1
        statuses = [job.description["TrainingJobStatus"] for job in jobs]
        assert statuses == ["Failed" if index == LOST_INDEX else "Completed" for index in range(len(TASKS))]
        assert jobs[LOST_INDEX].description["FailureReason"].startswith("InternalServerError")
        transitions = [
            {row["Status"] for row in job.description["SecondaryStatusTransitions"]} for job in jobs
        ]
        broken_off = [index for index, statuses in enumerate(transitions) if "Interrupted" in statuses]
        assert broken_off == [INTERRUPTED_INDEX]
        assert self.model(jobs[-1]) == MODEL
        return jobs


@contextmanager
def faulty_endpoint(folder: Path, python: str = sys.executable) -> Iterator[FaultyEndpoint]:
    """Yields an endpoint that ``smlaunch`` uses meanwhile."""
    new_endpoint = FaultyEndpoint(folder, python)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMLAUNCH_HOME", str(new_endpoint.home))
        for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
            patch.delenv(name, raising=False)
        try:
            yield new_endpoint
        finally:
            assert smlaunch("local", "stop").code == 0


def export_files(endpoint: FaultyEndpoint, kind: str, *options: str) -> Mapping[str, str]:
    """Returns the files of an export, by their names."""
    folder = endpoint.home.parent / kind
    result = smlaunch("export", kind, endpoint.job, "--local", "--out", folder, *options)
    assert result.code == 0, result.text
    return {path.name: path.read_text() for path in folder.iterdir()}


def names(jobs: list[CreatedJob]) -> list[str]:
    return [job.name for job in jobs]


def test_inline(tmp_path: Path) -> None:
    with faulty_endpoint(tmp_path) as endpoint:
        result = smlaunch("run", endpoint.job, "--local", "--name", RUN)
        assert result.code == 0, result.text
        assert (names(endpoint.check()), endpoint.creates()) == (NAMES, CREATES)


class Machine(NamedTuple):
    """The results of the exported state machine."""

    files: Mapping[str, str]
    jobs: list[CreatedJob]
    creates: list[str]
    result: Mapping[str, Any]
    calls: list[LoggedCall]
    role: str


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    with faulty_endpoint(tmp_path_factory.mktemp("machine"), moto_python()) as endpoint:
        role = f"arn:aws:iam::{endpoint.info.account}:role/machine"
        files = export_files(
            endpoint, "step-functions", "--called", "trainer", "--deploy", "--machine-role", role
        )
        arn = f"arn:aws:states:{endpoint.info.region}:{endpoint.info.account}:stateMachine:trainer"
        description = endpoint.user.wait_for_end(endpoint.user.execute(arn, name=RUN), 120)
        assert description["status"] == "SUCCEEDED", description
        calls = [call for call in read_call_log(endpoint.log) if call.via == "states"]
        return Machine(
            files, endpoint.check(), endpoint.creates(), json.loads(description["output"]), calls, role
        )


def test_the_exported_state_machine(machine: Machine) -> None:
    assert (names(machine.jobs), machine.creates) == (NAMES, CREATES)
    assert MACHINE in machine.files
    assert (machine.result["job"], machine.result["step"]) == (NAMES[-1], 10 * SEGMENTS)


def test_its_policies_allow_what_its_run_called_and_nothing_without_a_reason(machine: Machine) -> None:
    permissions = json.loads(machine.files[PERMISSIONS_FILE])["Statement"]
    assumed = [call for call in machine.calls if call.operation == "AssumeRole"]
    own_calls = [call for call in machine.calls if call.operation != "AssumeRole"]
    (statement,) = json.loads(machine.files[TRUST_FILE])["Statement"]
    assert (statement["Action"], statement["Principal"]) == (
        ["sts:AssumeRole"],
        {"Service": "states.amazonaws.com"},
    )
    assert {need.resource for call in assumed for need in call.needs} == {machine.role}
    assert own_calls and all(":assumed-role/machine/" in call.caller for call in own_calls), (
        "none went around its role"
    )
    needs = {(need.action, need.resource) for call in own_calls for need in call.needs}
    assert [need for need in sorted(needs) if not allows(permissions, *need)] == []
    called = {call.needs[0].action for call in own_calls}
    unused = {action for permission in permissions for action in permission["Action"]} - called
    assert unused - RARE_ACTIONS.keys() == set(), "allowed, never called, and without a reason"
    assert called & RARE_ACTIONS.keys() == {"sagemaker:ListTags"}, "a job failed"


def allows(statements: list[dict[str, Any]], action: str, resource: str) -> bool:
    return any(
        action in statement["Action"]
        and any(fnmatchcase(resource, pattern) for pattern in statement["Resource"])
        for statement in statements
    )


def test_the_exported_pipeline(tmp_path: Path) -> None:
    with faulty_endpoint(tmp_path) as endpoint:
        definition = export_files(endpoint, "pipeline")[PIPELINE]
        sagemaker = endpoint.user.sagemaker
        sagemaker.create_pipeline(
            PipelineName=RUN, PipelineDefinition=definition, RoleArn=endpoint.info.role_arn
        )
        execution = sagemaker.start_pipeline_execution(PipelineName=RUN)["PipelineExecutionArn"]
        description = {"PipelineExecutionStatus": "Executing"}
        deadline = time.monotonic() + 120
        while description["PipelineExecutionStatus"] == "Executing" and time.monotonic() < deadline:
            time.sleep(0.2)
            description = sagemaker.describe_pipeline_execution(PipelineExecutionArn=execution)
        assert description["PipelineExecutionStatus"] == "Succeeded", description
        jobs = endpoint.check()
        assert {job.tags[TAG_RUN] for job in jobs} == {execution.rpartition("/")[2]}
        # A step that is retried sends the same request: both its jobs are attempt 1 by their tags.
        assert {job.tags[TAG_ATTEMPT] for job in jobs} == {"1"}
        steps = sagemaker.list_pipeline_execution_steps(PipelineExecutionArn=execution, MaxResults=100)
        tries = {row["StepName"]: row.get("AttemptCount") for row in steps["PipelineExecutionSteps"]}
        # Its creates come from the endpoint itself, and stand in no log of calls.
        assert [tries[f"Segment-{number}"] for number in range(1, SEGMENTS + 1)] == [1, 2, 1, 2, 1]


@contextmanager
def airflow(folder: Path, **options: Any) -> Iterator[tuple[FaultyEndpoint, Site]]:
    """Airflow with one DAG, on a faulty endpoint; ``options`` are arguments of its operator."""
    program("airflow", "airflow")
    with faulty_endpoint(folder) as endpoint:
        site = Site(folder)
        try:
            (folder / "dags" / "airflow_dags.py").unlink()
            arguments = {"run": RUN, "job": str(endpoint.job), **options}
            (folder / "dags" / "four_ways.py").write_text(DAG.format(words=arguments))
            yield endpoint, site
        finally:
            site.close()


def test_airflow_in_one_process(tmp_path: Path) -> None:
    with airflow(tmp_path) as (endpoint, site):
        site.run("airflow", "dags", "test", "four_ways", "2026-01-02")
        assert (names(endpoint.check()), endpoint.creates()) == (NAMES, CREATES)


def test_airflows_scheduler_and_triggerer(tmp_path: Path) -> None:
    with airflow(tmp_path, deferrable=True) as (endpoint, site):
        site.start("triggerer", "--skip-serve-logs")
        site.begin(["four_ways"])
        # A new worker starts after each job.
        site.wait("the end", lambda: site.is_("four_ways", "success", "failed"), patience=240)
        assert site.task("four_ways")["state"] == "success", site.log("four_ways")
        assert (names(endpoint.check()), endpoint.creates()) == (NAMES, CREATES)
