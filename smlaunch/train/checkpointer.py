"""Make a training script resumable: restore the saved state at its start, and end its loop with everything
saved once all ranks have agreed to stop.

    order = ResumableOrder(len(dataset), batch_size=32, seed=1)
    with Checkpointer(model=ddp, optimizer=optimizer, scheduler=scheduler, order=order) as run:
        for images, labels in run.batches(order.loader(dataset, num_workers=2), epochs=3):
            ...
            run.step(loss=loss)
    if run.finished:
        ...save the model; otherwise the next segment continues

docs/resume.md lists what breaks exactness, and which of it is handled here.
"""

import math
import os
import time
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence

from smlaunch.contract.outcome import CONTINUE, FINISHED
from smlaunch.contract.segment import Segment
from smlaunch.train import components, ddp_buckets
from smlaunch.train import rank_group as groups
from smlaunch.train.checkpoint_manager import CheckpointManager
from smlaunch.train.data_wait import DataWaitMonitor
from smlaunch.train.equal_steps import check_equal
from smlaunch.train.order import OrderPosition, ResumableOrder
from smlaunch.train.progress_reporter import ProgressReporter
from smlaunch.train.rank_group import PendingMax, RankGroup
from smlaunch.train.save_interval import SaveInterval
from smlaunch.train.settings import check_settings as check_settings
from smlaunch.train.stop_signal import StopSignal
from smlaunch.train.trace import TraceWriter

_FAILED_WAIT_SECONDS = 5.0
"""Wait this long for a running save when the script fails: other ranks may be gone, and the save may never
end."""


_ORDER_REMEDY = "a ResumableOrder covers the samples of all ranks together, and must be equal on all of them"
_BATCHES_REMEDY = (
    'agree on a number first (smlaunch.train.equal_steps with rule="min" or "wrap"), and pass steps='
)


class _StepVotes(NamedTuple):
    """What each rank reports with every step. The maximum over all ranks counts."""

    stop: int = 0
    save: int = 0
    save_running: int = 0
    save_failed: int = 0
    data_wait_us: int = 0
    """Microseconds this rank waited for data."""


class _LoopPosition(NamedTuple):
    """How far the loop is. Without an order, ``epoch`` and the ``batches`` of it are counted here."""

    epoch: int = 0
    batches: int = 0
    order_position: Optional[OrderPosition] = None


