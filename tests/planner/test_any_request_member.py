"""Every member of the requests that create jobs: a job may state it, or is told why not."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.loaders import Loader
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.api.job_kinds import PROCESSING, TRAINING, JobKind
from smlaunch.api.request_merge import merge_members
from smlaunch.errors import JobError
from smlaunch.job.model import Job
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


NAMES = sorted(
    {
        name
        for kind in (TRAINING, PROCESSING)
        for path in paths_of_model(kind.create_operation)
        for name in path
    }
)


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


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(
    request=st.dictionaries(st.sampled_from(NAMES), JSON_VALUES, max_size=3),
    strategy=st.sampled_from([None, "processing", "zork", 3]),
    stated=st.dictionaries(
        st.sampled_from(["compute", "output", "inputs", "metrics", "tags", "limits", "checkpoints"]),
        st.sampled_from([None, 3, "s3://b/", {}, [], {"train": "s3://b/"}, {"uri": "s3://b/"}]),
    ),
)
def test_any_request_is_read_or_refused(request: Any, strategy: Any, stated: dict[str, Any]) -> None:
    try:
        job = Job.from_mapping({"image": "i", "strategy": strategy, "request": request, **stated})
    except JobError as error:
        assert all(problem.message for problem in error.problems)
    else:
        assert Job.from_mapping(job.to_mapping()) == job
