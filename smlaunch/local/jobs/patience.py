"""Which changed file of a host can be uploaded now: one that is whole, and none waits for ever.

A file that two looks saw the same, and that nobody has open for writing, is taken at once. Where the files of
a host change all the time, ``SOON`` looks later each file is taken that nobody has open for writing, as one
that was renamed when it was whole. One that was never found so for ``LATE`` looks (a database, which is open
for writing all the time) is taken although it may be torn: SageMaker promises no more of any file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import Literal

from smlaunch.local.jobs.uploads import Stamp

SOON = 3
LATE = 30
"""Not sooner: a large file that is written in its own place is torn until it is closed, and stands in S3 for
the whole one before it."""

Way = Literal["whole", "torn"]


class Patience:
    """Of one host. A look is ``begin``, ``choose`` for each file that S3 does not have as it is, ``stored``
    for those that were uploaded, and ``end``."""

    def __init__(self) -> None:
        self._last_stamps: Mapping[str, Stamp] = {}
        self._waited: dict[str, int] = {}
        self._waits: dict[str, int] = {}
        self._torn: dict[str, Stamp] = {}
        self._behind = 0
        self._began = 0
        self._successors: dict[str, set[str]] = {}

    def begin(self) -> None:
        self._waited, self._waits = self._waits, {}
        clock = getattr(time, "CLOCK_REALTIME_COARSE", time.CLOCK_REALTIME)  # the one of file systems
        self._began = time.clock_gettime_ns(clock)

    def is_fresh(self, status: os.stat_result) -> bool:
        """Whether it came to its name, or was changed, after the look began: then the look may have missed
        what was written before it."""
        return status.st_ctime_ns >= self._began

    def choose(
        self, name: str, stamp: Stamp, fresh: Collection[str], is_closed: Callable[[], bool | None]
    ) -> Way | None:
        """``is_closed``: whether nobody has it open for writing; None where that cannot be known."""
        closed = is_closed()
        if closed is not False and self._last_stamps.get(name) == stamp:
            return self._wait(name, "whole")
        if closed and self._behind >= SOON and name not in fresh:
            return self._wait(name, "whole")
        if self._torn.get(name) == stamp:
            return None  # S3 has what can be had of it by now
        return self._wait(name, "torn" if self._waited.get(name, 0) >= LATE else None)

    def _wait(self, name: str, way: Way | None) -> Way | None:
        self._waits[name] = self._waited.get(name, 0) + 1
        return way

    def stored(self, name: str, stamp: Stamp, way: Way) -> None:
        self._waits.pop(name, None)
        if way == "torn":
            self._torn[name] = stamp
        else:
            self._torn.pop(name, None)

    def may_delete(self, name: str, synced: Collection[str]) -> bool:
        """Whether S3 may forget a file that the host has deleted: once what the host had beside it, and S3
        had not, is in S3 (``synced``). A program that keeps one checkpoint deletes it when the next one is
        whole; S3 would have neither. What vanishes before it was stored hands its part to what came after."""
        waiting = {other for other, looks in self._waits.items() if looks <= LATE}
        before = self._successors.get(name, waiting)
        vanished = any(other not in waiting and other not in synced for other in before)
        self._successors[name] = waiting if vanished else before & waiting
        if self._successors[name]:
            return False
        del self._successors[name]
        return True

    def end(self, stamps: Mapping[str, Stamp]) -> None:
        self._last_stamps = stamps
        self._torn = {name: stamp for name, stamp in self._torn.items() if name in stamps}
        self._successors = {name: some for name, some in self._successors.items() if name not in stamps}
        self._behind = self._behind + 1 if self._waits else 0
