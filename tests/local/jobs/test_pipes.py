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

from smlaunch.local.executors.base import JobHost
from smlaunch.local.jobs import channels, recordio
from smlaunch.local.jobs.listing import DataError
from smlaunch.local.jobs.pipes import Pipes
from smlaunch.local.object_store import ObjectStore
from smlaunch.local.settings import Settings
from tests.local.jobs.conftest import channel, spec

_PATIENCE = 20.0


class Bench:
    """The FIFOs of a job whose hosts are directories."""

    def __init__(self, objects: ObjectStore, hosts: list[JobHost]) -> None:
        self.objects = objects
        self.hosts = hosts
        self.errors: list[DataError] = []
        self.broken = threading.Event()
        self._pipes: list[Pipes] = []

    def start(self, *wanted: dict[str, Any], **settings: Any) -> None:
        found = channels.prepare_channels(
            spec(wanted), self.hosts, self.objects, Settings(**settings), False, lambda: None
        )
        pipes = Pipes(found.feeds, self.objects, self._break)
        for host in self.hosts:
            (host.tree / "input/data").mkdir(parents=True, exist_ok=True)
        self._pipes.append(pipes)
        pipes.start()

    def _break(self, error: DataError) -> None:
        self.errors.append(error)
        self.broken.set()

    def fifo(self, name: str, host: int = 0) -> Path:
        return self.hosts[host].tree / "input/data" / name

    def read(self, name: str, host: int = 0) -> bytes:
        return self.fifo(name, host).read_bytes()

    def finish(self) -> None:
        for pipes in self._pipes:
            pipes.finish()


@pytest.fixture
def bench(objects: ObjectStore, hosts: list[JobHost]) -> Iterator[Bench]:
    before = set(threading.enumerate())
    descriptors = len(os.listdir("/proc/self/fd"))
    found = Bench(objects, hosts)
    yield found
    found.finish()
    for thread in set(threading.enumerate()) - before:
        thread.join(_PATIENCE)  # those of the test's own readers may just be ending
        assert not thread.is_alive(), thread
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1  # one connection to the store's index


def pipe(name: str, uri: str, **changes: Any) -> dict[str, Any]:
    outer = {key: changes.pop(key) for key in ("CompressionType", "RecordWrapperType") if key in changes}
    return {**channel(name, uri, InputMode="Pipe", **changes), **outer}


