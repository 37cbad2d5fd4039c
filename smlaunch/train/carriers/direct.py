"""Every rank moves its own parts to S3 and back, and no more than it needs.

The platform's sync downloads the whole prefix to every host at each start: hosts x kept checkpoints x their
size. Here a rank that starts lists the prefix, reads the manifests, and downloads the parts it opens. What
has been taken is in S3 when ``take`` returns, so that a step counts as kept from its commit on.

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

from smlaunch.protocol.addresses import split_s3
from smlaunch.protocol.checkpoint import is_manifest, rank_of
from smlaunch.train.carriers.base import Behind, CannotCarry, CannotLoad, Carrier
from smlaunch.train.carriers.watch import Watch

_PART_BYTES = 16 << 20
_AT_ONCE = 8
_TRIES = 4
_FIRST_WAIT = 1.0
"""Seconds before the second try, doubled with each: botocore has tried each request ten times by then."""

_DELETED_AT_ONCE = 1000
"""DeleteObjects takes at most 1,000 keys (S3 API reference)."""

_GONE = ("404", "NoSuchKey", "NotFound")


class Direct(Carrier):
    """``uri``: ``s3://bucket/prefix/``. ``owner``: the account that has to own the bucket; S3 refuses
    everything where another one does. ``told`` hears about every try that failed, and about uploads that do
    not move."""

    remote = True
    settle_seconds = 0.0

    def __init__(
        self,
        uri: str,
        *,
        owner: Optional[str] = None,
        client: Any = None,
        told: Optional[Callable[[str], None]] = None,
        wait: Callable[[float], object] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``client``: a boto3 S3 client; None makes one from the host's credentials."""
        self._bucket, self._prefix = _place(uri)
        self._client = client or boto3.client(
            "s3", config=Config(retries={"mode": "standard", "max_attempts": 10}, connect_timeout=10)
        )
        self._owner = owner
        if owner is not None:
            # As a header: images with an older boto3 know no parameter of that name.
            self._client.meta.events.register("before-call.s3", partial(_name_owner, owner))
        self._told = told or _print
        self._wait = wait
        self._now = now
        self._watch: Optional[Watch] = None
        self._transfer = TransferConfig(
            multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, max_concurrency=_AT_ONCE
        )

    def listing(self) -> Mapping[str, int]:
        found: Dict[str, int] = self._call("list", self._prefix, self._listed, CannotLoad)
        return found

    def read(self, name: str) -> bytes:
        key = self._prefix + name
        content: bytes = self._call(
            "read",
            name,
            lambda: self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read(),
            CannotLoad,
        )
        return content

    def bring(self, name: str, path: str) -> None:
        key = self._prefix + name
        self._call(
            "download",
            name,
            lambda: self._client.download_file(self._bucket, key, path, Config=self._transfer),
            CannotLoad,
        )

    def take(self, name: str, path: str, size: int) -> None:
        """S3 compares a checksum of each request it gets, and the length is compared at the end. What is
        named by its content and there already is not sent again."""
        file_name = name.rpartition("/")[2]
        immutable = is_manifest(file_name) or rank_of(file_name) is not None
        if immutable and self._size(name) == size:
            return
        with Watch(name, size, self._told, self._now) as watch:
            self._watch = watch
            try:
                self._call("upload", name, lambda: self._upload(name, path, watch))
                arrived = self._size(name)
            finally:
                self._watch = None
        if arrived != size:
            raise CannotCarry(
                "{}: {:,} bytes were sent to s3://{} and {} are there".format(
                    name, size, self._bucket, arrived
                )
            )

    def delete(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), _DELETED_AT_ONCE):
            some = names[start : start + _DELETED_AT_ONCE]
            try:
                answer = self._call("delete", some[0], partial(self._delete, some))
            except CannotCarry as error:
                self._told("{}; it stays in S3".format(error))
                continue
            for fault in answer.get("Errors", []):
                self._told("checkpoint {}: S3 did not delete it: {}".format(fault["Key"], fault["Code"]))

    def behind(self) -> Optional[Behind]:
        watch = self._watch
        return Behind(0, 0.0) if watch is None else watch.behind()

    def _listed(self) -> Dict[str, int]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix
        )
        rows = (row for page in pages for row in page.get("Contents", []))
        return {row["Key"][len(self._prefix) :]: int(row["Size"]) for row in rows}

    def _delete(self, names: Sequence[str]) -> Any:
        rows = [{"Key": self._prefix + name} for name in names]
        return self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": rows, "Quiet": True})

    def _size(self, name: str) -> Optional[int]:
        """None when it is not there."""
        key = self._prefix + name
        try:
            answer = self._call(
                "look up", name, lambda: self._client.head_object(Bucket=self._bucket, Key=key)
            )
        except KeyError:
            return None
        return int(answer["ContentLength"])

    def _upload(self, name: str, path: str, watch: Watch) -> None:
        watch.begin()
        # CRC32, since only the way needs it: whoever loads the part compares its sha256.
        self._client.upload_file(
            path,
            self._bucket,
            self._prefix + name,
            ExtraArgs={"ChecksumAlgorithm": "CRC32"},
            Config=self._transfer,
            Callback=watch.moved,
        )

    def _call(
        self, what: str, name: str, function: Callable[[], Any], failure: Type[Exception] = CannotCarry
    ) -> Any:
        tries = 0
        while True:
            try:
                return function()
            except (BotoCoreError, ClientError, boto3.exceptions.Boto3Error) as error:
                if _is_gone(error):
                    raise KeyError(name) from error
                tries += 1
                text = "checkpoint {}: {} failed: {}".format(name, what, error)
                if self._owner is not None and _status(error) == 403:
                    text += "; the role lacks the permission, or the bucket {} does not belong to {}".format(
                        self._bucket, self._owner
                    )
                if tries == _TRIES or _is_refused(error):
                    raise failure(text) from error
                pause = _FIRST_WAIT * 2 ** (tries - 1)
                self._told("{}; trying again in {:.0f} s".format(text, pause))
                self._wait(pause)


def _place(uri: str) -> Tuple[str, str]:
    found = split_s3(uri)
    if found is None:
        raise ValueError("{!r} is no place in S3: s3://bucket/prefix/ is needed".format(uri))
    bucket, prefix = found
    return bucket, prefix.rstrip("/") + "/" if prefix.strip("/") else ""


def _is_gone(error: Exception) -> bool:
    return isinstance(error, ClientError) and str(error.response.get("Error", {}).get("Code")) in _GONE


def _is_refused(error: Exception) -> bool:
    """Asking again would not help: no permission, no such bucket."""
    status = _status(error)
    return 400 <= status < 500 and status not in (408, 429)


def _status(error: Exception) -> int:
    """0 where no answer came. boto3 wraps what an upload failed with in an error of its own."""
    if not isinstance(error, ClientError):
        inner = error.__cause__ or error.__context__
        return _status(inner) if isinstance(inner, Exception) else 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _name_owner(owner: str, params: Dict[str, Any], **_: Any) -> None:
    """botocore's event before a request is signed."""
    params["headers"]["x-amz-expected-bucket-owner"] = owner


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
