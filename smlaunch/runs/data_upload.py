"""Uploads the local data of an input to the S3 prefix whose address has the hash of that data.

Everybody with the same data uses the same prefix, so an object there counts only if it has the content that
was hashed. What is sent is hashed on the way. What is there already is recognized by a record beside the
prefix: each client that has made the prefix complete leaves a digest of its listing, with all ETags. Without
a record (of an earlier release, or after a crash), or where the listing differs from it, S3's checksum of
every object is compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from smlaunch.aws.interfaces import ObjectStorage, StoredObject, Transfer, TransferItem
from smlaunch.contract import formats
from smlaunch.data.thread_pool import for_each_in_threads
from smlaunch.data.transfer_progress import TransferProgress
from smlaunch.discovery.local_files import LocalFile, list_local_files
from smlaunch.errors import JobError, Problem
from smlaunch.planner.plan import Upload
from smlaunch.runs.launch_target import Target
from smlaunch.text.format import list_names
from smlaunch.text.home_folder import expand_home

if TYPE_CHECKING:
    from smlaunch.runs.run_driver import MessageCallback

ProgressCallback = Callable[[TransferProgress], None]

_NOTICEABLE_BYTES = 8 << 20
_NOTICEABLE_FILES = 100
"""From these sizes on, an upload or a comparison takes noticeable time, and a message announces it."""

_MAX_ROUNDS = 4
"""Of listing, comparing and sending. The second one finds everything, unless other clients write too."""

_COMPARE_THREADS = 10
"""As many as a client keeps connections."""


class DataPrefix(NamedTuple):
    """The S3 prefix of some data, ``smlaunch/data/<hash>/``, and the record beside it."""

    bucket: str
    prefix: str
    """Ends in a slash."""

    @property
    def record_key(self) -> str:
        return self.prefix.rstrip("/") + ".json"

    def list_objects(self, storage: ObjectStorage) -> dict[str, StoredObject]:
        """Return the objects by their names below the prefix, without the empty ones that consoles make for
        folders."""
        return {
            stored.key[len(self.prefix) :]: stored
            for stored in storage.list_objects(self.bucket, self.prefix)
            if stored.size or not stored.key.endswith("/")
        }

    def load_record(self, storage: ObjectStorage) -> str | None:
        """Return the digest of the listing that was complete; None without a readable record. Raises
        FormatError for a record of a newer major version."""
        content = storage.get_bytes(self.bucket, self.record_key)
        try:
            document = None if content is None else json.loads(content)
        except ValueError:  # cut off, for example: the objects themselves are compared
            document = None
        if document is None:
            return None
        return str(formats.DATA_RECORD.upgrade_document(document, self.record_key).get("listing"))

    def save_record(self, listing: str, storage: ObjectStorage) -> None:
        content = json.dumps(formats.DATA_RECORD.with_version({"listing": listing})) + "\n"
        storage.put_bytes(self.bucket, self.record_key, content.encode())


def upload_data(
    upload: Upload,
    folder: Path,
    include_secrets: bool,
    target: Target,
    on_message: MessageCallback,
    on_progress: ProgressCallback | None,
) -> None:
    """Make the data's prefix in S3 hold exactly the planned files: send what is missing or has another
    content, and delete what does not belong there.

    ``folder``: where a relative path of the upload begins. ``include_secrets``: files that look like secrets
    are a part of the data. ``on_message`` receives sentences about slow or unexpected actions,
    ``on_progress`` the state of the upload. Raises JobError if the local data has changed since the plan was
    made; then nothing of the change is in S3.
    """
    storage = target.storage
    bucket, _, key = upload.uri.removeprefix("s3://").partition("/")
    data_prefix = DataPrefix(bucket, key[: key.rindex("/") + 1])  # the key of a single file ends in its name
    local_files = _list_planned_files(upload, folder, include_secrets)
    items = {
        file.name: TransferItem(
            data_prefix.prefix + file.name, local_files[file.name].path, file.bytes, sha256=file.sha256
        )
        for file in upload.files
    }
    verified_objects: dict[str, StoredObject] = {}  # by name, as they were listed after the comparison
    sent_names: set[str] = set()
    for round_number in range(_MAX_ROUNDS):
        listed_objects = data_prefix.list_objects(storage)
        stored_objects = {
            name: listed_objects[name]
            for name, item in items.items()
            if name in listed_objects and listed_objects[name].size == item.size
        }
        is_listing_complete = stored_objects.keys() == items.keys() == listed_objects.keys()
        listing = _listing_digest(listed_objects)
        if round_number == 0 and is_listing_complete and data_prefix.load_record(storage) == listing:
            return
        verified_objects |= {name: stored_objects[name] for name in sent_names & stored_objects.keys()}
        verified_objects |= _compare_objects(
            [items[name] for name, stored in stored_objects.items() if verified_objects.get(name) != stored],
            stored_objects,
            target.transfer,
            data_prefix,
            on_message,
        )
        sent_names = {
            name
            for name in items
            if name not in stored_objects or verified_objects.get(name) != stored_objects[name]
        }
        if is_listing_complete and not sent_names:
            data_prefix.save_record(listing, storage)
            return
        _delete_foreign_objects(
            sorted(listed_objects.keys() - items.keys()), data_prefix, storage, on_message
        )
        _send(
            [item for name, item in items.items() if name in sent_names],
            len(items) - len(sent_names),
            bucket,
            target.transfer,
            on_message,
            on_progress,
        )
    text = f"other clients keep changing s3://{bucket}/{data_prefix.prefix}; launch again"
    raise JobError([Problem("inputs", text)])


def _list_planned_files(upload: Upload, folder: Path, include_secrets: bool) -> Mapping[str, LocalFile]:
    """Return the local files of the upload by name. Raises JobError if they are not those of the plan, or
    have other sizes."""
    # The plan has warned about the names that this list receives; with None, no secrets are excluded.
    excluded_secrets: list[str] | None = None if include_secrets else []
    try:
        local_files = {
            file.relative_path: file
            for file in list_local_files(folder / expand_home(upload.path or ""), excluded_secrets)
        }
    except OSError as error:
        raise JobError([Problem("inputs", f"{upload.path} cannot be read: {error}")]) from error
    planned_sizes = {file.name: file.bytes for file in upload.files}
    names_by_change = {
        "new": local_files.keys() - planned_sizes.keys(),
        "gone": planned_sizes.keys() - local_files.keys(),
        "other size": {
            name for name, file in local_files.items() if planned_sizes.get(name, file.size) != file.size
        },
    }
    changes = [f"{change}: {list_names(names)}" for change, names in names_by_change.items() if names]
    if changes:
        text = f"{upload.path} has changed since the plan was made; plan again ({'; '.join(changes)})"
        raise JobError([Problem("inputs", text)])
    return local_files


def _listing_digest(objects: Mapping[str, StoredObject]) -> str:
    """Return a digest of the names, sizes and ETags. Of an object that is overwritten, S3 changes the
    ETag."""
    rows = sorted([name, stored.size, stored.etag] for name, stored in objects.items())
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _compare_objects(
    items: Sequence[TransferItem],
    stored_objects: Mapping[str, StoredObject],
    transfer: Transfer,
    data_prefix: DataPrefix,
    on_message: MessageCallback,
) -> dict[str, StoredObject]:
    """Return those of the items' objects that have the planned content, by S3's checksums."""
    if len(items) > _NOTICEABLE_FILES:
        on_message(f"comparing {len(items):,} files that are in S3 already")
    right_objects: dict[str, StoredObject] = {}

    def compare(item: TransferItem) -> None:
        if transfer.has_same_content(data_prefix.bucket, item):
            name = item.key[len(data_prefix.prefix) :]
            right_objects[name] = stored_objects[name]

    for_each_in_threads(compare, items, _COMPARE_THREADS)
    return right_objects


def _delete_foreign_objects(
    names: Sequence[str], data_prefix: DataPrefix, storage: ObjectStorage, on_message: MessageCallback
) -> None:
    """Delete what is no part of the data: each host of every job with this data would get it."""
    if names:
        address = f"s3://{data_prefix.bucket}/{data_prefix.prefix}"
        on_message(f"deleting from {address} what is no part of the data: {list_names(names)}")
        storage.delete_objects(data_prefix.bucket, [data_prefix.prefix + name for name in names])


def _send(
    items: Sequence[TransferItem],
    present_count: int,
    bucket: str,
    transfer: Transfer,
    on_message: MessageCallback,
    on_progress: ProgressCallback | None,
) -> None:
    if not items:
        return
    byte_count = sum(item.size for item in items)
    if byte_count >= _NOTICEABLE_BYTES or len(items) > _NOTICEABLE_FILES:
        present_text = f" ({present_count:,} are there already)" if present_count else ""
        on_message(f"uploading {len(items):,} files, {byte_count / 1_000_000:,.1f} MB{present_text}")
    progress = TransferProgress(len(items), byte_count, on_progress)
    transfer.upload_files(bucket, items, progress.add)
