"""Pipe mode on real FIFOs, read as a training script would."""

from __future__ import annotations

import gzip
import json
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs import channel_data, recordio
from smlaunch.local.jobs.channel_listing import InputDataError
from smlaunch.local.jobs.pipe_mode import PipeFeeder
from smlaunch.local.stores.object_store import ObjectStore
from tests.local.jobs.conftest import channel, spec

_PATIENCE = 20.0


class PipesHarness:
    """The FIFOs of a job whose hosts are directories."""

    def __init__(self, objects: ObjectStore, hosts: list[JobHost]) -> None:
        self.objects = objects
        self.hosts = hosts
        self.errors: list[InputDataError] = []
        self.broken = threading.Event()
        self._pipes: list[PipeFeeder] = []

    def start(self, *wanted: dict[str, Any], **settings: Any) -> None:
        channel_setup = channel_data.prepare_channels(
            spec(wanted), self.hosts, self.objects, Settings(**settings), False, lambda: None
        )
        pipes = PipeFeeder(channel_setup.pipe_feeds, self.objects, self._break)
        for host in self.hosts:
            (host.opt_ml_folder / "input/data").mkdir(parents=True, exist_ok=True)
        self._pipes.append(pipes)
        pipes.start()

    def _break(self, error: InputDataError) -> None:
        self.errors.append(error)
        self.broken.set()

    def fifo(self, name: str, host: int = 0) -> Path:
        return self.hosts[host].opt_ml_folder / "input/data" / name

    def read(self, name: str, host: int = 0) -> bytes:
        return self.fifo(name, host).read_bytes()

    def finish(self) -> None:
        for pipes in self._pipes:
            pipes.finish()


@pytest.fixture
def harness(objects: ObjectStore, hosts: list[JobHost]) -> Iterator[PipesHarness]:
    before = set(threading.enumerate())
    descriptors = len(os.listdir("/proc/self/fd"))
    pipes_harness = PipesHarness(objects, hosts)
    yield pipes_harness
    pipes_harness.finish()
    for thread in set(threading.enumerate()) - before:
        thread.join(_PATIENCE)  # the test's own readers may just be ending
        assert not thread.is_alive(), thread
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1  # one connection to the store's index


def pipe(name: str, uri: str, **changes: Any) -> dict[str, Any]:
    outer = {key: changes.pop(key) for key in ("CompressionType", "RecordWrapperType") if key in changes}
    return {**channel(name, uri, InputMode="Pipe", **changes), **outer}


