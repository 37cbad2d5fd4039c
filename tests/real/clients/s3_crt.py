"""AWS's Common Runtime by s3transfer's own manager: python s3_crt.py FEATURE BUCKET BIG_FILE

boto3's ``preferred_transfer_client="crt"`` cannot use this endpoint: boto3/crt.py asks for TLS and drops the
client's endpoint, whatever is configured. What it drives underneath can.
"""

import os
import sys
from pathlib import Path

import boto3
import botocore.session
from s3transfer.crt import (
    BotocoreCRTCredentialsWrapper,
    BotocoreCRTRequestSerializer,
    CRTTransferManager,
    create_s3_crt_client,
)

feature, bucket, big = sys.argv[1:4]
content = Path(big).read_bytes()
back = Path(big + ".back")
session = botocore.session.get_session()
credentials = BotocoreCRTCredentialsWrapper(session.get_credentials()).to_crt_credentials_provider()
client = create_s3_crt_client("us-east-1", credentials, use_ssl=False, part_size=5 << 20)
endpoint = {"region_name": "us-east-1", "endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
serializer = BotocoreCRTRequestSerializer(session, endpoint)


def round_trip(key: str, source: Path) -> None:
    with CRTTransferManager(client, serializer) as manager:
        manager.upload(str(source), bucket, key).result()
        manager.download(bucket, key, str(back)).result()
    assert back.read_bytes() == source.read_bytes(), key


def whole() -> None:
    small = Path(big + ".small")
    small.write_bytes(b"abc")
    round_trip("w", small)
    with CRTTransferManager(client, serializer) as manager:
        manager.delete(bucket, "w").result()
    assert "Contents" not in boto3.client("s3").list_objects_v2(Bucket=bucket)


def multipart() -> None:
    round_trip("m", Path(big))
    assert boto3.client("s3").head_object(Bucket=bucket, Key="m")["ETag"].endswith('-5"')


def ranges() -> None:
    """The client downloads by parallel ranged requests of its own."""
    boto3.client("s3").put_object(Bucket=bucket, Key="r", Body=content)
    with CRTTransferManager(client, serializer) as manager:
        manager.download(bucket, "r", str(back)).result()
    assert back.read_bytes() == content


def odd_keys() -> None:
    small = Path(big + ".small")
    for key in ("a b+c%20&=#.txt", "ü/日本/🙂", "~!*'()", "z" * 1024):
        small.write_bytes(key.encode())
        round_trip(key, small)


def checksums() -> None:
    s3 = boto3.client("s3")
    for algorithm in ("CRC32C", "CRC64NVME"):
        s3.put_object(Bucket=bucket, Key="s", Body=b"abc", ChecksumAlgorithm=algorithm)
        response = s3.get_object(Bucket=bucket, Key="s", ChecksumMode="ENABLED")
        assert response[f"Checksum{algorithm}"]
        assert response["Body"].read() == b"abc"


globals()[feature]()
