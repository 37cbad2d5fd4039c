"""Packing from S3 and into S3, over the storage port; once over the endpoint with the real client."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from smlaunch.aws.interfaces import CallError
from smlaunch.data.pack import FolderSource, PackOptions, PackResult, pack
from smlaunch.data.pack_destination import FolderDestination
from smlaunch.data.pack_s3 import S3Destination, S3PackSource, obstore_fetch
from smlaunch.data.s3_transfer import FastTransferFailed
from smlaunch.data.shard_index import parse_shard_index
from smlaunch.errors import JobError
from tests.cli.conftest import Shell
from tests.runs.fakes import BUCKET, FakeStorage

KEYS = [
    "a.jpg",
    "a.cls",
    "a.x/1.jpg",
    "-C",
    ".hidden",
    "sp ace.txt",
    "new\nline.txt",
    "ünï→.txt",
    "d/e/f.bin",
]


def fill_storage() -> FakeStorage:
    storage, random = FakeStorage(), Random(0)
    objects = storage.objects[BUCKET]
    for number, key in enumerate(KEYS):
        objects["raw/" + key] = random.randbytes((0, 511, 512, 4000)[number % 4])
    for number in range(100):
        objects[f"raw/many/{number:03}.bin"] = random.randbytes(random.randint(0, 2000))
    objects["raw/large.bin"] = random.randbytes((8 << 20) + 100)
    objects["raw/folder/"] = b""  # a console's folder
    objects["rawer/other"] = b"of another prefix"
    return storage


def expected_contents(storage: FakeStorage) -> dict[str, bytes]:
    objects = storage.objects[BUCKET].items()
    return {key[4:]: body for key, body in objects if key.startswith("raw/") and not key.endswith("/")}


def pack_prefix(storage: FakeStorage, resume: bool = False, **options: int) -> PackResult:
    source, destination = S3PackSource(storage, BUCKET, "raw"), S3Destination(storage, BUCKET, "packed")
    return pack(source, destination, PackOptions(shard_count=4, resume=resume, **options))


def objects_below(storage: FakeStorage, prefix: str) -> dict[str, bytes]:
    return {
        key[len(prefix) :]: body for key, body in storage.objects[BUCKET].items() if key.startswith(prefix)
    }


def test_from_s3_to_s3_and_the_same_bytes_from_a_folder(tmp_path: Path) -> None:
    storage = fill_storage()
    index = pack_prefix(storage).index
    objects = objects_below(storage, "packed/")
    assert sorted(objects) == ["index.json", *(record.name for record in index.shards)]
    assert parse_shard_index(objects["index.json"]) == index and len(index.shards) == 4
    members: dict[str, bytes] = {}
    for record in index.shards:
        with tarfile.open(fileobj=io.BytesIO(objects[record.name])) as tar:
            for member in tar:
                assert member.name not in members
                members[member.name] = tar.extractfile(member).read()  # type: ignore[union-attr]
    assert members == expected_contents(storage)
    for name, body in members.items():
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    pack(FolderSource(tmp_path / "src"), FolderDestination(tmp_path / "dst"), PackOptions(shard_count=4))
    pack(
        S3PackSource(storage, BUCKET, "raw/"),
        FolderDestination(tmp_path / "down"),
        PackOptions(shard_count=4),
    )
    pack(FolderSource(tmp_path / "src"), S3Destination(storage, BUCKET, "up/"), PackOptions(shard_count=4))
    for folder in ("dst", "down"):
        paths = [path for path in (tmp_path / folder).rglob("*") if path.is_file()]
        assert {str(path.relative_to(tmp_path / folder)): path.read_bytes() for path in paths} == objects
    assert objects_below(storage, "up/") == objects


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("a/../../etc/passwd", "contains '..'"),
        ("..", "contains '..'"),
        ("/etc/passwd", "is an absolute name"),
        ("a//b", "empty or '.' component"),
        ("./a", "empty or '.' component"),
        ("full/", "empty or '.' component"),
        ("k" * 1000, "(1,000 bytes) is too long for USTAR"),
        ("a.jpg/below", "lies below 'a.jpg', which is itself an object"),
        ("nul\0.txt", "contains a NUL"),
        ("half \udc80", "is not UTF-8"),
    ],
)
def test_keys_that_would_be_written_elsewhere_or_lost_are_refused_by_name(key: str, reason: str) -> None:
    storage = fill_storage()
    storage.objects[BUCKET]["raw/" + key] = b"x"
    with pytest.raises(JobError) as error:
        pack_prefix(storage)
    (problem,) = error.value.problems
    assert reason in str(problem) and "\n" not in str(problem)
    assert not objects_below(storage, "packed/")


def test_a_prefix_with_nothing_below_is_refused() -> None:
    with pytest.raises(JobError, match="no objects below s3://"):
        pack(
            S3PackSource(FakeStorage(), BUCKET, "raw"),
            S3Destination(FakeStorage(), BUCKET, "x"),
            PackOptions(),
        )


class FailingStorage(FakeStorage):
    """Storage whose uploads of shards fail after so many, and whose objects vanish or change after they were
    listed."""

    uploads = 1000

    def __init__(self) -> None:
        super().__init__()
        self.replacements: dict[str, bytes | None] = {}

    def get_bytes(self, bucket: str, key: str) -> bytes | None:
        return self.replacements[key] if key in self.replacements else super().get_bytes(bucket, key)

    def read_chunks(self, bucket: str, key: str) -> Iterator[bytes]:
        if key in self.replacements:
            raise CallError("GetObject", "NoSuchKey", "gone", 404)
        return super().read_chunks(bucket, key)

    def put_file(self, bucket: str, key: str, source: Path) -> None:
        if self.uploads == 0:
            raise CallError("PutObject", "AccessDenied", "no more", 403)
        self.uploads -= 1
        super().put_file(bucket, key, source)


def test_a_pack_that_was_ended_goes_on() -> None:
    storage_of_whole_pack = fill_storage()
    pack_prefix(storage_of_whole_pack)
    storage = FailingStorage()
    storage.objects = fill_storage().objects
    storage.uploads = 2
    with pytest.raises(CallError):
        pack_prefix(storage, workers=1)
    assert "packed/index.json" not in storage.objects[BUCKET]
    with pytest.raises(JobError, match="unfinished pack; continue it with --resume"):
        pack_prefix(storage)
    storage.uploads, shards_before = 1000, len(objects_below(storage, "packed/shards/"))
    # Another shard lies there without its record: it may be of anything.
    storage.objects[BUCKET]["packed/shards/shard-00003.tar"] = b"?"
    storage.objects[BUCKET]["packed/shards/shard-00007.tar"] = b"of an earlier plan"
    result = pack_prefix(storage, resume=True)
    assert result.reused_shards == shards_before == 2
    assert objects_below(storage, "packed/") == objects_below(storage_of_whole_pack, "packed/")
    assert pack_prefix(storage, resume=True).reused_shards == 4
    with pytest.raises(JobError, match="holds a finished pack"):
        pack_prefix(storage)


def test_objects_that_change_or_go_are_told() -> None:
    storage = FailingStorage()
    storage.objects = fill_storage().objects
    storage.replacements = {
        "raw/many/000.bin": None,
        "raw/many/001.bin": b"longer" * 999,
        "raw/large.bin": None,
    }
    with pytest.raises(JobError) as error:
        pack_prefix(storage)
    messages = [str(problem) for problem in error.value.problems]
    assert [line.partition(";")[0] for line in messages] == [
        "SRC: 'large.bin' is gone",
        "SRC: 'many/000.bin' is gone",
        "SRC: 'many/001.bin' has another size than when it was listed",
    ]
    assert "packed/index.json" not in storage.objects[BUCKET]


class FastClient:
    """Replaces obstore: it does not support every key, and fails for some."""

    def __init__(self, storage: FakeStorage) -> None:
        self.storage, self.fetched = storage, 0

    def supports_key(self, key: str) -> bool:
        return "\n" not in key

    def get_range(self, bucket: str, key: str, start: int, length: int, etag: str | None) -> Iterator[bytes]:
        if not length or key.endswith(("000.bin", "007.bin")):
            raise FastTransferFailed
        self.fetched += 1
        yield self.storage.objects[bucket][key][start : start + length]


def test_objects_are_fetched_quickly_where_that_works() -> None:
    storage = FailingStorage()
    storage.objects = fill_storage().objects
    fast_client, destination = FastClient(storage), S3Destination(storage, BUCKET, "packed")
    fetch = obstore_fetch(fast_client, storage, BUCKET)  # type: ignore[arg-type]
    source = S3PackSource(storage, BUCKET, "raw", fetch)
    storage.replacements = {"raw/many/000.bin": None}
    storage.objects[BUCKET]["raw/many/002.bin"] = b"before"
    listed_files = source.list_files()
    storage.objects[BUCKET]["raw/many/002.bin"] = b"before and after"
    source.list_files = lambda: listed_files  # type: ignore[method-assign]
    with pytest.raises(JobError) as error:
        pack(source, destination, PackOptions(shard_count=4))
    assert [str(problem).partition(";")[0] for problem in error.value.problems] == [
        "SRC: 'many/000.bin' is gone",
        "SRC: 'many/002.bin' has another size than when it was listed",
    ]
    storage.replacements.clear()
    pack(S3PackSource(storage, BUCKET, "raw", fetch), destination, PackOptions(shard_count=4, resume=True))
    second_destination = S3Destination(storage, BUCKET, "again")
    pack(S3PackSource(storage, BUCKET, "raw"), second_destination, PackOptions(shard_count=4))
    assert fast_client.fetched > 100 and objects_below(storage, "packed/") == objects_below(storage, "again/")


def test_a_prefix_that_holds_something_else_is_refused() -> None:
    storage = fill_storage()
    storage.objects[BUCKET]["packed/shards/mine.tar"] = b"x"
    with pytest.raises(JobError, match=r"shards/mine\.tar, which is not a shard of a pack"):
        pack_prefix(storage)


def test_the_command_over_the_endpoint(tmp_path: Path) -> None:
    shell, source = Shell(tmp_path, tmp_path / "home"), tmp_path / "raw"
    for name in ("a.jpg", "a.cls", "b.jpg", "new\nline.txt"):
        source.mkdir(exist_ok=True)
        (source / name).write_bytes(name.encode() * 300)
    destination = "s3://sagemaker-us-east-1-000000000000/packed"
    up = shell("data", "pack", source, destination, "--local", "--shards", "2", "--json")
    assert up.code == 0, up.err
    report = json.loads(up.out)
    assert (report["files"], report["samples"], len(report["shards"])) == (4, 3, 2)
    # The shards again, as two objects of any kind.
    second_result = shell(
        "data", "pack", destination + "/shards", destination + "-twice", "--local", "--json"
    )
    assert second_result.code == 0 and json.loads(second_result.out)["files"] == 2, second_result.err
    refusal = shell("data", "pack", source, destination, "--local", "--shards", "2")
    assert refusal.code == 2 and "holds a finished pack" in refusal.err