def records(data: bytes) -> list[bytes]:
    """Read RecordIO without the writer's code, as the readers that AWS publishes do."""
    bodies = []
    at = 0
    while at < len(data):
        magic, length = struct.unpack_from("<II", data, at)
        assert magic == 0xCED7230A, f"at byte {at}"
        assert length >> 29 == 0, "a part of a record"
        bodies.append(data[at + 8 : at + 8 + length])
        padding = data[at + 8 + length : at + 8 + (length + 3) // 4 * 4]
        assert padding == bytes(len(padding))
        at += 8 + (length + 3) // 4 * 4
    assert at == len(data)
    return bodies


def test_every_epoch_streams_the_objects_again(harness: PipesHarness) -> None:
    for name in ("b", "a", "c"):
        harness.objects.put_object_bytes("data", f"t/{name}", name.encode() * 3)
    harness.start(pipe("train", "s3://data/t/"))
    for epoch in range(4):
        assert harness.read(f"train_{epoch}") == b"aaabbbccc"
        assert not harness.fifo(f"train_{epoch - 1}").exists()
    assert harness.read("train_0", host=1) == b"aaabbbccc"


def test_more_than_a_pipe_holds(harness: PipesHarness) -> None:
    body = os.urandom(5 << 20)
    harness.objects.put_object_bytes("data", "t/large", body)
    harness.start(pipe("train", "s3://data/t/"))
    assert harness.read("train_0") == body


def test_a_reader_that_closes_early_gets_the_next_epoch_whole(harness: PipesHarness) -> None:
    body = os.urandom(5 << 20)
    harness.objects.put_object_bytes("data", "t/large", body)
    harness.start(pipe("train", "s3://data/t/"))
    with harness.fifo("train_0").open("rb") as stream:
        assert stream.read(10) == body[:10]
    assert harness.read("train_1") == body
    # The reader closes without a read.
    harness.fifo("train_2").open("rb").close()
    assert harness.read("train_3") == body


def test_nobody_reads_and_the_job_ends(harness: PipesHarness) -> None:
    harness.objects.put_object_bytes("data", "t/a", b"x")
    harness.start(pipe("train", "s3://data/t/"), pipe("test", "s3://data/t/"))
    assert harness.read("train_0") == b"x"
    # finish() in the fixture ends the four threads that wait for a reader.


def test_a_reader_that_stalls_and_the_job_ends(harness: PipesHarness) -> None:
    harness.objects.put_object_bytes("data", "t/large", bytes(5 << 20))
    harness.start(pipe("train", "s3://data/t/"))
    with harness.fifo("train_0").open("rb") as stream:
        assert stream.read(1) == b"\0"
        harness.finish()


def test_a_script_that_removes_its_fifo_blocks_nobody(harness: PipesHarness) -> None:
    harness.objects.put_object_bytes("data", "t/a", b"x")
    harness.start(pipe("train", "s3://data/t/"))
    harness.fifo("train_0").unlink()
    harness.fifo("train_1").unlink()


def test_a_name_that_is_taken_breaks_the_job(harness: PipesHarness) -> None:
    harness.objects.put_object_bytes("data", "t/a", b"x")
    harness.start(pipe("train", "s3://data/t/"))
    harness.fifo("train_2").write_text("mine")
    harness.read("train_0")
    assert harness.broken.wait(_PATIENCE)
    assert "train_2" in str(harness.errors[0])


def test_recordio_wraps_each_object(harness: PipesHarness) -> None:
    bodies = [b"", b"1", b"22", b"333", b"4444", struct.pack("<I", recordio.MAGIC) * 3]
    for number, body in enumerate(bodies):
        harness.objects.put_object_bytes("data", f"t/{number}", body)
    harness.start(pipe("train", "s3://data/t/", RecordWrapperType="RecordIO"))
    assert records(harness.read("train_0")) == bodies


def test_an_object_beyond_recordios_limit_is_told() -> None:
    assert recordio.header(recordio.MAX_RECORD_BYTES)[4:] == b"\xff\xff\xff\x1f"
    with pytest.raises(ValueError, match="more than a RecordIO record"):
        recordio.header(recordio.MAX_RECORD_BYTES + 1)


@pytest.mark.parametrize("wrapped", [False, True])
def test_gzip_is_undone_before_anything_else(harness: PipesHarness, wrapped: bool) -> None:
    two_members = gzip.compress(b"second ") + gzip.compress(b"object")
    harness.objects.put_object_bytes("data", "t/1.gz", gzip.compress(b"first object"))
    harness.objects.put_object_bytes("data", "t/2.gz", two_members)
    wrapper = {"RecordWrapperType": "RecordIO"} if wrapped else {}
    harness.start(pipe("train", "s3://data/t/", CompressionType="Gzip", **wrapper))
    data = harness.read("train_0")
    assert (records(data) if wrapped else data) == (
        [b"first object", b"second object"] if wrapped else b"first objectsecond object"
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [(b"plain", "not gzip"), (gzip.compress(bytes(99))[:-9], "not gzip")],
    ids=["no gzip at all", "cut off"],  # gzip writes the time into its header
)
def test_what_is_no_gzip_breaks_the_job_and_is_no_end_of_file(
    harness: PipesHarness, body: bytes, message: str
) -> None:
    harness.objects.put_object_bytes("data", "t/1.gz", body)
    harness.start(pipe("train", "s3://data/t/", CompressionType="Gzip"))
    ended = run_in_thread(lambda: harness.read("train_0"))
    assert harness.broken.wait(_PATIENCE)
    assert message in str(harness.errors[0])
    assert "s3://data/t/1.gz" in str(harness.errors[0])
    assert not ended.wait(0.05)


def test_an_object_that_is_deleted_meanwhile(harness: PipesHarness) -> None:
    harness.objects.put_object_bytes("data", "t/a", b"x")
    harness.start(pipe("train", "s3://data/t/"))
    harness.objects.delete_object("data", "t/a")
    run_in_thread(lambda: harness.read("train_0"))
    assert harness.broken.wait(_PATIENCE)
    assert "NoSuchKey" in str(harness.errors[0])


def run_in_thread(action: Callable[[], object]) -> threading.Event:
    """Run ``action`` in a thread; the event is set when it returns."""
    returned = threading.Event()

    def run() -> None:
        action()
        returned.set()

    threading.Thread(target=run, daemon=True).start()
    return returned


LINES = [
    {"source-ref": "s3://data/img/1", "label": 1, "note": "eins ü"},
    {"source-ref": "s3://data/img/2", "label": {"k": [1, "x"]}, "note": "", "more": None},
]


def put_augmented_manifest(harness: PipesHarness, lines: list[Any], **changes: Any) -> dict[str, Any]:
    harness.objects.put_object_bytes("data", "img/1", b"<one>")
    harness.objects.put_object_bytes("data", "img/2", b"<two>")
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    harness.objects.put_object_bytes("data", "the.manifest", text.encode())
    changes.setdefault("AttributeNames", ["source-ref", "label"])
    return pipe("train", "s3://data/the.manifest", S3DataType="AugmentedManifestFile", **changes)


def test_an_augmented_manifest_sends_its_attributes_in_the_order_asked_for(harness: PipesHarness) -> None:
    names = ["note", "source-ref", "label"]
    harness.start(put_augmented_manifest(harness, LINES, AttributeNames=names, RecordWrapperType="RecordIO"))
    expected = ["eins ü", "<one>", "1", "", "<two>", '{"k": [1, "x"]}']
    assert records(harness.read("train_0")) == [text.encode() for text in expected]


def test_an_augmented_manifest_without_a_wrapper(harness: PipesHarness) -> None:
    harness.start(
        put_augmented_manifest(harness, [*LINES[:1], "", {"source-ref": "s3://data/img/2", "label": 0}])
    )
    assert harness.read("train_0") == b"<one>1<two>0"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ({"source-ref": "s3://data/img/1"}, "line 2 has no 'label'"),
        ({"source-ref": "img/1", "label": 1}, "line 2: source-ref is no s3:// address"),
        ({"source-ref": "s3://data/img/3", "label": 1}, "NoSuchKey: s3://data/img/3"),
    ],
)
def test_an_augmented_manifest_that_cannot_be_followed(
    harness: PipesHarness, line: Any, message: str
) -> None:
    with pytest.raises(InputDataError, match=message):
        harness.start(put_augmented_manifest(harness, [LINES[0], line]))


