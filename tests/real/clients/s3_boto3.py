"""boto3 with its default checksums: python s3_boto3.py FEATURE BUCKET BIG_FILE"""

import sys
from pathlib import Path

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

feature, bucket, big = sys.argv[1:4]
content = Path(big).read_bytes()
s3 = boto3.client("s3")
PARTS = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20, max_concurrency=4)
ODD_KEYS = [
    "a b+c%20&=?#.txt",
    "ü/日本/🙂",
    "a//b/",
    "../up",
    "a",
    "a/b",
    "line\nbreak",
    "~!*'()",
    "x" * 1024,
]


def check_refused(code: str, call, **arguments) -> None:  # type: ignore[no-untyped-def]
    try:
        call(Bucket=bucket, **arguments)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, error
    else:
        raise AssertionError(f"not refused: {arguments}")


def whole() -> None:
    put = s3.put_object(Bucket=bucket, Key="w", Body=b"abc", Metadata={"k": "v"}, ContentType="text/x")
    assert put["ChecksumCRC32"], "boto3's default checksum comes back"
    response = s3.get_object(Bucket=bucket, Key="w", ChecksumMode="ENABLED")
    assert (response["Body"].read(), response["Metadata"], response["ContentType"]) == (
        b"abc",
        {"k": "v"},
        "text/x",
    )
    s3.delete_object(Bucket=bucket, Key="w")
    check_refused("404", s3.head_object, Key="w")


def multipart() -> None:
    s3.upload_file(big, bucket, "m", Config=PARTS)
    assert s3.head_object(Bucket=bucket, Key="m")["ETag"].endswith('-5"')
    s3.download_file(bucket, "m", big + ".back", Config=PARTS)
    assert Path(big + ".back").read_bytes() == content
    upload = s3.create_multipart_upload(Bucket=bucket, Key="left")
    assert [u["Key"] for u in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]] == ["left"]
    s3.abort_multipart_upload(Bucket=bucket, Key="left", UploadId=upload["UploadId"])
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)


def ranges() -> None:
    s3.put_object(Bucket=bucket, Key="r", Body=content)
    for byte_range, expected in {
        "bytes=0-0": content[:1],
        "bytes=1000-1999": content[1000:2000],
        "bytes=-7": content[-7:],
        f"bytes={len(content) - 3}-": content[-3:],
    }.items():
        assert s3.get_object(Bucket=bucket, Key="r", Range=byte_range)["Body"].read() == expected, byte_range
    check_refused("InvalidRange", s3.get_object, Key="r", Range=f"bytes={len(content)}-")


def conditions() -> None:
    first = s3.put_object(Bucket=bucket, Key="c", Body=b"1", IfNoneMatch="*")
    check_refused("PreconditionFailed", s3.put_object, Key="c", Body=b"2", IfNoneMatch="*")
    check_refused("PreconditionFailed", s3.put_object, Key="c", Body=b"2", IfMatch='"0"')
    s3.put_object(Bucket=bucket, Key="c", Body=b"2", IfMatch=first["ETag"])
    check_refused("PreconditionFailed", s3.get_object, Key="c", IfMatch=first["ETag"])
    assert s3.get_object(Bucket=bucket, Key="c")["Body"].read() == b"2"


def copies() -> None:
    s3.put_object(Bucket=bucket, Key="from é+", Body=content)
    source = {"Bucket": bucket, "Key": "from é+"}
    s3.copy_object(Bucket=bucket, Key="to", CopySource=source)
    s3.copy(source, bucket, "to in parts", Config=PARTS)
    for key in ("to", "to in parts"):
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == content


def odd_keys() -> None:
    for key in ODD_KEYS:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    assert {o["Key"] for o in s3.list_objects_v2(Bucket=bucket)["Contents"]} == set(ODD_KEYS)
    for key in ODD_KEYS:
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in ODD_KEYS]})
    assert len(answer["Deleted"]) == len(ODD_KEYS)


def pages() -> None:
    pages = [page["Contents"] for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)]
    assert [len(page) for page in pages] == [1000, 1000, 100]
    keys = [entry["Key"] for page in pages for entry in page]
    assert keys == [f"p/{number:04d}" for number in range(2100)]
    older = s3.get_paginator("list_objects").paginate(Bucket=bucket)
    assert [len(page["Contents"]) for page in older] == [1000, 1000, 100]


def checksums() -> None:
    for algorithm in ("CRC32", "SHA1", "SHA256"):
        s3.put_object(Bucket=bucket, Key="s", Body=b"abc", ChecksumAlgorithm=algorithm)
        response = s3.get_object(Bucket=bucket, Key="s", ChecksumMode="ENABLED")
        assert response[f"Checksum{algorithm}"]
        assert response["Body"].read() == b"abc"
    check_refused("BadDigest", s3.put_object, Key="s", Body=b"abc", ChecksumCRC32="AAAAAA==")


globals()[feature]()
