"""Ranks that transfer their own parts: each downloads what it opens, S3 decides, and failures are
reported."""

from __future__ import annotations

import errno
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EndpointConnectionError

from smlaunch.contract.checkpoint_layout import step_directory
from smlaunch.contract.segment import DIRECT, SYNC, Segment
from smlaunch.contract.segment_outcome import FINISHED, SegmentOutcome
from smlaunch.train.checkpoint_store import CheckpointStore, DamagedFileError
from smlaunch.train.transports import open_transport
from smlaunch.train.transports.base import LoadFailed, PendingUpload, SaveFailed, UploadFailed
from smlaunch.train.transports.direct import DirectTransport
from smlaunch.train.transports.sync import SyncTransport
from smlaunch.train.transports.upload_monitor import UploadMonitor
from smlaunch.train.tree_format import Buffer, encode_tree

_NUMBERS = itertools.count()


class Hosts:
    """Two hosts with a rank each, and one prefix in S3."""

    def __init__(self, s3: Any, folder: Path) -> None:
        self.s3 = s3
        self.folder = folder
        self.prefix = f"direct/{next(_NUMBERS)}/"
        self.messages: list[str] = []
        self.waited: list[float] = []
        self._fresh = itertools.count()

    def transport(self, client: Any = None) -> DirectTransport:
        return DirectTransport(
            f"s3://tests/{self.prefix}",
            client=client or self.s3,
            on_message=self.messages.append,
            sleep=self.waited.append,
        )

    def store(self, rank: int, host: str = "", **settings: Any) -> CheckpointStore:
        """Returns a store; a host without a name is a new one."""
        folder = self.folder / (host or f"fresh-{next(self._fresh)}") / "checkpoints"
        settings.setdefault("transport", self.transport())
        return CheckpointStore(str(folder), rank, 2, **settings)

    def save(self, *steps: int, size: int = 10, **settings: Any) -> list[CheckpointStore]:
        stores = [self.store(rank, f"algo-{rank + 1}", **settings) for rank in range(2)]
        for step in steps:
            parts = [store.write_shard(step, content(step, store.rank, size)) for store in stores]
            stores[0].commit(step, parts)
            stores[1].mark_committed(step)
        return stores

    def names(self) -> list[str]:
        rows = self.s3.list_objects_v2(Bucket="tests", Prefix=self.prefix).get("Contents", [])
        return [row["Key"].removeprefix(self.prefix) for row in rows]

    def part(self, step: int, rank: int) -> str:
        (name,) = [key for key in self.names() if key.startswith(f"{step_directory(step)}/rank-{rank:05d}")]
        return self.prefix + name


@pytest.fixture
def hosts(s3: Any, tmp_path: Path) -> Hosts:
    return Hosts(s3, tmp_path)


class Flaky:
    """A client whose method fails the given number of times, and counts its calls."""

    def __init__(self, client: Any, method: str, error: Exception, times: int = 1 << 30) -> None:
        self._client = client
        self._method = method
        self._error = error
        self._times = times
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        if name != self._method:
            return getattr(self._client, name)
        return self._call

    def _call(self, *arguments: Any, **keywords: Any) -> Any:
        self.calls += 1
        if self._times:
            self._times -= 1
            raise self._error
        return getattr(self._client, self._method)(*arguments, **keywords)


def content(step: int, rank: int, size: int = 10) -> Iterator[bytes | memoryview]:
    data = bytes([1 + rank]) * size
    return encode_tree({"step": step, "rank": rank, "data": Buffer("any", (size,), data)}).chunks()


def answer(status: int, code: str) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
        "PutObject",
    )


def files(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in Path(store.directory).rglob("*") if path.is_file())


def test_a_fresh_host_brings_the_parts_it_opens_and_no_others(hosts: Hosts) -> None:
    hosts.save(1, 2)
    fresh = hosts.store(1)
    newest = fresh.newest_intact_manifest(ranks=[1])
    assert newest is not None and newest.step == 2
    assert fresh.open_shard(newest).read_tree()["rank"] == 1
    assert [name[:10] for name in files(fresh)] == ["rank-00001"]
    assert fresh.open_shard(newest, 0).read_tree()["rank"] == 0, (
        "what is shared by all is brought when it is opened"
    )
    assert [name[:10] for name in files(fresh)] == ["rank-00000", "rank-00001"]


def test_a_large_part_goes_in_pieces_and_comes_back(hosts: Hosts) -> None:
    hosts.save(1, size=(33 << 20) + 1)
    head = hosts.s3.head_object(Bucket="tests", Key=hosts.part(1, 0))
    assert head["ETag"].strip('"').endswith("-3"), "three pieces of 16 MiB"
    tree = hosts.store(1).open_shard(1).read_tree()
    assert tree["data"].data == bytes([2]) * ((33 << 20) + 1)


