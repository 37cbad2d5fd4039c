"""What a job leaves behind: model.tar.gz and output.tar.gz, merged from all hosts, in its output prefix.

Names that exist on several hosts clash, as they do on SageMaker: the first host's file is taken, and the log
says so.
"""

from __future__ import annotations

import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from smlaunch.local.executors.base import Place
from smlaunch.local.jobs.ports import Objects
from smlaunch.local.jobs.spec import TrainingSpec
from smlaunch.local.settings import Settings
from smlaunch.protocol.paths import Paths

_GZIP_LEVEL = 1
"""Weights hardly shrink; a higher level only takes longer."""

Note = Callable[[str, str], None]


class UploadError(Exception):
    """The output cannot be written where the job wants it: the job fails with a ClientError."""


class _Entry(NamedTuple):
    path: Path
    label: str


def upload(
    spec: TrainingSpec,
    places: Sequence[Place],
    objects: Objects,
    settings: Settings,
    scratch: Path,
    note: Note,
) -> str:
    """Uploads what all hosts have in model/ and output/data/; returns the model's address, which Describe
    shows as S3ModelArtifacts. ``scratch`` is an existing directory on the hosts' disk. Raises UploadError."""
    prefix = spec.output.below(spec.name, "output")
    parts = (
        ("model", [Paths(str(place.tree)).model for place in places], settings.upload_empty_model),
        ("output", [Paths(str(place.tree)).output_data for place in places], settings.upload_empty_output),
    )
    try:
        for name, folders, even_empty in parts:
            labelled = [(place.label, Path(folder)) for place, folder in zip(places, folders, strict=True)]
            entries = merge(labelled, note)
            if not entries and not even_empty:
                continue
            if spec.compressed:
                _upload_archive(entries, objects, spec.output.bucket, f"{prefix}/{name}.tar.gz", scratch)
            else:
                for relative, entry in entries.items():
                    if stat.S_ISREG(entry.path.lstat().st_mode):
                        key = f"{prefix}/{name}/{relative}"
                        objects.put_file(spec.output.bucket, key, entry.path, move=True)
    except KeyError:
        raise UploadError(
            f"Artifact upload failed:NoSuchBucket: the bucket of OutputDataConfig.S3OutputPath, "
            f"{spec.output.bucket}, does not exist"
        ) from None
    except OSError as error:
        raise UploadError(f"Artifact upload failed:{error.strerror or error}: {error.filename}") from error
    ending = "model.tar.gz" if spec.compressed else "model/"
    return f"s3://{spec.output.bucket}/{prefix}/{ending}"


def merge(folders: Sequence[tuple[str, Path]], note: Note) -> dict[str, _Entry]:
    """Relative path to file, in order of paths. ``folders`` are (host label, directory)."""
    merged: dict[str, _Entry] = {}
    for label, folder in folders:
        for relative, path in _walk(folder, ""):
            first = merged.get(relative)
            if first is None:
                merged[relative] = _Entry(path, label)
            elif not path.is_dir() or path.is_symlink():
                note(
                    label,
                    f"{folder.name}/{relative} exists on {first.label} too: that one is uploaded, this one "
                    "is not (give names a rank or a host)",
                )
    return dict(sorted(merged.items()))


def _walk(folder: Path, below: str) -> Iterator[tuple[str, Path]]:
    if not folder.is_dir():
        return
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            yield below + entry.name, Path(entry.path)
            yield from _walk(Path(entry.path), f"{below}{entry.name}/")
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            yield below + entry.name, Path(entry.path)


def _upload_archive(
    entries: dict[str, _Entry], objects: Objects, bucket: str, key: str, scratch: Path
) -> None:
    descriptor, name = tempfile.mkstemp(dir=scratch, suffix=".tar.gz")
    archive = Path(name)
    try:
        with (
            os.fdopen(descriptor, "wb") as raw,
            tarfile.open(fileobj=raw, mode="w:gz", compresslevel=_GZIP_LEVEL) as tar,
        ):
            for relative, entry in entries.items():
                tar.add(entry.path, relative, recursive=False)
        objects.put_file(bucket, key, archive, move=True)
    finally:
        archive.unlink(missing_ok=True)