def records(data: bytes) -> list[bytes]:
    """A reader of RecordIO that shares nothing with the writer, in the manner of those that AWS publishes."""
    found = []
    at = 0
    while at < len(data):
        magic, length = struct.unpack_from("<II", data, at)
        assert magic == 0xCED7230A, f"at byte {at}"
        assert length >> 29 == 0, "a part of a record"
        found.append(data[at + 8 : at + 8 + length])
        padding = data[at + 8 + length : at + 8 + (length + 3) // 4 * 4]
        assert padding == bytes(len(padding))
        at += 8 + (length + 3) // 4 * 4
    assert at == len(data)
    return found


def test_every_epoch_streams_the_objects_again(bench: Bench) -> None:
    for name in ("b", "a", "c"):
        bench.objects.put_bytes("data", f"t/{name}", name.encode() * 3)
    bench.start(pipe("train", "s3://data/t/"))
    for epoch in range(4):
        assert bench.read(f"train_{epoch}") == b"aaabbbccc"
        assert not bench.fifo(f"train_{epoch - 1}").exists()
    assert bench.read("train_0", host=1) == b"aaabbbccc"


def test_more_than_a_pipe_holds(bench: Bench) -> None:
    body = os.urandom(5 << 20)
    bench.objects.put_bytes("data", "t/large", body)
    bench.start(pipe("train", "s3://data/t/"))
    assert bench.read("train_0") == body


def test_a_reader_that_closes_early_gets_the_next_epoch_whole(bench: Bench) -> None:
    body = os.urandom(5 << 20)
    bench.objects.put_bytes("data", "t/large", body)
    bench.start(pipe("train", "s3://data/t/"))
    with bench.fifo("train_0").open("rb") as stream:
        assert stream.read(10) == body[:10]
    assert bench.read("train_1") == body
    # Not even looked at.
    bench.fifo("train_2").open("rb").close()
    assert bench.read("train_3") == body


def test_nobody_reads_and_the_job_ends(bench: Bench) -> None:
    bench.objects.put_bytes("data", "t/a", b"x")
    bench.start(pipe("train", "s3://data/t/"), pipe("test", "s3://data/t/"))
    assert bench.read("train_0") == b"x"
    # finish() in the fixture ends the four threads that wait for a reader.


def test_a_reader_that_stalls_and_the_job_ends(bench: Bench) -> None:
    bench.objects.put_bytes("data", "t/large", bytes(5 << 20))
    bench.start(pipe("train", "s3://data/t/"))
    with bench.fifo("train_0").open("rb") as stream:
        assert stream.read(1) == b"\0"
        bench.finish()


def test_a_script_that_removes_its_fifo_blocks_nobody(bench: Bench) -> None:
    bench.objects.put_bytes("data", "t/a", b"x")
    bench.start(pipe("train", "s3://data/t/"))
    bench.fifo("train_0").unlink()
    bench.fifo("train_1").unlink()


def test_a_name_that_is_taken_breaks_the_job(bench: Bench) -> None:
    bench.objects.put_bytes("data", "t/a", b"x")
    bench.start(pipe("train", "s3://data/t/"))
    bench.fifo("train_2").write_text("mine")
    bench.read("train_0")
    assert bench.broken.wait(_PATIENCE)
    assert "train_2" in str(bench.errors[0])


def test_recordio_wraps_each_object(bench: Bench) -> None:
    bodies = [b"", b"1", b"22", b"333", b"4444", struct.pack("<I", recordio.MAGIC) * 3]
    for number, body in enumerate(bodies):
        bench.objects.put_bytes("data", f"t/{number}", body)
    bench.start(pipe("train", "s3://data/t/", RecordWrapperType="RecordIO"))
    assert records(bench.read("train_0")) == bodies


def test_an_object_beyond_recordios_limit_is_told() -> None:
    assert recordio.header(recordio.MAX_RECORD_BYTES)[4:] == b"\xff\xff\xff\x1f"
    with pytest.raises(ValueError, match="more than a RecordIO record"):
        recordio.header(recordio.MAX_RECORD_BYTES + 1)


@pytest.mark.parametrize("wrapped", [False, True])
def test_gzip_is_undone_before_anything_else(bench: Bench, wrapped: bool) -> None:
    two_members = gzip.compress(b"second ") + gzip.compress(b"object")
    bench.objects.put_bytes("data", "t/1.gz", gzip.compress(b"first object"))
    bench.objects.put_bytes("data", "t/2.gz", two_members)
    wrapper = {"RecordWrapperType": "RecordIO"} if wrapped else {}
    bench.start(pipe("train", "s3://data/t/", CompressionType="Gzip", **wrapper))
    data = bench.read("train_0")
    assert (records(data) if wrapped else data) == (
        [b"first object", b"second object"] if wrapped else b"first objectsecond object"
    )


@pytest.mark.parametrize(
    ("body", "says"),
    [(b"plain", "not gzip"), (gzip.compress(bytes(99))[:-9], "not gzip")],
    ids=["no gzip at all", "cut off"],  # gzip writes the time into its header
)
def test_what_is_no_gzip_breaks_the_job_and_is_no_end_of_file(bench: Bench, body: bytes, says: str) -> None:
    bench.objects.put_bytes("data", "t/1.gz", body)
    bench.start(pipe("train", "s3://data/t/", CompressionType="Gzip"))
    ended = after(lambda: bench.read("train_0"))
    assert bench.broken.wait(_PATIENCE)
    assert says in str(bench.errors[0])
    assert "s3://data/t/1.gz" in str(bench.errors[0])
    assert not ended.wait(0.05)


def test_an_object_that_is_deleted_meanwhile(bench: Bench) -> None:
    bench.objects.put_bytes("data", "t/a", b"x")
    bench.start(pipe("train", "s3://data/t/"))
    bench.objects.delete_object("data", "t/a")
    after(lambda: bench.read("train_0"))
    assert bench.broken.wait(_PATIENCE)
    assert "NoSuchKey" in str(bench.errors[0])


def after(action: Callable[[], object]) -> threading.Event:
    """Set when ``action``, in a thread of its own, has returned."""
    done = threading.Event()

    def run() -> None:
        action()
        done.set()

    threading.Thread(target=run, daemon=True).start()
    return done


LINES = [
    {"source-ref": "s3://data/img/1", "label": 1, "note": "eins ü"},
    {"source-ref": "s3://data/img/2", "label": {"k": [1, "x"]}, "note": "", "more": None},
]


def augmented(bench: Bench, lines: list[Any], **changes: Any) -> dict[str, Any]:
    bench.objects.put_bytes("data", "img/1", b"<one>")
    bench.objects.put_bytes("data", "img/2", b"<two>")
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    bench.objects.put_bytes("data", "the.manifest", text.encode())
    changes.setdefault("AttributeNames", ["source-ref", "label"])
    return pipe("train", "s3://data/the.manifest", S3DataType="AugmentedManifestFile", **changes)


def test_an_augmented_manifest_sends_its_attributes_in_the_order_asked_for(bench: Bench) -> None:
    names = ["note", "source-ref", "label"]
    bench.start(augmented(bench, LINES, AttributeNames=names, RecordWrapperType="RecordIO"))
    expected = ["eins ü", "<one>", "1", "", "<two>", '{"k": [1, "x"]}']
    assert records(bench.read("train_0")) == [text.encode() for text in expected]


def test_an_augmented_manifest_without_a_wrapper(bench: Bench) -> None:
    bench.start(augmented(bench, [*LINES[:1], "", {"source-ref": "s3://data/img/2", "label": 0}]))
    assert bench.read("train_0") == b"<one>1<two>0"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ({"source-ref": "s3://data/img/1"}, "line 2 has no 'label'"),
        ({"source-ref": "img/1", "label": 1}, "line 2: source-ref is no s3:// address"),
        ({"source-ref": "s3://data/img/3", "label": 1}, "NoSuchKey: s3://data/img/3"),
    ],
)
def test_an_augmented_manifest_that_cannot_be_followed(bench: Bench, line: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        bench.start(augmented(bench, [LINES[0], line]))


def test_an_empty_augmented_manifest(bench: Bench) -> None:
    with pytest.raises(DataError, match="it has no line"):
        bench.start(augmented(bench, ["", " "]))


@pytest.mark.parametrize("reshard", [True, False])
def test_shuffled_shards(bench: Bench, reshard: bool) -> None:
    keys = [f"{number:02}" for number in range(20)]
    for key in keys:
        bench.objects.put_bytes("data", f"t/{key}", key.encode())
    both = {"S3DataDistributionType": "ShardedByS3Key", "ShuffleConfig": {"Seed": 3}}
    bench.start(pipe("train", "s3://data/t/", **both), reshard_between_epochs=reshard)
    seen = []
    for epoch in (0, 1):
        shares = []
        for host in (0, 1):
            data = bench.read(f"train_{epoch}", host).decode()
            shares.append([data[at : at + 2] for at in range(0, len(data), 2)])
        assert sorted(shares[0] + shares[1]) == keys
        seen.append(shares[0])
    assert seen[0] != seen[1]
    assert (set(seen[0]) == set(seen[1])) is not reshard


@pytest.mark.parametrize("shard", ["empty", "absent"])
def test_a_host_without_a_share(bench: Bench, shard: str) -> None:
    bench.objects.put_bytes("data", "t/only", b"x")
    sharded = pipe("train", "s3://data/t/", S3DataDistributionType="ShardedByS3Key")
    bench.start(sharded, empty_shard=shard)
    assert bench.read("train_0", host=0) == b"x"
    if shard == "empty":
        assert bench.read("train_0", host=1) == bench.read("train_1", host=1) == b""
    else:
        assert not bench.fifo("train_0", host=1).exists()
