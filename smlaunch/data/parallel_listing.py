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
from typing import Any, NamedTuple

import pyarrow as pa

from smlaunch.aws.interfaces import UNREACHABLE, CallError, KeyPage, KeyPager
from smlaunch.data.inventory_file import SCHEMA, InventoryWriter
from smlaunch.data.key_ranges import KeyRange, key_between, merge_ranges, uncovered_ranges
from smlaunch.data.sorted_runs import SortedRuns
from smlaunch.errors import JobError, Problem

DEFAULT_WORKERS = 10
"""As many connections as botocore keeps open. With more, threads only wait for each other's parsing."""

_MAX_UNSAVED_ROWS = 65_536
_MAX_UNSAVED_SECONDS = 30.0
"""A worker saves its pages after this many rows or seconds. A kill loses at most that much."""

_MAX_UNTESTED_SPLITS_PER_RANGE = 3
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

_MAX_CONSECUTIVE_THROTTLINGS = 6
"""Consecutive errors of this kind, without any page between them, before the listing gives up."""

_MAX_PAUSE_SECONDS = 20.0

_DIRECTORY_BUCKET_SUFFIX = "--x-s3"


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
        counts = _ParallelListing(pager, bucket, prefix, runs, worker_count).list_until_complete(
            on_progress, interval_seconds
        )
        with InventoryWriter(out, bucket, prefix) as file:
            for table in runs.iter_merged_tables():
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
    untested_split_count: int = 0
    """Number of ranges that were split from this one and of which no page has been listed yet."""
    untested_parent: _PendingRange | None = None
    """The range that this one was split from; None after its first page has been listed."""


@dataclass
class _UnsavedPages:
    """Pages that a worker has listed and not yet saved as a run."""

    batches: list[Any] = field(default_factory=list)
    covered_ranges: list[KeyRange] = field(default_factory=list)
    rows: int = 0
    started_at: float = field(default_factory=time.monotonic)

    @property
    def is_due_for_saving(self) -> bool:
        return self.rows >= _MAX_UNSAVED_ROWS or time.monotonic() - self.started_at >= _MAX_UNSAVED_SECONDS