def test_an_empty_augmented_manifest(harness: PipesHarness) -> None:
    with pytest.raises(InputDataError, match="it has no line"):
        harness.start(put_augmented_manifest(harness, ["", " "]))


@pytest.mark.parametrize("reshard", [True, False])
def test_shuffled_shards(harness: PipesHarness, reshard: bool) -> None:
    keys = [f"{number:02}" for number in range(20)]
    for key in keys:
        harness.objects.put_object_bytes("data", f"t/{key}", key.encode())
    both = {"S3DataDistributionType": "ShardedByS3Key", "ShuffleConfig": {"Seed": 3}}
    harness.start(pipe("train", "s3://data/t/", **both), reshard_between_epochs=reshard)
    first_shares = []
    for epoch in (0, 1):
        shares = []
        for host in (0, 1):
            data = harness.read(f"train_{epoch}", host).decode()
            shares.append([data[at : at + 2] for at in range(0, len(data), 2)])
        assert sorted(shares[0] + shares[1]) == keys
        first_shares.append(shares[0])
    assert first_shares[0] != first_shares[1]
    assert (set(first_shares[0]) == set(first_shares[1])) is not reshard


@pytest.mark.parametrize("shard", ["empty", "absent"])
def test_a_host_without_a_share(harness: PipesHarness, shard: str) -> None:
    harness.objects.put_object_bytes("data", "t/only", b"x")
    sharded = pipe("train", "s3://data/t/", S3DataDistributionType="ShardedByS3Key")
    harness.start(sharded, empty_shard=shard)
    assert harness.read("train_0", host=0) == b"x"
    if shard == "empty":
        assert harness.read("train_0", host=1) == harness.read("train_1", host=1) == b""
    else:
        assert not harness.fifo("train_0", host=1).exists()
