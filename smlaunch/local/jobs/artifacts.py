"""What a job leaves behind: model.tar.gz and output.tar.gz, merged from all hosts, in its output prefix.

Names that exist on several hosts clash, as they do on SageMaker: the first host's file is taken, and the log
says so. A file that cannot be had does not keep the others from S3, but the job has failed then.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, cast

from smlaunch.local.executors.base import Place
from smlaunch.local.host_files import (
    UnexpectedFileType,
    error_text,
    file_type_name,
    open_file,
    open_folder,
    printable_name,
    read_link,
    walk,
)
from smlaunch.local.jobs import uploads
from smlaunch.local.jobs.job_kind import Note
from smlaunch.local.jobs.spec import CONTRACT_ROOT, TrainingSpec
from smlaunch.local.jobs.stores import Objects
from smlaunch.local.jobs.uploads import HostFile
from smlaunch.local.settings import Settings

_GZIP_LEVEL = 1
"""Weights hardly shrink; a higher level only takes longer."""


class UploadError(Exception):
    """The output cannot be written where the job wants it: the job fails with a ClientError."""


class Entry(NamedTuple):
    file: HostFile
    label: str
    status: os.stat_result


class Merged(NamedTuple):
    """``entries``: by their relative paths, in that order. ``lost``: sentences about what cannot be had."""

    entries: dict[str, Entry]
    lost: list[str]


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
        ("model", "model", settings.upload_empty_model),
        ("output", "output/data", settings.upload_empty_output),
    )
    lost = []
    try:
        for name, folder, even_empty in parts:
            merged = merge(places, folder, note)
            lost += merged.lost
            if not merged.entries and not even_empty:
                continue
            if spec.compressed:
                key = f"{prefix}/{name}.tar.gz"
                lost += _upload_archive(
                    merged.entries, folder, objects, spec.output.bucket, key, scratch, note
                )
            else:
                files = {
                    relative: (f"{prefix}/{name}/{relative}", entry)
                    for relative, entry in regular(merged.entries, folder, note)
                }
                lost += upload_files(files, folder, objects, spec.output.bucket, scratch, note)
    except KeyError:
        raise UploadError(
            f"Artifact upload failed:NoSuchBucket: the bucket of OutputDataConfig.S3OutputPath, "
            f"{spec.output.bucket}, does not exist"
        ) from None
    except (OSError, sqlite3.Error) as error:
        raise UploadError(f"Artifact upload failed:{error_text(error)}") from error
    if lost:
        raise UploadError(f"Artifact upload failed:{in_short(lost)}")
    ending = "model.tar.gz" if spec.compressed else "model/"
    return f"s3://{spec.output.bucket}/{prefix}/{ending}"


def in_short(lost: Sequence[str]) -> str:
    return lost[0] + (f" (and {len(lost) - 1} more, which the hosts' logs name)" if len(lost) > 1 else "")


def merge(places: Sequence[Place], folder: str, note: Note) -> Merged:
    """What lies in a directory of all hosts, ``folder`` relative to /opt/ml. The hosts have ended."""
    merged = Merged({}, [])
    for place in places:
        for relative, status, error in walk(place.tree, folder, fix_permissions=True):
            if isinstance(error, FileNotFoundError):
                continue
            if error is not None or status is None:
                _lose(merged.lost, place.label, f"{folder}/{relative}" if relative else folder, error, note)
                continue
            if not (
                stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
            ):
                note(
                    place.label,
                    f"{folder}/{printable_name(relative)} is {file_type_name(status)}: it is not uploaded",
                )
                continue
            first = merged.entries.get(relative)
            if first is None:
                file = HostFile(place.tree, f"{folder}/{relative}")
                merged.entries[relative] = Entry(file, place.label, status)
            elif not stat.S_ISDIR(status.st_mode):
                note(
                    place.label,
                    f"{folder}/{printable_name(relative)} exists on {first.label} too: that one is "
                    f"uploaded, this one "
                    "is not (give names a rank or a host)",
                )
    return Merged(dict(sorted(merged.entries.items())), merged.lost)


def _lose(lost: list[str], label: str, path: str, error: Exception | None, note: Note) -> None:
    full = f"{CONTRACT_ROOT}/{printable_name(path)}"
    if isinstance(error, UnexpectedFileType) and error.is_link:
        sentence = f"{full} lies behind a symbolic link, which is not followed"
    else:
        sentence = f"{full} cannot be stored: {error_text(error) if error else 'it cannot be read'}"
    note(label, sentence)
    lost.append(f"{sentence} ({label})")


def regular(entries: Mapping[str, Entry], folder: str, note: Note) -> Iterator[tuple[str, Entry]]:
    """The files: S3 knows neither directories nor links."""
    for relative, entry in entries.items():
        if stat.S_ISREG(entry.status.st_mode):
            yield relative, entry
        elif stat.S_ISLNK(entry.status.st_mode):
            note(entry.label, f"{folder}/{printable_name(relative)} is a symbolic link: it is not uploaded")


def upload_files(
    files: Mapping[str, tuple[str, Entry]],
    folder: str,
    objects: Objects,
    bucket: str,
    scratch: Path,
    note: Note,
) -> list[str]:
    """Each as an object of its own. ``files``: (key, file) by their paths in ``folder``. Returns what is
    lost; raises KeyError without the bucket."""
    lost: list[str] = []
    wanted: dict[str, HostFile] = {}
    names: dict[str, str] = {}
    for relative, (raw, entry) in files.items():
        try:
            key = os.fsencode(raw).decode()
        except UnicodeDecodeError:
            error = OSError(0, "its name is not UTF-8, and S3 has no other keys")
            _lose(lost, entry.label, f"{folder}/{relative}", error, note)
            continue
        wanted[key] = entry.file
        names[key] = relative
    for key, failed in uploads.put(objects, bucket, wanted, scratch, ended=True).items():
        if isinstance(failed, KeyError):
            raise failed
        _lose(lost, files[names[key]][1].label, f"{folder}/{names[key]}", failed, note)
    return lost


def _upload_archive(
    entries: Mapping[str, Entry],
    folder: str,
    objects: Objects,
    bucket: str,
    key: str,
    scratch: Path,
    note: Note,
) -> list[str]:
    """Returns what is not in it."""
    lost: list[str] = []
    remaining_entries = dict(entries)
    descriptor, name = tempfile.mkstemp(dir=scratch, suffix=".tar.gz")
    archive = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as raw:
            while True:
                try:
                    _pack(remaining_entries, raw)
                    break
                except _CannotRead as problem:
                    # Its header is written: without it, all over again.
                    _lose(
                        lost,
                        remaining_entries.pop(problem.relative).label,
                        f"{folder}/{problem.relative}",
                        problem.error,
                        note,
                    )
                    raw.seek(0)
                    raw.truncate()
        objects.put_file(bucket, key, archive, move=True)
    finally:
        archive.unlink(missing_ok=True)
    return lost


class _CannotRead(Exception):
    def __init__(self, relative: str, error: OSError) -> None:
        super().__init__(relative)
        self.relative = relative
        self.error = error


class _Source:
    """An open file, or directory, as tarfile wants it."""

    def __init__(self, relative: str, descriptor: int) -> None:
        self.name = relative
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def read(self, count: int) -> bytes:
        """All of them: a member that is shorter than its header says would spoil what follows."""
        parts = []
        try:
            while count and (block := os.read(self._descriptor, count)):
                parts.append(block)
                count -= len(block)
        except OSError as error:
            raise _CannotRead(self.name, error) from error
        if count:
            raise _CannotRead(self.name, OSError(0, "it became shorter while it was read"))
        return b"".join(parts)


def _pack(entries: Mapping[str, Entry], raw: IO[bytes]) -> None:
    with tarfile.open(fileobj=raw, mode="w:gz", compresslevel=_GZIP_LEVEL) as tar:
        for relative, entry in entries.items():
            try:
                if stat.S_ISLNK(entry.status.st_mode):
                    tar.addfile(_link(relative, entry))
                    continue
                descriptor = _opened(entry)
            except OSError as error:
                raise _CannotRead(relative, error) from error
            try:
                source = cast(IO[bytes], _Source(relative, descriptor))
                tar.addfile(tar.gettarinfo(arcname=relative, fileobj=source), source)
            finally:
                os.close(descriptor)


def _opened(entry: Entry) -> int:
    if stat.S_ISDIR(entry.status.st_mode):
        return open_folder(entry.file.root, entry.file.name, fix_permissions=True)
    return open_file(entry.file.root, entry.file.name, fix_permissions=True)


def _link(relative: str, entry: Entry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(relative)
    member.type = tarfile.SYMTYPE
    member.linkname = read_link(entry.file.root, entry.file.name)
    member.mode = stat.S_IMODE(entry.status.st_mode)
    member.uid, member.gid = entry.status.st_uid, entry.status.st_gid
    member.mtime = int(entry.status.st_mtime)
    return member
