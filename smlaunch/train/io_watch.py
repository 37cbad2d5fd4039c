"""How long training waits for data: the time that a loop spends getting its next batch, of all its time.

With the Checkpointer's ``batches`` it is watched by itself. Any other loop says it in one word:

    from smlaunch.train import watched
    for images, labels in watched(loader):
        ...

What comes out is the line ``smlaunch: metric data_wait_share=0.43``. In each step that ranks take together
the longest wait of any of them counts: the others wait for that rank. On a GPU a wait counts only as far as
the GPU had nothing left to do, since a loop that runs ahead of it waits for nothing that matters.
"""

import sys
import time
from collections import deque
from typing import Any, Callable, Deque, Generic, Iterable, Iterator, NamedTuple, Optional, TypeVar

from smlaunch.protocol.progress import DATA_WAIT, METRIC, format_line

Batch = TypeVar("Batch")
Clock = Callable[[], float]

LEAST_SECONDS = 5.0
LEAST_STEPS = 10
"""Less says nothing: the first batches are there late, and the first steps are slow."""

_FIRST_TOLD = 30.0
_TOLD_EVERY = 300.0
"""Seconds between two lines, where the share has changed by ``_CHANGED``."""
_CHANGED = 0.05


class _Idle(NamedTuple):
    """A wait, and the GPU's events at its two ends."""

    waited: float
    began: Any
    ended: Any


class Waits:
    """Seconds that one process waited for batches, as far as they were lost."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._lost = 0.0
        self._began: Optional[float] = None
        self._mark: Any = None
        self._open: Deque[_Idle] = deque()

    def begin(self) -> None:
        self._mark = _mark()
        self._began = self._clock()

    def end(self) -> None:
        """The batch is there."""
        if self._began is None:
            return
        waited, self._began = self._clock() - self._began, None
        if self._mark is None:
            self._lost += waited
            return
        ended = _mark()
        if ended is not None:
            self._open.append(_Idle(waited, self._mark, ended))
        self._mark = None

    def take(self) -> float:
        """Those since the last call. What a GPU has not come to yet is in a later one: asking it does not
        hold it up."""
        while self._open and self._open[0].ended.query():
            idle = self._open.popleft()
            self._lost += min(idle.waited, idle.began.elapsed_time(idle.ended) / 1000)
        lost, self._lost = self._lost, 0.0
        return lost

    def forget(self) -> None:
        self._open.clear()
        self._lost = 0.0


def _mark() -> Any:
    """An event on the GPU's current stream; None for training on the CPU. Nobody imports torch for this."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


class Watching(Generic[Batch]):
    """Iterates over batches, and tells ``waits`` how long each took to come."""

    def __init__(self, batches: Iterable[Batch], waits: Waits) -> None:
        self._waits = waits
        waits.begin()
        self._iterator = iter(batches)
        self._waiting = True

    def __iter__(self) -> "Watching[Batch]":
        return self

    def __next__(self) -> Batch:
        if not self._waiting:
            self._waits.begin()
        self._waiting = False
        try:
            return next(self._iterator)
        finally:
            self._waits.end()


class IoWatch:
    """The share of a training's time that went by waiting for data.

    ``took`` gives what this rank lost since the last step; of all ranks the largest is handed to ``step`` on
    each of them. Time counts from the first step on, which has the start of the loader's workers in it.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._waits = Waits(clock)
        self._seen = False
        self._began: Optional[float] = None
        self._now = 0.0
        self._lost = 0.0
        self._steps = 0
        self._told: Optional[float] = None
        self._told_at = 0.0

    def watched(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        self._seen = True
        return Watching(batches, self._waits)

    def took(self) -> int:
        """Microseconds."""
        lost = self._waits.take()
        return int(lost * 1e6) if self._began is not None else 0

    def step(self, lost: int) -> None:
        """``lost``: microseconds, the largest of all ranks."""
        self._now = self._clock()
        if self._began is None:
            self._began = self._now
            self._waits.forget()
            return
        self._steps += 1
        self._lost += lost / 1e6

    def rest(self, lost: int) -> None:
        """What belongs to the last step, which has been counted."""
        self._lost += lost / 1e6

    @property
    def share(self) -> Optional[float]:
        """None while there is too little to say, and for loops whose batches nobody sees."""
        if not self._seen or self._began is None or self._steps < LEAST_STEPS:
            return None
        passed = self._now - self._began
        return min(1.0, self._lost / passed) if passed >= LEAST_SECONDS else None

    def news(self, last: bool = False) -> Optional[str]:
        """The line to print, now and then, and at the end."""
        if self._began is None:
            return None
        passed = self._now - self._began
        wait = _FIRST_TOLD if self._told is None else _TOLD_EVERY
        if not last and passed - self._told_at < wait:
            return None
        share = self.share
        if share is None:
            return None
        if not last and self._told is not None and abs(share - self._told) < _CHANGED:
            return None
        self._told, self._told_at = share, passed
        return format_line(METRIC, **{DATA_WAIT: "{:.3f}".format(share)})


class Watched(Generic[Batch]):
    """See ``watched``."""

    def __init__(self, batches: Iterable[Batch], clock: Clock = time.perf_counter) -> None:
        self._batches = batches
        self._io = IoWatch(clock)

    def __iter__(self) -> Iterator[Batch]:
        io = self._io
        for batch in io.watched(self._batches):
            io.step(io.took())
            yield batch
            self._tell(io.news())
        self._tell(io.news(last=True))

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def _tell(self, line: Optional[str]) -> None:
        if line is not None:
            print(line, flush=True)


def watched(batches: Iterable[Batch]) -> Iterable[Batch]:
    """The same batches; at the end of each epoch that was used whole, and now and then within it, a line
    tells which share of the time so far was spent waiting for them. For loops without a Checkpointer, which
    watches by itself; each rank then speaks for itself, and the largest share counts."""
    return Watched(batches)
