"""Mode, size and modification time of every file below a folder, looked up by several processes at once.

To stat a file takes six times as long as to read its name from the folder, and far longer on a network file
system. So names are read here, and the worker processes stat the files.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice

from smlaunch.data.folder_worker import STAT_REQUEST, stat_names
from smlaunch.data.folder_worker_pool import FolderWorkerPool

_FILES_PER_REQUEST = 4096
"""Files in one request to a worker process."""

_MIN_REQUESTS_FOR_WORKERS = 2
"""With fewer requests, files are looked up in this process: starting others would take longer."""

StatColumn = Sequence[int]
"""One column of the files' modes, sizes in bytes, or modification times in nanoseconds."""

UnreadableFolders = list[tuple[bytes, str]]


def stat_files(
    root: str, workers: FolderWorkerPool, follow_links: bool = False
) -> tuple[list[bytes], list[StatColumn], UnreadableFolders]:
    """Return the names of all files below ``root``, relative and in order; the columns of their modes, sizes
    and times; and the folders that cannot be read, with the reason.

    ``follow_links``: a link to a file is reported as that file.
    """
    unreadable: UnreadableFolders = []
    names: list[bytes] = []
    batches = _iter_name_batches(root, names, unreadable)
    first_batches = list(islice(batches, _MIN_REQUESTS_FOR_WORKERS))
    if len(first_batches) < _MIN_REQUESTS_FOR_WORKERS:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            replies = [stat_names(folder, names, follow_links)]
        finally:
            os.close(folder)
    else:
        workers.start()
        with ThreadPoolExecutor(workers.count, "sizes") as pool:
            requests = [
                pool.submit(workers.send_request, STAT_REQUEST, b"\0".join(batch))
                for batch in chain(first_batches, batches)
            ]
        replies = [request.result()[0] for request in requests]
    numbers = array("q", b"".join(replies))
    return names, [numbers[column::3] for column in range(3)], unreadable


def _iter_name_batches(
    root: str, all_names: list[bytes], unreadable_folders: UnreadableFolders
) -> Iterator[list[bytes]]:
    """Append the names of all files below ``root`` to ``all_names``, in order, and yield the same names
    ``_FILES_PER_REQUEST`` at a time. Folders that cannot be read are added to ``unreadable_folders``."""
    batch_start = 0  # index in all_names
    for new_names in _walk_in_key_order(root, unreadable_folders):
        all_names += new_names
        while len(all_names) - batch_start >= _FILES_PER_REQUEST:
            yield all_names[batch_start : batch_start + _FILES_PER_REQUEST]
            batch_start += _FILES_PER_REQUEST
    if batch_start < len(all_names):
        yield all_names[batch_start:]


def _walk_in_key_order(root: str, unreadable_folders: UnreadableFolders) -> Iterator[list[bytes]]:
    """Walk a folder in the order of S3 keys: yield the names of its files, relative to ``root``, some at a
    time. A folder is sorted among its siblings by its name with a slash, so that all names are in order.
    Folders that cannot be read are added to ``unreadable_folders``."""
    root_bytes = os.fsencode(root)
    pending = [b""]  # a stack, the next one last; folders end in a slash
    while pending:
        name = pending.pop()
        if name and not name.endswith(b"/"):
            yield [name]
            continue
        files: list[bytes] = []
        folders: list[bytes] = []
        try:
            with os.scandir(os.path.join(root_bytes, name)) as entries:  # noqa: PTH118 (bytes)
                for entry in entries:
                    (folders if entry.is_dir(follow_symlinks=False) else files).append(name + entry.name)
        except OSError as error:
            unreadable_folders.append((name or b".", error.strerror or str(error)))
        if folders:
            pending += sorted([*files, *[folder + b"/" for folder in folders]], reverse=True)
        else:
            yield sorted(files)
