"""Measures how long training waits for data: the time a loop spends getting its next batch, as a share of all
its time.

The Checkpointer's ``batches`` measure it by themselves. Any other loop asks for it:

    from smlaunch.train import measure_data_wait
    for images, labels in measure_data_wait(loader):
        ...

It prints lines ``smlaunch: metric data_wait_share=0.43``. In each step that ranks take together the longest
wait of any rank counts: the others wait for that rank. On a GPU a wait counts only as far as the GPU was
idle: a loop that runs ahead of the GPU loses nothing by waiting.
"""

import sys
import time
from collections import deque
from typing import Any, Callable, Deque, Generic, Iterable, Iterator, NamedTuple, Optional, TypeVar

from smlaunch.contract.progress_line import DATA_WAIT_METRIC, METRIC_KIND, format_line

Batch = TypeVar("Batch")
Clock = Callable[[], float]

MIN_SECONDS = 5.0
MIN_STEPS = 10
"""Fewer steps, or less time, give no share: the first batches come late, and the first steps are slow."""

_FIRST_REPORT_SECONDS = 30.0
_REPORT_INTERVAL_SECONDS = 300.0
"""Seconds between two lines, if the share has changed by ``_MIN_REPORTED_CHANGE``."""
_MIN_REPORTED_CHANGE = 0.05


class _GpuWait(NamedTuple):
    """A wait on the CPU, with the GPU's events at its two ends."""

    seconds: float
    start_event: Any
    end_event: Any


class WaitTimer:
    """Seconds that one process lost waiting for batches."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._lost_seconds = 0.0
        self._requested_at: Optional[float] = None
        self._gpu_event_at_request: Any = None
        self._pending_gpu_waits: Deque[_GpuWait] = deque()

    def record_request(self) -> None:
        self._gpu_event_at_request = _record_gpu_event()
        self._requested_at = self._clock()

    def record_arrival(self) -> None:
        """Record that the requested batch has arrived, and add the time that was lost by waiting for it. A
        GPU may have worked on during the wait: how long it was idle is known when it has reached the events
        at both ends, and ``take_lost_seconds`` adds the time then."""
        if self._requested_at is None:
            return
        wait_seconds = self._clock() - self._requested_at
        self._requested_at = None
        if self._gpu_event_at_request is None:  # training on the CPU, which was idle while it waited
            self._lost_seconds += wait_seconds
            return
        gpu_event_at_arrival = _record_gpu_event()
        if gpu_event_at_arrival is not None:
            self._pending_gpu_waits.append(
                _GpuWait(
                    seconds=wait_seconds,
                    start_event=self._gpu_event_at_request,
                    end_event=gpu_event_at_arrival,
                )
            )
        self._gpu_event_at_request = None

    def take_lost_seconds(self) -> float:
        """Return the seconds lost since the last call. Waits that the GPU has not reached yet are in a later
        call, so that nothing blocks."""
        while self._pending_gpu_waits and self._pending_gpu_waits[0].end_event.query():
            gpu_wait = self._pending_gpu_waits.popleft()
            self._lost_seconds += min(
                gpu_wait.seconds, gpu_wait.start_event.elapsed_time(gpu_wait.end_event) / 1000
            )
        lost_seconds, self._lost_seconds = self._lost_seconds, 0.0
        return lost_seconds

    def reset(self) -> None:
        self._pending_gpu_waits.clear()
        self._lost_seconds = 0.0


def _record_gpu_event() -> Any:
    """Record an event on the GPU's current stream; None for training on the CPU. Does not import torch."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


class TimedIterator(Generic[Batch]):
    """Iterates over batches, and lets ``timer`` measure how long each takes to arrive."""

    def __init__(self, batches: Iterable[Batch], timer: WaitTimer) -> None:
        self._timer = timer
        timer.record_request()
        self._iterator = iter(batches)
        self._waiting = True

    def __iter__(self) -> "TimedIterator[Batch]":
        return self

    def __next__(self) -> Batch:
        if not self._waiting:
            self._timer.record_request()
        self._waiting = False
        try:
            return next(self._iterator)
        finally:
            self._timer.record_arrival()


