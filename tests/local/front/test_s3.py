"""S3 as boto3 sees it."""

from __future__ import annotations

import base64
import datetime
import hashlib
import io
import os
import zlib
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smlaunch.local.services.s3.object_transfers import parse_byte_range
from tests.local.front.conftest import ServerHarness
from tests.local.front.test_objects import ODD_KEYS

PART = 5 << 20


def error_code(call: Any, **arguments: Any) -> str:
    """Call an operation that must fail, and return the error's code."""
    with pytest.raises(ClientError) as failed:
        call(**arguments)
    text: str = failed.value.response["Error"]["Code"]
    return text


def test_buckets(s3: Any) -> None:
    assert s3.create_bucket(Bucket="made-here")["ResponseMetadata"]["HTTPStatusCode"] == 200
    s3.create_bucket(Bucket="made-here")  # us-east-1 lets the owner repeat the call
    s3.head_bucket(Bucket="made-here", ExpectedBucketOwner="000000000000")
    assert error_code(s3.head_bucket, Bucket="made-here", ExpectedBucketOwner="111111111111") == "403"
    assert error_code(s3.head_bucket, Bucket="not-there") == "404"
    assert error_code(s3.list_objects_v2, Bucket="not-there") == "NoSuchBucket"
    assert error_code(s3.create_bucket, Bucket="Not_Valid") == "InvalidBucketName"
    assert s3.get_bucket_location(Bucket="made-here")["LocationConstraint"] is None
    assert "made-here" in [entry["Name"] for entry in s3.list_buckets()["Buckets"]]
    s3.put_object(Bucket="made-here", Key="k", Body=b"")
    assert error_code(s3.delete_bucket, Bucket="made-here") == "BucketNotEmpty"
    s3.delete_object(Bucket="made-here", Key="k")
    s3.delete_bucket(Bucket="made-here")
    assert error_code(s3.head_bucket, Bucket="made-here") == "404"


def test_buckets_of_a_region(front: ServerHarness) -> None:
    s3 = front.client("s3", region_name="eu-west-1")
    configuration = {"LocationConstraint": "eu-west-1"}
    s3.create_bucket(Bucket="in-europe", CreateBucketConfiguration=configuration)
    assert s3.head_bucket(Bucket="in-europe")["BucketRegion"] == "eu-west-1"
    assert s3.get_bucket_location(Bucket="in-europe")["LocationConstraint"] == "eu-west-1"
    error = error_code(s3.create_bucket, Bucket="in-europe", CreateBucketConfiguration=configuration)
    assert error == "BucketAlreadyOwnedByYou"
    assert error_code(s3.create_bucket, Bucket="unsaid") == "IllegalLocationConstraintException"


def test_put_get_head(s3: Any, bucket: str) -> None:
    put = s3.put_object(
        Bucket=bucket,
        Key="k",
        Body=b"hello",
        ContentType="text/plain",
        ContentEncoding="identity",
        CacheControl="no-cache",
        Metadata={"a": "1", "b": "x y"},
        Tagging="t=1&u=2",
        ServerSideEncryption="aws:kms",
        SSEKMSKeyId="key",
    )
    assert put["ETag"] == f'"{hashlib.md5(b"hello").hexdigest()}"'
    assert put["ChecksumCRC32"] == base64.b64encode(zlib.crc32(b"hello").to_bytes(4, "big")).decode()
    response = s3.get_object(Bucket=bucket, Key="k")
    head = s3.head_object(Bucket=bucket, Key="k")
    assert response["Body"].read() == b"hello"
    for answer in (response, head):
        assert answer["ContentType"] == "text/plain"
        assert answer["ContentEncoding"] == "identity"
        assert answer["CacheControl"] == "no-cache"
        assert answer["Metadata"] == {"a": "1", "b": "x y"}
        assert answer["ContentLength"] == 5
        assert answer["TagCount"] == 2
        assert (answer["ServerSideEncryption"], answer["SSEKMSKeyId"]) == ("aws:kms", "key")
        age = datetime.datetime.now(datetime.timezone.utc) - answer["LastModified"]
        assert abs(age) < datetime.timedelta(minutes=5)
    assert error_code(s3.get_object, Bucket=bucket, Key="none") == "NoSuchKey"
    assert error_code(s3.head_object, Bucket=bucket, Key="none") == "404"
    assert error_code(s3.get_object, Bucket=bucket, Key="k", VersionId="abc") == "NoSuchVersion"
    s3.delete_object(Bucket=bucket, Key="k")
    s3.delete_object(Bucket=bucket, Key="k")


