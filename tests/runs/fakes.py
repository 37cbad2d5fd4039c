"""In-memory fakes of the four interfaces to services."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from smlaunch.api.job_kinds import job_name_of
from smlaunch.aws.interfaces import CallError, JobSummary, LogEvent, StoredObject, TransferItem
from smlaunch.chain.orchestrator_execution import OrchestratorExecution
from smlaunch.discovery.gather_facts import gather_facts
from smlaunch.errors import EXIT_STOPPED
from smlaunch.facts.discovered_facts import DiscoveredFacts, SourceFacts
from smlaunch.job.model import Job
from smlaunch.planner.plan_context import fact_needs
from smlaunch.runs.job_poller import Polling
from smlaunch.runs.launch_target import Target

REGION = "us-east-1"
ACCOUNT = "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/train"
BUCKET = f"sagemaker-{REGION}-{ACCOUNT}"
INSTANT_POLLING = Polling(
    initial_seconds=0.0,
    max_seconds=0.0,
    backoff_factor=1.0,
    settle_seconds=0.0,
    give_up_seconds=10.0,
    time_scale=0.0,
)


def time_at(second: float) -> datetime:
    return datetime.fromtimestamp(1_800_000_000 + second, timezone.utc)


class FakeControl:
    """``script``: for a job's name, the answers that Describe gives in turn; the last one stays. An
    exception among them is raised instead."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.create_errors: list[CallError] = []
        self.descriptions_by_job: dict[str, list[dict[str, Any] | CallError]] = {}
        self.tags_of: dict[str, dict[str, str]] = {}
        self.stopped: list[str] = []

    def create_job(self, request: Mapping[str, Any]) -> str:
        if self.create_errors:
            raise self.create_errors.pop(0)
        name = job_name_of(request)
        if name in self.descriptions_by_job:
            raise CallError("CreateTrainingJob", "ResourceInUse", f"{name} exists", 400)
        self.created.append(dict(request))
        arn = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/{name}"
        self.tags_of[arn] = {tag["Key"]: tag["Value"] for tag in request.get("Tags", [])}
        self.descriptions_by_job[name] = [
            job_description(name, "Completed", ["Starting", "Training", "Completed"])
        ]
        return arn

    def describe_job(self, name: str) -> dict[str, Any]:
        answers = self.descriptions_by_job.get(name)
        if not answers:
            raise CallError(
                "DescribeTrainingJob", "ValidationException", "Requested resource not found.", 400
            )
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, CallError):
            raise answer
        return answer

    def stop_job(self, name: str) -> None:
        self.stopped.append(name)

    def list_jobs(self, name_contains: str | None = None) -> Iterator[JobSummary]:
        for name in reversed(self.descriptions_by_job):
            if name_contains is None or name_contains in name:
                answer = self.descriptions_by_job[name][-1]
                assert not isinstance(answer, CallError)
                yield JobSummary(
                    name,
                    answer["TrainingJobArn"],
                    answer["TrainingJobStatus"],
                    answer["CreationTime"].timestamp(),
                    None,
                )

    def list_jobs_with_tag(self, key: str, value: str) -> Iterator[JobSummary]:
        return (row for row in self.list_jobs() if self.list_tags(row.arn).get(key) == value)

    def list_tags(self, arn: str) -> dict[str, str]:
        return self.tags_of.get(arn, {})


def job_description(name: str, status: str, states: Sequence[str], **fields: Any) -> dict[str, Any]:
    """A DescribeTrainingJob answer that has gone through ``states``, one a second."""
    return {
        "TrainingJobName": name,
        "TrainingJobArn": f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/{name}",
        "TrainingJobStatus": status,
        "SecondaryStatus": states[-1],
        "SecondaryStatusTransitions": [
            {"Status": state, "StartTime": time_at(second), "StatusMessage": f"{state} it is"}
            for second, state in enumerate(states)
        ],
        "CreationTime": time_at(0),
        "ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30},
        **fields,
    }


class FakeOrchestrators:
    """``executions``: what executions answer. ``stopped``: executions that were stopped."""

    def __init__(self) -> None:
        self.executions: dict[str, OrchestratorExecution] = {}
        self.stopped: list[str] = []

    def describe_execution(self, execution: str) -> OrchestratorExecution | None:
        return self.executions.get(execution)

    def stop_execution(self, execution: str) -> bool:
        if execution in self.executions:
            self.stopped.append(execution)
            self.executions[execution] = OrchestratorExecution(
                True, EXIT_STOPPED, "its execution was stopped"
            )
        return execution in self.executions


