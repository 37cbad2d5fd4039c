"""Every rank uploads and downloads its own shards, and no more than it needs.

The platform's sync downloads the whole prefix to every host at each start: hosts x retained checkpoints x
their size. Here a rank that starts lists the prefix, reads the manifests, and downloads only the shards it
opens. A file is in S3 when ``upload`` returns, so a step counts as saved from its commit on.

boto3 is the image's own; nothing else of smlaunch needs it.
"""

import sys
import time
from functools import partial
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, Type

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from smlaunch.contract.checkpoint_layout import is_manifest, parse_shard_rank
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.train.transports.base import CheckpointTransport, LoadFailed, PendingUpload, UploadFailed
from smlaunch.train.transports.upload_monitor import UploadMonitor

_PART_BYTES = 16 << 20
_CONCURRENT_PARTS = 8
_MAX_ATTEMPTS = 4
_FIRST_BACKOFF_SECONDS = 1.0
"""Pause before the second try, doubled with each: botocore has tried each request ten times by then."""

_MAX_KEYS_PER_DELETE = 1000
"""DeleteObjects accepts at most 1,000 keys (S3 API reference)."""

_MISSING_CODES = ("404", "NoSuchKey", "NotFound")


class DirectTransport(CheckpointTransport):
    """``uri``: ``s3://bucket/prefix/``. ``owner``: the account that has to own the bucket; S3 refuses every
    request if another one does. ``on_message`` is called for every failed try, and for uploads that stall."""

    is_remote = True
    settle_seconds = 0.0

    def __init__(
        self,
        uri: str,
        *,
        owner: Optional[str] = None,
        client: Any = None,
        on_message: Optional[Callable[[str], None]] = None,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``client``: a boto3 S3 client; None creates one from the host's credentials."""
        self._bucket, self._prefix = _split_uri(uri)
        self._client = client or boto3.client(
            "s3", config=Config(retries={"mode": "standard", "max_attempts": 10}, connect_timeout=10)
        )
        self._expected_bucket_owner = owner
        if owner is not None:
            # As a header: older boto3 versions in images have no such parameter.
            self._client.meta.events.register("before-call.s3", partial(_add_owner_header, owner))
        self._on_message = on_message or _print_to_stderr
        self._sleep = sleep
        self._clock = clock
        self._monitor: Optional[UploadMonitor] = None
        self._transfer = TransferConfig(
            multipart_threshold=_PART_BYTES,
            multipart_chunksize=_PART_BYTES,
            max_concurrency=_CONCURRENT_PARTS,
        )

    def list_files(self) -> Mapping[str, int]:
        size_by_name: Dict[str, int] = self._call_s3("list", self._prefix, self._list_objects, LoadFailed)
        return size_by_name

    def read_file(self, name: str) -> bytes:
        key = self._prefix + name
        content: bytes = self._call_s3(
            "read",
            name,
            lambda: self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read(),
            LoadFailed,
        )
        return content

    def download(self, name: str, path: str) -> None:
        key = self._prefix + name
        self._call_s3(
            "download",
            name,
            lambda: self._client.download_file(self._bucket, key, path, Config=self._transfer),
            LoadFailed,
        )

    def upload(self, name: str, path: str, size: int) -> None:
        """Upload a file. S3 compares a checksum of each request, and the size is compared at the end. A file
        that is named by its content and exists already is not sent again."""
        file_name = name.rpartition("/")[2]
        is_immutable = is_manifest(file_name) or parse_shard_rank(file_name) is not None
        if is_immutable and self._remote_size(name) == size:
            return
        with UploadMonitor(name, size, self._on_message, self._clock) as monitor:
            self._monitor = monitor
            try:
                self._call_s3("upload", name, lambda: self._upload(name, path, monitor))
                remote_bytes = self._remote_size(name)
            finally:
                self._monitor = None
        if remote_bytes != size:
            raise UploadFailed(
                "{}: {:,} bytes were sent to s3://{}, which has {}".format(
                    name, size, self._bucket, remote_bytes
                )
            )

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects of S3 by their names below the prefix, and report those that stay; nothing is raised
        for them."""
        for start in range(0, len(names), _MAX_KEYS_PER_DELETE):
            batch = names[start : start + _MAX_KEYS_PER_DELETE]
            try:
                response = self._call_s3("delete", batch[0], partial(self._delete_objects, batch))
            except UploadFailed as error:
                self._on_message("{}; it stays in S3".format(error))
                continue
            for failure in response.get("Errors", []):
                self._on_message(
                    "checkpoint {}: S3 did not delete it: {}".format(failure["Key"], failure["Code"])
                )

    def pending_upload(self) -> Optional[PendingUpload]:
        monitor = self._monitor
        return PendingUpload(0, 0.0) if monitor is None else monitor.pending_upload()

    def _list_objects(self) -> Dict[str, int]:
        """Return the size of each object below the prefix, by name."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix
        )
        rows = (row for page in pages for row in page.get("Contents", []))
        return {row["Key"][len(self._prefix) :]: int(row["Size"]) for row in rows}

    def _delete_objects(self, names: Sequence[str]) -> Any:
        rows = [{"Key": self._prefix + name} for name in names]
        return self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": rows, "Quiet": True})

    def _remote_size(self, name: str) -> Optional[int]:
        """Return the size of the object; None if it does not exist."""
        key = self._prefix + name
        try:
            response = self._call_s3(
                "look up", name, lambda: self._client.head_object(Bucket=self._bucket, Key=key)
            )
        except KeyError:
            return None
        return int(response["ContentLength"])

    def _upload(self, name: str, path: str, monitor: UploadMonitor) -> None:
        monitor.restart()
        # CRC32 is enough for the transfer: a reader of the shard compares its sha256.
        self._client.upload_file(
            path,
            self._bucket,
            self._prefix + name,
            ExtraArgs={"ChecksumAlgorithm": "CRC32"},
            Config=self._transfer,
            Callback=monitor.add_progress,
        )

    def _call_s3(
        self,
        action: str,
        object_name: str,
        request: Callable[[], Any],
        error_class: Type[Exception] = UploadFailed,
    ) -> Any:
        """Call S3 by ``request``, and again after transient failures, with a message for each. ``action`` and
        ``object_name`` are for messages. Raises KeyError if the object is missing, else ``error_class``."""
        failed_attempts = 0
        while True:
            try:
                return request()
            except (BotoCoreError, ClientError, boto3.exceptions.Boto3Error) as error:
                if _is_missing(error):
                    raise KeyError(object_name) from error
                failed_attempts += 1
                message = "checkpoint {}: {} failed: {}".format(object_name, action, error)
                if self._expected_bucket_owner is not None and _http_status(error) == 403:
                    message += (
                        "; the role lacks the permission, or the bucket {} does not belong to {}".format(
                            self._bucket, self._expected_bucket_owner
                        )
                    )
                if failed_attempts == _MAX_ATTEMPTS or _is_permanent(error):
                    raise error_class(message) from error
                backoff_seconds = _FIRST_BACKOFF_SECONDS * 2 ** (failed_attempts - 1)
                self._on_message("{}; trying again in {:.0f} s".format(message, backoff_seconds))
                self._sleep(backoff_seconds)


def _split_uri(uri: str) -> Tuple[str, str]:
    address = split_s3_uri(uri)
    if address is None:
        raise ValueError("{!r} is not an S3 address: s3://bucket/prefix/ is needed".format(uri))
    bucket, prefix = address
    return bucket, prefix.rstrip("/") + "/" if prefix.strip("/") else ""


def _is_missing(error: Exception) -> bool:
    return (
        isinstance(error, ClientError) and str(error.response.get("Error", {}).get("Code")) in _MISSING_CODES
    )


def _is_permanent(error: Exception) -> bool:
    """Return whether retrying cannot help: no permission, no such bucket."""
    status = _http_status(error)
    return 400 <= status < 500 and status not in (408, 429)


def _http_status(error: Exception) -> int:
    """Return the HTTP status; 0 without a response. boto3 wraps the error of an upload in one of its own."""
    if not isinstance(error, ClientError):
        inner = error.__cause__ or error.__context__
        return _http_status(inner) if isinstance(inner, Exception) else 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _add_owner_header(owner: str, params: Dict[str, Any], **_: Any) -> None:
    """Handle botocore's event before a request is signed."""
    params["headers"]["x-amz-expected-bucket-owner"] = owner


def _print_to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
