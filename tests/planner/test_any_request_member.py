"""Every member of the requests that create jobs: a job may state it, or is told why not."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.loaders import Loader

from smlaunch.api.job_kinds import PROCESSING, TRAINING, JobKind
from smlaunch.api.request_merge import merge_members
from smlaunch.job.request_members import REFUSAL_BY_MEMBER, fold_request
from tests.test_validate import paths_of_model

MODEL = Loader().load_service_model("sagemaker", "service-2")
ACCOUNT = "arn:aws:sagemaker:eu-west-1:123456789012"

EXAMPLE_BY_SHAPE = {
    "S3Uri": "s3://b/x/",
    "FileSystemId": "fs-0123456789abcdef0",
    "RoleArn": "arn:aws:iam::123456789012:role/Trainer",
    "TrainingRepositoryCredentialsProviderArn": "arn:aws:lambda:eu-west-1:123456789012:function:login",
    "HubDataSetArn": f"{ACCOUNT}:hub-content/HUB/DataSet/NAME",
    "ServerlessJobBaseModelArn": f"{ACCOUNT}:hub-content/HUB/Model/NAME",
    "SequenceLength": "4K",
    "MlFlowResourceArn": f"{ACCOUNT}:mlflow-tracking-server/team",
    "ModelPackageGroupArn": f"{ACCOUNT}:model-package-group/team",
    "ModelPackageArn": f"{ACCOUNT}:model-package/team/1",
    "TrainingPlanArn": f"{ACCOUNT}:training-plan/winter-2026-reserved-of-the-team",
    "MetricRegex": "loss=([0-9.]+)",
    "DirectoryPath": "/data",
    "ProcessingLocalPath": "/opt/ml/processing/x",
    "ProcessingInstanceType": "ml.m5.xlarge",
    "TrainingInstanceType": "ml.m5.xlarge",
}


def example_of(shape_name: str, path: tuple[str, ...]) -> Any:
    """Return a valid value of a shape, with its required members and the one that the path names."""
    shape = MODEL["shapes"][shape_name]
    if shape_name in EXAMPLE_BY_SHAPE:
        return EXAMPLE_BY_SHAPE[shape_name]
    if shape["type"] == "structure":
        names = [] if shape.get("union") and path else list(shape.get("required", ()))
        names += [*path[:1]] if path and path[0] not in names else []
        if shape_name == "ProcessingS3Output":  # required by a rule beyond the model
            names += ["LocalPath"]
        names = names or list(shape["members"])[:1]
        return {
            name: example_of(shape["members"][name]["shape"], path[1:] if path[:1] == (name,) else ())
            for name in names
        }
    if shape["type"] == "list":
        return [example_of(shape["member"]["shape"], path)]
    if shape["type"] == "map":
        return {"key": example_of(shape["value"]["shape"], ())}
    if shape["type"] == "string":
        return shape["enum"][0] if "enum" in shape else "x" * max(1, shape.get("min", 1))
    return True if shape["type"] == "boolean" else max(1, shape.get("min", 1))


def contains(value: Any, path: tuple[str, ...]) -> bool:
    if not path:
        return True
    if isinstance(value, list):
        return any(contains(item, path) for item in value)
    return isinstance(value, dict) and path[0] in value and contains(value[path[0]], path[1:])


@pytest.mark.parametrize("kind", [TRAINING, PROCESSING], ids=lambda kind: str(kind.name))
def test_every_member_is_taken_or_refused_with_the_reason(kind: JobKind) -> None:
    input_shape = MODEL["operations"][kind.create_operation]["input"]["shape"]
    paths = list(paths_of_model(kind.create_operation))
    assert len(paths) > 70
    failures = []
    for path in paths:
        request = {path[0]: example_of(MODEL["shapes"][input_shape]["members"][path[0]]["shape"], path[1:])}
        assert contains(request, path), path
        folded = fold_request({"strategy": "processing" if kind is PROCESSING else None, "request": request})
        reasons = [problem.message for problem in folded.problems]
        dotted_path = ".".join(path)
        refusal = next(
            (
                reason
                for member, reason in REFUSAL_BY_MEMBER.items()
                if dotted_path == member or dotted_path.startswith(f"{member}.")
            ),
            None,
        )
        if refusal is not None:
            if reasons != [refusal]:
                failures.append((dotted_path, reasons))
            continue
        field_paths = [
            tuple(step for step in place if isinstance(step, str)) for place in folded.path_by_field.values()
        ]
        is_field = any(path[: len(names)] == names or names[: len(path)] == path for names in field_paths)
        is_sent = contains(merge_members({}, folded.fields.get("request", {})), path)
        if reasons or not (is_field or is_sent):
            failures.append((dotted_path, reasons or "lost"))
    assert not failures
