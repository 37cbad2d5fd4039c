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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, cast

from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs import s3_uploads
from smlaunch.local.jobs.job_handler import LogToHost
from smlaunch.local.jobs.job_spec import OPT_ML_ROOT, S3Location, TrainingSpec
from smlaunch.local.jobs.s3_uploads import HostPath
from smlaunch.local.jobs.store_interfaces import S3ObjectStore
from smlaunch.local.untrusted_files import (
    UnexpectedFileType,
    error_text,
    file_type_name,
    open_file,
    open_folder,
    printable_name,
    read_link,
    walk_folder,
)

_GZIP_LEVEL = 1
"""Model weights hardly become smaller; a higher level only takes longer."""


RESULT_FOLDERS = ("model", "output/data")
"""Directories of a training job's results on its hosts, relative to /opt/ml."""


class UploadError(Exception):
    """The output cannot be written to its location: the job fails with a ClientError."""


class OutputEntry(NamedTuple):
    """A file, directory or symbolic link in a host's output."""

    host_path: HostPath
    host_name: str
    """Name of the host: algo-1, algo-2, ..."""
    file_stat: os.stat_result


class _Artifact(NamedTuple):
    """One of the two outputs of a training job."""

    name: str
    """Name of its archive, without .tar.gz, or of its S3 folder."""
    output_folder: str
    """Its directory on the hosts, relative to /opt/ml."""
    uploads_if_empty: bool
    """Whether it is uploaded even if no host has written anything."""


class MergedOutput(NamedTuple):
    """The merged output of all hosts."""

    entry_by_path: dict[str, OutputEntry]
    """By path relative to the output directory, in sorted order."""
    problems: list[str]
    """A sentence about each file that cannot be read."""


def upload_training_output(
    spec: TrainingSpec,
    hosts: Sequence[JobHost],
    object_store: S3ObjectStore,
    settings: Settings,
    scratch_folder: Path,
    log_to_host: LogToHost,
) -> str:
    """Upload /opt/ml/model and /opt/ml/output/data of all hosts, each as a tar.gz or file by file. Return the
    S3 address of the model, which DescribeTrainingJob shows as S3ModelArtifacts. ``scratch_folder`` is an
    existing directory on the hosts' disk, for temporary files; ``log_to_host(host_name, line)`` writes to a
    host's log. Raises UploadError, also if a single file could not be uploaded."""
    key_prefix = spec.output_location.join_key(spec.name, "output")
    artifacts = (
        _Artifact(
            name="model", output_folder=RESULT_FOLDERS[0], uploads_if_empty=settings.upload_empty_model
        ),
        _Artifact(
            name="output", output_folder=RESULT_FOLDERS[1], uploads_if_empty=settings.upload_empty_output
        ),
    )
    problems: list[str] = []
    try:
        for artifact in artifacts:
            merged_output = merge_host_folders(hosts, artifact.output_folder, log_to_host)
            problems += merged_output.problems
            if not merged_output.entry_by_path and not artifact.uploads_if_empty:
                continue
            # Both return a sentence about each file that could not be stored.
            upload_entries = _upload_archive if spec.compresses_output else upload_each_file
            problems += upload_entries(
                merged_output.entry_by_path,
                artifact.output_folder,
                object_store,
                S3Location(spec.output_location.bucket, f"{key_prefix}/{artifact.name}"),
                scratch_folder,
                log_to_host,
            )
    except KeyError:  # raised by the object store for an unknown bucket
        raise UploadError(
            f"Artifact upload failed:NoSuchBucket: the bucket of OutputDataConfig.S3OutputPath, "
            f"{spec.output_location.bucket}, does not exist"
        ) from None
    except (OSError, sqlite3.Error) as error:
        raise UploadError(f"Artifact upload failed:{error_text(error)}") from error
    if problems:
        raise UploadError(f"Artifact upload failed:{summarize_problems(problems)}")
    model_name = "model.tar.gz" if spec.compresses_output else "model/"
    return f"s3://{spec.output_location.bucket}/{key_prefix}/{model_name}"


def summarize_problems(problems: Sequence[str]) -> str:
    """Return the first problem and the number of the others."""
    return problems[0] + (
        f" (and {len(problems) - 1} more, which the hosts' logs name)" if len(problems) > 1 else ""
    )