def test_odd_keys(s3: Any, bucket: str) -> None:
    # A client's own limits: leading slashes and dots are normalised away by nobody, control characters not
    # representable in XML are asked for in url encoding, which boto3 does by itself.
    for key in ODD_KEYS:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    for key in ODD_KEYS:
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
    expected = sorted(ODD_KEYS, key=str.encode)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, PaginationConfig={"PageSize": 7})
    assert [entry["Key"] for page in pages for entry in page["Contents"]] == expected
    pages = s3.get_paginator("list_objects").paginate(Bucket=bucket, PaginationConfig={"PageSize": 7})
    assert [entry["Key"] for page in pages for entry in page["Contents"]] == expected
    assert error_code(s3.put_object, Bucket=bucket, Key="k" * 1025, Body=b"") == "KeyTooLongError"
    keys = [{"Key": key} for key in ODD_KEYS if "\x01" not in key]
    deleted = s3.delete_objects(Bucket=bucket, Delete={"Objects": keys})["Deleted"]
    assert sorted(entry["Key"] for entry in deleted) == sorted(entry["Key"] for entry in keys)
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["\x01"]


@given(key=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30), body=st.binary())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_key_and_body(s3: Any, bucket: str, key: str, body: bytes) -> None:
    s3.put_object(Bucket=bucket, Key=key, Body=body)
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == body
    assert key in [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket, Prefix=key)["Contents"]]
    copy = s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": key})
    assert copy["CopyObjectResult"]["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
    s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key}, {"Key": "copy"}], "Quiet": True})
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_listing_with_a_delimiter(s3: Any, bucket: str) -> None:
    for key in ("a", "b/1", "b/2", "b/c/3", "d é/1", "e"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"")
    page = s3.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert [entry["Key"] for entry in page["Contents"]] == ["a", "e"]
    assert [entry["Prefix"] for entry in page["CommonPrefixes"]] == ["b/", "d é/"]
    assert page["KeyCount"] == 4
    for operation in ("list_objects", "list_objects_v2"):
        pages = s3.get_paginator(operation).paginate(
            Bucket=bucket, Delimiter="/", PaginationConfig={"PageSize": 1}
        )
        names = [
            entry.get("Key") or entry.get("Prefix")
            for page in pages
            for entry in (*page.get("Contents", ()), *page.get("CommonPrefixes", ()))
        ]
        assert names == ["a", "b/", "d é/", "e"]
    assert s3.list_objects_v2(Bucket=bucket, StartAfter="b/2", MaxKeys=1)["Contents"][0]["Key"] == "b/c/3"
    nothing = s3.list_objects_v2(Bucket=bucket, MaxKeys=0)
    assert (nothing["KeyCount"], nothing["IsTruncated"]) == (0, False)
    assert error_code(s3.list_objects_v2, Bucket=bucket, ContinuationToken="é") == "InvalidArgument"
    versions = s3.list_object_versions(Bucket=bucket, Prefix="b/c")["Versions"]
    assert [(entry["Key"], entry["VersionId"]) for entry in versions] == [("b/c/3", "null")]


def test_a_thousand_keys_a_page(front: ServerHarness, s3: Any, bucket: str) -> None:
    for number in range(1001):
        front.objects.put_object_bytes(bucket, f"{number:05}", b"")
    first = s3.list_objects_v2(Bucket=bucket)
    assert (first["KeyCount"], first["IsTruncated"]) == (1000, True)
    second = s3.list_objects_v2(Bucket=bucket, ContinuationToken=first["NextContinuationToken"])
    assert [entry["Key"] for entry in second["Contents"]] == ["01000"]
    keys = [{"Key": f"{number:05}"} for number in range(1000)]
    s3.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 1


@given(st.integers(0, 30), st.integers(-2, 40), st.integers(-2, 40), st.sampled_from(["{}-{}", "{}-", "-{}"]))
def test_ranges(size: int, first: int, last: int, form: str) -> None:
    body = bytes(range(size))
    text = form.format(max(first, 0), max(last, 0))
    start, _, end = text.partition("-")
    if start:
        expected = body[int(start) : int(end) + 1 if end else None]
        ignored = bool(end) and int(end) < int(start)
    else:
        expected, ignored = (body[-int(end) :] if int(end) else b""), False
    try:
        byte_range = parse_byte_range(f"bytes={text}", size)
    except Exception as error:
        assert "InvalidRange" in str(error)
        assert expected == b""
        assert not ignored
        return
    if byte_range is None:
        assert ignored
    else:
        assert body[byte_range[0] : byte_range[0] + byte_range[1]] == expected
        assert expected