def test_the_commit_is_the_last_to_arrive(hosts: Hosts) -> None:
    stores = [hosts.store(rank) for rank in range(2)]
    parts = [store.write_shard(1, content(1, store.rank)) for store in stores]
    assert "COMMIT" not in "".join(hosts.names()) and hosts.store(0).committed_manifests() == []
    flaky = Flaky(hosts.s3, "upload_file", answer(403, "AccessDenied"))
    leader = hosts.store(0, transport=hosts.transport(flaky))
    with pytest.raises(UploadFailed):
        leader.commit(1, parts)
    assert hosts.store(0).committed_manifests() == [], (
        "a manifest that did not arrive is followed by no COMMIT"
    )
    stores[0].commit(1, parts)
    assert [manifest.step for manifest in hosts.store(1).committed_manifests()] == [1]


def test_what_is_torn_in_s3_is_not_taken(hosts: Hosts) -> None:
    hosts.save(1, 2, 3, 4)
    part_bytes = hosts.s3.get_object(Bucket="tests", Key=hosts.part(4, 0))["Body"].read()
    hosts.s3.put_object(Bucket="tests", Key=hosts.part(4, 0), Body=part_bytes[:-1])
    hosts.s3.put_object(Bucket="tests", Key=hosts.part(3, 0), Body=b"x" + part_bytes[1:])
    hosts.s3.delete_object(Bucket="tests", Key=hosts.part(2, 0))
    fresh = hosts.store(0)
    assert [manifest.step for manifest in fresh.committed_manifests()] == [3, 1]
    newest = fresh.newest_intact_manifest(ranks=[0])
    assert newest is not None and newest.step == 1
    with pytest.raises(DamagedFileError, match="the object in S3 does not match the manifest"):
        fresh.open_shard(3)
    assert len(files(fresh)) == 1


def test_old_steps_go_in_s3_too(hosts: Hosts) -> None:
    stores = hosts.save(1, 2, 3, 4, keep_last=2)
    for store in reversed(stores):
        store.delete_old_steps()
    assert {key.rpartition("/")[0] for key in hosts.names()} == {step_directory(3), step_directory(4)}


def test_what_s3_does_not_delete_is_told_and_costs_nothing(hosts: Hosts) -> None:
    stores = hosts.save(
        1, 2, keep_last=1, transport=hosts.transport(Flaky(hosts.s3, "delete_objects", answer(403, "No")))
    )
    assert stores[0].delete_old_steps() == [1]
    assert "delete failed" in hosts.messages[0] and "it stays in S3" in hosts.messages[0]


def test_a_part_that_is_there_is_not_sent_again(hosts: Hosts) -> None:
    hosts.save(1)
    watched = Flaky(hosts.s3, "upload_file", Exception(), times=0)
    hosts.store(0, transport=hosts.transport(watched)).write_shard(1, content(1, 0))
    assert watched.calls == 0


def test_the_outcome_is_found_from_anywhere(hosts: Hosts) -> None:
    assert hosts.store(0).read_outcome() is None
    hosts.store(0).write_outcome(FINISHED, 7)
    assert hosts.store(1).read_outcome() == SegmentOutcome(FINISHED, 7)


def test_a_failed_upload_is_told_and_tried_again(hosts: Hosts) -> None:
    flaky = Flaky(hosts.s3, "upload_file", EndpointConnectionError(endpoint_url="there"), times=2)
    hosts.store(0, transport=hosts.transport(flaky)).write_shard(1, content(1, 0))
    assert hosts.waited == [1.0, 2.0] and hosts.part(1, 0)
    assert all("upload failed" in message and "trying again in" in message for message in hosts.messages)


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (EndpointConnectionError(endpoint_url="there"), 4),
        (answer(503, "SlowDown"), 4),
        (answer(403, "No"), 1),
    ],
)
def test_an_upload_that_keeps_failing_costs_the_save_and_nothing_else(
    hosts: Hosts, error: Exception, tries: int
) -> None:
    flaky = Flaky(hosts.s3, "upload_file", error)
    store = hosts.store(0, transport=hosts.transport(flaky))
    with pytest.raises(SaveFailed, match="upload failed"):
        store.write_shard(1, content(1, 0))
    assert flaky.calls == tries
    assert [call for call in hosts.names() if "rank" in call] == []


@pytest.mark.parametrize("method", ["get_object", "get_paginator", "download_file"])
def test_s3_that_cannot_be_reached_is_not_taken_for_a_torn_copy(hosts: Hosts, method: str) -> None:
    hosts.save(1, 2)
    flaky = Flaky(hosts.s3, method, EndpointConnectionError(endpoint_url="there"))
    fresh = hosts.store(0, transport=hosts.transport(flaky))
    with pytest.raises(LoadFailed):
        fresh.newest_intact_manifest(ranks=[0])


