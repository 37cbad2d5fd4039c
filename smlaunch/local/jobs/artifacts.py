"""The output of a training job: uploads model.tar.gz and output.tar.gz, merged from all hosts.

If several hosts have a file of the same name, the first host's file is taken and the log names the others,
as on SageMaker. A file that cannot be read does not stop the upload of the others, but the job fails.
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

from smlaunch.local.executors.base import JobHost
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
from smlaunch.local.jobs.job_kind import WriteNote
from smlaunch.local.jobs.spec import CONTRACT_ROOT, TrainingSpec
from smlaunch.local.jobs.stores import Objects
from smlaunch.local.jobs.uploads import HostFile
from smlaunch.local.settings import Settings

_GZIP_LEVEL = 1
"""Model weights hardly become smaller; a higher level only takes longer."""


class UploadError(Exception):
    """The output cannot be written to its location: the job fails with a ClientError."""


class OutputEntry(NamedTuple):
    """A file, directory or symbolic link in a host's output."""

    file: HostFile
    host_name: str
    """Name of the host: algo-1, algo-2, ..."""
    status: os.stat_result


class MergedOutput(NamedTuple):
    """The merged output of all hosts."""

    entries: dict[str, OutputEntry]
    """Sorted by their paths, relative to the output directory."""
    problems: list[str]
    """A sentence about each file that cannot be read."""


def upload_output(
    spec: TrainingSpec,
    hosts: Sequence[JobHost],
    objects: Objects,
    settings: Settings,
    scratch: Path,
    write_note: WriteNote,
) -> str:
    """Upload model/ and output/data/ of all hosts. Return the model's address, which Describe has as
    S3ModelArtifacts. ``scratch`` is an existing directory on the hosts' disk. Raises UploadError."""
    prefix = spec.output.key_below(spec.name, "output")
    artifacts = (
        ("model", "model", settings.upload_empty_model),
        ("output", "output/data", settings.upload_empty_output),
    )
    problems = []
    try:
        for name, folder, uploads_empty in artifacts:
            merged = merge_hosts(hosts, folder, write_note)
            problems += merged.problems
            if not merged.entries and not uploads_empty:
                continue
            if spec.compresses_output:
                key = f"{prefix}/{name}.tar.gz"
                problems += _upload_archive(
                    merged.entries, folder, objects, spec.output.bucket, key, scratch, write_note
                )
            else:
                files = {
                    relative: (f"{prefix}/{name}/{relative}", entry)
                    for relative, entry in regular_files(merged.entries, folder, write_note)
                }
                problems += upload_as_objects(files, folder, objects, spec.output.bucket, scratch, write_note)
    except KeyError:
        raise UploadError(
            f"Artifact upload failed:NoSuchBucket: the bucket of OutputDataConfig.S3OutputPath, "
            f"{spec.output.bucket}, does not exist"
        ) from None
    except (OSError, sqlite3.Error) as error:
        raise UploadError(f"Artifact upload failed:{error_text(error)}") from error
    if problems:
        raise UploadError(f"Artifact upload failed:{summarize_problems(problems)}")
    model_name = "model.tar.gz" if spec.compresses_output else "model/"
    return f"s3://{spec.output.bucket}/{prefix}/{model_name}"


def summarize_problems(problems: Sequence[str]) -> str:
    """Return the first problem and the number of the others."""
    return problems[0] + (
        f" (and {len(problems) - 1} more, which the hosts' logs name)" if len(problems) > 1 else ""
    )


def merge_hosts(hosts: Sequence[JobHost], folder: str, write_note: WriteNote) -> MergedOutput:
    """Merge a directory of all hosts, given relative to /opt/ml. The hosts have ended."""
    merged = MergedOutput({}, [])
    for host in hosts:
        for relative, status, error in walk(host.tree, folder, fix_permissions=True):
            if isinstance(error, FileNotFoundError):
                continue
            if error is not None or status is None:
                _add_problem(
                    merged.problems,
                    host.name,
                    f"{folder}/{relative}" if relative else folder,
                    error,
                    write_note,
                )
                continue
            if not (
                stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
            ):
                write_note(
                    host.name,
                    f"{folder}/{printable_name(relative)} is {file_type_name(status)}: it is not uploaded",
                )
                continue
            first_entry = merged.entries.get(relative)
            if first_entry is None:
                file = HostFile(host.tree, f"{folder}/{relative}")
                merged.entries[relative] = OutputEntry(file, host.name, status)
            elif not stat.S_ISDIR(status.st_mode):
                write_note(
                    host.name,
                    f"{folder}/{printable_name(relative)} exists on {first_entry.host_name} too: that one is "
                    f"uploaded, this one "
                    "is not (give names a rank or a host)",
                )
    return MergedOutput(dict(sorted(merged.entries.items())), merged.problems)


def _add_problem(
    problems: list[str], host_name: str, path: str, error: Exception | None, write_note: WriteNote
) -> None:
    """Record that a file cannot be uploaded, and write a note to the host's log."""
    full_path = f"{CONTRACT_ROOT}/{printable_name(path)}"
    if isinstance(error, UnexpectedFileType) and error.is_link:
        problem_text = f"{full_path} lies behind a symbolic link, which is not followed"
    else:
        problem_text = f"{full_path} cannot be stored: {error_text(error) if error else 'it cannot be read'}"
    write_note(host_name, problem_text)
    problems.append(f"{problem_text} ({host_name})")