def test_ranges_over_http(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    response = s3.get_object(Bucket=bucket, Key="k", Range="bytes=2-4")
    assert (response["Body"].read(), response["ContentRange"], response["ContentLength"]) == (
        b"234",
        "bytes 2-4/10",
        3,
    )
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert s3.get_object(Bucket=bucket, Key="k", Range="bytes=-3")["Body"].read() == b"789"
    assert s3.get_object(Bucket=bucket, Key="k", Range="bytes=8-99")["Body"].read() == b"89"
    assert s3.get_object(Bucket=bucket, Key="k", Range="rows=1-2")["Body"].read() == b"0123456789"
    assert error_code(s3.get_object, Bucket=bucket, Key="k", Range="bytes=10-") == "InvalidRange"
    assert s3.head_object(Bucket=bucket, Key="k", Range="bytes=0-0")["ContentLength"] == 1


def test_conditions(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"1", IfNoneMatch="*")["ETag"]
    assert (
        error_code(s3.put_object, Bucket=bucket, Key="k", Body=b"2", IfNoneMatch="*") == "PreconditionFailed"
    )
    assert error_code(s3.put_object, Bucket=bucket, Key="k", Body=b"2", IfMatch='"0"') == "PreconditionFailed"
    assert error_code(s3.put_object, Bucket=bucket, Key="none", Body=b"2", IfMatch=etag) == "NoSuchKey"
    assert s3.get_object(Bucket=bucket, Key="k", IfMatch=etag)["Body"].read() == b"1"
    assert error_code(s3.get_object, Bucket=bucket, Key="k", IfMatch='"0"') == "PreconditionFailed"
    assert error_code(s3.get_object, Bucket=bucket, Key="k", IfNoneMatch=etag) == "304"
    now = datetime.datetime.now(datetime.timezone.utc)
    later, earlier = now + datetime.timedelta(hours=1), now - datetime.timedelta(hours=1)
    assert error_code(s3.get_object, Bucket=bucket, Key="k", IfModifiedSince=later) == "304"
    assert (
        error_code(s3.get_object, Bucket=bucket, Key="k", IfUnmodifiedSince=earlier) == "PreconditionFailed"
    )
    s3.get_object(Bucket=bucket, Key="k", IfModifiedSince=earlier, IfUnmodifiedSince=later)
    assert error_code(s3.delete_object, Bucket=bucket, Key="k", IfMatch='"0"') == "PreconditionFailed"
    s3.put_object(Bucket=bucket, Key="k", Body=b"2", IfMatch=etag)
    source = {"Bucket": bucket, "Key": "k"}
    failed = error_code(s3.copy_object, Bucket=bucket, Key="c", CopySource=source, CopySourceIfMatch=etag)
    assert failed == "PreconditionFailed"


def test_only_one_of_many_writers_creates(front: ServerHarness, bucket: str) -> None:
    import concurrent.futures

    def create(number: int) -> str:
        s3 = front.client("s3")
        try:
            s3.put_object(Bucket=bucket, Key="lock", Body=str(number).encode(), IfNoneMatch="*")
        except ClientError as error:
            refused: str = error.response["Error"]["Code"]
            return refused
        return "made"

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(create, range(8)))
    assert sorted(outcomes) == ["PreconditionFailed"] * 7 + ["made"]


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
def test_checksums(s3: Any, bucket: str, algorithm: str) -> None:
    name = f"Checksum{algorithm}"
    put = s3.put_object(Bucket=bucket, Key="k", Body=b"hello", ChecksumAlgorithm=algorithm)
    head = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert head[name] == put[name]
    assert head["ChecksumType"] == "FULL_OBJECT"
    assert name not in s3.get_object(Bucket=bucket, Key="k", Range="bytes=0-1")
    attributes = s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=["Checksum", "ObjectSize"])
    assert (attributes["Checksum"][name], attributes["ObjectSize"]) == (put[name], 5)
    wrong = base64.b64encode(b"\0" * len(base64.b64decode(put[name]))).decode()
    assert error_code(s3.put_object, Bucket=bucket, Key="x", Body=b"hello", **{name: wrong}) == "BadDigest"
    assert error_code(s3.head_object, Bucket=bucket, Key="x") == "404"