class Checkpointer:
    """Saves and restores a training. Use it as a context manager, on every rank, after ``init_process_group``
    and after the model is wrapped.

    ``model``, ``optimizer``, ``scheduler``, ``scaler``: PyTorch's, as far as the script has them. ``order``:
    the order of samples. ``registered``: further objects under names of your choice, with ``state_dict`` and
    ``load_state_dict``, or random generators. Each rank saves its own, unless the name is in ``shared``: then
    it is equal on all ranks and saved once.

    ``directory``: where checkpoints are saved; None: where the job says, and outside of a job nothing is
    saved. ``every``: seconds between two saves; None: as the job says, else adapted to what saves cost.
    ``every_steps``: save by steps instead. ``keep``: how many checkpoints to retain. ``deterministic``: use
    and check PyTorch's deterministic algorithms; None: as the job says. ``group``: a transport of your own.

    Raises TypeError for objects without state and ValueError for an invalid setting or name. Entering it
    raises RuntimeError for ranks that are not connected, and ValueError for a checkpoint that does not fit.
    """

    def __init__(
        self,
        /,
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        order: Optional[ResumableOrder] = None,
        shared: Sequence[str] = (),
        directory: Optional[str] = None,
        every: Optional[float] = None,
        every_steps: Optional[int] = None,
        keep: Optional[int] = None,
        deterministic: Optional[bool] = None,
        group: Optional[RankGroup] = None,
        **registered: Any,
    ) -> None:
        check_settings(
            {
                "order": order,
                "shared": shared,
                "directory": directory,
                "every": every,
                "every_steps": every_steps,
                "keep": keep,
                "deterministic": deterministic,
                "group": group,
            }
        )
        if every is not None and every_steps is not None:
            raise ValueError("every and every_steps: pass only one of them")
        job_segment = Segment.from_environment(os.environ)
        self._segment = job_segment._replace(
            checkpoint_dir=directory or job_segment.checkpoint_dir,
            interval_seconds=job_segment.interval_seconds if every is None else every,
            keep_steps=job_segment.keep_steps if keep is None else keep,
            deterministic=job_segment.deterministic if deterministic is None else deterministic,
        )
        self._every_steps = every_steps
        self._model = model
        self._order = order
        self._user_group = group
        self._components = components.collect_components(
            model, optimizer, scheduler, scaler, order, registered, shared
        )
        self.steps_done = 0
        """Training steps since the very start, over all segments."""
        self.restored_step: Optional[int] = None
        """The step this process has continued from; None at the very start."""
        self._position = _LoopPosition()
        self._completed_position = _LoopPosition()
        self._step_samples: List[int] = []
        self._total_steps: Optional[int] = None
        self._stop_reason: Optional[str] = None
        self._should_stop = False
        self._reached_end = False
        self._loop_ended = False

    def __enter__(self) -> "Checkpointer":
        """Connect the ranks, restore the newest checkpoint if there is one, and start to watch for the
        planned end and for stop signals."""
        group = self._group = groups.find_group() if self._user_group is None else self._user_group
        self._rank, self._world_size = group.rank, group.world_size
        reporter = self._reporter = ProgressReporter(group.rank == 0)
        if self._segment.deterministic:
            from smlaunch.train import deterministic

            for note in deterministic.enable_determinism():
                reporter.print_message("deterministic, with a limitation: " + note)
        if self._order is not None:
            self._order.set_rank(group.rank, group.world_size)
            # Before anything is restored: ranks with different orders would never take the same steps.
            check_equal(group, self._order.settings(), "order of samples", _ORDER_REMEDY, os.environ)
        if components.is_ddp(self._model):
            problem = ddp_buckets.rebuild_ddp_buckets(self._model)
            if problem is not None and group.world_size > 2:
                reporter.print_message("the first step after a restart may round differently: " + problem)
        self._trace = TraceWriter.from_environment(os.environ, self._segment.job, group.rank)
        self._stop_signal = StopSignal(self._segment.stop_file, self._segment.stop_at)
        # Saving by steps ignores intervals in seconds.
        fixed_seconds = math.inf if self._every_steps is not None else self._segment.interval_seconds
        self._interval = SaveInterval(fixed_seconds, self._segment.failure_seconds, time.monotonic())
        self._manager: Optional[CheckpointManager] = None
        if self._segment.checkpoint_dir is None:
            reporter.print_message("no checkpoint directory: nothing is saved")
        else:
            self._manager = CheckpointManager(
                self._segment, group, self._components, self._interval, reporter
            )
            self._restore(self._manager)
        if self._order is not None:
            self._completed_position = self._position = _LoopPosition(order_position=self._order.position)
        self._trace.record_start(self.steps_done, self._components)
        self._stop_signal.install_handler()
        self._data_wait = DataWaitMonitor()
        self._step_started_at = time.monotonic()
        self._pending_votes: PendingMax = group.begin_max(self._step_votes())
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if error is None:
                self._loop_ended = True
                self._finish()
            elif isinstance(error, Exception) and self._manager is not None:
                self._manager.wait_for_save(_FAILED_WAIT_SECONDS)
        finally:
            self._stop_signal.restore_handler(self._should_stop and error is None)
            self._reporter.flush()
            # A group that is still referenced outlives destroy_process_group, which the script may call next,
            # and its threads may then abort the process while Python ends.
            self._model = self._manager = self._user_group = None
            self._components = []
            del self._group, self._pending_votes

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._position.epoch if self._order is None else self._order.epoch

    @property
    def finished(self) -> bool:
        """Whether the training is finished, rather than only this segment."""
        return self._loop_ended and (self._reached_end or not self._should_stop)

    @property
    def should_stop(self) -> bool:
        """Whether all ranks have agreed to stop after this step; for loops that do not use ``batches``."""
        return self._should_stop

    @property
    def seconds_left(self) -> Optional[float]:
        """Seconds to the planned end of the segment; None without one."""
        return self._stop_signal.seconds_left()

    def set_total_steps(self, steps: int) -> None:
        """Set the total number of steps, for the progress line of loops that do not use ``batches``."""
        self._total_steps = steps

    def batches(
        self, loader: Iterable[Any], *, epochs: Optional[int] = None, steps: Optional[int] = None
    ) -> Iterator[Any]:
        """Yield the remaining batches until ``epochs`` or ``steps`` are done, counted from the very start, or
        until the ranks stop. After every batch, or after the several batches of one optimizer step, call
        ``step()``.

        ``loader``: from ``order.loader()``. Without an order, any other one: it is iterated from its start,
        and after a restart its first batches are skipped, which is only as exact as its own order is.
        """
        if (epochs is None) == (steps is None):
            raise ValueError("batches: pass epochs or steps")
        if self._order is not None and getattr(loader, "order", None) is not self._order:
            raise ValueError("batches: the loader must come from loader() of the Checkpointer's order")
        return self._iterate(loader, epochs, steps)

    def step(self, **metrics: Any) -> None:
        """Report that a step of the optimizer is done. ``metrics``: numbers for the progress line, as
        ``loss=loss``.

        Collective: every rank calls it after every step. Raises RuntimeError if no state can be saved at all.
        """
        now = time.monotonic()
        self.steps_done += 1
        self._completed_position = self._position
        manager = self._manager
        self._interval.record_step(
            now - self._step_started_at, is_saving=manager is not None and manager.is_saving
        )
        metrics = {
            name: value.detach() if hasattr(value, "detach") else value for name, value in metrics.items()
        }
        self._reporter.report_step(self.steps_done, self._total_steps, metrics)
        self._trace.record_step(self.steps_done, self._step_samples, metrics)
        self._step_samples = []
        votes = _StepVotes(*self._pending_votes())
        self._data_wait.record_step(votes.data_wait_us)
        self._reporter.print_line(self._data_wait.metric_line())
        if votes.save_failed and manager is not None:
            manager.finish_save()  # raises, on all ranks after the same step
        if votes.stop:
            self._announce_stop(self._stop_reason or "another rank asked to stop")
        elif self._is_last_step():
            self._announce_stop("step {} is the segment's last".format(self._segment.until_step))
        elif manager is not None:
            if self._is_save_due(votes):
                self._save(manager)
            manager.report_finished_save()
        self._pending_votes = self._group.begin_max(self._step_votes())
        # The time a save took here counts as a cost of the save, not of the next step.
        self._step_started_at = time.monotonic()

    def _iterate(self, loader: Any, epochs: Optional[int], steps: Optional[int]) -> Iterator[Any]:
        """Yield batches epoch by epoch until the training is complete or the ranks stop."""
        self._loop_ended = self._reached_end = False
        self._total_steps = self._estimate_total_steps(loader, epochs) if steps is None else steps
        if self._order is None and epochs is not None:
            length = len(loader) if hasattr(loader, "__len__") else None
            check_equal(self._group, length, "number of batches", _BATCHES_REMEDY, os.environ)
        try:
            while True:
                self._reached_end = self._is_complete(epochs, steps)
                if self._reached_end or self._should_stop:
                    return
                steps_before, has_batches = self.steps_done, False
                for batch in self._rest_of_epoch(loader):
                    has_batches = True
                    yield batch
                    if self._position == self._completed_position:
                        self._reached_end = self._is_complete(epochs, steps)
                        if self._reached_end or self._should_stop:
                            return
                if has_batches and self.steps_done == steps_before:
                    raise RuntimeError("a whole epoch passed without a call of step()")
        finally:
            self._loop_ended = True
            self._set_position(self._completed_position)

    def _rest_of_epoch(self, loader: Any) -> Iterator[Any]:
        """Yield the remaining batches of the epoch; then move to the start of the next one."""
        order = self._order
        if order is None:
            skip_count = self._position.batches
            for batch_number, batch in enumerate(self._data_wait.timed(loader)):
                if batch_number >= skip_count:
                    self._position = self._position._replace(batches=batch_number + 1)
                    yield batch
            self._position = _LoopPosition(self._position.epoch + 1)
            return
        for (position, keys), batch in zip(order.batches(), self._data_wait.timed(loader)):
            self._step_samples += [index for _, index in keys]
            self._set_position(_LoopPosition(order_position=position))
            yield batch
        self._set_position(_LoopPosition(order_position=order.next_epoch(order.position)))

    def _is_complete(self, epochs: Optional[int], steps: Optional[int]) -> bool:
        """Return whether the epochs or steps are done."""
        if steps is not None:
            return self.steps_done >= steps
        assert epochs is not None
        order = self._order
        if order is not None and order.position_after(order.position) is None:
            return order.epoch + 1 >= epochs
        return self.epoch >= epochs

    def _estimate_total_steps(self, loader: Any, epochs: Optional[int]) -> Optional[int]:
        """Estimate the total for the progress bar. With several batches per step it is too high; None if the
        loader has no length."""
        assert epochs is not None
        if self._order is not None:
            return self.steps_done + self._order.steps_until(epochs)
        return epochs * len(loader) if hasattr(loader, "__len__") else None

    def _set_position(self, position: _LoopPosition) -> None:
        self._position = position
        if self._order is not None and position.order_position is not None:
            self._order.position = position.order_position

    def _is_last_step(self) -> bool:
        return self._segment.until_step is not None and self.steps_done >= self._segment.until_step

    def _announce_stop(self, reason: str) -> None:
        self._should_stop = True
        self._reporter.print_message("stops after step {}: {}".format(self.steps_done, reason))

    def _step_votes(self) -> _StepVotes:
        """Return this rank's votes for the next step: stop, save, and what it knows of the running save."""
        needed_seconds = self._interval.save_seconds + 2 * self._interval.step_seconds
        self._stop_reason = self._stop_signal.reason(needed_seconds)
        manager = self._manager
        save_running = manager is not None and manager.is_saving
        save_failed = manager is not None and manager.has_failed
        # Clocks differ between hosts: only the leader decides when to save.
        is_due = self.rank == 0 and self._interval.is_due(time.monotonic(), self._stop_signal.seconds_left())
        return _StepVotes(
            int(self._stop_reason is not None),
            int(is_due),
            int(save_running),
            int(save_failed),
            self._data_wait.take_lost_microseconds(),
        )

    def _is_save_due(self, votes: _StepVotes) -> bool:
        if self._every_steps is not None:
            return self.steps_done % self._every_steps == 0
        return bool(votes.save and not votes.save_running)

    def _save(self, manager: CheckpointManager) -> None:
        loop_state: Dict[str, Any] = {
            "epoch": self._completed_position.epoch,
            "batches": self._completed_position.batches,
        }
        total_samples = self._order.position.total_samples if self._order is not None else None
        manager.save(self.steps_done, loop_state, total_samples)
        self._trace.record_checkpoint(self.steps_done, self._components)

    def _restore(self, manager: CheckpointManager) -> None:
        """Restore the newest checkpoint, if there is one, and continue after its step."""
        loop_state = manager.restore()
        if loop_state is None:
            return
        self.steps_done = self.restored_step = manager.last_step or 0
        order = self._order
        if order is not None and order.restored_batch_size != order.batch_size:
            self._reporter.print_message(
                "not bit-identical: {} samples per step before, {} now".format(
                    order.restored_batch_size, order.batch_size
                )
            )
        self._completed_position = self._position = _LoopPosition(loop_state["epoch"], loop_state["batches"])
        if self._is_last_step():  # an earlier attempt saved it and was then lost
            self._announce_stop("step {} is the segment's last".format(self._segment.until_step))

    def _finish(self) -> None:
        """Save everything and write the outcome."""
        self._data_wait.add_last_wait(_StepVotes(*self._pending_votes()).data_wait_us)
        self._reporter.print_line(self._data_wait.metric_line(is_last=True))
        self._trace.record_end(self.steps_done, self._components)
        manager = self._manager
        if manager is None:
            return
        # All ranks must know the result of the previous save before they start the last one.
        step = manager.finish_save()
        if manager.last_step != self.steps_done:
            self._save(manager)
            step = manager.finish_save()
        is_finished = self._reached_end or not self._should_stop
        manager.write_outcome(FINISHED if is_finished else CONTINUE, step)