class DataWaitMonitor:
    """The share of a training's time that was spent waiting for data.

    ``take_lost_microseconds`` returns what this rank lost since the last step; the maximum over all ranks is
    passed to ``record_step`` on each of them. Time counts from the end of the first step, which includes
    starting the loader's workers.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._timer = WaitTimer(clock)
        self._has_batches = False
        self._first_step_ended_at: Optional[float] = None
        self._last_step_ended_at = 0.0
        self._lost_seconds = 0.0
        self._steps = 0
        self._reported_wait_share: Optional[float] = None
        self._reported_at_seconds = 0.0

    def time_batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        self._has_batches = True
        return TimedIterator(batches, self._timer)

    def take_lost_microseconds(self) -> int:
        """Return the microseconds lost since the last call; 0 before the first step."""
        lost_seconds = self._timer.take_lost_seconds()
        return int(lost_seconds * 1e6) if self._first_step_ended_at is not None else 0

    def record_step(self, lost_microseconds: int) -> None:
        """``lost_microseconds``: the maximum over all ranks."""
        self._last_step_ended_at = self._clock()
        if self._first_step_ended_at is None:
            self._first_step_ended_at = self._last_step_ended_at
            self._timer.reset()
            return
        self._steps += 1
        self._lost_seconds += lost_microseconds / 1e6

    def add_last_wait(self, lost_microseconds: int) -> None:
        """Add the loss of the last step, which has already been counted as a step."""
        self._lost_seconds += lost_microseconds / 1e6

    @property
    def wait_share(self) -> Optional[float]:
        """The share of the time since the first step (0 to 1) that the training has waited for data; None
        after too few steps, and for loops whose batches are not measured."""
        if not self._has_batches or self._first_step_ended_at is None or self._steps < MIN_STEPS:
            return None
        elapsed_seconds = self._last_step_ended_at - self._first_step_ended_at
        return min(1.0, self._lost_seconds / elapsed_seconds) if elapsed_seconds >= MIN_SECONDS else None

    def metric_line_if_due(self, is_last: bool = False) -> Optional[str]:
        """Return the metric line with the share of time that the training has waited for data, if one is due:
        at intervals, if the share has changed, and at the end (``is_last``). Otherwise return None."""
        wait_share = self.wait_share
        if self._first_step_ended_at is None or wait_share is None:  # too few steps
            return None
        elapsed_seconds = self._last_step_ended_at - self._first_step_ended_at
        if not is_last and not self._is_report_due(wait_share, elapsed_seconds):
            return None
        self._reported_wait_share, self._reported_at_seconds = wait_share, elapsed_seconds
        return format_line(METRIC_KIND, **{DATA_WAIT_METRIC: "{:.3f}".format(wait_share)})

    def _is_report_due(self, wait_share: float, elapsed_seconds: float) -> bool:
        """Return whether ``elapsed_seconds`` after the first step it is time for a line before the end."""
        seconds_since_report = elapsed_seconds - self._reported_at_seconds
        if self._reported_wait_share is None:
            return seconds_since_report >= _FIRST_REPORT_SECONDS
        if seconds_since_report < _REPORT_INTERVAL_SECONDS:
            return False
        return abs(wait_share - self._reported_wait_share) >= _MIN_REPORTED_CHANGE


class TimedBatches(Generic[Batch]):
    """See ``measure_data_wait``."""

    def __init__(self, batches: Iterable[Batch], clock: Clock = time.perf_counter) -> None:
        self._batches = batches
        self._monitor = DataWaitMonitor(clock)

    def __iter__(self) -> Iterator[Batch]:
        monitor = self._monitor
        for batch in monitor.time_batches(self._batches):
            monitor.record_step(monitor.take_lost_microseconds())
            yield batch
            self._print_line(monitor.metric_line_if_due())
        self._print_line(monitor.metric_line_if_due(is_last=True))

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def _print_line(self, line: Optional[str]) -> None:
        if line is not None:
            print(line, flush=True)


def measure_data_wait(batches: Iterable[Batch]) -> Iterable[Batch]:
    """Return the same batches. At the end of each complete epoch, and at intervals within it, a line shows
    which share of the time was spent waiting for them. For loops without a Checkpointer, which measures by
    itself. Each rank reports for itself, and the largest share counts."""
    return TimedBatches(batches)
