"""Listing a prefix on several connections at once, however its keys are named, into an inventory.

S3 lists in key order, a thousand keys a request, from any key on. So the keys are cut into ranges and the
ranges are listed side by side: whoever has nothing left to do takes the upper part of somebody's rest. Where
to cut is tried: the request that tries it is a page of the listing where there are keys, and otherwise says
that there are none, which halves the rest too. Needs no ``/`` in the keys, and no knowledge of them.
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

from smlaunch.data.inventory import SCHEMA, InventoryWriter
from smlaunch.data.key_ranges import KeyRange, between, joined, rest
from smlaunch.data.runs import Runs
from smlaunch.errors import JobError, Problem
from smlaunch.ports import UNREACHABLE, CallError

WORKERS = 10
"""As many connections as botocore keeps open. Above it the threads wait for each other's parsing anyway."""

_RUN_ROWS = 65_536
_RUN_SECONDS = 30.0
"""A worker keeps what it has listed when it has either: what a kill may cost."""

_TRIES_AT_A_RANGE = 3
"""Cuts of one range that may be tried at a time; more while there are more idle workers than ranges."""

_SLOW_DOWN = {"SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "503", "500", UNREACHABLE}
"""Codes after which fewer ask, later. The client has tried a few times itself before it says them."""

_PATIENCE = 6
"""Such answers in a row, without any other, before the listing gives up."""

_LONGEST_PAUSE = 20.0

_DIRECTORY_BUCKET = "--x-s3"


class Page(NamedTuple):
    """One answer of ListObjectsV2, a list per column. ``modified``: ISO 8601 in UTC, as S3 writes it.

    ``more``: there are keys after the last one.
    """

    keys: list[str]
    sizes: list[int]
    etags: list[str]
    modified: list[str]
    more: bool


class Pager(Protocol):
    """S3, as far as a listing needs it. Called by several threads at a time."""

    def page(self, bucket: str, prefix: str, after: str) -> Page:
        """The first keys that begin with ``prefix`` and come after ``after``. Raises CallError only."""


class Counts(NamedTuple):
    """How far a listing is. ``objects`` and ``bytes`` include what an earlier command has listed."""

    objects: int
    bytes: int
    requests: int
    empty: int
    """Requests that brought no key: cuts tried where there was nothing."""
    workers: int


Heard = Callable[[Counts], None]


def list_prefix(
    pager: Pager,
    bucket: str,
    prefix: str,
    out: Path,
    *,
    resume: bool = False,
    workers: int = WORKERS,
    heard: Heard = lambda counts: None,
    every: float = 1.0,
) -> Counts:
    """Writes the inventory of all objects whose keys begin with ``prefix``.

    ``heard`` is told every so many seconds. Whatever ends this early, ``resume`` goes on from there. Objects
    written or deleted meanwhile may be in it or not, as in any listing. Raises JobError and CallError.
    """
    if bucket.endswith(_DIRECTORY_BUCKET):
        message = (
            "a directory bucket lists in no order and from no key on; inventory the one it is filled from"
        )
        raise JobError([Problem(f"s3://{bucket}/", message)])
    with Runs(out, {"bucket": bucket, "prefix": prefix}, resume=resume) as runs:
        counts = _Listing(pager, bucket, prefix, runs, workers).run(heard, every)
        with InventoryWriter(out, bucket, prefix) as file:
            for table in runs.merged():
                file.write(table)
        runs.remove()
    return counts


@dataclass(eq=False)
class _Rest:
    """What is left of a range, ``after`` rising to ``upto``. ``known``: a page has come, and more will."""

    after: str
    upto: str | None
    known: bool = False
    tried: int = 0
    """Cuts of it that are being tried."""
    of: _Rest | None = None
    """Whose upper part this is, until its first page has come."""


@dataclass
class _Basket:
    """What a worker has listed and not kept yet."""

    batches: list[Any] = field(default_factory=list)
    taken: list[KeyRange] = field(default_factory=list)
    rows: int = 0
    since: float = field(default_factory=time.monotonic)

    @property
    def full(self) -> bool:
        return self.rows >= _RUN_ROWS or time.monotonic() - self.since >= _RUN_SECONDS


class _Listing:
    def __init__(self, pager: Pager, bucket: str, prefix: str, runs: Runs, workers: int) -> None:
        self._pager, self._bucket, self._prefix, self._runs = pager, bucket, prefix, runs
        done: list[KeyRange] = []
        self._objects = self._bytes = self._requests = self._empty = 0
        for taken, rows, size in runs.taken():
            done.extend(KeyRange(*one) for one in taken)
            self._objects += rows
            self._bytes += size
        self._waiting = [_Rest(one.after, one.upto) for one in reversed(rest(done))]
        self._active: list[_Rest] = []
        self._letters: list[str] = []
        self._change = Condition()
        self._failure: BaseException | None = None
        self._stopped = False
        self._running = self._workers = self._allowed = workers
        self._refused = self._since_refused = 0
        self._refused_at = self._pause_until = 0.0

    def run(self, heard: Heard, every: float) -> Counts:
        threads = [Thread(target=self._work, name=f"listing-{n}") for n in range(self._workers)]
        for thread in threads:
            thread.start()
        try:
            while self._still_running(every):
                heard(self._counts())
        finally:
            with self._change:
                self._stopped = True
                self._change.notify_all()
            for thread in threads:
                thread.join()
        if self._failure is not None:
            raise self._failure
        return self._counts()

    def _still_running(self, seconds: float) -> bool:
        with self._change:
            return not self._change.wait_for(lambda: not self._running, seconds)

    def _counts(self) -> Counts:
        return Counts(self._objects, self._bytes, self._requests, self._empty, len(self._active))

    # ---- a worker ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        basket = _Basket()
        try:
            try:
                while (task := self._next_task(basket)) is not None:
                    self._go_through(task, basket)
            finally:
                self._keep(basket)
        except BaseException as error:  # told by the thread that waits for this one
            with self._change:
                self._failure = self._failure or error
                self._stopped = True
        finally:
            with self._change:
                self._running -= 1
                self._change.notify_all()

    def _go_through(self, task: _Rest, basket: _Basket) -> None:
        more = True
        while more and not self._stopped and (page := self._ask(task)) is not None:
            more = self._take(task, page, basket)
            if basket.full:
                self._keep(basket)

    def _next_task(self, basket: _Basket) -> _Rest | None:
        """A range to go through, which nobody else does; None when there is nothing left to do."""
        while True:
            with self._change:
                if self._stopped or not (self._active or self._waiting):
                    return None
                pause = self._pause_until - time.monotonic()
                if pause <= 0 and len(self._active) < self._allowed:
                    task = self._waiting.pop() if self._waiting else self._cut()
                    if task is not None:
                        self._active.append(task)
                        return task
                self._change.wait(pause if pause > 0 else _RUN_SECONDS)
            if basket.full:
                self._keep(basket)

    def _cut(self) -> _Rest | None:
        """The upper part of the widest range that somebody goes through."""
        start = len(self._prefix)
        best: tuple[int, str, _Rest] | None = None
        known = sum(one.known for one in self._active)
        tries = max(_TRIES_AT_A_RANGE, self._allowed // max(1, known))
        for one in self._active:
            if not one.known or one.tried >= tries:
                continue
            upto = one.upto[start:] if one.upto is not None else None
            middle = between(one.after[start:], upto, self._letters)
            # The sooner two keys differ, the more may lie between them.
            if middle is not None and (best is None or len(middle) < best[0]):
                best = len(middle), self._prefix + middle, one
        if best is None:
            return None
        _, cut, one = best
        upper = _Rest(cut, one.upto, of=one)
        one.upto = cut
        one.tried += 1
        return upper

    def _ask(self, task: _Rest) -> Page | None:
        """The next page; None when the service wants fewer requests, and the range waits for its turn."""
        began = time.monotonic()
        try:
            page = self._pager.page(self._bucket, self._prefix, task.after)
        except CallError as error:
            with self._change:
                self._slow_down(error, began)
                self._active.remove(task)
                self._waiting.append(task)
                self._change.notify_all()
            return None
        _check(page, task.after, self._bucket, self._prefix)
        return page

    def _slow_down(self, error: CallError, began: float) -> None:
        """Raises the error when waiting does not mend it: not at all, no longer, or nothing ever answered."""
        if error.code not in _SLOW_DOWN or (error.code == UNREACHABLE and not self._requests):
            raise error
        if began < self._refused_at:
            return  # sent before the last refusal was known: the same one, told to another connection
        self._refused += 1
        if self._refused >= _PATIENCE:
            raise error
        self._refused_at = time.monotonic()
        self._since_refused = 0
        self._allowed = max(1, self._allowed // 2)
        self._pause_until = self._refused_at + min(_LONGEST_PAUSE, 0.5 * 2**self._refused)

    def _take(self, task: _Rest, page: Page, basket: _Basket) -> bool:
        """Whether the range goes on after this page."""
        keys = page.keys
        letters = set("".join(key[len(self._prefix) :] for key in keys[::16]))
        with self._change:
            self._refused = 0
            self._since_refused += 1
            if self._since_refused % 50 == 0:
                self._allowed = min(self._workers, self._allowed + 1)
            if not letters.issubset(self._letters):
                self._letters = sorted(letters.union(self._letters))
            if task.of is not None:
                task.of.tried -= 1
                task.of = None
            count = len(keys) if task.upto is None else bisect_right(keys, task.upto)
            task.known = page.more and count == len(keys) and keys[-1] != task.upto
            basket.taken.append(KeyRange(task.after, keys[-1] if task.known else task.upto))
            if task.known:
                task.after = keys[-1]
            else:
                self._active.remove(task)
            self._requests += 1
            self._empty += not count
            self._objects += count
            self._bytes += sum(page.sizes[:count])
            self._change.notify_all()
        if count:
            columns = page.keys[:count], page.sizes[:count], page.etags[:count], page.modified[:count]
            basket.batches.append(_batch(*columns))
            basket.rows += count
        return task.known

    def _keep(self, basket: _Basket) -> None:
        if basket.taken:
            table = pa.Table.from_batches(basket.batches, schema=SCHEMA)
            self._runs.add(table, [list(one) for one in joined(basket.taken)])
        basket.batches, basket.taken, basket.rows = [], [], 0
        basket.since = time.monotonic()


def _batch(keys: list[str], sizes: list[int], etags: list[str], modified: list[str]) -> Any:
    at = pa.array(modified, pa.string()).cast(SCHEMA.field("modified").type)
    return pa.record_batch([pa.array(keys), pa.array(sizes, pa.int64()), pa.array(etags), at], schema=SCHEMA)


def _check(page: Page, after: str, bucket: str, prefix: str) -> None:
    """A service that does not list as S3 does is told apart before its answers make a wrong inventory."""
    keys = page.keys
    wrong = ""
    if page.more and not keys:
        wrong = "says that there is more, and lists nothing"
    elif keys and keys[0] <= after:
        wrong = f"lists {keys[0]!r} after {after!r}"
    elif any(map(str.__ge__, keys, keys[1:])):
        wrong = "lists out of order"
    elif keys and not (keys[0].startswith(prefix) and keys[-1].startswith(prefix)):
        wrong = f"lists keys that do not begin with {prefix!r}"
    if wrong:
        raise CallError("ListObjectsV2", "WrongListing", f"s3://{bucket}/: the service {wrong}")
