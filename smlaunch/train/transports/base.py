"""The interface of checkpoint transports, and their errors."""

from typing import Mapping, NamedTuple, Optional, Sequence

SETTLE_SECONDS = 300.0
"""How long a committed step may take to reach S3. SageMaker documents no interval for its sync."""


class SaveFailed(OSError):
    """A save that failed and left no incomplete file: training can continue, and the next save may
    succeed."""


class UploadFailed(SaveFailed):
    """S3 did not accept an upload, after all retries."""


class LoadFailed(RuntimeError):
    """S3 could not be read, after all retries, or the disk has no space for its content. This does not mean
    that the checkpoint is damaged: no older one is loaded instead."""


class PendingUpload(NamedTuple):
    """An upload under way."""

    remaining_bytes: int
    """Bytes still to be sent."""
    stalled_seconds: float
    """Seconds since the last byte was sent."""


class CheckpointTransport:
    """Moves files between the directory and S3. Names are paths below the checkpoint directory.

    This base class does nothing: the directory is the only copy.
    """

    is_remote = False
    """S3 is authoritative, not the directory: files are looked up there."""

    settle_seconds = SETTLE_SECONDS
    """How long after its commit a step may take to reach S3."""

    def list_files(self) -> Mapping[str, int]:
        """If ``is_remote``: return all files in S3 with their sizes. Raises LoadFailed."""
        return {}

    def read_file(self, name: str) -> bytes:
        """If ``is_remote``: return a small file's content. Raises KeyError if it is gone, or LoadFailed."""
        raise KeyError(name)

    def download(self, name: str, path: str) -> None:
        """If ``is_remote``: copy a file to ``path``. Raises like ``read_file``."""
        raise KeyError(name)

    def upload(self, name: str, path: str, size: int) -> None:
        """Return when S3 has the file, or at once if this transport does not upload. Raises UploadFailed."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete files that were deleted from the directory. A file that cannot be deleted is reported and
        stays, which is harmless."""

    def pending_upload(self) -> Optional[PendingUpload]:
        """Return the upload under way; None if it cannot be known. Thread-safe."""
        return None
