"""In which order and batches changed files are uploaded, and which changes are lost: as the settings say."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.jobs import s3_uploads
from smlaunch.local.jobs.s3_uploads import FileFingerprint
from smlaunch.local.jobs.upload_schedule import Completeness

_MAX_BATCH_BYTES = 64 << 20
"""Maximum number of bytes that become visible in S3 at once."""


class FileChange(NamedTuple):
    """A changed file that can be uploaded. Sorts by the time of the change."""

    modified_ns: int
    host_name: str
    file_name: str
    """Path relative to the synced directory."""
    completeness: Completeness
    """Whether the upload will be whole, or may be torn by a process that writes to the file."""
    fingerprint: FileFingerprint
    """Identifies the content that the scan has found."""


class UploadOrder:
    """The order, the batches and the losses of the changes in one synced directory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._change_count_by_file: Counter[tuple[str, str]] = Counter()
        """Changes of a file so far, by host and name."""

    def sort(self, changes: Sequence[FileChange]) -> list[FileChange]:
        """Return the changes in the order of the setting checkpoint_sync_order."""
        order = self._settings.checkpoint_sync_order
        if order == "shuffled":
            return sorted(
                changes,
                key=lambda change: self._seeded_random_number("order", change.host_name, change.file_name),
            )
        # Oldest first: a COMMIT file, which is written last, is uploaded last.
        return sorted(changes, reverse=order == "newest-first")

    def drops_change(self, host_name: str, file_name: str) -> bool:
        """Count this change of a file, and return whether the fault setting checkpoint_sync_loss, a
        probability, drops it."""
        loss_probability = self._settings.checkpoint_sync_loss
        if not loss_probability:
            return False
        self._change_count_by_file[host_name, file_name] += 1
        return (
            self._seeded_random_number(
                "loss", host_name, file_name, str(self._change_count_by_file[host_name, file_name])
            )
            < loss_probability
        )

    def _seeded_random_number(self, *words: str) -> float:
        """Return a number from 0 to 1 that depends on the seed and on ``words`` only, not on the order of
        calls."""
        seed = "\0".join((str(self._settings.checkpoint_sync_seed), *words))
        return random.Random(seed).random()  # noqa: S311 - a fault plan, not a secret

    def split_into_batches(self, changes: Sequence[FileChange]) -> Iterator[list[FileChange]]:
        """Yield lists of the changes that become visible in S3 together: hundreds of small files, or single
        files if the setting ``checkpoint_sync_order`` asks for an unusual order, which a program is to
        see."""
        is_usual_order = self._settings.checkpoint_sync_order == "oldest-first"
        max_batch_files = s3_uploads.FILES_PER_TRANSACTION if is_usual_order else 1
        batch: list[FileChange] = []
        batch_bytes = 0
        for change in changes:
            if batch and (len(batch) == max_batch_files or batch_bytes > _MAX_BATCH_BYTES):
                yield batch
                batch, batch_bytes = [], 0
            batch.append(change)
            batch_bytes += change.fingerprint.size
        if batch:
            yield batch
