"""The schema says yes to every job that is one, and no to what it can see to be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from smlaunch.catalog.strategies import BUILT_IN_STRATEGIES
from smlaunch.job.json_schema import job_schema
from smlaunch.job.model import Job
from smlaunch.job.sections import field_names
from smlaunch.job.yaml_file import read_job_file
from tests.test_job import ONE_MISTAKE

SCHEMA = job_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
JOBS = Path(__file__).parent / "planner" / "workloads"

VALID_JOBS: list[dict[str, Any]] = [
    {"entry": "train.py"},
    {"entry": {"module": "package.train"}},
    {"entry": {"command": ["bash", "run.sh", 3]}, "requirements": "none"},
    {"algorithm": "xgboost", "inputs": {"train": "s3://b/train/"}},
    {"image": "repository:1", "args": ["a", 3]},
    {"entry": "t.py", "checkpoints": "s3://b/c/", "inputs": {"a": {"uri": "s3://b/", "split": "bytes"}}},
    {"entry": "t.py", "limits": {"max_runtime": "60d", "segment": "1h30m"}, "environment": {"A": 1}},
    {"entry": "t.py", "compute": {"processes_per_host": "auto", "instance_preferences": ["ml.g5.xlarge"]}},
    {"entry": "t.py", "segments": [{"compute": {"hosts": 2}, "until_step": 10}, {"length": "2h"}]},
]
NOT_IN_THE_SCHEMA = {
    "limits.max_runtime": "the sum of a duration's parts",
    "source": "what is text and what a character",
}


def test_the_schema_is_valid() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert set(SCHEMA["properties"]) == set(field_names(Job))


@pytest.mark.parametrize("mapping", VALID_JOBS, ids=str)
def test_valid_jobs_pass(mapping: dict[str, Any]) -> None:
    Job.from_mapping(mapping)
    assert not list(VALIDATOR.iter_errors(mapping))


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.yaml")), ids=lambda path: str(path.stem))
def test_job_files_of_the_described_workloads_pass(path: Path) -> None:
    document = read_job_file(path)
    assert not list(VALIDATOR.iter_errors(document.get("job", document)))


@pytest.mark.parametrize(
    "mapping",
    [
        {},
        {"entry": "train.py", "strategy": "dpp"},
        {"entry": {"command": "bash run.sh"}},
        {"entry": {"modul": "package.train"}},
        {"entry": "train.py", "hosts": 2},
        {"entry": "train.py", "compute": {"hosts": 0}},
        {"entry": "train.py", "compute": {"instance_type": "m5.xlarge"}},
        {"entry": "train.py", "inputs": {"a": {"mode": "File"}}},
        {"entry": "train.py", "limits": {"segment": "soon"}},
        {"entry": "train.py", "checkpoints": {"keep": 1}},
    ],
    ids=str,
)
def test_visible_mistakes_are_rejected(mapping: dict[str, Any]) -> None:
    assert list(VALIDATOR.iter_errors(mapping))


def test_most_mistakes_are_rejected() -> None:
    """Not all: a schema knows nothing of surrogates, or of what two fields mean together."""
    rejections = [
        bool(list(VALIDATOR.iter_errors({"entry": "train.py", **mistake})))
        for mistake, _ in ONE_MISTAKE
        if all(isinstance(key, str) for key in mistake)
    ]
    assert sum(rejections) >= 0.6 * len(rejections)


def test_every_field_is_described() -> None:
    missing = [
        f"{name}.{field}"
        for name, part in (("Job", SCHEMA), *SCHEMA["$defs"].items())
        for field, schema in part.get("properties", {}).items()
        if "description" not in schema and "$ref" not in schema
    ]
    assert not missing


def test_strategies_are_named() -> None:
    assert set(BUILT_IN_STRATEGIES) <= set(SCHEMA["properties"]["strategy"]["anyOf"][0]["enum"])