def test_a_checksum_without_awscrt_is_stored_unverified(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"123456789", ChecksumCRC64NVME="rosUhgp5lIg=")
    assert (
        s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")["ChecksumCRC64NVME"] == "rosUhgp5lIg="
    )


def test_content_md5(s3: Any, bucket: str) -> None:
    good = base64.b64encode(hashlib.md5(b"hello").digest()).decode()
    s3.put_object(Bucket=bucket, Key="k", Body=b"hello", ContentMD5=good)
    assert error_code(s3.put_object, Bucket=bucket, Key="x", Body=b"hullo", ContentMD5=good) == "BadDigest"


def test_transfers_in_parts(s3: Any, bucket: str) -> None:
    body = os.urandom(3 * PART + 17)
    config = TransferConfig(multipart_threshold=PART, multipart_chunksize=PART, max_concurrency=4)
    s3.upload_fileobj(io.BytesIO(body), bucket, "big", Config=config)
    digests = b"".join(hashlib.md5(body[at : at + PART]).digest() for at in range(0, len(body), PART))
    head = s3.head_object(Bucket=bucket, Key="big", ChecksumMode="ENABLED")
    assert head["ETag"] == f'"{hashlib.md5(digests).hexdigest()}-4"'
    assert head["ChecksumType"] == "COMPOSITE"
    assert head["ChecksumCRC32"].endswith("-4")
    target = io.BytesIO()
    s3.download_fileobj(bucket, "big", target, Config=config)
    assert target.getvalue() == body
    s3.copy({"Bucket": bucket, "Key": "big"}, bucket, "copied", Config=config)
    assert s3.get_object(Bucket=bucket, Key="copied")["Body"].read() == body
    part = s3.get_object(Bucket=bucket, Key="big", PartNumber=4)
    assert (part["Body"].read(), part["PartsCount"]) == (body[3 * PART :], 4)
    assert error_code(s3.get_object, Bucket=bucket, Key="big", PartNumber=5) == "InvalidPartNumber"


@pytest.mark.parametrize("kind", ["FULL_OBJECT", "COMPOSITE"])
def test_multipart_by_hand(front: ServerHarness, s3: Any, bucket: str, kind: str) -> None:
    new_upload = s3.create_multipart_upload(
        Bucket=bucket, Key="k", ChecksumAlgorithm="CRC32", ChecksumType=kind, Metadata={"m": "1"}
    )
    object_id = {"Bucket": bucket, "Key": "k", "UploadId": new_upload["UploadId"]}
    bodies = {1: os.urandom(PART), 3: os.urandom(PART), 7: b"end"}
    parts = []
    for number, body in bodies.items():
        s3.upload_part(**object_id, PartNumber=number, Body=b"sent again below", ChecksumAlgorithm="CRC32")
        sent = s3.upload_part(**object_id, PartNumber=number, Body=body, ChecksumAlgorithm="CRC32")
        parts.append({"PartNumber": number, "ETag": sent["ETag"], "ChecksumCRC32": sent["ChecksumCRC32"]})
    listing = s3.list_parts(**object_id)
    assert [(part["PartNumber"], part["Size"]) for part in listing["Parts"]] == [(1, PART), (3, PART), (7, 3)]
    assert [upload["Key"] for upload in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]] == ["k"]
    complete = s3.complete_multipart_upload
    assert error_code(complete, **object_id, MultipartUpload={"Parts": parts[::-1]}) == "InvalidPartOrder"
    wrong = [{**parts[0], "ETag": '"0"'}]
    assert error_code(complete, **object_id, MultipartUpload={"Parts": wrong}) == "InvalidPart"
    small = [parts[2], {**parts[2], "PartNumber": 8}]
    assert error_code(complete, **object_id, MultipartUpload={"Parts": small}) == "InvalidPart"
    completion = complete(**object_id, MultipartUpload={"Parts": parts}, MpuObjectSize=2 * PART + 3)
    joined_body = b"".join(bodies.values())
    if kind == "FULL_OBJECT":
        assert base64.b64decode(completion["ChecksumCRC32"]) == zlib.crc32(joined_body).to_bytes(4, "big")
    response = s3.get_object(Bucket=bucket, Key="k")
    assert response["Body"].read() == joined_body
    assert response["Metadata"] == {"m": "1"}
    assert error_code(complete, **object_id, MultipartUpload={"Parts": parts}) == "NoSuchUpload"
    assert list((front.root / "s3/_store/incoming").iterdir()) == []