def test_no_room_for_what_s3_has_is_not_taken_for_a_torn_copy(hosts: Hosts) -> None:
    hosts.save(1, 2)
    full = Flaky(hosts.s3, "download_file", OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(LoadFailed, match=r"cannot be written here: .*No space left"):
        hosts.store(0, transport=hosts.transport(full)).newest_intact_manifest(ranks=[0])


def test_how_far_behind_an_upload_is(hosts: Hosts) -> None:
    clock = itertools.count(step=0.5)
    pending: list[PendingUpload | None] = []

    class WatchingClient:
        def __getattr__(self, name: str) -> Any:
            return getattr(hosts.s3, name)

        def upload_file(self, *arguments: Any, Callback: Callable[[int], None], **keywords: Any) -> None:  # noqa: N803
            pending.append(transport.pending_upload())
            Callback(6)
            pending.append(transport.pending_upload())
            hosts.s3.upload_file(*arguments, **keywords)

    transport = DirectTransport(
        "s3://tests/behind", client=WatchingClient(), clock=lambda: float(next(clock))
    )
    store = hosts.store(0, transport=transport)
    store.write_shard(1, [b"0123456789"])
    assert [(upload.remaining_bytes, upload.stalled_seconds) for upload in pending if upload] == [
        (10, 0.5),
        (4, 0.5),
    ]
    assert transport.pending_upload() == PendingUpload(0, 0.0)
    assert SyncTransport().pending_upload() is None, "nobody sees the platform's sync from inside"


def test_an_upload_that_does_not_move_is_told() -> None:
    was_reported = Event()
    messages: list[str] = []

    def on_message(text: str) -> None:
        messages.append(text)
        was_reported.set()

    with UploadMonitor("step-1/part", 1000, on_message, time.monotonic, stall_seconds=0.01) as watch:
        watch.add_progress(400)
        assert was_reported.wait(30)
    assert "checkpoint step-1/part: the upload has stalled: 600 bytes remain" in messages[0]


def test_credentials_that_are_refused_are_named_at_once(hosts: Hosts) -> None:
    config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    unknown_client = boto3.Session("AKIDNOBODY", "secret", region_name="us-east-1").client(
        "s3", endpoint_url=hosts.s3.meta.endpoint_url, config=config
    )
    with pytest.raises(LoadFailed, match="list failed"):
        hosts.store(0, transport=hosts.transport(unknown_client)).committed_manifests()
    assert hosts.waited == []


def test_the_segment_says_which_carrier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert isinstance(open_transport(Segment(upload_mode=SYNC)), SyncTransport)
    assert isinstance(
        open_transport(Segment(upload_mode=DIRECT, checkpoints_uri="s3://bucket/here")), DirectTransport
    )
    with pytest.raises(ValueError, match=r"checkpoints\.uri"):
        open_transport(Segment(upload_mode=DIRECT))
    with pytest.raises(ValueError, match="is not an S3 address"):
        DirectTransport("bucket/here")


@pytest.mark.torch
def test_a_script_goes_on_from_s3_on_a_fresh_host(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch

    from smlaunch.train import Checkpointer

    monkeypatch.setattr(boto3, "client", lambda *arguments, **keywords: hosts.s3)
    monkeypatch.setenv("SMLAUNCH_CHECKPOINT_UPLOAD", DIRECT)
    monkeypatch.setenv("SMLAUNCH_CHECKPOINTS_URI", f"s3://tests/{hosts.prefix}")
    ends = []
    for life_number, steps in enumerate((5, 8)):
        monkeypatch.setenv("SMLAUNCH_CHECKPOINTS", str(tmp_path / str(life_number)))
        model = torch.nn.Linear(4, 4)
        with Checkpointer(model=model, every_steps=2) as run:
            weight_before = model.weight.detach().clone()
            for _ in run.batches(range(steps), steps=steps):
                with torch.no_grad():
                    model.weight += 1
                run.step()
        ends.append((run.restored_step, weight_before, model.weight.detach().clone()))
    assert [end[0] for end in ends] == [None, 5]
    assert torch.equal(ends[0][2], ends[1][1]) and torch.equal(ends[1][2], ends[1][1] + 3)


def test_a_bucket_of_another_account_takes_and_gives_nothing(hosts: Hosts, s3: Any, tmp_path: Path) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=s3.meta.endpoint_url,
        region_name=s3.meta.region_name,
        aws_access_key_id=s3._request_signer._credentials.access_key,
        aws_secret_access_key=s3._request_signer._credentials.secret_key,
    )
    (tmp_path / "part").write_bytes(bytes(40 << 20))
    uri = f"s3://tests/{hosts.prefix}"
    segment = Segment(checkpoints_uri=uri, upload_mode=DIRECT, bucket_owner="111111111111")
    assert Segment.from_environment(segment.to_environment()) == segment
    other_transport = DirectTransport(
        uri, owner="111111111111", client=client, on_message=hosts.messages.append
    )
    for refused_call in (
        lambda: other_transport.upload("part", str(tmp_path / "part"), 40 << 20),
        lambda: other_transport.list_files(),
    ):
        with pytest.raises((UploadFailed, LoadFailed), match="does not belong to 111111111111"):
            refused_call()
    assert hosts.names() == []