def regular_files(
    entries: Mapping[str, OutputEntry], folder: str, write_note: WriteNote
) -> Iterator[tuple[str, OutputEntry]]:
    """Yield the regular files: S3 has neither directories nor links."""
    for relative, entry in entries.items():
        if stat.S_ISREG(entry.status.st_mode):
            yield relative, entry
        elif stat.S_ISLNK(entry.status.st_mode):
            write_note(
                entry.host_name, f"{folder}/{printable_name(relative)} is a symbolic link: it is not uploaded"
            )


def upload_as_objects(
    files: Mapping[str, tuple[str, OutputEntry]],
    folder: str,
    objects: Objects,
    bucket: str,
    scratch: Path,
    write_note: WriteNote,
) -> list[str]:
    """Store each file as an object. ``files`` maps paths in ``folder`` to (key, entry). Return sentences
    about files that could not be stored. Raises KeyError if the bucket does not exist."""
    problems: list[str] = []
    host_files: dict[str, HostFile] = {}
    paths_by_key: dict[str, str] = {}
    for relative, (raw_key, entry) in files.items():
        try:
            key = os.fsencode(raw_key).decode()
        except UnicodeDecodeError:
            name_error = OSError(0, "its name is not UTF-8, and S3 has no other keys")
            _add_problem(problems, entry.host_name, f"{folder}/{relative}", name_error, write_note)
            continue
        host_files[key] = entry.file
        paths_by_key[key] = relative
    for key, upload_error in uploads.upload_files(
        objects, bucket, host_files, scratch, hosts_have_ended=True
    ).items():
        if isinstance(upload_error, KeyError):
            raise upload_error
        _add_problem(
            problems,
            files[paths_by_key[key]][1].host_name,
            f"{folder}/{paths_by_key[key]}",
            upload_error,
            write_note,
        )
    return problems


def _upload_archive(
    entries: Mapping[str, OutputEntry],
    folder: str,
    objects: Objects,
    bucket: str,
    key: str,
    scratch: Path,
    write_note: WriteNote,
) -> list[str]:
    """Store all entries as one archive. Return sentences about entries that could not be read and are not in
    it."""
    problems: list[str] = []
    remaining_entries = dict(entries)
    descriptor, name = tempfile.mkstemp(dir=scratch, suffix=".tar.gz")
    archive = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as archive_file:
            while True:
                try:
                    _write_archive(remaining_entries, archive_file)
                    break
                except _UnreadableEntry as unreadable:
                    # The archive contains its header already: write the archive again without it.
                    _add_problem(
                        problems,
                        remaining_entries.pop(unreadable.relative).host_name,
                        f"{folder}/{unreadable.relative}",
                        unreadable.error,
                        write_note,
                    )
                    archive_file.seek(0)
                    archive_file.truncate()
        objects.put_file(bucket, key, archive, move=True)
    finally:
        archive.unlink(missing_ok=True)
    return problems


class _UnreadableEntry(Exception):
    """An entry cannot be added to the archive."""

    def __init__(self, relative: str, error: OSError) -> None:
        super().__init__(relative)
        self.relative = relative
        self.error = error


class _TarSource:
    """An open file or directory, with the methods that tarfile uses."""

    def __init__(self, relative: str, descriptor: int) -> None:
        self.name = relative
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def read(self, count: int) -> bytes:
        """Read exactly ``count`` bytes: a member that is shorter than its header would damage the rest of
        the archive."""
        blocks = []
        try:
            while count and (block := os.read(self._descriptor, count)):
                blocks.append(block)
                count -= len(block)
        except OSError as error:
            raise _UnreadableEntry(self.name, error) from error
        if count:
            raise _UnreadableEntry(self.name, OSError(0, "it became shorter while it was read"))
        return b"".join(blocks)


def _write_archive(entries: Mapping[str, OutputEntry], archive_file: IO[bytes]) -> None:
    """Write a compressed archive of the entries. Raises _UnreadableEntry."""
    with tarfile.open(fileobj=archive_file, mode="w:gz", compresslevel=_GZIP_LEVEL) as tar:
        for relative, entry in entries.items():
            try:
                if stat.S_ISLNK(entry.status.st_mode):
                    tar.addfile(_link_member(relative, entry))
                    continue
                descriptor = _open_entry(entry)
            except OSError as error:
                raise _UnreadableEntry(relative, error) from error
            try:
                source = cast(IO[bytes], _TarSource(relative, descriptor))
                tar.addfile(tar.gettarinfo(arcname=relative, fileobj=source), source)
            finally:
                os.close(descriptor)


def _open_entry(entry: OutputEntry) -> int:
    if stat.S_ISDIR(entry.status.st_mode):
        return open_folder(entry.file.root, entry.file.name, fix_permissions=True)
    return open_file(entry.file.root, entry.file.name, fix_permissions=True)


def _link_member(relative: str, entry: OutputEntry) -> tarfile.TarInfo:
    """Return the archive member of a symbolic link."""
    member = tarfile.TarInfo(relative)
    member.type = tarfile.SYMTYPE
    member.linkname = read_link(entry.file.root, entry.file.name)
    member.mode = stat.S_IMODE(entry.status.st_mode)
    member.uid, member.gid = entry.status.st_uid, entry.status.st_gid
    member.mtime = int(entry.status.st_mtime)
    return member