def test_multipart_errors_and_abort(front: ServerHarness, s3: Any, bucket: str) -> None:
    object_id = {"Bucket": bucket, "Key": "k"}
    object_id["UploadId"] = s3.create_multipart_upload(**object_id)["UploadId"]
    parts = []
    for number in (1, 2):
        sent = s3.upload_part(**object_id, PartNumber=number, Body=b"small")
        parts.append({"PartNumber": number, "ETag": sent["ETag"]})
    complete = s3.complete_multipart_upload
    assert error_code(complete, **object_id, MultipartUpload={"Parts": parts}) == "EntityTooSmall"
    assert (
        error_code(complete, **object_id, MultipartUpload={"Parts": parts[:1]}, MpuObjectSize=7)
        == "InvalidRequest"
    )
    s3.put_object(Bucket=bucket, Key="k", Body=b"there")
    failed = error_code(complete, **object_id, MultipartUpload={"Parts": parts[:1]}, IfNoneMatch="*")
    assert failed == "PreconditionFailed"
    assert error_code(s3.upload_part, **object_id, PartNumber=0, Body=b"") == "InvalidArgument"
    assert error_code(s3.upload_part, **object_id, PartNumber=10_001, Body=b"") == "InvalidArgument"
    s3.abort_multipart_upload(**object_id)
    assert error_code(s3.list_parts, **object_id) == "NoSuchUpload"
    assert list((front.root / "s3/_store/incoming").iterdir()) == []
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"there"


def test_copies_of_parts(s3: Any, bucket: str) -> None:
    body = os.urandom(PART + 100)
    s3.put_object(Bucket=bucket, Key="source", Body=body)
    object_id = {"Bucket": bucket, "Key": "k"}
    object_id["UploadId"] = s3.create_multipart_upload(**object_id)["UploadId"]
    source = {"Bucket": bucket, "Key": "source"}
    parts = []
    for number, (first, last) in enumerate([(100, PART + 99), (0, 9)], 1):
        copied = s3.upload_part_copy(
            **object_id, PartNumber=number, CopySource=source, CopySourceRange=f"bytes={first}-{last}"
        )
        parts.append({"PartNumber": number, "ETag": copied["CopyPartResult"]["ETag"]})
    s3.complete_multipart_upload(**object_id, MultipartUpload={"Parts": parts})
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == body[100 : PART + 100] + body[:10]


def test_copies(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="a", Body=b"x", ContentType="a/b", Metadata={"m": "1"}, Tagging="t=1")
    source = {"Bucket": bucket, "Key": "a"}
    s3.copy_object(Bucket=bucket, Key="b", CopySource=source)
    copied = s3.head_object(Bucket=bucket, Key="b", ChecksumMode="ENABLED")
    assert (copied["ContentType"], copied["Metadata"], copied["TagCount"]) == ("a/b", {"m": "1"}, 1)
    assert "ChecksumCRC32" in copied
    s3.copy_object(
        Bucket=bucket, Key="a", CopySource=source, MetadataDirective="REPLACE", Metadata={"n": "2"}
    )
    assert s3.head_object(Bucket=bucket, Key="a")["Metadata"] == {"n": "2"}
    assert error_code(s3.copy_object, Bucket=bucket, Key="a", CopySource=source) == "InvalidRequest"
    assert error_code(s3.copy_object, Bucket=bucket, Key="c", CopySource=f"{bucket}/none") == "NoSuchKey"


