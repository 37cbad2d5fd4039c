"""Reads what a job's last archives hold: every file of model.tar.gz and output.tar.gz."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from smlaunch.aws.interfaces import CallError
from smlaunch.runs.launch_target import Target
from smlaunch.verify.array_digests import ValueDigest
from smlaunch.verify.value_digests import (
    MAX_FILE_BYTES,
    TextMask,
    ValueDigests,
    digest_chunks,
    digest_values,
)

MODEL_PREFIX, OUTPUT_PREFIX = "model/", "output/data/"
"""Names of files begin with one of these."""

_CHUNK_BYTES = 1 << 20
_TEXT_IN_NAMES_OF_TENSORBOARD_FILES = "tfevents"
_MAX_LOG_LINES = 200_000


class ArtifactFile(NamedTuple):
    """One file of an archive."""

    digest_by_value_path: ValueDigests
    log_lines: tuple[str, ...] | None = None
    """Lines of a text that may be a log; None for other files."""


ArtifactFiles = Mapping[str, ArtifactFile]


def fetch_artifacts(
    target: Target, model_uri: str | None, masked_names: Collection[str], scratch_folder: Path
) -> dict[str, ArtifactFile]:
    """Download a job's model and output archives from S3, and return their files, as digests of their values,
    by name: with the prefix of the archive, ``model/`` or ``output/data/``.

    ``model_uri`` is the S3 address of the model's archive, beside which the output archive lies; None for a
    job without results. ``masked_names``: names of jobs and runs, which are removed from texts, because they
    differ from run to run.
    """
    if model_uri is None:
        return {}
    bucket, _, model_key = model_uri.removeprefix("s3://").partition("/")
    output_key = model_key.removesuffix("model.tar.gz") + "output.tar.gz"
    files: dict[str, ArtifactFile] = {}

    def mask_names(text: str) -> str:
        for name in masked_names:
            text = text.replace(name, "(job)")
        return text

    for prefix, archive_key in ((MODEL_PREFIX, model_key), (OUTPUT_PREFIX, output_key)):
        archive_path = scratch_folder / "artefacts.tar.gz"
        try:
            with archive_path.open("wb") as archive_file:
                archive_file.writelines(target.storage.read_chunks(bucket, archive_key))
        except CallError as error:
            if error.code != "NoSuchKey":
                raise
            continue  # the job wrote nothing that this archive would hold
        for name_in_archive, file in _read_archive_files(archive_path, mask_text=mask_names):
            files[prefix + name_in_archive] = file
        archive_path.unlink()
    return files


def _read_archive_files(archive_path: Path, mask_text: TextMask) -> Iterator[tuple[str, ArtifactFile]]:
    """Yield each file of a tar archive by its name in it, with digests of its values by their paths, such as
    ``layers.0.weight``. A file of unknown format is one value with an empty path. So is a symbolic link: its
    value is its target.

    ``mask_text``: removes from texts what differs from run to run by nature.
    """
    with tarfile.open(archive_path) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if not name.isprintable():
                name = ascii(name)  # the name may contain control characters of a terminal
            if member.issym():
                target_hash = hashlib.sha256(member.linkname.encode("utf-8", "surrogateescape")).hexdigest()
                yield name, ArtifactFile({"": ValueDigest(target_hash, is_weight_like=False)})
                continue
            file = tar.extractfile(member) if member.isfile() or member.islnk() else None
            if file is None:  # a folder
                continue
            if member.size > MAX_FILE_BYTES:  # too large for memory: one digest of all its bytes
                yield name, ArtifactFile(digest_chunks(_read_chunks(file)))
            else:
                yield name, _digest_small_file(member.name, file.read(), mask_text)


def _digest_small_file(name: str, content: bytes, mask_text: TextMask) -> ArtifactFile:
    digest_by_value_path = digest_values(content, mask_text)
    is_single_value = set(digest_by_value_path) == {""}
    # TensorBoard writes a time into every record: such a file always differs, and holds no weights.
    if _TEXT_IN_NAMES_OF_TENSORBOARD_FILES in name:
        digest_by_value_path = {
            value_path: digest._replace(is_weight_like=False)
            for value_path, digest in digest_by_value_path.items()
        }
    # The lines, because the jobs of a resumed run may each store a piece of a log; None if it is no text.
    log_lines = _split_log_lines(content, mask_text) if is_single_value else None
    return ArtifactFile(digest_by_value_path, log_lines)


def _read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    yield from iter(lambda: file.read(_CHUNK_BYTES), b"")


def _split_log_lines(content: bytes, mask_text: TextMask) -> tuple[str, ...] | None:
    """Return the lines of a text that may be a log; None for other content."""
    try:
        lines = tuple(mask_text(content.decode("utf-8")).splitlines())
    except UnicodeDecodeError:
        return None
    return lines if 1 < len(lines) <= _MAX_LOG_LINES else None
