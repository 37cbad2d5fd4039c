"""Carries out a plan's uploads. What is addressed by its content and already there is not sent again."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from smlaunch.errors import JobError, Problem
from smlaunch.local_files import local_files
from smlaunch.planning.plan import Plan, Upload
from smlaunch.planning.surroundings import Surroundings
from smlaunch.ports import CallError, ObjectStorage, Parcel
from smlaunch.runs.bundle import build_runtime
from smlaunch.runs.source import PackedSource
from smlaunch.runs.target import Target

if TYPE_CHECKING:
    from smlaunch.data.tally import Tally

_AT_ONCE = 8

_WORTH_TELLING = 8 << 20
_WORTH_COUNTING = 100
"""From so many bytes or files on a person sees a pause."""

Watch = Callable[["Tally"], None]


class _Sending(NamedTuple):
    """One object to be put; ``content`` is made when it is its turn. ``keep``: one that is there stays."""

    key: str
    bucket: str
    content: Callable[[], bytes]
    keep: bool = False


def stage(
    plan: Plan,
    source: PackedSource | None,
    target: Target,
    told: Callable[[str], None],
    watch: Watch | None = None,
) -> None:
    """Uploads what is missing. Makes the staging bucket when it does not exist. ``told`` hears what
    takes time or may surprise; ``watch`` sees how far data is.

    Raises CallError for a refused upload, JobError when a local file cannot be read any more.
    """
    storage = target.storage
    runtime = cache(build_runtime)  # a run in parts sends the same one to each of them
    pending = [sending for upload in plan.uploads for sending in _missing(upload, source, storage, runtime)]
    if pending:
        _send_into(plan.surroundings, pending[0], storage, told)
    if len(pending) > _AT_ONCE:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(lambda sending: _send(sending, storage), pending[1:]):
                pass  # drawn one by one, so that the first error is raised
    else:
        for sending in pending[1:]:
            _send(sending, storage)
    for upload in plan.uploads:
        if upload.kind == "data":
            _stage_data(upload, plan.job.include_secrets, target, told, watch)


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


def _missing(
    upload: Upload, source: PackedSource | None, storage: ObjectStorage, runtime: Callable[[], bytes]
) -> Iterator[_Sending]:
    bucket, key = _address(upload.uri)
    if upload.kind == "runtime":
        yield _Sending(key, bucket, runtime)
    elif upload.kind in ("launch", "parts"):
        content = (upload.content or "").encode()
        yield _Sending(key, bucket, lambda: content)
    elif upload.kind == "secret":
        # One for all segments and attempts of a run: hosts that are running may hold it already, and another
        # client may be launching the same run just now.
        yield _Sending(key, bucket, _fresh_secret, keep=True)
    elif upload.kind == "source":
        if source is None or (upload.sha256 is not None and source.sha256 != upload.sha256):
            raise JobError(
                [Problem("source", f"{upload.path} has changed since the plan was made; plan again")]
            )
        if storage.size(bucket, key) is None:
            yield _Sending(key, bucket, source.archive)


def _fresh_secret() -> bytes:
    """What the hosts of a job know each other by (runtime/secret.py). No plan and no log holds it."""
    return secrets.token_hex(32).encode()


def _stage_data(
    upload: Upload, include_secrets: bool, target: Target, told: Callable[[str], None], watch: Watch | None
) -> None:
    """The address names the content, so an object of the right size is the right object: S3 puts whole
    objects or none."""
    from smlaunch.data.tally import Tally

    bucket, key = _address(upload.uri)
    present = {stored.key: stored.size for stored in target.storage.list(bucket, key)}
    missing: list[Parcel] = []
    for file in local_files(_path(upload), None if include_secrets else []):
        own = key + file.relative if key.endswith("/") else key
        if present.get(own) != file.size:
            missing.append(Parcel(own, file.path, file.size))
    if not missing:
        return
    size = sum(parcel.size for parcel in missing)
    if size >= _WORTH_TELLING or len(missing) > _WORTH_COUNTING:
        kept = f" ({len(present):,} are there already)" if present else ""
        told(f"uploading {len(missing):,} files, {size / 1_000_000:,.1f} MB{kept}")
    target.transfer.put(bucket, missing, Tally(len(missing), size, watch).add)


def _send(sending: _Sending, storage: ObjectStorage) -> None:
    put = storage.put_new if sending.keep else storage.put_bytes
    put(sending.bucket, sending.key, sending.content())


def _path(upload: Upload) -> Path:
    return Path(upload.path or "").expanduser()


def _address(uri: str) -> tuple[str, str]:
    bucket = urlsplit(uri, allow_fragments=False).netloc
    return bucket, uri[len(f"s3://{bucket}/") :]