def merge_host_folders(hosts: Sequence[JobHost], output_folder: str, log_to_host: LogToHost) -> MergedOutput:
    """Merge the directory ``output_folder``, relative to /opt/ml, of all hosts into one tree. The hosts have
    ended, so that missing file permissions may be added. If several hosts have a file of the same path, the
    first host's file is taken, and the logs of the others say so. The result has an entry per file, directory
    or symbolic link, and a sentence (problem), also in the host's log, about each that cannot be read."""
    entry_by_path: dict[str, OutputEntry] = {}
    problems: list[str] = []
    for host in hosts:
        for walk_entry in walk_folder(host.opt_ml_folder, output_folder, fix_permissions=True):
            relative_path, file_stat, read_error = walk_entry
            if isinstance(read_error, FileNotFoundError):
                continue  # the host's program has not created the directory
            if read_error is not None or file_stat is None:
                opt_ml_path = f"{output_folder}/{relative_path}" if relative_path else output_folder
                problems.append(_log_and_describe_problem(host.name, opt_ml_path, read_error, log_to_host))
                continue
            printable_path = f"{output_folder}/{printable_name(relative_path)}"
            if not _can_be_archived(file_stat):  # a FIFO, a socket or a device
                log_to_host(host.name, f"{printable_path} is {file_type_name(file_stat)}: it is not uploaded")
                continue
            first_entry = entry_by_path.get(relative_path)
            if first_entry is None:
                host_path = HostPath(host.opt_ml_folder, f"{output_folder}/{relative_path}")
                entry_by_path[relative_path] = OutputEntry(host_path, host.name, file_stat)
            elif not stat.S_ISDIR(file_stat.st_mode):  # directories are merged without a word
                log_to_host(
                    host.name,
                    f"{printable_path} exists on {first_entry.host_name} "
                    "too: that one is uploaded, this one is not (give names a rank or a host)",
                )
    # Sorted, so that a directory comes before what is in it.
    return MergedOutput(dict(sorted(entry_by_path.items())), problems)


def _can_be_archived(file_stat: os.stat_result) -> bool:
    """Return whether this is a directory, a regular file or a symbolic link, rather than a FIFO, a socket or
    a device."""
    mode = file_stat.st_mode
    return stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _log_and_describe_problem(
    host_name: str, opt_ml_path: str, error: Exception | None, log_to_host: LogToHost
) -> str:
    """Write to a host's log that a file cannot be uploaded, and return the same sentence with the host's
    name. ``opt_ml_path`` is relative to /opt/ml; ``error`` is None if the cause is unknown."""
    full_path = f"{OPT_ML_ROOT}/{printable_name(opt_ml_path)}"
    if isinstance(error, UnexpectedFileType) and error.is_link:
        problem_text = f"{full_path} lies behind a symbolic link, which is not followed"
    else:
        problem_text = f"{full_path} cannot be stored: {error_text(error) if error else 'it cannot be read'}"
    log_to_host(host_name, problem_text)
    return f"{problem_text} ({host_name})"


def _select_regular_files(
    entry_by_path: Mapping[str, OutputEntry], output_folder: str, log_to_host: LogToHost
) -> dict[str, OutputEntry]:
    """Return the regular files among the entries, by path, and log which symbolic links are omitted: S3 has
    neither directories nor links. Paths are relative to ``output_folder``, itself relative to /opt/ml."""
    regular_files: dict[str, OutputEntry] = {}
    for relative_path, entry in entry_by_path.items():
        if stat.S_ISREG(entry.file_stat.st_mode):
            regular_files[relative_path] = entry
        elif stat.S_ISLNK(entry.file_stat.st_mode):
            log_to_host(
                entry.host_name,
                f"{output_folder}/{printable_name(relative_path)} is a symbolic link: it is not uploaded",
            )
    return regular_files


def upload_each_file(
    entry_by_path: Mapping[str, OutputEntry],
    output_folder: str,
    object_store: S3ObjectStore,
    location: S3Location,
    scratch_folder: Path,
    log_to_host: LogToHost,
) -> list[str]:
    """Store each regular file among the entries as an object below the S3 prefix ``location``. The entries
    are given by their paths in ``output_folder``, itself relative to /opt/ml. Return a sentence about each
    file that could not be stored, which ``log_to_host`` writes to the host's log too. ``scratch_folder`` is a
    directory for temporary files. Raises KeyError if the bucket does not exist."""
    problems: list[str] = []
    path_by_key: dict[str, str] = {}
    for path, entry in _select_regular_files(entry_by_path, output_folder, log_to_host).items():
        try:
            # Bytes of a file name that are not UTF-8 are surrogates in a Python string (PEP 383).
            key = os.fsencode(location.join_key(path)).decode()
        except UnicodeDecodeError:
            name_error = OSError(0, "its name is not UTF-8, and S3 has no other keys")
            problems.append(
                _log_and_describe_problem(entry.host_name, f"{output_folder}/{path}", name_error, log_to_host)
            )
            continue
        path_by_key[key] = path
    # A HostPath has a host's directory and a path in it, which is followed without symbolic links.
    file_by_key = {key: entry_by_path[path].host_path for key, path in path_by_key.items()}
    error_by_key = s3_uploads.upload_files(
        object_store, location.bucket, file_by_key, scratch_folder, hosts_have_ended=True
    )
    for key, upload_error in error_by_key.items():
        if isinstance(upload_error, KeyError):
            raise upload_error  # no such bucket
        path = path_by_key[key]
        problems.append(
            _log_and_describe_problem(
                entry_by_path[path].host_name, f"{output_folder}/{path}", upload_error, log_to_host
            )
        )
    return problems


