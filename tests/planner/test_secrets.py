"""Secrets of a job: job.json refers to them, the plan names them, and no request contains any."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smlaunch.contract.secret_reference import SecretReference, parse_secret_reference
from smlaunch.errors import JobError
from smlaunch.job.model import Job
from smlaunch.runs.plan_job import prepare_export
from tests.planner.fixtures import local, plan
from tests.runs.fakes import fake_target
from tests.tables import table

ARN = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:hub-token-AbCdEf"
SECRETS = {"HF_TOKEN": f"secretsmanager:{ARN}", "WANDB_API_KEY": "ssm:/research/wandb"}


@table(
    ("text", "reference"),
    [
        (f"secretsmanager:{ARN}", SecretReference("secretsmanager", ARN)),
        ("secretsmanager:hub/token", SecretReference("secretsmanager", "hub/token")),
        ("ssm:/research/wandb", SecretReference("ssm", "/research/wandb")),
        ("ssm:", None),
        ("hub/token", None),
        ("secretsmanager:a b", None),
        (f"ssm:{ARN}", None),
    ],
)
def test_a_reference_names_service_and_secret(text: str, reference: SecretReference | None) -> None:
    assert parse_secret_reference(text) == reference
    assert reference is None or (reference.region is None) == (reference.id != ARN)


def test_only_job_json_has_the_references() -> None:
    job_plan = plan({"secrets": SECRETS})
    (job_json,) = (upload.content for upload in job_plan.uploads if upload.kind == "launch")
    document = json.loads(job_json or "")
    assert (document["secrets"], document["version"]) == (SECRETS, "1.3")
    assert "hub-token" not in json.dumps(job_plan.requests)
    assert "HF_TOKEN" not in json.dumps(job_plan.requests)


def test_the_plan_names_what_the_role_needs() -> None:
    text = " ".join(str(plan({"secrets": SECRETS})).split())
    assert f"secretsmanager:GetSecretValue for HF_TOKEN ({ARN})" in text
    assert "ssm:GetParameter for WANDB_API_KEY (/research/wandb)" in text
    assert "NAT gateway" not in text
    in_vpc = {"subnets": ["subnet-1"], "security_groups": ["sg-1"]}
    assert "NAT gateway" in " ".join(str(plan({"secrets": SECRETS, **in_vpc})).split())
    assert "the extra [moto]" in " ".join(str(plan({"secrets": SECRETS}, local())).split())


def test_a_value_in_place_of_a_reference_is_not_printed() -> None:
    with pytest.raises(JobError) as caught:
        Job(entry="train.py", secrets={"HF_TOKEN": "hunter2"})
    assert "no reference to a secret" in str(caught.value) and "hunter2" not in str(caught.value)


def test_an_export_with_a_secret_in_the_environment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")
    job = Job(entry="train.py", environment={"HF_TOKEN": "hunter2", "LR": "1"})
    with pytest.raises(JobError) as caught:
        prepare_export(job, fake_target())
    (problem,) = caught.value.problems
    assert problem.path == "environment.HF_TOKEN" and "under secrets" in problem.message
    assert "hunter2" not in str(caught.value)