class _ParallelListing:
    """The state that all workers share, and the workers themselves."""

    def __init__(
        self, pager: KeyPager, bucket: str, prefix: str, runs: SortedRuns, worker_count: int
    ) -> None:
        self._pager, self._bucket, self._prefix, self._sorted_runs = pager, bucket, prefix, runs
        done: list[KeyRange] = []
        self._object_count = self._total_object_bytes = self._request_count = self._empty_request_count = 0
        for covered_ranges, rows, size in runs.coverage():
            done.extend(KeyRange(*key_range) for key_range in covered_ranges)
            self._object_count += rows
            self._total_object_bytes += size
        self._waiting_ranges = [
            _PendingRange(key_range.after, key_range.up_to) for key_range in reversed(uncovered_ranges(done))
        ]
        self._active_ranges: list[_PendingRange] = []
        self._characters_in_keys: list[str] = []
        self._state_changed = Condition()
        self._first_worker_error: BaseException | None = None
        self._stopped = False
        self._running_threads = self._max_workers = self._allowed_workers = worker_count
        self._consecutive_throttlings = self._pages_since_throttling = 0
        self._throttled_at = self._paused_until = 0.0

    def list_until_complete(self, on_progress: OnListingProgress, interval_seconds: float) -> ListingProgress:
        """Run the worker threads until all keys below the prefix are listed; re-raise the first error of a
        worker. ``on_progress`` is called every ``interval_seconds``. Return the final progress."""
        threads = [Thread(target=self._run_worker, name=f"listing-{n}") for n in range(self._max_workers)]
        for thread in threads:
            thread.start()
        try:
            while self._wait_and_check_running(interval_seconds):
                on_progress(self._current_progress())
        finally:  # also after Ctrl-C: workers end after their present request, and save their pages
            with self._state_changed:
                self._stopped = True
                self._state_changed.notify_all()
            for thread in threads:
                thread.join()
        if self._first_worker_error is not None:
            raise self._first_worker_error
        return self._current_progress()

    def _wait_and_check_running(self, seconds: float) -> bool:
        """Wait so long, or until all workers have ended; return whether any is still running."""
        with self._state_changed:
            return not self._state_changed.wait_for(lambda: not self._running_threads, seconds)

    def _current_progress(self) -> ListingProgress:
        return ListingProgress(
            self._object_count,
            self._total_object_bytes,
            self._request_count,
            self._empty_request_count,
            len(self._active_ranges),
        )

    # ---- a worker ----------------------------------------------------------------------------------------

    def _run_worker(self) -> None:
        """List one range after the other until none is left."""
        unsaved = _UnsavedPages()
        try:
            try:
                pending_range = self._take_next_range(unsaved)
                while pending_range is not None:
                    self._list_range(pending_range, unsaved)
                    pending_range = self._take_next_range(unsaved)
            finally:
                self._save_pages(unsaved)
        except BaseException as error:  # re-raised by the thread that waits for this one
            with self._state_changed:
                self._first_worker_error = self._first_worker_error or error
                self._stopped = True
        finally:
            with self._state_changed:
                self._running_threads -= 1
                self._state_changed.notify_all()

    def _list_range(self, pending_range: _PendingRange, unsaved: _UnsavedPages) -> None:
        """List a range page by page, until it ends, is put back, or the listing stops."""
        has_more = True
        while has_more and not self._stopped:
            page = self._request_page(pending_range)
            if page is None:  # put back, since the service throttles
                return
            has_more = self._record_page(pending_range, page, unsaved)
            if unsaved.is_due_for_saving:
                self._save_pages(unsaved)

    def _take_next_range(self, unsaved: _UnsavedPages) -> _PendingRange | None:
        """Return a range of keys for this worker to list: one that waits, or the upper part of another
        worker's. Blocks while there is none, or while throttling allows no more workers. None when nothing is
        left to do. ``unsaved``: this worker's pages, which are saved if it waits long."""
        while True:
            with self._state_changed:
                if self._stopped or not (self._active_ranges or self._waiting_ranges):
                    return None
                pause_seconds = self._paused_until - time.monotonic()  # throttling pauses all workers
                if pause_seconds <= 0 and len(self._active_ranges) < self._allowed_workers:
                    pending_range = (
                        self._waiting_ranges.pop() if self._waiting_ranges else self._split_widest_range()
                    )
                    if pending_range is not None:
                        self._active_ranges.append(pending_range)
                        return pending_range
                # Notified when any worker has listed a page or ended.
                self._state_changed.wait(pause_seconds if pause_seconds > 0 else _MAX_UNSAVED_SECONDS)
            if unsaved.is_due_for_saving:
                self._save_pages(unsaved)

    def _split_widest_range(self) -> _PendingRange | None:
        """Split the widest range that is being listed, near the middle of its keys, and return its upper
        part. None if no range can be split: no first page yet, or too many splits whose upper part may have
        no keys."""
        widest_range: _PendingRange | None = None
        widest_middle: str | None = None
        splittable_count = sum(candidate.has_more for candidate in self._active_ranges)
        # A split is untested until a page of its upper part is listed. With few ranges, more are tried at
        # once.
        max_untested_splits = max(
            _MAX_UNTESTED_SPLITS_PER_RANGE, self._allowed_workers // max(1, splittable_count)
        )
        for candidate in self._active_ranges:
            if not candidate.has_more or candidate.untested_split_count >= max_untested_splits:
                continue
            middle = self._find_middle_of_range(candidate)
            # The earlier two keys differ, the more keys may lie between them: a short middle, a wide range.
            if middle is not None and (widest_middle is None or len(middle) < len(widest_middle)):
                widest_range, widest_middle = candidate, middle
        if widest_range is None or widest_middle is None:
            return None
        split_key = self._prefix + widest_middle
        upper_range = _PendingRange(split_key, widest_range.up_to, untested_parent=widest_range)
        widest_range.up_to = split_key  # its worker stops there
        widest_range.untested_split_count += 1
        return upper_range

    def _request_page(self, pending_range: _PendingRange) -> KeyPage | None:
        """Return the next page; None if the service throttles, which puts the range back into the queue."""
        sent_at = time.monotonic()
        try:
            page = self._pager.list_page(self._bucket, self._prefix, pending_range.start_after)
        except CallError as error:
            with self._state_changed:
                self._handle_throttling(error, sent_at)
                self._active_ranges.remove(pending_range)
                self._waiting_ranges.append(pending_range)
                self._state_changed.notify_all()
            return None
        _validate_page(page, pending_range.start_after, self._bucket, self._prefix)
        return page

    def _find_middle_of_range(self, pending_range: _PendingRange) -> str | None:
        """Return a key near the middle of the range, without the prefix that all keys have; None if there is
        none that the characters seen so far can make."""
        low = pending_range.start_after[len(self._prefix) :]
        high = None if pending_range.up_to is None else pending_range.up_to[len(self._prefix) :]
        return key_between(low, high, self._characters_in_keys)

    def _handle_throttling(self, error: CallError, sent_at: float) -> None:
        """Reduce the number of workers and let all pause, after S3 has refused a request that was sent at
        ``sent_at``. Raises the error if waiting cannot help: another kind of error, too many refusals in a
        row, or a service that has never answered."""
        if error.code not in _THROTTLING_CODES:  # such as SlowDown; UNREACHABLE is one of them
            raise error
        # A service that cannot be reached may be overloaded, but one that never answered has a wrong address.
        if error.code == UNREACHABLE and not self._request_count:
            raise error
        if sent_at < self._throttled_at:
            return  # sent before the last refusal: the same throttling, seen by another connection
        self._consecutive_throttlings += 1
        if self._consecutive_throttlings >= _MAX_CONSECUTIVE_THROTTLINGS:
            raise error
        # Halve the workers at once; pages without throttling raise their number again, one by one.
        self._throttled_at = time.monotonic()
        self._pages_since_throttling = 0
        self._allowed_workers = max(1, self._allowed_workers // 2)
        pause_seconds = min(_MAX_PAUSE_SECONDS, 0.5 * 2**self._consecutive_throttlings)  # 1, 2, 4, ...
        self._paused_until = self._throttled_at + pause_seconds

    def _record_page(self, pending_range: _PendingRange, page: KeyPage, unsaved: _UnsavedPages) -> bool:
        """Record a page of keys that a worker has listed: in the shared state, in the range, and among the
        worker's unsaved pages. Return whether the range continues after it. Another worker may have taken the
        upper part of the range meanwhile: keys beyond the range's new end do not count."""
        keys = page.keys
        sampled_characters = set("".join(key[len(self._prefix) :] for key in keys[::16]))  # of some keys
        with self._state_changed:
            self._allow_more_workers()  # one more, if there was no throttling for long enough
            # The characters are used to guess where to split ranges.
            if not sampled_characters.issubset(self._characters_in_keys):
                self._characters_in_keys = sorted(sampled_characters.union(self._characters_in_keys))
            range_end = pending_range.up_to  # None: no end
            key_count = len(keys) if range_end is None else bisect_right(keys, range_end)
            is_end_reached = not page.has_more or key_count < len(keys) or keys[-1] == range_end
            covered_up_to = range_end if is_end_reached else keys[-1]
            unsaved.covered_ranges.append(KeyRange(pending_range.start_after, covered_up_to))
            self._advance_range(pending_range, None if is_end_reached else keys[-1])
            self._request_count += 1
            self._empty_request_count += not key_count
            self._object_count += key_count
            self._total_object_bytes += sum(page.sizes[:key_count])
            self._state_changed.notify_all()  # workers that wait for a range, or for one that can be split
        if key_count:
            unsaved.batches.append(
                _to_record_batch(
                    page.keys[:key_count],
                    page.sizes[:key_count],
                    page.etags[:key_count],
                    page.modified[:key_count],
                )
            )
            unsaved.rows += key_count
        return not is_end_reached

    def _advance_range(self, pending_range: _PendingRange, last_key: str | None) -> None:
        """Let a range begin after the last key of the page that was listed of it; ``last_key`` is None if
        the range is listed to its end. Needs the lock."""
        if pending_range.untested_parent is not None:  # this was its first page: the split is tested
            pending_range.untested_parent.untested_split_count -= 1
            pending_range.untested_parent = None
        pending_range.has_more = last_key is not None
        if last_key is None:
            self._active_ranges.remove(pending_range)
        else:
            pending_range.start_after = last_key

    def _allow_more_workers(self) -> None:
        """After a page without throttling: let one more worker send requests with every 50 such pages."""
        self._consecutive_throttlings = 0
        self._pages_since_throttling += 1
        if self._pages_since_throttling % 50 == 0:
            self._allowed_workers = min(self._max_workers, self._allowed_workers + 1)

    def _save_pages(self, unsaved: _UnsavedPages) -> None:
        if unsaved.covered_ranges:
            table = pa.Table.from_batches(unsaved.batches, schema=SCHEMA)
            self._sorted_runs.add(
                table, [list(key_range) for key_range in merge_ranges(unsaved.covered_ranges)]
            )
        unsaved.batches, unsaved.covered_ranges, unsaved.rows = [], [], 0
        unsaved.started_at = time.monotonic()


def _to_record_batch(keys: list[str], sizes: list[int], etags: list[str], modified: list[str]) -> Any:
    timestamps = pa.array(modified, pa.string()).cast(SCHEMA.field("modified").type)
    return pa.record_batch(
        [pa.array(keys), pa.array(sizes, pa.int64()), pa.array(etags), timestamps], schema=SCHEMA
    )


def _validate_page(page: KeyPage, start_after: str, bucket: str, prefix: str) -> None:
    """Raise CallError if a page does not have the keys that S3 would list after ``start_after``, before a
    service that lists in another way makes a wrong inventory."""
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
