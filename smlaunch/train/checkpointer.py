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

from smlaunch.contract.segment import Segment
from smlaunch.contract.segment_outcome import CONTINUE, FINISHED
from smlaunch.train import checkpoint_components, ddp_buckets
from smlaunch.train import rank_group as groups
from smlaunch.train.checkpoint_manager import CheckpointManager
from smlaunch.train.checkpointer_settings import check_settings as check_settings
from smlaunch.train.data_wait_monitor import DataWaitMonitor
from smlaunch.train.equal_steps import check_equal_on_all_ranks
from smlaunch.train.progress_reporter import ProgressReporter
from smlaunch.train.rank_group import PendingMax, RankGroup
from smlaunch.train.resumable_order import OrderPosition, ResumableOrder
from smlaunch.train.save_interval import SaveInterval
from smlaunch.train.step_trace import TraceWriter
from smlaunch.train.stop_signal import StopSignal

_FAILED_WAIT_SECONDS = 5.0
"""Wait this long for a running save when the script fails: other ranks may be gone, and the save may never
end."""


_ORDER_REMEDY = "a ResumableOrder covers the samples of all ranks together, and must be equal on all of them"
_BATCH_COUNT_REMEDY = (
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
    batches_in_epoch: int = 0
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
        """``scaler``: of automatic mixed precision. ``order``: of the samples. ``registered``: further
        objects with state, by name; those named in ``shared`` are equal on all ranks and saved once.
        ``every`` (seconds) or ``every_steps``: how often to save. ``keep``: how many checkpoints to retain.
        ``group``: connects the ranks instead of torch.distributed. None: as the job says. The class's
        docstring says more."""
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
        # The job's environment says everything that the script leaves open. A segment is one job of a run
        # whose jobs continue each other's training.
        job_settings = Segment.from_environment(os.environ)
        self._segment_settings = job_settings._replace(
            checkpoint_dir=directory or job_settings.checkpoint_dir,
            interval_seconds=job_settings.interval_seconds if every is None else every,
            keep_steps=job_settings.keep_steps if keep is None else keep,
            deterministic=job_settings.deterministic if deterministic is None else deterministic,
        )
        self._save_every_steps = every_steps
        self._model = model
        self._order = order
        self._user_group = group
        self._components = checkpoint_components.collect_components(
            model, optimizer, scheduler, scaler, order, registered, shared
        )
        self.steps_done = 0
        """Training steps since the very start, over all segments."""
        self.restored_step: Optional[int] = None
        """The step this process has continued from; None at the very start."""
        self._loop_position = _LoopPosition()
        """Up to which batch the script has been given batches."""
        self._position_after_last_step = _LoopPosition()
        """Up to which batch ``step()`` was called; this is saved."""
        self._sample_indices_of_step: List[int] = []
        """Dataset indices of the samples since the last step, for the trace."""
        self._total_steps: Optional[int] = None
        self._stop_reason: Optional[str] = None
        self._should_stop = False
        self._is_training_complete = False
        self._has_loop_ended = False

    def __enter__(self) -> "Checkpointer":
        """Enter the context of a resumable training on this rank: connect the ranks, restore the newest
        checkpoint if there is one, and start to watch for the planned end and for stop signals. Collective.

        Raises RuntimeError for ranks that are not connected, ValueError for a checkpoint that does not fit.
        """
        # A group connects the ranks; find_group() returns that of torch.distributed, or of a single rank.
        group = self._group = groups.find_group() if self._user_group is None else self._user_group
        self._rank, self._world_size = group.rank, group.world_size
        self._reporter = ProgressReporter(is_enabled=group.rank == 0)
        # Before anything is restored: these make a restarted training repeat the same numbers, and check that
        # the ranks fit together. DDP's buckets decide the order in which gradients are summed.
        self._enable_determinism_if_set()
        self._check_order_of_samples()
        self._rebuild_ddp_buckets()
        # A trace records hashes of the state by step, for comparing two trainings; it is off by default.
        self._trace_writer = TraceWriter.from_environment(os.environ, self._segment_settings.job, group.rank)
        self._stop_signal = StopSignal(self._segment_settings.stop_file, self._segment_settings.stop_at)
        # Saving by steps ignores intervals in seconds. failure_seconds: the mean time between failures, from
        # which an interval is computed if none is fixed.
        fixed_interval_seconds = (
            math.inf if self._save_every_steps is not None else self._segment_settings.interval_seconds
        )
        self._save_interval = SaveInterval(
            fixed_interval_seconds, self._segment_settings.failure_seconds, now=time.monotonic()
        )
        self._checkpoint_manager: Optional[CheckpointManager] = None
        if self._segment_settings.checkpoint_dir is None:
            self._reporter.print_message("no checkpoint directory: nothing is saved")
        else:
            self._checkpoint_manager = CheckpointManager(
                self._segment_settings, group, self._components, self._save_interval, self._reporter
            )
            self._restore_newest_checkpoint(self._checkpoint_manager)
        if self._order is not None:  # restored with the checkpoint, as a component of it
            self._position_after_last_step = self._loop_position = _LoopPosition(
                order_position=self._order.position
            )
        self._trace_writer.record_start(self.steps_done, self._components)
        self._stop_signal.install_handler()
        self._data_wait_monitor = DataWaitMonitor()
        self._step_started_at = time.monotonic()
        # This rank's votes, such as to stop or to save: begin_max() starts their maximum over all ranks and
        # returns a function that waits for the result, which is due at the next step().
        self._wait_for_votes: PendingMax = group.begin_max(self._collect_own_votes())
        return self

    def _enable_determinism_if_set(self) -> None:
        if self._segment_settings.deterministic:
            from smlaunch.train import deterministic

            for limitation in deterministic.enable_determinism():
                self._reporter.print_message("deterministic, with a limitation: " + limitation)

    def _check_order_of_samples(self) -> None:
        """Tell the order which rank this is, and check that it is the same on all ranks: ranks with different
        orders would never take the same steps."""
        if self._order is not None:
            self._order.set_rank(self._rank, self._world_size)
            check_equal_on_all_ranks(
                self._group, self._order.settings(), "order of samples", _ORDER_REMEDY, os.environ
            )

    def _rebuild_ddp_buckets(self) -> None:
        """Rebuild DDP's buckets now, as DDP does after its first step. With more than two ranks the sums of
        gradients depend on the buckets, so that a restarted training would differ in its first step."""
        if checkpoint_components.is_ddp(self._model):
            problem = ddp_buckets.rebuild_ddp_buckets(self._model)
            if problem is not None and self._world_size > 2:
                self._reporter.print_message(
                    "the first step after a restart may round differently: " + problem
                )

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if error is None:
                self._has_loop_ended = True
                self._save_final_checkpoint()
            elif isinstance(error, Exception) and self._checkpoint_manager is not None:
                self._checkpoint_manager.wait_for_save(_FAILED_WAIT_SECONDS)
        finally:
            self._stop_signal.restore_handler(self._should_stop and error is None)
            self._reporter.flush()
            # A group that is still referenced outlives destroy_process_group, which the script may call next,
            # and its threads may then abort the process while Python ends.
            self._model = self._checkpoint_manager = self._user_group = None
            self._components = []
            del self._group, self._wait_for_votes

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._loop_position.epoch if self._order is None else self._order.epoch

    @property
    def finished(self) -> bool:
        """Whether the training is finished, rather than only this segment."""
        return self._has_loop_ended and (self._is_training_complete or not self._should_stop)

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
        return self._iterate_epochs(loader, epochs, steps)

    def step(self, **metrics: Any) -> None:
        """Report that a step of the optimizer is done; save a checkpoint if one is due, or let the training
        stop if any rank has to. ``metrics``: numbers for the progress line, as ``loss=loss``.

        Collective: every rank calls it after every step. The ranks decide by votes (of each kind the maximum
        over all ranks) that each sent one step before, so that no step waits for the network. Raises
        RuntimeError if no state can be saved at all.
        """
        now = time.monotonic()
        self.steps_done += 1
        self._position_after_last_step = self._loop_position
        manager = self._checkpoint_manager
        self._save_interval.record_step(
            now - self._step_started_at, is_saving=manager is not None and manager.is_saving
        )
        # Detached from its graph, a loss that is kept for the progress line holds no activations.
        metrics = {
            name: value.detach() if hasattr(value, "detach") else value for name, value in metrics.items()
        }
        self._reporter.report_step(self.steps_done, self._total_steps, metrics)
        self._trace_writer.record_step(self.steps_done, self._sample_indices_of_step, metrics)
        self._sample_indices_of_step = []
        votes = _StepVotes(*self._wait_for_votes())  # sent at the end of the previous step
        self._data_wait_monitor.record_step(votes.data_wait_us)  # microseconds spent waiting for batches
        self._reporter.print_line(self._data_wait_monitor.metric_line_if_due())  # nothing if it is None
        if votes.save_failed and manager is not None:
            manager.finish_save()  # raises, on all ranks after the same step
        # A stop needs no save here: leaving the context saves the last step.
        if votes.stop:
            self._decide_to_stop(self._stop_reason or "another rank asked to stop")
        elif self._is_segment_complete():  # a segment is one job of a run, whose next job continues it
            self._decide_to_stop("step {} is the segment's last".format(self._segment_settings.until_step))
        elif manager is not None:
            if self._is_save_due(votes):
                self._start_save(manager)
            manager.report_save_result()
        self._wait_for_votes = self._group.begin_max(self._collect_own_votes())
        # From here on: the time that starting a save took is a cost of the save, not of the next step.
        self._step_started_at = time.monotonic()

    def _iterate_epochs(self, loader: Any, epochs: Optional[int], steps: Optional[int]) -> Iterator[Any]:
        """Yield batches epoch by epoch until the training is complete or the ranks stop. ``epochs`` or
        ``steps`` (the other is None): when it is complete, counted from the very start. Between two batches
        the script calls ``step()``, which counts the step and may decide to stop."""
        self._has_loop_ended = self._is_training_complete = False
        self._total_steps = self._estimate_total_steps(loader, epochs) if steps is None else steps
        if self._order is None and epochs is not None:
            # A rank with fewer batches would end its epoch while the others wait for it.
            batch_count = len(loader) if hasattr(loader, "__len__") else None
            check_equal_on_all_ranks(  # if not, RuntimeError names the remedy
                self._group, batch_count, "number of batches", _BATCH_COUNT_REMEDY, os.environ
            )
        try:
            while True:
                self._is_training_complete = self._are_epochs_or_steps_done(epochs, steps)
                if self._is_training_complete or self._should_stop:
                    return
                steps_before, has_batches = self.steps_done, False
                for batch in self._remaining_batches_of_epoch(loader):
                    has_batches = True
                    yield batch
                    # step() sets the position after the last step to that of the loop, the batches given out.
                    is_step_done = self._loop_position == self._position_after_last_step
                    if is_step_done:  # else gradients are being accumulated over several batches
                        self._is_training_complete = self._are_epochs_or_steps_done(epochs, steps)
                        if self._is_training_complete or self._should_stop:
                            return
                if has_batches and self.steps_done == steps_before:
                    raise RuntimeError("a whole epoch passed without a call of step()")
        finally:
            self._has_loop_ended = True
            # Back to that of the last step: batches that no step has used are not counted.
            self._set_loop_position(self._position_after_last_step)

    def _remaining_batches_of_epoch(self, loader: Any) -> Iterator[Any]:
        """Yield the remaining batches of the epoch; then move to the start of the next one. The time spent
        waiting for batches is measured."""
        timed_batches = self._data_wait_monitor.time_batches(loader)
        if self._order is None:
            return self._remaining_unordered_batches(timed_batches)
        return self._remaining_ordered_batches(timed_batches, self._order)

    def _remaining_unordered_batches(self, timed_batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the remaining batches of the epoch, without an order of samples: load the batches used before
        a restart again, and skip them."""
        batches_to_skip = self._loop_position.batches_in_epoch
        for batch_index, batch in enumerate(timed_batches):
            if batch_index >= batches_to_skip:
                self._loop_position = self._loop_position._replace(batches_in_epoch=batch_index + 1)
                yield batch
        self._loop_position = _LoopPosition(self._loop_position.epoch + 1)

    def _remaining_ordered_batches(self, batches: Iterable[Any], order: ResumableOrder) -> Iterator[Any]:
        """With an order of samples: its loader begins at the order's position."""
        for (position_after_batch, sample_keys), batch in zip(order.batches(), batches):
            self._sample_indices_of_step += [index for _epoch, index in sample_keys]
            self._set_loop_position(_LoopPosition(order_position=position_after_batch))
            yield batch
        self._set_loop_position(_LoopPosition(order_position=order.next_epoch(order.position)))

    def _are_epochs_or_steps_done(self, epochs: Optional[int], steps: Optional[int]) -> bool:
        """Return whether the training has done so many epochs, or so many steps; one of them is None."""
        if steps is not None:
            return self.steps_done >= steps
        assert epochs is not None
        order = self._order
        if order is not None and order.position_after(order.position) is None:
            return order.epoch + 1 >= epochs  # this epoch is over, though the next one has not begun
        return self.epoch >= epochs

    def _estimate_total_steps(self, loader: Any, epochs: Optional[int]) -> Optional[int]:
        """Estimate the total for the progress bar. With several batches per step it is too high; None if the
        loader has no length."""
        assert epochs is not None
        if self._order is not None:
            return self.steps_done + self._order.steps_until(epochs)
        return epochs * len(loader) if hasattr(loader, "__len__") else None

    def _set_loop_position(self, position: _LoopPosition) -> None:
        self._loop_position = position
        if self._order is not None and position.order_position is not None:
            self._order.position = position.order_position

    def _is_segment_complete(self) -> bool:
        until_step = self._segment_settings.until_step
        return until_step is not None and self.steps_done >= until_step

    def _decide_to_stop(self, reason: str) -> None:
        self._should_stop = True
        self._reporter.print_message("stops after step {}: {}".format(self.steps_done, reason))

    def _collect_own_votes(self) -> _StepVotes:
        """Return this rank's votes for the next step: stop, save, and what it knows of the running save."""
        needed_seconds = self._save_interval.save_seconds + 2 * self._save_interval.step_seconds
        self._stop_reason = self._stop_signal.reason_to_stop(needed_seconds)
        manager = self._checkpoint_manager
        save_running = manager is not None and manager.is_saving
        save_failed = manager is not None and manager.has_failed
        # Clocks differ between hosts: only the leader decides when to save.
        is_due = self.rank == 0 and self._save_interval.is_due(
            time.monotonic(), self._stop_signal.seconds_left()
        )
        return _StepVotes(
            stop=int(self._stop_reason is not None),
            save=int(is_due),
            save_running=int(save_running),
            save_failed=int(save_failed),
            data_wait_us=self._data_wait_monitor.take_lost_microseconds(),
        )

    def _is_save_due(self, votes: _StepVotes) -> bool:
        if self._save_every_steps is not None:
            return self.steps_done % self._save_every_steps == 0
        return bool(votes.save and not votes.save_running)

    def _start_save(self, manager: CheckpointManager) -> None:
        loop_state: Dict[str, Any] = {
            "epoch": self._position_after_last_step.epoch,
            "batches": self._position_after_last_step.batches_in_epoch,
        }
        total_samples = self._order.position.total_samples if self._order is not None else None
        manager.start_save(self.steps_done, loop_state, total_samples)
        self._trace_writer.record_checkpoint(self.steps_done, self._components)

    def _restore_newest_checkpoint(self, checkpoint_manager: CheckpointManager) -> None:
        """Restore the newest checkpoint, if there is one, so that the training loop continues after its step;
        or decide to stop at once if that step is the last of this segment, one job of a chain of jobs."""
        loop_state = checkpoint_manager.restore_newest()
        if loop_state is None:
            return
        self.steps_done = self.restored_step = checkpoint_manager.last_saved_step or 0
        order = self._order
        if order is not None and order.restored_batch_size != order.batch_size:
            self._reporter.print_message(
                "not bit-identical: {} samples per step before, {} now".format(
                    order.restored_batch_size, order.batch_size
                )
            )
        self._position_after_last_step = self._loop_position = _LoopPosition(
            loop_state["epoch"], loop_state["batches"]
        )
        if self._is_segment_complete():
            # An earlier attempt of this segment saved its last step and was then lost.
            self._decide_to_stop("step {} is the segment's last".format(self._segment_settings.until_step))

    def _save_final_checkpoint(self) -> None:
        """Save the last step at the end of the training loop, if it is not saved yet, and write the outcome
        of this segment (one job of a chain): whether the training is finished, or the next segment has to
        continue it. Collective."""
        # What the ranks reported with the last step (their votes) still comes in: only the time they spent
        # waiting for data is used.
        self._data_wait_monitor.add_last_wait(_StepVotes(*self._wait_for_votes()).data_wait_us)
        self._reporter.print_line(self._data_wait_monitor.metric_line_if_due(is_last=True))
        self._trace_writer.record_end(self.steps_done, self._components)
        manager = self._checkpoint_manager
        if manager is None:
            return
        # All ranks must know the result of the previous save before they start the last one.
        committed_step = manager.finish_save()
        if manager.last_saved_step != self.steps_done:
            self._start_save(manager)
            committed_step = manager.finish_save()
        # A script's own loop, which does not use batches(), is complete if it was not told to stop.
        is_finished = self._is_training_complete or not self._should_stop
        manager.write_outcome(FINISHED if is_finished else CONTINUE, committed_step)
        if is_finished and self.steps_done == self.restored_step:
            self._reporter.print_message(
                "warning: this job trained no step: the checkpoint that it continued from, of step {}, is "
                "that of the training's end".format(self.steps_done)
            )