def test_tags(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", Tagging="a=1")
    object_id = {"Bucket": bucket, "Key": "k"}
    assert s3.get_object_tagging(**object_id)["TagSet"] == [{"Key": "a", "Value": "1"}]
    tags = [{"Key": "b", "Value": "<&>"}, {"Key": "c", "Value": ""}]
    s3.put_object_tagging(**object_id, Tagging={"TagSet": tags})
    assert s3.get_object_tagging(**object_id)["TagSet"] == tags
    assert s3.get_object(**object_id)["Body"].read() == b"x"
    s3.delete_object_tagging(**object_id)
    assert s3.get_object_tagging(**object_id)["TagSet"] == []
    assert error_code(s3.get_object_tagging, Bucket=bucket, Key="none") == "NoSuchKey"


def test_unsupported_features_are_rejected_by_name(s3: Any, bucket: str) -> None:
    for call, arguments in (
        (s3.put_bucket_versioning, {"VersioningConfiguration": {"Status": "Enabled"}}),
        (s3.put_object, {"Key": "k", "WebsiteRedirectLocation": "/x"}),
        (s3.select_object_content, {"Key": "k", **_SELECT}),
    ):
        with pytest.raises(ClientError, match="does not provide") as refused:
            call(Bucket=bucket, **arguments)
        assert refused.value.response["Error"]["Code"] == "NotImplemented"
    refused_acl = error_code(s3.put_object, Bucket=bucket, Key="k", ACL="public-read")
    assert refused_acl == "AccessControlListNotSupported"
    assert "Status" not in s3.get_bucket_versioning(Bucket=bucket)
    assert (
        error_code(s3.get_bucket_encryption, Bucket=bucket)
        == "ServerSideEncryptionConfigurationNotFoundError"
    )
    assert s3.get_bucket_acl(Bucket=bucket)["Grants"][0]["Permission"] == "FULL_CONTROL"


_SELECT = {
    "Expression": "select *",
    "ExpressionType": "SQL",
    "InputSerialization": {"CSV": {}},
    "OutputSerialization": {"CSV": {}},
}


def test_a_large_body_is_streamed(front: ServerHarness, s3: Any, bucket: str, tmp_path: Any) -> None:
    """Client and server share this process, and neither may hold the body in memory."""
    import tracemalloc

    source = tmp_path / "big"
    with source.open("wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    try:
        with source.open("rb") as file:
            s3.put_object(Bucket=bucket, Key="big", Body=file)
        target = tmp_path / "back"
        with target.open("wb") as out:
            for block in s3.get_object(Bucket=bucket, Key="big")["Body"].iter_chunks(1 << 20):
                out.write(block)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert target.stat().st_size == 64 << 20
    assert peak < 24 << 20  # client and server together


def test_every_operation_checks_the_expected_bucket_owner(s3: Any) -> None:
    """Covers objects, parts and copies; an id that is no account's has an error of its own."""
    s3.create_bucket(Bucket="owned")
    s3.put_object(Bucket="owned", Key="k", Body=b"1")
    upload = s3.create_multipart_upload(Bucket="owned", Key="m")["UploadId"]
    part = {"Bucket": "owned", "Key": "m", "UploadId": upload}
    source = {"Bucket": "owned", "Key": "c", "CopySource": "owned/k"}
    mine, other = "000000000000", "111111111111"
    calls: list[tuple[Any, dict[str, Any]]] = [
        (s3.head_bucket, {"Bucket": "owned"}),
        (s3.list_objects_v2, {"Bucket": "owned"}),
        (s3.list_multipart_uploads, {"Bucket": "owned"}),
        (s3.get_bucket_location, {"Bucket": "owned"}),
        (s3.head_object, {"Bucket": "owned", "Key": "k"}),
        (s3.get_object, {"Bucket": "owned", "Key": "k"}),
        (s3.get_object_attributes, {"Bucket": "owned", "Key": "k", "ObjectAttributes": ["ETag"]}),
        (s3.get_object_tagging, {"Bucket": "owned", "Key": "k"}),
        (s3.put_object, {"Bucket": "owned", "Key": "k", "Body": b"2"}),
        (s3.copy_object, source),
        (s3.upload_part, {**part, "PartNumber": 1, "Body": b"3"}),
        (s3.upload_part_copy, {**part, "PartNumber": 2, "CopySource": "owned/k"}),
        (s3.list_parts, part),
        (s3.create_multipart_upload, {"Bucket": "owned", "Key": "n"}),
        (s3.delete_objects, {"Bucket": "owned", "Delete": {"Objects": [{"Key": "c"}]}}),
        (s3.delete_object, {"Bucket": "owned", "Key": "c"}),
        (s3.abort_multipart_upload, part),
    ]
    for call, arguments in calls:
        assert error_code(call, **arguments, ExpectedBucketOwner=other) in ("AccessDenied", "403"), call
    assert s3.get_object(Bucket="owned", Key="k")["Body"].read() == b"1"
    for call, arguments in ((s3.copy_object, source), (s3.upload_part_copy, {**part, "PartNumber": 2})):
        stated = {**arguments, "CopySource": "owned/k", "ExpectedSourceBucketOwner": other}
        assert error_code(call, **stated, ExpectedBucketOwner=mine) == "AccessDenied"
    assert error_code(s3.list_objects_v2, Bucket="owned", ExpectedBucketOwner="12") == (
        "InvalidBucketOwnerAWSAccountID"
    )
    assert error_code(s3.list_objects_v2, Bucket="no-such", ExpectedBucketOwner=other) == "NoSuchBucket"
    for call, arguments in calls:
        call(**arguments, ExpectedBucketOwner=mine)
