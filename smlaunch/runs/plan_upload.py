"""Uploads the files of a plan. An object that is named by its content and exists already is not sent
again."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from smlaunch.aws.interfaces import CallError, ObjectStorage
from smlaunch.errors import AccountError, JobError, Problem
from smlaunch.facts.discovered_facts import DiscoveredFacts, SourceFacts
from smlaunch.planner.plan import RunPlan, Upload
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_driver import MessageCallback
from smlaunch.runs.runtime_archive import load_runtime_archive, runtime_sha256
from smlaunch.runs.source_archive import SourceArchive
from smlaunch.text.format import list_names

if TYPE_CHECKING:
    from smlaunch.data.transfer_progress import TransferProgress

_PARALLEL_UPLOADS = 8

ProgressCallback = Callable[["TransferProgress"], None]


class _ObjectUpload(NamedTuple):
    """One object to upload. ``content`` is made just before the upload."""

    key: str
    bucket: str
    content: Callable[[], bytes]
    keep_existing: bool = False
    """An existing object is not replaced."""


def upload_plan_files(
    plan: RunPlan,
    source: SourceArchive | None,
    target: Target,
    on_message: MessageCallback,
    on_progress: ProgressCallback | None = None,
) -> None:
    """Upload the files of a plan that S3 does not have yet, and create the run's bucket if it does not exist.

    ``source`` is the packed source folder; None for a job without one. ``on_message`` receives sentences
    about slow or unexpected actions, ``on_progress`` the state of the data upload. Raises CallError for a
    refused upload, and JobError when a local file cannot be read any more.
    """
    storage = target.storage
    # The runtime, smlaunch's program on the hosts, is loaded once, although each shard of a run uploads it.
    load_runtime = cache(_load_planned_runtime)
    missing_objects: list[_ObjectUpload] = []  # addresses, each with a function that makes the content
    for upload in plan.uploads:
        missing_objects += _iter_missing_objects(upload, plan.facts.source, source, storage, load_runtime)
    if missing_objects:
        # Alone and first, because it may have to create the bucket (named in plan.facts) for all others.
        _upload_and_create_bucket(missing_objects[0], plan.facts, storage, on_message)
    remaining_objects = missing_objects[1:]
    if len(missing_objects) <= _PARALLEL_UPLOADS:  # too few for threads to be worth their start
        for object_upload in remaining_objects:
            _put_object(object_upload, storage)
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_PARALLEL_UPLOADS) as pool:
            for _ in pool.map(lambda object_upload: _put_object(object_upload, storage), remaining_objects):
                pass  # iterated so that the first error is raised
    for upload in plan.uploads:
        if upload.kind == "data":  # a local folder or file that is an input of the job
            from smlaunch.runs.data_upload import upload_data

            folder = Path(plan.facts.folder)
            upload_data(upload, folder, plan.job.include_secrets, target, on_message, on_progress)


def _upload_and_create_bucket(
    upload: _ObjectUpload,
    job_facts: DiscoveredFacts,
    storage: ObjectStorage,
    on_message: MessageCallback,
) -> None:
    try:
        _put_object(upload, storage)
    except CallError as error:
        if error.code != "NoSuchBucket" or upload.bucket != job_facts.bucket:
            raise
        if (default := job_facts.team.find("bucket")) is not None:
            raise AccountError(
                f"the bucket {upload.bucket} does not exist; {default.origin} names it: make it in "
                f"{job_facts.region}, or correct the file"
            ) from error
        storage.create_bucket(job_facts.bucket, job_facts.region)
        on_message(f"created the bucket {job_facts.bucket} for source and results")
        _put_object(upload, storage)


def _iter_missing_objects(
    upload: Upload,
    planned_source: SourceFacts,
    source: SourceArchive | None,
    storage: ObjectStorage,
    load_runtime: Callable[[bool, str | None], bytes],
) -> Iterator[_ObjectUpload]:
    """Yield the S3 objects that one upload of a plan consists of and that S3 may lack; none for an input's
    data, which is uploaded separately. Their content is a function, called just before the upload.

    ``load_runtime``: ``_load_planned_runtime``. Raises JobError for a source that has changed since the plan
    was made.
    """
    bucket, _, key = upload.uri.removeprefix("s3://").partition("/")
    if upload.kind == "runtime":
        yield _ObjectUpload(key, bucket, content=partial(load_runtime, upload.mpi, upload.sha256))
    elif upload.kind in ("launch", "shards"):  # small files, whose text is in the plan
        content = (upload.content or "").encode()
        yield _ObjectUpload(key, bucket, content=lambda: content)
    elif upload.kind == "secret":
        # All segments and attempts of a run share it: running hosts may have it already, and another client
        # may launch the same run at the same time.
        yield _ObjectUpload(key, bucket, content=_generate_secret, keep_existing=True)
    elif upload.kind == "source":
        if source is None or (upload.sha256 is not None and source.sha256 != upload.sha256):
            raise JobError([Problem("source", _describe_change(planned_source, source))])
        if storage.object_size(bucket, key) is None:
            yield _ObjectUpload(key, bucket, content=source.compressed)


def _describe_change(planned_source: SourceFacts, source: SourceArchive | None) -> str:
    """Return a sentence that names the files of the source which differ from the planned ones."""
    planned = planned_source.digest_by_file
    now = {} if source is None else source.digest_by_file
    changed_files = [name for name in planned.keys() | now.keys() if planned.get(name) != now.get(name)]
    names = list_names(changed_files, limit=3) or planned_source.root
    return f"{names} changed since the plan was made; plan again"


def _load_planned_runtime(uses_mpi: bool, planned_sha256: str | None) -> bytes:
    """Return the archive of the runtime, smlaunch's program on the hosts, with or without its MPI part.
    Raises JobError if its hash, which the address is made of, is not the planned one (None: not planned)."""
    archive = load_runtime_archive(uses_mpi)
    if planned_sha256 and planned_sha256 != runtime_sha256():
        raise JobError([Problem("", "smlaunch itself has changed since the plan was made; plan again")])
    return archive


def _generate_secret() -> bytes:
    """Return the secret by which the hosts of a job recognize each other (runtime/job_secret.py). It is in no
    plan or log."""
    return secrets.token_hex(32).encode()


def _put_object(upload: _ObjectUpload, storage: ObjectStorage) -> None:
    put = storage.put_if_absent if upload.keep_existing else storage.put_bytes
    put(upload.bucket, upload.key, upload.content())
