"""Files changed below the store: a torn body is an error that names the file, an edit by hand is accepted."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from smlaunch.local.stores.object_bodies import DamagedObject
from smlaunch.local.stores.object_store import ObjectStore
from tests.local.front.conftest import ServerHarness

BODY = b"the first half; the second half"
HALF = BODY[: len(BODY) // 2]


def truncate_file(path: Path) -> None:
    os.truncate(path, len(HALF))


def empty_file(path: Path) -> None:
    path.write_bytes(b"")


def truncate_keeping_times(path: Path) -> None:
    status = path.stat()
    os.truncate(path, len(HALF))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_by_older_bytes(path: Path) -> None:
    path.write_bytes(b"x" * len(BODY))
    os.utime(path, ns=(1, 1))


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


TEARS = (truncate_file, empty_file, truncate_keeping_times, replace_by_older_bytes, replace_by_directory)


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_body_is_an_error_that_names_the_file(
    tear: Callable[[Path], None], front: ServerHarness, s3: Any, bucket: str
) -> None:
    s3.put_object(Bucket=bucket, Key="a", Body=BODY)
    path = front.objects.object_body_path(bucket, "a")
    tear(path)
    upload = s3.create_multipart_upload(Bucket=bucket, Key="b")["UploadId"]
    source = {"Bucket": bucket, "Key": "a"}
    calls: list[Callable[[], Any]] = [
        lambda: s3.get_object(Bucket=bucket, Key="a"),
        lambda: s3.get_object(Bucket=bucket, Key="a", Range="bytes=0-3"),
        lambda: s3.copy_object(Bucket=bucket, Key="b", CopySource=source),
        lambda: s3.upload_part_copy(Bucket=bucket, Key="b", UploadId=upload, PartNumber=1, CopySource=source),
    ]
    for call in calls:
        with pytest.raises(ClientError) as torn:
            call()
        response = torn.value.response
        assert (response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]) == (
            "EndpointStateDamaged",
            500,
        )
        assert str(path) in response["Error"]["Message"]
    with pytest.raises(ClientError) as torn:
        s3.head_object(Bucket=bucket, Key="a")
    assert torn.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
    if path.is_dir():
        path.rmdir()
    s3.put_object(Bucket=bucket, Key="a", Body=b"again")
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == b"again"


def test_a_torn_body_is_reported_by_every_operation(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path / "s3")
    store.create_bucket("bucket")
    store.put_object_bytes("bucket", "a", BODY)
    truncate_file(store.object_body_path("bucket", "a"))
    for read in (
        lambda: store.open_object("bucket", "a"),
        lambda: store.object_body_path("bucket", "a"),
        lambda: list(store.list_object_bodies("bucket")),
        lambda: store.head_object("bucket", "a"),
    ):
        with pytest.raises(DamagedObject, match="/bucket/a has 15 bytes of 31"):
            read()


def test_the_suggested_command_accepts_the_file(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path / "s3")
    store.create_bucket("bucket")
    store.put_object_bytes("bucket", "a b", BODY)
    truncate_file(store.object_body_path("bucket", "a b"))
    with pytest.raises(DamagedObject) as torn:
        store.head_object("bucket", "a b")
    subprocess.run(["sh", "-c", str(torn.value).split("`")[1]], check=True)
    info, file = store.open_object("bucket", "a b")
    with file:
        assert (file.read(), info.etag) == (HALF, hashlib.md5(HALF).hexdigest())


def append(path: Path) -> bytes:
    with path.open("ab") as file:
        file.write(b" and more")
    return BODY + b" and more"


def overwrite(path: Path) -> bytes:
    body = BODY.upper()
    status = path.stat()
    path.write_bytes(body)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
    return body


def replace_by_shorter_file(path: Path) -> bytes:
    new = path.with_name("new")
    new.write_bytes(b"short")
    new.replace(path)
    return b"short"


@pytest.mark.parametrize("edit", [append, overwrite, replace_by_shorter_file])
def test_a_file_edited_by_hand_becomes_the_object(
    edit: Callable[[Path], bytes], front: ServerHarness, s3: Any, bucket: str
) -> None:
    s3.put_object(Bucket=bucket, Key="a", Body=BODY, ChecksumAlgorithm="CRC32", Metadata={"k": "v"})
    body = edit(front.objects.object_body_path(bucket, "a"))
    answer = s3.get_object(Bucket=bucket, Key="a", ChecksumMode="ENABLED")
    assert answer["Body"].read() == body
    assert answer["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
    assert "ChecksumCRC32" not in answer and answer["Metadata"] == {"k": "v"}


def test_a_listing_shows_the_objects_as_they_are_now(front: ServerHarness, s3: Any, bucket: str) -> None:
    """By their ETags a client knows which of its files it has to send again."""
    for key in ("a", "b", "c", "torn"):
        s3.put_object(Bucket=bucket, Key=key, Body=BODY)
    paths = {key: front.objects.object_body_path(bucket, key) for key in ("a", "b", "c", "torn")}
    edited = paths["a"].with_name("a.new")
    edited.write_bytes(b"edited")
    edited.rename(paths["a"])
    paths["b"].unlink()
    truncate_file(paths["torn"])
    listed = {
        entry["Key"]: (entry["Size"], entry["ETag"].strip('"'))
        for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]
    }
    uploaded = (len(BODY), hashlib.md5(BODY).hexdigest())
    assert listed == {"a": (6, hashlib.md5(b"edited").hexdigest()), "c": uploaded, "torn": uploaded}


def test_a_store_that_was_copied_has_the_same_objects(
    front: ServerHarness, s3: Any, bucket: str, tmp_path: Path
) -> None:
    s3.put_object(Bucket=bucket, Key="plain", Body=BODY, ChecksumAlgorithm="CRC32")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="parts", ChecksumAlgorithm="CRC32")["UploadId"]
    parts = []
    for number, body in ((1, b"x" * (5 << 20)), (2, BODY)):
        part = s3.upload_part(
            Bucket=bucket,
            Key="parts",
            UploadId=upload,
            PartNumber=number,
            Body=body,
            ChecksumAlgorithm="CRC32",
        )
        parts.append({"PartNumber": number, "ETag": part["ETag"], "ChecksumCRC32": part["ChecksumCRC32"]})
    s3.complete_multipart_upload(
        Bucket=bucket, Key="parts", UploadId=upload, MultipartUpload={"Parts": parts}
    )
    s3.put_object(Bucket=bucket, Key="cut", Body=BODY)
    copy = tmp_path / "copy"
    shutil.copytree(front.objects.root, copy, copy_function=shutil.copyfile)  # with new times too
    truncate_file(copy / bucket / "cut")
    copied_store = ObjectStore(copy)
    for key in ("plain", "parts"):
        assert copied_store.head_object(bucket, key) == front.objects.head_object(bucket, key)
    # An incomplete copy in a new file.
    with pytest.raises(DamagedObject):
        copied_store.head_object(bucket, "cut")


@pytest.mark.parametrize("tear", [truncate_file, empty_file, lambda path: path.unlink()])
def test_a_torn_part_is_not_joined(
    tear: Callable[[Path], None], front: ServerHarness, s3: Any, bucket: str
) -> None:
    upload = s3.create_multipart_upload(Bucket=bucket, Key="a")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="a", UploadId=upload, PartNumber=1, Body=BODY)
    (path,) = (front.objects.root / "_store/incoming").glob(f"{upload}.1.*")
    tear(path)
    upload_parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    with pytest.raises(ClientError) as torn:
        s3.complete_multipart_upload(Bucket=bucket, Key="a", UploadId=upload, MultipartUpload=upload_parts)
    assert torn.value.response["Error"]["Code"] == "EndpointStateDamaged"
    assert str(path) in torn.value.response["Error"]["Message"]
    s3.upload_part(Bucket=bucket, Key="a", UploadId=upload, PartNumber=1, Body=BODY)
    s3.complete_multipart_upload(Bucket=bucket, Key="a", UploadId=upload, MultipartUpload=upload_parts)
    assert s3.get_object(Bucket=bucket, Key="a")["Body"].read() == BODY


def test_files_that_are_no_objects_survive_delete_bucket(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path / "s3")
    store.create_bucket("bucket")
    store.put_object_bytes("bucket", "a/b", BODY)
    notes = tmp_path / "s3/bucket/notes.txt"
    notes.write_text("mine")
    store.delete_object("bucket", "a/b")
    store.delete_bucket("bucket")
    assert store.list_buckets() == () and notes.read_text() == "mine"
