"""The cases of bad_jobs.yaml, and a region that records every attempt to change something."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from smlaunch.aws.interfaces import CallError, JobSummary, StoredObject
from smlaunch.facts.discovered_facts import EndpointFacts
from smlaunch.runs.launch_target import Target
from tests.runs.fakes import ACCOUNT, INSTANT_POLLING, FakeIdentity, FakeQuotas

REGION = "us-east-1"
ORDINARY_SCRIPT = "import torch.distributed\n"
ORDINARY_OBJECTS = 100
_EACH = 1_000_000
"""Bytes of an object whose size a case does not tell."""


class Case(NamedTuple):
    """``says``: expected texts by field."""

    name: str
    job: dict[str, Any]
    world: dict[str, Any]
    says: dict[str, list[str]]


def cases() -> list[Case]:
    rows = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return [
        Case(row["name"], _job(row["job"]), row.get("world", {}), _expected_texts(row["says"], row["job"]))
        for row in rows
    ]


def _job(job: Mapping[str, Any]) -> dict[str, Any]:
    fields = _expand(job)
    if not {"entry", "algorithm", "image"} & set(fields):
        fields = {"entry": "train.py", **fields}
    return fields


def _expected_texts(says: Mapping[str, Sequence[str]], job: Mapping[str, Any]) -> dict[str, list[str]]:
    long = next(
        (_long_text(value) for value in job.values() if isinstance(value, dict) and "_long" in value), ""
    )
    return {field.replace("{long}", long): list(texts) for field, texts in says.items()}


def _long_text(value: Mapping[str, Any]) -> str:
    length, text = value["_long"]
    return str((text * math.ceil(length / len(text)))[:length])


def _expand(value: Any, keeps: str = "") -> Any:
    """Replaces ``_many`` by that many entries. ``keeps``: the section; it decides between a mapping and a
    list."""
    if isinstance(value, list):
        return [_expand(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "_long" in value:
        return {_long_text(value): 1} if keeps == "hyperparameters" else _long_text(value)
    if "_many" in value:
        count, each = value["_many"]
        if keeps == "subnets":
            return [f"{each}{index}" for index in range(count)]
        return {f"k{index}": each for index in range(count)}
    return {key: _expand(item, key) for key, item in value.items()}


class Recorder:
    """Records the operations that would change something."""

    def __init__(self) -> None:
        self.writes: list[str] = []

    def note(self, operation: str) -> None:
        self.writes.append(operation)
        raise AssertionError(f"{operation}, though the job cannot work")


class Storage:
    """ObjectStorage: ``objects`` as a case tells them."""

    def __init__(self, objects: Mapping[str, Any], recorder: Recorder) -> None:
        self._prefixes = objects
        self._recorder = recorder

    def list_objects(self, bucket: str, prefix: str) -> Iterator[StoredObject]:
        objects = self._prefixes.get(f"s3://{bucket}/{prefix}", ORDINARY_OBJECTS)
        if objects is None:
            raise CallError("ListObjectsV2", "NoSuchBucket", "The specified bucket does not exist", 404)
        if isinstance(objects, int):
            objects = {f"part-{index:04d}.bin": _EACH for index in range(objects)}
        for name, content in sorted(objects.items()):
            yield StoredObject(prefix + name, len(content) if isinstance(content, str) else int(content))

    def object_size(self, bucket: str, key: str) -> int | None:
        return None

    def get_bytes(self, bucket: str, key: str) -> bytes | None:
        for prefix, objects in self._prefixes.items():
            uri = f"s3://{bucket}/{key}"
            if isinstance(objects, dict) and uri.startswith(prefix):
                return str(objects[uri[len(prefix) :]]).encode()
        return None

    def read_chunks(self, bucket: str, key: str) -> Iterator[bytes]:
        raise CallError("GetObject", "NoSuchKey", "The specified key does not exist.", 404)

    def put_bytes(self, bucket: str, key: str, content: bytes) -> None:
        self._recorder.note(f"put {key}")

    def put_new(self, bucket: str, key: str, content: bytes) -> bool:
        self._recorder.note(f"put {key}")
        return True

    def put_file(self, bucket: str, key: str, source: Path) -> None:
        self._recorder.note(f"put {key}")

    def delete_objects(self, bucket: str, keys: Sequence[str]) -> None:
        self._recorder.note("delete")

    def create_bucket(self, bucket: str, region: str) -> bool:
        self._recorder.note(f"made {bucket}")
        return True


class Control:
    """ControlPlane: an account without jobs."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def create_job(self, request: Mapping[str, Any]) -> str:
        self._recorder.note("created a job")
        return ""

    def describe_job(self, name: str) -> dict[str, Any]:
        raise CallError("DescribeTrainingJob", "ValidationException", "Requested resource not found.", 400)

    def stop_job(self, name: str) -> None:
        self._recorder.note(f"stopped {name}")

    def list_jobs(self, name_contains: str | None = None) -> Iterator[JobSummary]:
        return iter(())

    def list_tags(self, arn: str) -> dict[str, str]:
        return {}


def target_of(case: Case) -> tuple[Target, Recorder]:
    """Returns a region as the case describes it."""
    recorder = Recorder()
    role = None if case.world.get("role") is False else f"arn:aws:iam::{ACCOUNT}:role/train"
    facts = EndpointFacts(same_python=True) if case.world.get("same_python") else None
    target = Target("aws", REGION, INSTANT_POLLING, session=None, role=role, facts=facts)
    storage = Storage(case.world.get("objects", {}), recorder)
    target.__dict__.update(
        control_plane=Control(recorder),
        storage=storage,
        input_storage=storage,
        transfer=None,
        logs=None,
        identity=FakeIdentity(),
        quotas=FakeQuotas(case.world.get("quotas", {})),
    )
    return target, recorder


def write_config(case: Case, folder: Path) -> Path:
    """Write the team's configuration file of a case, and return its path."""
    path = folder / "team.yaml"
    path.write_text(yaml.safe_dump(case.world.get("config", {})))
    return path


def write_source(case: Case, folder: Path) -> None:
    (folder / "train.py").write_text(case.world.get("script", ORDINARY_SCRIPT))
    for name, text in case.world.get("files", {}).items():
        (folder / name).write_text(text)