class FakeStorage:
    def __init__(self, buckets: Sequence[str] = (BUCKET,)) -> None:
        self.objects: dict[str, dict[str, bytes]] = {bucket: {} for bucket in buckets}
        self.puts: list[str] = []

    def object_size(self, bucket: str, key: str) -> int | None:
        content = self.objects.get(bucket, {}).get(key)
        return None if content is None else len(content)

    def list_objects(self, bucket: str, prefix: str) -> Iterator[StoredObject]:
        if bucket not in self.objects:
            raise CallError("ListObjectsV2", "NoSuchBucket", "The specified bucket does not exist", 404)
        for key, content in sorted(self.objects[bucket].items()):
            if key.startswith(prefix):
                yield StoredObject(key, len(content), hashlib.md5(content, usedforsecurity=False).hexdigest())

    def get_bytes(self, bucket: str, key: str) -> bytes | None:
        return self.objects.get(bucket, {}).get(key)

    def read_chunks(self, bucket: str, key: str) -> Iterator[bytes]:
        content = self.get_bytes(bucket, key)
        if content is None:
            raise CallError("GetObject", "NoSuchKey", "The specified key does not exist.", 404)
        for start in range(0, len(content), 1000):
            yield content[start : start + 1000]

    def put_bytes(self, bucket: str, key: str, content: bytes) -> None:
        if bucket not in self.objects:
            raise CallError("PutObject", "NoSuchBucket", "The specified bucket does not exist", 404)
        self.objects[bucket][key] = content
        self.puts.append(key)

    def put_if_absent(self, bucket: str, key: str, content: bytes) -> bool:
        if key in self.objects.get(bucket, {}):
            return False
        self.put_bytes(bucket, key, content)
        return True

    def put_file(self, bucket: str, key: str, source: Path) -> None:
        self.put_bytes(bucket, key, source.read_bytes())

    def delete_objects(self, bucket: str, keys: Sequence[str]) -> None:
        for key in keys:
            self.objects.get(bucket, {}).pop(key, None)

    def create_bucket(self, bucket: str, region: str) -> bool:
        new = bucket not in self.objects
        self.objects.setdefault(bucket, {})
        return new

    def check_bucket_owner(self, bucket: str) -> None:
        if bucket not in self.objects:
            raise CallError("HeadBucket", "NoSuchBucket", f"there is no bucket {bucket}", 404)


class FakeTransfer:
    """Transfers into the storage, one file at a time."""

    def __init__(self, storage: FakeStorage) -> None:
        self._storage = storage

    def upload_files(
        self, bucket: str, items: Sequence[TransferItem], on_progress: Callable[[int, int], None]
    ) -> None:
        from smlaunch.data.s3_checksums import read_file  # a launch without data loads nothing of it

        for item in items:
            self._storage.put_bytes(bucket, item.key, read_file(item))
            on_progress(item.size, 1)

    def download_files(
        self, bucket: str, items: Sequence[TransferItem], on_progress: Callable[[int, int], None]
    ) -> None:
        for item in items:
            item.path.parent.mkdir(parents=True, exist_ok=True)
            item.path.write_bytes(self._storage.objects[bucket][item.key])
            on_progress(item.size, 1)

    def has_same_content(self, bucket: str, item: TransferItem) -> bool:
        stored = self._storage.objects[bucket][item.key]
        if item.sha256 is not None:
            return hashlib.sha256(stored).digest() == item.sha256
        return item.path.is_file() and item.path.read_bytes() == stored


class FakeLogs:
    """Streams by name; the token is the number of events read."""

    def __init__(self) -> None:
        self.events_by_stream: dict[str, list[LogEvent]] = {}
        self.errors: list[CallError] = []
        self.page_size = 1000

    def add_lines(self, stream: str, *texts: str) -> None:
        events = self.events_by_stream.setdefault(stream, [])
        events.extend(LogEvent(1000 * (len(events) + number), text) for number, text in enumerate(texts))

    def list_streams(self, group: str, prefix: str) -> Sequence[str]:
        return [name for name in self.events_by_stream if name.startswith(prefix)]

    def read_last_page(self, group: str, stream: str) -> Sequence[LogEvent]:
        return self.events_by_stream[stream][-self.page_size :]

    def read_page(self, group: str, stream: str, token: str | None) -> tuple[Sequence[LogEvent], str | None]:
        if self.errors:
            raise self.errors.pop(0)
        start = int(token or 0)
        events = self.events_by_stream[stream][start : start + self.page_size]
        return events, str(start + len(events))


class FakeIdentity:
    def __init__(self, arn: str = f"arn:aws:iam::{ACCOUNT}:user/ada", roles: Sequence[str] = ()) -> None:
        self.arn = arn
        self.roles = {arn.rpartition("/")[2]: arn for arn in roles}

    def get_caller_identity(self) -> tuple[str, str]:
        return self.arn.split(":")[4], self.arn

    def find_role_arn(self, name: str) -> str | None:
        return self.roles.get(name)


class FakeQuotas:
    """``answer``: quotas by name, or the error of a request. ``requested_quotas``: names of each request."""

    def __init__(self, answer: Mapping[str, float] | CallError | None = None) -> None:
        self.answer = {} if answer is None else answer
        self.requested_quotas: list[tuple[str, ...]] = []

    def quota_values(self, names: Collection[str]) -> dict[str, float]:
        self.requested_quotas.append(tuple(names))
        if isinstance(self.answer, CallError):
            raise self.answer
        return {name: value for name, value in self.answer.items() if name in names}


def fake_target(**services: Any) -> Target:
    """Returns a target whose services are fakes."""
    target = Target("aws", REGION, INSTANT_POLLING, session=None, **services)
    storage = FakeStorage()
    target.__dict__.update(
        control_plane=FakeControl(),
        storage=storage,
        input_storage=storage,
        transfer=FakeTransfer(storage),
        logs=FakeLogs(),
        orchestrators=FakeOrchestrators(),
        identity=FakeIdentity(),
        quotas=FakeQuotas(),
    )
    return target


def gather_needed_facts(job: Job, target: Target, source: SourceFacts) -> DiscoveredFacts:
    """Return the facts that the planner needs for a job."""
    return gather_facts(job, target, source, fact_needs(job))
