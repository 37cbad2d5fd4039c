"""List an S3 prefix over several connections at once, into an inventory. Works with any key names.

S3 lists in key order, a thousand keys per request, starting after any key. So the keys are cut into ranges
that are listed in parallel. A worker without a range takes the upper part of another worker's range. Where to
cut is found by trial: the request that tries a cut either returns a page of the listing, or shows that no
keys lie above it, which halves the remaining range as well. This needs neither ``/`` in the keys nor
knowledge of how they are named.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Thread
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from smlaunch.aws.interfaces import UNREACHABLE, CallError
from smlaunch.data.inventory import SCHEMA, InventoryWriter
from smlaunch.data.key_ranges import KeyRange, key_between, merge_ranges, uncovered_ranges
from smlaunch.data.sorted_runs import SortedRuns
from smlaunch.errors import JobError, Problem

DEFAULT_WORKERS = 10
"""As many connections as botocore keeps open. With more, threads only wait for each other's parsing."""

_RUN_ROWS = 65_536
_RUN_SECONDS = 30.0
"""A worker saves its pages after this many rows or seconds. A kill loses at most that much."""

_MAX_CUTS_PER_RANGE = 3
"""Cuts of one range that may be tried at a time; more if there are more idle workers than ranges."""

_THROTTLING_CODES = {
    "SlowDown",
    "ServiceUnavailable",
    "InternalError",
    "RequestTimeout",
    "503",
    "500",
    UNREACHABLE,
}
"""Error codes after which fewer workers send requests, later. The client has already retried a few times
itself."""

_MAX_REFUSALS = 6
"""Consecutive errors of this kind, without any page between them, before the listing gives up."""

_MAX_PAUSE_SECONDS = 20.0

_DIRECTORY_BUCKET_SUFFIX = "--x-s3"


class KeyPage(NamedTuple):
    """One response of ListObjectsV2, a list per column."""

    keys: list[str]
    sizes: list[int]
    etags: list[str]
    modified: list[str]
    """ISO 8601 in UTC, as S3 writes it."""
    has_more: bool
    """Keys exist after the last one."""


class KeyPager(Protocol):
    """The part of S3 that a listing needs. Called by several threads at a time."""

    def list_page(self, bucket: str, prefix: str, start_after: str) -> KeyPage:
        """Return the first keys that begin with ``prefix`` and come after ``start_after``. Raises only
        CallError."""


class ListingProgress(NamedTuple):
    """Progress of a listing. ``objects`` and ``bytes`` include what an earlier, interrupted command
    listed."""

    objects: int
    bytes: int
    requests: int
    empty_requests: int
    """Requests that returned no key: cuts tried where no keys are."""
    active_workers: int


OnListingProgress = Callable[[ListingProgress], None]


def list_prefix(
    pager: KeyPager,
    bucket: str,
    prefix: str,
    out: Path,
    *,
    resume: bool = False,
    worker_count: int = DEFAULT_WORKERS,
    on_progress: OnListingProgress = lambda counts: None,
    interval_seconds: float = 1.0,
) -> ListingProgress:
    """Write the inventory of all objects whose keys begin with ``prefix``.

    ``on_progress`` is called every ``interval_seconds``. A listing that ended early continues with
    ``resume``. Objects that are written or deleted during the listing may or may not be included, as in any
    listing. Raises JobError and CallError.
    """
    if bucket.endswith(_DIRECTORY_BUCKET_SUFFIX):
        message = (
            "a directory bucket does not list in key order; take the inventory of the bucket it is filled "
            "from"
        )
        raise JobError([Problem(f"s3://{bucket}/", message)])
    with SortedRuns(out, {"bucket": bucket, "prefix": prefix}, resume=resume) as runs:
        counts = _ParallelListing(pager, bucket, prefix, runs, worker_count).run(
            on_progress, interval_seconds
        )
        with InventoryWriter(out, bucket, prefix) as file:
            for table in runs.merged_tables():
                file.write(table)
        runs.remove()
    return counts


@dataclass(eq=False)
class _PendingRange:
    """The part of a range that is still to be listed: keys after ``start_after`` up to and including
    ``up_to`` (None: no end)."""

    start_after: str
    up_to: str | None
    has_more: bool = False
    """A page of it has been listed, and more pages follow."""
    open_cuts: int = 0
    """Number of cuts of this range that are being tried."""
    parent: _PendingRange | None = None
    """The range this one was cut from, until this one's first page has been listed."""


@dataclass
class _UnsavedPages:
    """Pages that a worker has listed and not yet saved as a run."""

    batches: list[Any] = field(default_factory=list)
    covered_ranges: list[KeyRange] = field(default_factory=list)
    rows: int = 0
    started_at: float = field(default_factory=time.monotonic)

    @property
    def is_full(self) -> bool:
        return self.rows >= _RUN_ROWS or time.monotonic() - self.started_at >= _RUN_SECONDS


