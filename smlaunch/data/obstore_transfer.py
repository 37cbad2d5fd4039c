"""obstore with a botocore client's endpoint, region and credentials."""

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

from smlaunch.aws.interfaces import TransferItem
from smlaunch.data.multipart_transfer import OnTransferred
from smlaunch.data.s3_checksums import (
    changed_file_error,
    explain_read_error,
    new_digest,
    part_size,
    require_sha256,
)
from smlaunch.data.s3_transfer import FastTransferFailed

_CREDENTIALS_LIFETIME = timedelta(minutes=5)
"""How long obstore uses credentials from botocore. botocore renews those with less than 10 minutes to
live."""

_TIMEOUT = "10m"
"""For a part and its response: ten parts at a time take long over a slow line."""

_CHUNK_BYTES = 1 << 20
"""Bytes yielded at a time: they stay in the processor's cache while they are hashed and written."""

ExpectedOwner = Callable[[str, str], "str | None"]
"""Returns for an operation and a bucket the account that has to own the bucket; None if any account may."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HOST_NAME_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
"""Bucket names that a host name in a certificate can contain: without dots."""


class ObstoreTransfer:
    """Implements FastTransfer."""

    def __init__(self, client: Any, credentials: Any, expected_owner: ExpectedOwner) -> None:
        """``client``: botocore's S3 client. ``credentials``: botocore's, of its session."""

        def provide_credentials() -> dict[str, Any]:
            frozen = credentials.get_frozen_credentials()
            return {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "token": frozen.token,
                "expires_at": datetime.now(timezone.utc) + _CREDENTIALS_LIFETIME,
            }

        @cache
        def bucket_store(bucket: str, expected: str | None) -> Any:
            options: dict[str, Any] = {"allow_http": True, "timeout": _TIMEOUT, "connect_timeout": "10s"}
            if expected is not None:
                # Signed, and sent with every request, those of a multipart upload too.
                options["default_headers"] = {"x-amz-expected-bucket-owner": expected}
            return S3Store(
                bucket,
                region=client.meta.region_name,
                credential_provider=provide_credentials,
                client_options=options,
                retry_config={"max_retries": 5, "retry_timeout": timedelta(minutes=2)},
                # The signature covers the content's SHA-256, which S3 compares; this one it also stores.
                checksum_algorithm="sha256",
                **address_options(client.meta.endpoint_url, bucket),
            )

        def store_for(bucket: str, operation: str) -> Any:
            return bucket_store(bucket, expected_owner(operation, bucket))

        self._store_for: Callable[[str, str], Any] = store_for

    def supports_key(self, key: str) -> bool:
        """Return whether obstore keeps the key as it is: it normalizes keys as paths, and refuses control
        characters."""
        is_clean_path = all(component not in ("", ".", "..") for component in key.split("/"))
        return is_clean_path and _CONTROL.search(key) is None

    def put(self, bucket: str, key: str, content: bytes) -> None:
        try:
            obstore.put(self._store_for(bucket, "PutObject"), key, content, use_multipart=False)
        except BaseError as error:
            raise FastTransferFailed from error

    def upload_file(
        self, bucket: str, item: TransferItem, max_concurrent_parts: int, on_transferred: OnTransferred
    ) -> None:
        """Upload a file in parts by obstore. Raises JobError if the file cannot be read or has changed, and
        FastTransferFailed if obstore fails, so that another client may try."""
        with explain_read_error(item.path):
            descriptor = os.open(item.path, os.O_RDONLY)
        part_bytes = part_size(item.size)  # of each part of so large a file
        # Reads the file part by part, as obstore asks for them, and reports the bytes.
        part_iterator = _FilePartIterator(item, descriptor, part_bytes, on_transferred)
        try:
            obstore.put(
                self._store_for(bucket, "PutObject"),
                item.key,
                part_iterator,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=max_concurrent_parts,
            )
        except Exception as error:
            # obstore wraps what the iterator raises: a problem of the file, which no other client avoids.
            if part_iterator.read_problem is not None:
                raise part_iterator.read_problem from error
            if isinstance(error, BaseError):  # of obstore
                raise FastTransferFailed from error
            raise
        finally:
            os.close(descriptor)
        on_transferred(0, 1)

    def get_range(self, bucket: str, key: str, start: int, length: int, etag: str | None) -> Iterator[bytes]:
        options: dict[str, Any] = {"range": (start, start + length)}
        if etag is not None:
            options["if_match"] = f'"{etag}"'
        try:
            response = obstore.get(self._store_for(bucket, "GetObject"), key, options=options)
            yield from response.stream(min_chunk_size=_CHUNK_BYTES)
        except BaseError as error:
            raise FastTransferFailed from error


def open_obstore(client: Any, session: Any, expected_owner: ExpectedOwner) -> ObstoreTransfer | None:
    """Return a fast transfer; None if only botocore can connect: by a proxy, with the user's own
    certificates, or without credentials."""
    url = urlsplit(client.meta.endpoint_url)
    # obstore uses the proxies of the environment, whatever the client's configuration says.
    is_proxied = url.scheme in getproxies() and not proxy_bypass(url.hostname or "")
    has_ca_bundle = url.scheme == "https" and session.get_config_variable("ca_bundle")
    credentials = session.get_credentials()
    if is_proxied or client.meta.config.proxies or has_ca_bundle or credentials is None:
        return None
    return ObstoreTransfer(client, credentials, expected_owner)


def address_options(endpoint: str, bucket: str) -> dict[str, Any]:
    """Return S3Store's options. AWS expects the bucket in the host name; other S3 services mostly in the
    path."""
    url = urlsplit(endpoint)
    host = url.hostname or ""
    if host.endswith((".amazonaws.com", ".amazonaws.com.cn")) and _HOST_NAME_BUCKET.fullmatch(bucket):
        bucket_endpoint = f"{url.scheme}://{bucket}.{url.netloc}"
        return {"endpoint": bucket_endpoint, "virtual_hosted_style_request": True}
    return {"endpoint": endpoint.rstrip("/"), "virtual_hosted_style_request": False}


class _FilePartIterator:
    """A file, part by part: obstore sends each without copying it. Reports how much has been read, which is
    all that can be known of an upload.

    ``problem``: why there is no next part; obstore then aborts the upload, and no object appears.
    """

    def __init__(
        self, item: TransferItem, descriptor: int, part_bytes: int, on_transferred: OnTransferred
    ) -> None:
        self._item, self._descriptor, self._part_bytes, self._on_transferred = (
            item,
            descriptor,
            part_bytes,
            on_transferred,
        )
        self._mtime_ns = os.fstat(descriptor).st_mtime_ns
        self._content_digest = None if item.sha256 is None else new_digest("sha256")
        self._offset = 0
        self.read_problem: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            content = self._read()
            self._on_transferred(len(content), 0)
        except Exception as error:
            self.read_problem = error
            raise
        if not content:
            raise StopIteration
        return content

    def _read(self) -> bytes:
        with explain_read_error(self._item.path):
            content = os.pread(self._descriptor, self._part_bytes, self._offset)
            now = os.fstat(self._descriptor)
        self._offset += len(content)
        size = self._item.size
        if not content and (self._offset, now.st_size, now.st_mtime_ns) != (size, size, self._mtime_ns):
            raise changed_file_error(self._item)
        if self._content_digest is not None:
            self._content_digest.update(content)
            if not content:
                require_sha256(self._item, self._content_digest)
        return content
