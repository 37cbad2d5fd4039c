"""Uploads the files of a plan. An object that is named by its content and exists already is not sent
again."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from smlaunch.aws.interfaces import CallError, ObjectStorage, TransferItem
from smlaunch.discovery.local_files import list_local_files
from smlaunch.errors import JobError, Problem
from smlaunch.planner.facts import Facts
from smlaunch.planner.plan import Plan, Upload
from smlaunch.runs.runtime_archive import build_runtime_archive
from smlaunch.runs.source import SourceArchive
from smlaunch.runs.target import Target

if TYPE_CHECKING:
    from smlaunch.data.transfer_progress import TransferProgress

_PARALLEL_UPLOADS = 8

_MESSAGE_FROM_BYTES = 8 << 20
_MESSAGE_FROM_FILES = 100
"""From these sizes on, an upload takes noticeable time."""

ProgressCallback = Callable[["TransferProgress"], None]


class _ObjectUpload(NamedTuple):
    """One object to upload. ``content`` is made just before the upload."""

    key: str
    bucket: str
    content: Callable[[], bytes]
    keep_existing: bool = False
    """An existing object is not replaced."""


def stage(
    plan: Plan,
    source: SourceArchive | None,
    target: Target,
    on_message: Callable[[str], None],
    on_progress: ProgressCallback | None = None,
) -> None:
    """Upload the missing files of a plan, and create the staging bucket if it does not exist.

    ``on_message`` receives sentences about slow or unexpected actions, ``on_progress`` the state of the data
    upload. Raises CallError for a refused upload, and JobError when a local file cannot be read any more.
    """
    storage = target.storage
    runtime = cache(build_runtime_archive)  # all shards of a run get the same one
    missing_objects = [
        missing for upload in plan.uploads for missing in _missing_objects(upload, source, storage, runtime)
    ]
    if missing_objects:
        _upload_first_object(plan.facts, missing_objects[0], storage, on_message)
    if len(missing_objects) > _PARALLEL_UPLOADS:
        with ThreadPoolExecutor(_PARALLEL_UPLOADS) as pool:
            for _ in pool.map(lambda missing: _put_object(missing, storage), missing_objects[1:]):
                pass  # iterated so that the first error is raised
    else:
        for missing in missing_objects[1:]:
            _put_object(missing, storage)
    for upload in plan.uploads:
        if upload.kind == "data":
            _upload_data(upload, plan.job.include_secrets, target, on_message, on_progress)


def _upload_first_object(
    job_facts: Facts, upload: _ObjectUpload, storage: ObjectStorage, on_message: Callable[[str], None]
) -> None:
    try:
        _put_object(upload, storage)
    except CallError as error:
        if error.code != "NoSuchBucket" or upload.bucket != job_facts.bucket:
            raise
        storage.make_bucket(job_facts.bucket, job_facts.region)
        on_message(f"created the bucket {job_facts.bucket} for source and results")
        _put_object(upload, storage)


def _missing_objects(
    upload: Upload, source: SourceArchive | None, storage: ObjectStorage, runtime: Callable[[bool], bytes]
) -> Iterator[_ObjectUpload]:
    """Yield the objects that one upload consists of and that may be missing in S3. ``runtime``: returns the
    archive of the runtime, with or without its MPI part."""
    bucket, key = _bucket_and_key(upload.uri)
    if upload.kind == "runtime":
        yield _ObjectUpload(key, bucket, partial(runtime, upload.mpi))
    elif upload.kind in ("launch", "shards"):
        content = (upload.content or "").encode()
        yield _ObjectUpload(key, bucket, lambda: content)
    elif upload.kind == "secret":
        # All segments and attempts of a run share it: running hosts may have it already, and another client
        # may launch the same run at the same time.
        yield _ObjectUpload(key, bucket, _generate_secret, keep_existing=True)
    elif upload.kind == "source":
        if source is None or (upload.sha256 is not None and source.sha256 != upload.sha256):
            raise JobError(
                [Problem("source", f"{upload.path} has changed since the plan was made; plan again")]
            )
        if storage.size(bucket, key) is None:
            yield _ObjectUpload(key, bucket, source.compressed)


def _generate_secret() -> bytes:
    """Return the secret by which the hosts of a job recognize each other (runtime/secret.py). It is in no
    plan or log."""
    return secrets.token_hex(32).encode()


def _upload_data(
    upload: Upload,
    include_secrets: bool,
    target: Target,
    on_message: Callable[[str], None],
    on_progress: ProgressCallback | None,
) -> None:
    """Upload the missing files of an input.

    The address contains the content's hash, so that an object of the right size is the right object: S3
    stores complete objects only.
    """
    from smlaunch.data.transfer_progress import TransferProgress

    bucket, key = _bucket_and_key(upload.uri)
    size_by_key = {stored.key: stored.size for stored in target.storage.list(bucket, key)}
    missing: list[TransferItem] = []
    for file in list_local_files(_local_path(upload), None if include_secrets else []):
        file_key = key + file.relative_path if key.endswith("/") else key
        if size_by_key.get(file_key) != file.size:
            missing.append(TransferItem(file_key, file.path, file.size))
    if not missing:
        return
    total_bytes = sum(parcel.size for parcel in missing)
    if total_bytes >= _MESSAGE_FROM_BYTES or len(missing) > _MESSAGE_FROM_FILES:
        existing_text = f" ({len(size_by_key):,} are there already)" if size_by_key else ""
        on_message(f"uploading {len(missing):,} files, {total_bytes / 1_000_000:,.1f} MB{existing_text}")
    target.transfer.put(bucket, missing, TransferProgress(len(missing), total_bytes, on_progress).add)


def _put_object(upload: _ObjectUpload, storage: ObjectStorage) -> None:
    put = storage.put_if_absent if upload.keep_existing else storage.put_bytes
    put(upload.bucket, upload.key, upload.content())


def _local_path(upload: Upload) -> Path:
    return Path(upload.path or "").expanduser()


def _bucket_and_key(uri: str) -> tuple[str, str]:
    bucket = urlsplit(uri, allow_fragments=False).netloc
    return bucket, uri[len(f"s3://{bucket}/") :]
