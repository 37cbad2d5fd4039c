"""Options and job files with members of the API: what is sent, and where a mistake is reported."""

from __future__ import annotations

import json

from tests.cli.conftest import Shell

JOB = """\
entry: train.py
output: s3://b/models/
request:
  ResourceConfig: {InstanceCount: 3, VolumeSizeInGB: 50}
  DebugHookConfig: {S3OutputPath: "s3://b/debug/"}
"""
PLACE = ("--region", "us-east-1", "--role", "arn:aws:iam::123456789012:role/R")


def test_options_are_sent_and_override_the_request_of_the_file(shell: Shell) -> None:
    (shell.folder / "job.yaml").write_text(JOB)
    plan_arn = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/winter"
    arguments = ["plan", "job.yaml", *PLACE, "--kms-key", "alias/models", "--training-plan", plan_arn]
    arguments += ["--instance-type", "ml.p5.48xlarge", "--hosts", "2", "--json"]
    outcome = shell(*arguments)
    assert outcome.code == 0, outcome.err
    (request,) = json.loads(outcome.out)["requests"]
    assert request["OutputDataConfig"] == {"S3OutputPath": "s3://b/models/", "KmsKeyId": "alias/models"}
    resources = request["ResourceConfig"]
    assert (resources["TrainingPlanArn"], resources["InstanceCount"]) == (plan_arn, 2)
    assert request["DebugHookConfig"] == {"S3OutputPath": "s3://b/debug/"}
    refused = shell(
        *arguments, "--volume-kms-key", "alias/disks"
    )  # hosts of that type have disks of their own
    assert refused.code == 2
    assert "compute.volume_kms_key: VolumeKmsKeyId cannot be given" in refused.err
    assert "(from --volume-kms-key)" in refused.err


def test_a_mistake_is_reported_at_the_line_of_the_member(shell: Shell) -> None:
    (shell.folder / "job.yaml").write_text(
        JOB.replace("VolumeSizeInGB: 50", "KeepAlivePeriodInSeconds: 90000")
    )
    outcome = shell("plan", "job.yaml", *PLACE)
    assert outcome.code == 2
    assert "request.ResourceConfig.KeepAlivePeriodInSeconds:" in outcome.err
    assert "(from job.yaml, line 4)" in outcome.err
