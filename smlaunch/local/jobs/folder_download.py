"""Downloads an S3 prefix to a directory of a host, with modification times in the order of the uploads."""

from __future__ import annotations

import os
from pathlib import Path

from smlaunch.local.jobs.channel_listing import InputDataError
from smlaunch.local.jobs.file_copy import copy_file
from smlaunch.local.jobs.job_spec import S3Location
from smlaunch.local.jobs.s3_uploads import FileFingerprint, fingerprint_of
from smlaunch.local.jobs.store_interfaces import S3ObjectStore
from smlaunch.local.untrusted_files import error_text, printable_name

_MIN_MTIME_DIFFERENCE_NS = 1000
"""A float of seconds since the epoch cannot distinguish times that are closer."""


class FileDownloader:
    """Downloads objects of a bucket to ``local_path`` of a host, a directory that messages name."""

    def __init__(self, object_store: S3ObjectStore, bucket: str, local_path: str) -> None:
        self._object_store = object_store
        self._bucket = bucket
        self._local_path = local_path
        self._created_folders: set[Path] = set()
        """Directories known to exist: mkdir is slow for many thousand files."""

    def download(self, key: str, local_file: Path, modified_ns: int) -> FileFingerprint:
        """Download the S3 object ``key`` to ``local_file``, with the modification time ``modified_ns``, and
        return its fingerprint, by which a change is noticed. Raises InputDataError."""
        try:
            if local_file.parent not in self._created_folders:
                local_file.parent.mkdir(parents=True, exist_ok=True)
                self._created_folders.add(local_file.parent)
            copy_file(self._object_store.object_body_path(self._bucket, key), local_file)
            os.utime(local_file, ns=(modified_ns, modified_ns))
            # 0 is unknown: the inode's change time still changes when the file is given to the job's user.
            return fingerprint_of(local_file.stat())._replace(changed_ns=0)
        except (OSError, KeyError) as error:
            cause = "it was deleted meanwhile" if isinstance(error, KeyError) else error_text(error)
            raise InputDataError(
                f"Data download failed:s3://{self._bucket}/{printable_name(key)} of "
                f"CheckpointConfig.S3Uri cannot be written to {self._local_path}: {cause}"
            ) from None


def list_with_distinct_times(object_store: S3ObjectStore, location: S3Location) -> list[tuple[str, int]]:
    """Return the keys below a prefix with modification times in nanoseconds, oldest first and no two equal: a
    script may choose the newest file by its time. SageMaker does not document which times files get. Raises
    KeyError if the bucket does not exist."""
    stored_objects = sorted(
        object_store.list_objects(location.bucket, location.folder_prefix),
        key=lambda stored_object: (stored_object.modified, stored_object.key),
    )
    latest_ns = 0
    keys_and_times: list[tuple[str, int]] = []
    for stored_object in stored_objects:
        latest_ns = max(int(stored_object.modified * 1e9), latest_ns + _MIN_MTIME_DIFFERENCE_NS)
        keys_and_times.append((stored_object.key, latest_ns))
    return keys_and_times


def can_be_file_path(relative_path: str) -> bool:
    """Return whether a key can be a path, and is the same key when the path is uploaded."""
    return not {"", ".", ".."} & set(relative_path.split("/")) and "\0" not in relative_path
