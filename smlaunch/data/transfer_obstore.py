"""obstore with a botocore client's own endpoint, region and credentials."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from smlaunch.data.contents import changed, part_size, reading
from smlaunch.data.transfer import QuickFailed
from smlaunch.data.transfer_parts import Moved
from smlaunch.ports import Parcel

_CREDENTIALS_FOR = timedelta(minutes=5)
"""How long obstore keeps what botocore gave it. botocore renews what has less than 10 minutes to live."""

_TIMEOUT = "10m"
"""For a part and its answer: ten parts at once over a slow line take their time."""

_PIECE = 1 << 20
"""Bytes handed on at a time: they stay in the processor's cache while they are hashed and written."""

Owner = Callable[[str, str], "str | None"]
"""Of an operation on a bucket: the account that has to own it; None where it may be anybody's."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_VIRTUAL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
"""Bucket names that may stand in a host name of a certificate: without dots."""


class ByObstore:
    """Quick."""

    def __init__(self, client: Any, credentials: Any, owner: Owner) -> None:
        """``client``: botocore's, for S3. ``credentials``: botocore's, of its session."""

        def provide() -> dict[str, Any]:
            frozen = credentials.get_frozen_credentials()
            return {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "token": frozen.token,
                "expires_at": datetime.now(timezone.utc) + _CREDENTIALS_FOR,
            }

        @cache
        def store(bucket: str, expected: str | None) -> Any:
            options: dict[str, Any] = {"allow_http": True, "timeout": _TIMEOUT, "connect_timeout": "10s"}
            if expected is not None:
                # Signed with the rest; every request has it, those of a multipart upload too.
                options["default_headers"] = {"x-amz-expected-bucket-owner": expected}
            return S3Store(
                bucket,
                region=client.meta.region_name,
                credential_provider=provide,
                client_options=options,
                retry_config={"max_retries": 5, "retry_timeout": timedelta(minutes=2)},
                # What is signed is the content's SHA-256, which S3 compares; this one it keeps as well.
                checksum_algorithm="sha256",
                **addressed(client.meta.endpoint_url, bucket),
            )

        def chosen(bucket: str, operation: str) -> Any:
            return store(bucket, owner(operation, bucket))

        self._store: Callable[[str, str], Any] = chosen

    def takes(self, key: str) -> bool:
        """obstore sees a path in a key, and makes it a proper one; control characters it refuses."""
        proper = all(part not in ("", ".", "..") for part in key.split("/"))
        return proper and _CONTROL.search(key) is None

    def put(self, bucket: str, key: str, content: bytes) -> None:
        try:
            obstore.put(self._store(bucket, "PutObject"), key, content, use_multipart=False)
        except BaseError as error:
            raise QuickFailed from error

    def put_file(self, bucket: str, parcel: Parcel, at_once: int, moved: Moved) -> None:
        with reading(parcel.path):
            descriptor = os.open(parcel.path, os.O_RDONLY)
        part = part_size(parcel.size)
        pieces = _Pieces(parcel, descriptor, part, moved)
        try:
            obstore.put(
                self._store(bucket, "PutObject"),
                parcel.key,
                pieces,
                use_multipart=True,
                chunk_size=part,
                max_concurrency=at_once,
            )
        except Exception as error:
            if pieces.problem is not None:
                raise pieces.problem from error
            if isinstance(error, BaseError):
                raise QuickFailed from error
            raise
        finally:
            os.close(descriptor)
        moved(0, 1)

    def get_range(self, bucket: str, key: str, start: int, length: int, etag: str | None) -> Iterator[bytes]:
        options: dict[str, Any] = {"range": (start, start + length)}
        if etag is not None:
            options["if_match"] = f'"{etag}"'
        try:
            found = obstore.get(self._store(bucket, "GetObject"), key, options=options)
            yield from found.stream(min_chunk_size=_PIECE)
        except BaseError as error:
            raise QuickFailed from error


def by_obstore(client: Any, session: Any, owner: Owner) -> ByObstore | None:
    """None where only botocore knows the way: by a proxy, with certificates of the user's own, without
    credentials."""
    url = urlsplit(client.meta.endpoint_url)
    # obstore takes the proxies of the environment, whatever the client was told of them.
    proxied = url.scheme in getproxies() and not proxy_bypass(url.hostname or "")
    own_certificates = url.scheme == "https" and session.get_config_variable("ca_bundle")
    roundabout = proxied or client.meta.config.proxies or own_certificates
    credentials = session.get_credentials()
    return None if roundabout or credentials is None else ByObstore(client, credentials, owner)


def addressed(endpoint: str, bucket: str) -> dict[str, Any]:
    """S3Store's options. AWS wants the bucket in the host's name; what else speaks S3, mostly in the path."""
    url = urlsplit(endpoint)
    host = url.hostname or ""
    if host.endswith((".amazonaws.com", ".amazonaws.com.cn")) and _VIRTUAL.fullmatch(bucket):
        whole = f"{url.scheme}://{bucket}.{url.netloc}"
        return {"endpoint": whole, "virtual_hosted_style_request": True}
    return {"endpoint": endpoint.rstrip("/"), "virtual_hosted_style_request": False}


class _Pieces:
    """A file, part by part: obstore sends what it is given without copying it. Tells how much has been read,
    which is as much as can be known of an upload.

    ``problem``: why there is no next part; obstore then gives the upload up, and no object appears.
    """

    def __init__(self, parcel: Parcel, descriptor: int, part: int, moved: Moved) -> None:
        self._parcel, self._descriptor, self._part, self._moved = parcel, descriptor, part, moved
        self._before = os.fstat(descriptor).st_mtime_ns
        self._count = 0
        self.problem: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            content = self._read()
            self._moved(len(content), 0)
        except Exception as error:
            self.problem = error
            raise
        if not content:
            raise StopIteration
        return content

    def _read(self) -> bytes:
        with reading(self._parcel.path):
            content = os.pread(self._descriptor, self._part, self._count)
            now = os.fstat(self._descriptor)
        self._count += len(content)
        size = self._parcel.size
        if not content and (self._count, now.st_size, now.st_mtime_ns) != (size, size, self._before):
            raise changed(self._parcel.path)
        return content