class _ParallelListing:
    """The state that all workers share, and the workers themselves."""

    def __init__(
        self, pager: KeyPager, bucket: str, prefix: str, runs: SortedRuns, worker_count: int
    ) -> None:
        self._pager, self._bucket, self._prefix, self._runs = pager, bucket, prefix, runs
        done: list[KeyRange] = []
        self._objects = self._bytes = self._requests = self._empty_requests = 0
        for covered_ranges, rows, size in runs.coverage():
            done.extend(KeyRange(*key_range) for key_range in covered_ranges)
            self._objects += rows
            self._bytes += size
        self._waiting_ranges = [
            _PendingRange(key_range.after, key_range.up_to) for key_range in reversed(uncovered_ranges(done))
        ]
        self._active_ranges: list[_PendingRange] = []
        self._alphabet: list[str] = []
        self._changed = Condition()
        self._failure: BaseException | None = None
        self._stopped = False
        self._running_threads = self._max_workers = self._allowed_workers = worker_count
        self._refusals = self._pages_since_refusal = 0
        self._refused_at = self._pause_until = 0.0

    def run(self, on_progress: OnListingProgress, interval_seconds: float) -> ListingProgress:
        """Run the workers until everything is listed; re-raise the first error of a worker."""
        threads = [Thread(target=self._run_worker, name=f"listing-{n}") for n in range(self._max_workers)]
        for thread in threads:
            thread.start()
        try:
            while self._is_running(interval_seconds):
                on_progress(self._progress())
        finally:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
            for thread in threads:
                thread.join()
        if self._failure is not None:
            raise self._failure
        return self._progress()

    def _is_running(self, seconds: float) -> bool:
        with self._changed:
            return not self._changed.wait_for(lambda: not self._running_threads, seconds)

    def _progress(self) -> ListingProgress:
        return ListingProgress(
            self._objects, self._bytes, self._requests, self._empty_requests, len(self._active_ranges)
        )

    # ---- a worker ----------------------------------------------------------------------------------------

    def _run_worker(self) -> None:
        """List one range after the other until none is left."""
        unsaved = _UnsavedPages()
        try:
            try:
                while (pending_range := self._next_range(unsaved)) is not None:
                    self._list_range(pending_range, unsaved)
            finally:
                self._save_pages(unsaved)
        except BaseException as error:  # re-raised by the thread that waits for this one
            with self._changed:
                self._failure = self._failure or error
                self._stopped = True
        finally:
            with self._changed:
                self._running_threads -= 1
                self._changed.notify_all()

    def _list_range(self, pending_range: _PendingRange, unsaved: _UnsavedPages) -> None:
        """List a range page by page, until it ends, is put back, or the listing stops."""
        has_more = True
        while has_more and not self._stopped and (page := self._request_page(pending_range)) is not None:
            has_more = self._record_page(pending_range, page, unsaved)
            if unsaved.is_full:
                self._save_pages(unsaved)

    def _next_range(self, unsaved: _UnsavedPages) -> _PendingRange | None:
        """Return a range that no other worker lists; None when nothing is left to do."""
        while True:
            with self._changed:
                if self._stopped or not (self._active_ranges or self._waiting_ranges):
                    return None
                pause_seconds = self._pause_until - time.monotonic()
                if pause_seconds <= 0 and len(self._active_ranges) < self._allowed_workers:
                    pending_range = (
                        self._waiting_ranges.pop() if self._waiting_ranges else self._cut_widest_range()
                    )
                    if pending_range is not None:
                        self._active_ranges.append(pending_range)
                        return pending_range
                self._changed.wait(pause_seconds if pause_seconds > 0 else _RUN_SECONDS)
            if unsaved.is_full:
                self._save_pages(unsaved)

    def _cut_widest_range(self) -> _PendingRange | None:
        """Cut the widest active range and return its upper part; None if no range can be cut."""
        start = len(self._prefix)
        widest: tuple[int, str, _PendingRange] | None = None
        splittable_ranges = sum(candidate.has_more for candidate in self._active_ranges)
        max_cuts = max(_MAX_CUTS_PER_RANGE, self._allowed_workers // max(1, splittable_ranges))
        for candidate in self._active_ranges:
            if not candidate.has_more or candidate.open_cuts >= max_cuts:
                continue
            up_to = candidate.up_to[start:] if candidate.up_to is not None else None
            middle = key_between(candidate.start_after[start:], up_to, self._alphabet)
            # The earlier two keys differ, the more keys may lie between them.
            if middle is not None and (widest is None or len(middle) < widest[0]):
                widest = len(middle), self._prefix + middle, candidate
        if widest is None:
            return None
        _, cut_key, candidate = widest
        upper = _PendingRange(cut_key, candidate.up_to, parent=candidate)
        candidate.up_to = cut_key
        candidate.open_cuts += 1
        return upper

    def _request_page(self, pending_range: _PendingRange) -> KeyPage | None:
        """Return the next page; None if the service throttles, which puts the range back into the queue."""
        sent_at = time.monotonic()
        try:
            page = self._pager.list_page(self._bucket, self._prefix, pending_range.start_after)
        except CallError as error:
            with self._changed:
                self._handle_throttling(error, sent_at)
                self._active_ranges.remove(pending_range)
                self._waiting_ranges.append(pending_range)
                self._changed.notify_all()
            return None
        _check_page(page, pending_range.start_after, self._bucket, self._prefix)
        return page

    def _handle_throttling(self, error: CallError, sent_at: float) -> None:
        """Reduce the number of workers and pause. Raises the error if waiting cannot help: another kind of
        error, too many refusals in a row, or a service that has never answered."""
        if error.code not in _THROTTLING_CODES or (error.code == UNREACHABLE and not self._requests):
            raise error
        if sent_at < self._refused_at:
            return  # sent before the last refusal: the same throttling, seen by another connection
        self._refusals += 1
        if self._refusals >= _MAX_REFUSALS:
            raise error
        self._refused_at = time.monotonic()
        self._pages_since_refusal = 0
        self._allowed_workers = max(1, self._allowed_workers // 2)
        self._pause_until = self._refused_at + min(_MAX_PAUSE_SECONDS, 0.5 * 2**self._refusals)

    def _record_page(self, pending_range: _PendingRange, page: KeyPage, unsaved: _UnsavedPages) -> bool:
        """Record a listed page. Return whether the range continues after it."""
        keys = page.keys
        characters = set("".join(key[len(self._prefix) :] for key in keys[::16]))
        with self._changed:
            self._refusals = 0
            self._pages_since_refusal += 1
            if self._pages_since_refusal % 50 == 0:
                self._allowed_workers = min(self._max_workers, self._allowed_workers + 1)
            if not characters.issubset(self._alphabet):
                self._alphabet = sorted(characters.union(self._alphabet))
            if pending_range.parent is not None:
                pending_range.parent.open_cuts -= 1
                pending_range.parent = None
            key_count = len(keys) if pending_range.up_to is None else bisect_right(keys, pending_range.up_to)
            pending_range.has_more = (
                page.has_more and key_count == len(keys) and keys[-1] != pending_range.up_to
            )
            unsaved.covered_ranges.append(
                KeyRange(
                    pending_range.start_after, keys[-1] if pending_range.has_more else pending_range.up_to
                )
            )
            if pending_range.has_more:
                pending_range.start_after = keys[-1]
            else:
                self._active_ranges.remove(pending_range)
            self._requests += 1
            self._empty_requests += not key_count
            self._objects += key_count
            self._bytes += sum(page.sizes[:key_count])
            self._changed.notify_all()
        if key_count:
            columns = (
                page.keys[:key_count],
                page.sizes[:key_count],
                page.etags[:key_count],
                page.modified[:key_count],
            )
            unsaved.batches.append(_record_batch(*columns))
            unsaved.rows += key_count
        return pending_range.has_more

    def _save_pages(self, unsaved: _UnsavedPages) -> None:
        if unsaved.covered_ranges:
            table = pa.Table.from_batches(unsaved.batches, schema=SCHEMA)
            self._runs.add(table, [list(key_range) for key_range in merge_ranges(unsaved.covered_ranges)])
        unsaved.batches, unsaved.covered_ranges, unsaved.rows = [], [], 0
        unsaved.started_at = time.monotonic()


def _record_batch(keys: list[str], sizes: list[int], etags: list[str], modified: list[str]) -> Any:
    timestamps = pa.array(modified, pa.string()).cast(SCHEMA.field("modified").type)
    return pa.record_batch(
        [pa.array(keys), pa.array(sizes, pa.int64()), pa.array(etags), timestamps], schema=SCHEMA
    )


def _check_page(page: KeyPage, start_after: str, bucket: str, prefix: str) -> None:
    """Raise CallError if the service does not list as S3 does, before its pages make a wrong inventory."""
    keys = page.keys
    problem = ""
    if page.has_more and not keys:
        problem = "reports more keys, but returns none"
    elif keys and keys[0] <= start_after:
        problem = f"lists {keys[0]!r} after {start_after!r}"
    elif any(map(str.__ge__, keys, keys[1:])):
        problem = "lists out of order"
    elif keys and not (keys[0].startswith(prefix) and keys[-1].startswith(prefix)):
        problem = f"lists keys that do not begin with {prefix!r}"
    if problem:
        raise CallError("ListObjectsV2", "WrongListing", f"s3://{bucket}/: the service {problem}")