def _upload_archive(
    entry_by_path: Mapping[str, OutputEntry],
    output_folder: str,
    object_store: S3ObjectStore,
    location: S3Location,
    scratch_folder: Path,
    log_to_host: LogToHost,
) -> list[str]:
    """Store all entries as one archive, the S3 object ``location`` with ``.tar.gz`` added. Return sentences
    about entries that could not be read and are not in it."""
    problems: list[str] = []
    remaining_entries = dict(entry_by_path)
    descriptor, archive_name = tempfile.mkstemp(dir=scratch_folder, suffix=".tar.gz")
    archive_path = Path(archive_name)
    try:
        with os.fdopen(descriptor, "wb") as archive_file:
            while True:
                try:
                    _write_tar_gz(remaining_entries, archive_file)
                    break
                except _UnreadableEntry as unreadable_entry:
                    # The archive has the entry's header already: write the archive again without the entry.
                    path = unreadable_entry.relative_path
                    host_name = remaining_entries.pop(path).host_name
                    problems.append(
                        _log_and_describe_problem(
                            host_name, f"{output_folder}/{path}", unreadable_entry.error, log_to_host
                        )
                    )
                    archive_file.seek(0)
                    archive_file.truncate()
        key = f"{location.key}.tar.gz"
        object_store.put_object_file(location.bucket, key, archive_path, move=True)
    finally:
        archive_path.unlink(missing_ok=True)
    return problems


class _UnreadableEntry(Exception):
    """An entry cannot be added to the archive."""

    def __init__(self, relative: str, error: OSError) -> None:
        super().__init__(relative)
        self.relative_path = relative
        self.error = error


class _EntryReader:
    """An open file or directory, with the methods that tarfile uses."""

    def __init__(self, relative: str, descriptor: int) -> None:
        self.name = relative
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def read(self, byte_count: int) -> bytes:
        """Read exactly ``byte_count`` bytes of a file that tarfile adds to an archive: a member that is
        shorter than its header says would damage the rest of the archive. Raises _UnreadableEntry if the
        file became shorter after its header was written."""
        blocks: list[bytes] = []
        remaining_bytes = byte_count
        try:
            while remaining_bytes:
                block = os.read(self._descriptor, remaining_bytes)
                if not block:
                    raise OSError(0, "it became shorter while it was read")
                blocks.append(block)
                remaining_bytes -= len(block)
        except OSError as error:
            raise _UnreadableEntry(self.name, error) from error
        return b"".join(blocks)


def _write_tar_gz(entry_by_path: Mapping[str, OutputEntry], archive_file: IO[bytes]) -> None:
    """Write a tar.gz of files, directories and symbolic links of hosts, given by their paths in the archive.
    Raises _UnreadableEntry for the first one that cannot be read: the archive is then unusable, since it has
    the entry's header already."""
    with tarfile.open(fileobj=archive_file, mode="w:gz", compresslevel=_GZIP_LEVEL) as tar:
        for relative_path, entry in entry_by_path.items():
            try:
                if stat.S_ISLNK(entry.file_stat.st_mode):
                    tar.addfile(_symlink_member(relative_path, entry))  # no content: a link has a target only
                    continue
                descriptor = _open_file_or_folder(entry)
            except OSError as error:
                raise _UnreadableEntry(relative_path, error) from error
            try:
                # tarfile takes type, size and times from the open file: its path may be replaced meanwhile.
                # _EntryReader raises _UnreadableEntry for a file that becomes shorter after its header is
                # written.
                entry_reader = cast(IO[bytes], _EntryReader(relative_path, descriptor))
                header = tar.gettarinfo(arcname=relative_path, fileobj=entry_reader)
                tar.addfile(header, entry_reader)
            finally:
                os.close(descriptor)


def _open_file_or_folder(entry: OutputEntry) -> int:
    """Return a descriptor of the file or directory, which the caller closes. Raises OSError."""
    if stat.S_ISDIR(entry.file_stat.st_mode):
        return open_folder(entry.host_path.trusted_root, entry.host_path.relative_path, fix_permissions=True)
    return open_file(entry.host_path.trusted_root, entry.host_path.relative_path, fix_permissions=True)


def _symlink_member(relative: str, entry: OutputEntry) -> tarfile.TarInfo:
    """Return the archive member of a symbolic link."""
    member = tarfile.TarInfo(relative)
    member.type = tarfile.SYMTYPE
    member.linkname = read_link(entry.host_path.trusted_root, entry.host_path.relative_path)
    member.mode = stat.S_IMODE(entry.file_stat.st_mode)
    member.uid, member.gid = entry.file_stat.st_uid, entry.file_stat.st_gid
    member.mtime = int(entry.file_stat.st_mtime)
    return member
