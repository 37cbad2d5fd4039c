"""Carries out a plan's uploads. What is addressed by its content and already there is not sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from smlaunch.errors import JobError, Problem
from smlaunch.launch.bundle import build_runtime
from smlaunch.launch.source import PackedSource
from smlaunch.planning.plan import Plan, Upload
from smlaunch.planning.surroundings import Surroundings
from smlaunch.ports import CallError, ObjectStorage
from smlaunch.survey import local_files

_AT_ONCE = 8

_WORTH_TELLING = 8 << 20
_WORTH_COUNTING = 100
"""From so many bytes or files on a person sees a pause."""


class _Sending(NamedTuple):
    """One object to be put; ``content`` is made when it is its turn."""

    key: str
    bucket: str
    content: Callable[[], bytes] | Path


def stage(
    plan: Plan, source: PackedSource | None, storage: ObjectStorage, told: Callable[[str], None]
) -> None:
    """Uploads what is missing. Makes the staging bucket when it does not exist. ``told`` hears what
    takes time or may surprise.

    Raises CallError for a refused upload, JobError when a local file cannot be read any more.
    """
    pending = [sending for upload in plan.uploads for sending in _missing(upload, source, storage)]
    files = [sending.content for sending in pending if isinstance(sending.content, Path)]
    size = sum(path.stat().st_size for path in files)
    if size >= _WORTH_TELLING or len(files) > _WORTH_COUNTING:
        told(f"uploading {len(files):,} files, {size / (1 << 20):,.1f} MB")
    if pending:
        _send_into(plan.surroundings, pending[0], storage, told)
    if len(pending) > _AT_ONCE:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(lambda sending: _send(sending, storage), pending[1:]):
                pass  # drawn one by one, so that the first error is raised
    else:
        for sending in pending[1:]:
            _send(sending, storage)


def _send_into(
    surroundings: Surroundings, first: _Sending, storage: ObjectStorage, told: Callable[[str], None]
) -> None:
    try:
        _send(first, storage)
    except CallError as error:
        if error.code != "NoSuchBucket" or first.bucket != surroundings.bucket:
            raise
        storage.make_bucket(surroundings.bucket, surroundings.region)
        told(f"made the bucket {surroundings.bucket} for source and results")
        _send(first, storage)


def _missing(upload: Upload, source: PackedSource | None, storage: ObjectStorage) -> Iterator[_Sending]:
    bucket, key = _address(upload.uri)
    if upload.kind == "runtime":
        yield _Sending(key, bucket, build_runtime)
    elif upload.kind in ("launch", "parts"):
        content = (upload.content or "").encode()
        yield _Sending(key, bucket, lambda: content)
    elif upload.kind == "source":
        if source is None or (upload.sha256 is not None and source.sha256 != upload.sha256):
            raise JobError(
                [Problem("source", f"{upload.path} has changed since the plan was made; plan again")]
            )
        if storage.size(bucket, key) is None:
            yield _Sending(key, bucket, source.archive)
    else:
        yield from _missing_data(upload, bucket, key, storage)


def _missing_data(upload: Upload, bucket: str, key: str, storage: ObjectStorage) -> Iterator[_Sending]:
    """The address names the content, so an object of the right size is the right object: S3 puts whole
    objects or none."""
    present: Mapping[str, int]
    try:
        present = {stored.key: stored.size for stored in storage.list(bucket, key)}
    except CallError as error:
        if error.code != "NoSuchBucket":
            raise
        present = {}
    for file in local_files(_path(upload)):
        target = key + file.relative if key.endswith("/") else key
        if present.get(target) != file.size:
            yield _Sending(target, bucket, file.path)


def _send(sending: _Sending, storage: ObjectStorage) -> None:
    if isinstance(sending.content, Path):
        try:
            storage.put_file(sending.bucket, sending.key, sending.content)
        except OSError as error:
            raise JobError(
                [Problem("inputs", f"{sending.content} cannot be read: {error.strerror}")]
            ) from error
    else:
        storage.put_bytes(sending.bucket, sending.key, sending.content())


def _path(upload: Upload) -> Path:
    return Path(upload.path or "").expanduser()


def _address(uri: str) -> tuple[str, str]:
    bucket = urlsplit(uri, allow_fragments=False).netloc
    return bucket, uri[len(f"s3://{bucket}/") :]
