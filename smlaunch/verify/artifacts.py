"""Reads what a job's last archives hold: every file of model.tar.gz and output.tar.gz."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from smlaunch.aws.interfaces import CallError
from smlaunch.runs.target import Target
from smlaunch.verify.value_digests import (
    MAX_FILE_BYTES,
    TextMask,
    ValueDigest,
    ValueDigests,
    digest_chunks,
    digest_values,
)

MODEL_PREFIX, OUTPUT_PREFIX = "model/", "output/data/"
"""Names of files begin with one of these."""

_CHUNK_BYTES = 1 << 20
_TENSORBOARD = "tfevents"
_MAX_LOG_LINES = 200_000


class ArtifactFile(NamedTuple):
    """One file of an archive."""

    values: ValueDigests
    log_lines: tuple[str, ...] | None = None
    """Lines of a text that may be a log; None for other files."""


ArtifactFiles = Mapping[str, ArtifactFile]


def fetch_artifacts(
    target: Target, model: str | None, jobs: Collection[str], scratch: Path
) -> dict[str, ArtifactFile]:
    """Download both archives and return their files by name.

    ``model`` is the S3 address of the model's archive; the output archive lies beside it. ``jobs`` are names
    that are masked in texts, because they differ from run to run.
    """
    files: dict[str, ArtifactFile] = {}
    if model is None:
        return files
    bucket, _, key = model.removeprefix("s3://").partition("/")
    output_key = key.removesuffix("model.tar.gz") + "output.tar.gz"

    def mask(text: str) -> str:
        for job in jobs:
            text = text.replace(job, "(job)")
        return text

    for prefix, archive_key in ((MODEL_PREFIX, key), (OUTPUT_PREFIX, output_key)):
        archive = scratch / "artefacts.tar.gz"
        try:
            with archive.open("wb") as file:
                file.writelines(target.storage.chunks(bucket, archive_key))
        except CallError as error:
            if error.code != "NoSuchKey":
                raise
            continue  # the job wrote nothing to the directory
        files.update({prefix + archive_key: file for archive_key, file in _read_archive(archive, mask)})
        archive.unlink()
    return files


def _read_archive(archive: Path, mask: TextMask) -> Iterator[tuple[str, ArtifactFile]]:
    """Yield the name and digests of each file of a tar archive. ``mask``: removes from texts what differs
    from run to run by nature."""
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            name = name if name.isprintable() else ascii(name)
            if member.issym():
                digest = hashlib.sha256(member.linkname.encode("utf-8", "surrogateescape")).hexdigest()
                yield name, ArtifactFile({"": ValueDigest(digest, is_bulk=False)})
            file = tar.extractfile(member) if member.isfile() or member.islnk() else None
            if file is None:
                continue
            if member.size > MAX_FILE_BYTES:
                yield name, ArtifactFile(digest_chunks(_read_chunks(file)))
                continue
            content = file.read()
            digests = digest_values(content, mask)
            if _TENSORBOARD in member.name:  # every record contains a time
                digests = {
                    value_path: digest._replace(is_bulk=False) for value_path, digest in digests.items()
                }
            yield name, ArtifactFile(digests, _log_lines(content, mask) if set(digests) == {""} else None)


def _read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


def _log_lines(content: bytes, mask: TextMask) -> tuple[str, ...] | None:
    try:
        lines = tuple(mask(content.decode("utf-8")).splitlines())
    except UnicodeDecodeError:
        return None
    return lines if 1 < len(lines) <= _MAX_LOG_LINES else None
