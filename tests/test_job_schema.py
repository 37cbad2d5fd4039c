"""The schema says yes to every job that is one, and no to what it can see to be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from smlaunch.catalog.strategies import BUILT_IN_STRATEGIES
from smlaunch.errors import JobError
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


VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, -1, 2**31 - 1, 2**31, 0.5, 1.5, 1e14, 1e16, [], {}, ["a"], ["a", 3]),
    *([" ", "a"], [1.5], [None], {"a": 1}, {"": 1}, {"a": "b"}, {"a": None}, {".": "s3://b/x/"}),
    *({"a b": "x"}, {"1A": "x"}, {"uri": "s3://b/x"}, {"hosts": 2}, {"uri": None}, {"script": "a.py"}),
    *({"module": "a.b"}, {"module": "a-b"}, {"module": ".a"}, {"command": ["a", 1]}, {"command": []}),
    *({"script": "a.py", "module": None}, {"script": "a.py", "module": "b"}, [{"length": "5m"}], [{}]),
    *({"a": {"uri": "s3://b/x", "mode": "Pipe"}}, {"a": "file:///x"}, {"a": "gs://x/y"}, {"a": "data"}),
    *(
        "",
        " ",
        "x",
        "a.py",
        "a.yaml",
        "a.YML",
        "folder/",
        "s3://b",
        "s3://b/x",
        "s3://",
        "s3:///x",
        "S3://b/x",
    ),
    *("file:///a/b", "FILE://localhost/a", "file://x/y", "file:///a%00b", "gs://b/x", "a://", "s3://b c/x"),
    *("24h", "1h30m", "0s", "0d0h", "30m1h", "5", "h", "60GB", "1.5TB", "0GB", "0.0 MB", "0.5 B", "60 KiB"),
    *(" 60GB ", "60gb", "GB", "ml.g5.xlarge", "ml.g5", "g5.xlarge", "auto", "ddp", "dpp", "custom", "mxnet"),
    *("123456789012", "12345678901", "a-b", "-a", "a--b", "A", "a" * 40, "a" * 41, "-".join("a" * 21)),
    *("File", "Pipe", "key", "bytes", "shards", "sync", "direct", "runtime", "torchrun", "light", "heavy"),
]
"""No number such as 2.0, which is a whole one for a schema; no text with NUL, and no break at its end."""

SECTIONS = {
    "compute": SCHEMA["$defs"]["Compute"],
    "limits": SCHEMA["$defs"]["Limits"],
    "workload": SCHEMA["$defs"]["Workload"],
    "checkpoints": SCHEMA["$defs"]["Checkpoints"],
}
sections = st.one_of(
    *(
        st.dictionaries(
            st.sampled_from(sorted(part["properties"])), st.sampled_from(VALUES), min_size=1, max_size=2
        ).map(lambda fields, name=name: {name: fields})  # type: ignore[misc]
        for name, part in SECTIONS.items()
    ),
    st.dictionaries(
        st.sampled_from(sorted(SCHEMA["properties"])), st.sampled_from(VALUES), min_size=1, max_size=2
    ),
    st.dictionaries(
        st.sampled_from(sorted(SCHEMA["$defs"]["Channel"]["properties"])),
        st.sampled_from(VALUES),
        max_size=2,
    ).map(lambda fields: {"inputs": {"a": {"uri": "s3://b/x/", **fields}}}),
    st.dictionaries(
        st.sampled_from(sorted(SCHEMA["$defs"]["SegmentChange"]["properties"])),
        st.sampled_from(VALUES),
        max_size=2,
    ).map(lambda fields: {"segments": [fields]}),
)


def is_read(mapping: dict[str, Any]) -> bool:
    try:
        Job.from_mapping(mapping)
    except JobError:
        return False
    return True


@settings(max_examples=300, deadline=None)
@given(
    sections, st.sampled_from([{}, {"entry": "train.py"}, {"entry": "train.py"}, {"algorithm": "xgboost"}])
)
def test_the_schema_and_the_reader_agree(fields: dict[str, Any], program: dict[str, Any]) -> None:
    mapping = {**program, **fields}
    problems = [error.message for error in VALIDATOR.iter_errors(mapping)]
    assert is_read(mapping) == (not problems), problems


def test_the_schema_and_the_reader_agree_on_every_field_and_value() -> None:
    rows = [{"entry": "train.py", field: value} for field in SCHEMA["properties"] for value in VALUES]
    for name, part in SECTIONS.items():
        rows += [
            {"entry": "train.py", name: {field: value}} for field in part["properties"] for value in VALUES
        ]
    rows += [
        {"entry": {field: value}} for field in SCHEMA["$defs"]["Entry"]["properties"] for value in VALUES
    ]
    differing = [row for row in rows if is_read(row) == bool(list(VALIDATOR.iter_errors(row)))]
    assert not differing, f"{len(differing)} of {len(rows)}: {differing[:20]}"
