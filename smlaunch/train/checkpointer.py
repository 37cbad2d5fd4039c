"""Makes a training script resumable: what was kept is given back at its start, and its loop ends when all
ranks have agreed to leave, with everything kept.

    order = ResumableOrder(len(dataset), batch_size=32, seed=1)
    with Checkpointer(model=ddp, optimizer=optimizer, scheduler=scheduler, order=order) as run:
        for images, labels in run.batches(order.loader(dataset, num_workers=2), epochs=3):
            ...
            run.step(loss=loss)
    if run.finished:
        ...save the model; otherwise the next segment goes on

docs/resume.md says what breaks exactness, and what of it is taken care of here.
"""

import math
import os
import time
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence

from smlaunch.protocol.checkpoint import CONTINUE, FINISHED
from smlaunch.protocol.segment import Segment
from smlaunch.train import buckets, components
from smlaunch.train import group as groups
from smlaunch.train.equal_steps import check_equal
from smlaunch.train.group import Group, Result
from smlaunch.train.interval import Interval
from smlaunch.train.io_watch import IoWatch
from smlaunch.train.keeper import Keeper
from smlaunch.train.order import Position, ResumableOrder
from smlaunch.train.progress import Voice
from smlaunch.train.settings import check as check_settings
from smlaunch.train.stopping import StopWish
from smlaunch.train.trace import Trace

_FAILED_WAIT_SECONDS = 5.0
"""For a save that is under way when the script fails: the others may be gone, and it may never end."""


_ONE_ORDER = "a ResumableOrder is over the samples of all ranks together, and is the same on each"
_EQUAL_BATCHES = 'fix it before (smlaunch.train.equal_steps with rule="min" or "wrap"), and give steps='


class _Agreed(NamedTuple):
    """What ranks say to each other with every step; the largest counts."""

    stop: int = 0
    save: int = 0
    busy: int = 0
    failed: int = 0
    waited: int = 0
    """For data, in microseconds."""


class _Place(NamedTuple):
    """How far the loop is. Without an order, ``epoch`` and ``batches`` of it are counted here."""

    epoch: int = 0
    batches: int = 0
    position: Optional[Position] = None


class Checkpointer:
    """Use it as a context, on every rank, after ``init_process_group`` and after the model is wrapped.

    ``model``, ``optimizer``, ``scheduler``, ``scaler``: PyTorch's, as far as there are any. ``order``: the
    order of samples. ``registered``: anything else by a name of your choice, with ``state_dict`` and
    ``load_state_dict``, or a random generator; each rank keeps its own, unless its name is in ``shared``:
    then it is equal on all ranks and kept once.

    ``directory``: where checkpoints are; None: where the job says; without a job nothing is kept. ``every``:
    seconds between two saves; None: as the job says, else adapted to what saves cost. ``every_steps``: saves
    by steps instead. ``keep``: how many checkpoints stay. ``deterministic``: PyTorch's deterministic
    algorithms, checked; None: as the job says. ``group``: a transport of your own.

    Raises TypeError for what has no state and ValueError for a setting or a name that cannot be. Entering it
    raises RuntimeError for ranks that do not know one another, and ValueError for a checkpoint that does not
    fit.
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
        group: Optional[Group] = None,
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
            raise ValueError("every and every_steps: give one of them")
        given = Segment.from_environment(os.environ)
        self._segment = given._replace(
            checkpoints=directory or given.checkpoints,
            interval=given.interval if every is None else every,
            keep=given.keep if keep is None else keep,
            deterministic=given.deterministic if deterministic is None else deterministic,
        )
        self._every_steps = every_steps
        self._model = model
        self._order = order
        self._given_group = group
        self._components = components.collect(model, optimizer, scheduler, scaler, order, registered, shared)
        self.steps_done = 0
        """Training steps since the very start, over all segments."""
        self.restored_step: Optional[int] = None
        """The step this process has started from; None at the very start."""
        self._place = _Place()
        self._settled = _Place()
        self._samples: List[int] = []
        self._total: Optional[int] = None
        self._reason: Optional[str] = None
        self._leaving = False
        self._complete = False
        self._over = False

    def __enter__(self) -> "Checkpointer":
        group = self._group = groups.find() if self._given_group is None else self._given_group
        self._rank, self._world_size = group.rank, group.world_size
        voice = self._voice = Voice(group.rank == 0)
        if self._segment.deterministic:
            from smlaunch.train import deterministic

            for note in deterministic.enable():
                voice.say("deterministic, but: " + note)
        if self._order is not None:
            self._order.place(group.rank, group.world_size)
            # Before anything is restored: ranks with orders of their own would never take the same steps.
            check_equal(group, self._order.shape(), "order of samples", _ONE_ORDER, os.environ)
        if components.is_ddp(self._model):
            problem = buckets.settle(self._model)
            if problem is not None and group.world_size > 2:
                voice.say("the first step after a restart may round differently: " + problem)
        self._trace = Trace.of(os.environ, self._segment.job, group.rank)
        self._stop = StopWish(self._segment.stop_file, self._segment.stop_at)
        # Who saves by steps is not told of seconds.
        fixed = math.inf if self._every_steps is not None else self._segment.interval
        self._interval = Interval(fixed, self._segment.failure_seconds, time.monotonic())
        self._keeper: Optional[Keeper] = None
        if self._segment.checkpoints is None:
            voice.say("no checkpoint directory is given: nothing is kept")
        else:
            self._keeper = Keeper(self._segment, group, self._components, self._interval, voice)
            self._restore(self._keeper)
        if self._order is not None:
            self._settled = self._place = _Place(position=self._order.position)
        self._trace.entered(self.steps_done, self._components)
        self._stop.watch()
        self._io = IoWatch()
        self._step_began = time.monotonic()
        self._pending: Result = group.begin_max(self._wishes())
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if error is None:
                self._over = True
                self._close()
            elif isinstance(error, Exception) and self._keeper is not None:
                self._keeper.wait(_FAILED_WAIT_SECONDS)
        finally:
            self._stop.release(self._leaving and error is None)
            self._voice.flush()
            # A group that somebody holds outlives destroy_process_group, which the script may call next,
            # and its threads may then abort the process while Python ends.
            self._model = self._keeper = self._given_group = None
            self._components = []
            del self._group, self._pending

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    @property
    def epoch(self) -> int:
        """From 0."""
        return self._place.epoch if self._order is None else self._order.epoch

    @property
    def finished(self) -> bool:
        """The loop is over because the training is, not because the segment ends."""
        return self._over and (self._complete or not self._leaving)

    @property
    def leaving(self) -> bool:
        """All ranks have agreed to leave after this step; for loops that do not use ``batches``."""
        return self._leaving

    @property
    def time_left(self) -> Optional[float]:
        """Seconds to the planned end of the segment; None without one."""
        return self._stop.time_left()

    def expect(self, steps: int) -> None:
        """How many steps there are in all, for the progress line of loops that do not use ``batches``."""
        self._total = steps

    def batches(
        self, loader: Iterable[Any], *, epochs: Optional[int] = None, steps: Optional[int] = None
    ) -> Iterator[Any]:
        """The batches that are still to be used, until ``epochs`` or ``steps`` are done, counted from the
        very start, or until the ranks leave. Every batch, or every few that belong to one step of the
        optimizer, is followed by ``step()``.

        ``loader``: of ``order.loader()``. Without an order, any other: it is started anew, and its first
        batches are skipped after a restart, which is exact only as far as its own order is.
        """
        if (epochs is None) == (steps is None):
            raise ValueError("batches: give epochs or steps")
        if self._order is not None and getattr(loader, "order", None) is not self._order:
            raise ValueError("batches: take the loader from loader() of the order the Checkpointer has")
        return self._loop(loader, epochs, steps)

    def step(self, **metrics: Any) -> None:
        """A step of the optimizer is done. ``metrics``: numbers for the progress line, as ``loss=loss``.

        Collective: every rank calls it after every step. RuntimeError when state cannot be kept at all.
        """
        now = time.monotonic()
        self.steps_done += 1
        self._settled = self._place
        keeper = self._keeper
        self._interval.step_taken(now - self._step_began, saving=keeper is not None and keeper.busy)
        metrics = {
            name: value.detach() if hasattr(value, "detach") else value for name, value in metrics.items()
        }
        self._voice.step(self.steps_done, self._total, metrics)
        self._trace.step(self.steps_done, self._samples, metrics)
        self._samples = []
        agreed = _Agreed(*self._pending())
        self._io.step(agreed.waited)
        self._voice.line(self._io.news())
        if agreed.failed and keeper is not None:
            keeper.finish()  # raises, on all ranks after the same step
        if agreed.stop:
            self._leave(self._reason or "another rank is to")
        elif self._is_last_step():
            self._leave("step {} is the segment's last".format(self._segment.until_step))
        elif keeper is not None:
            if self._is_due(agreed):
                self._keep(keeper)
            keeper.hear()
        self._pending = self._group.begin_max(self._wishes())
        # What a save held up is a cost of the save, not of the next step.
        self._step_began = time.monotonic()

    def _loop(self, loader: Any, epochs: Optional[int], steps: Optional[int]) -> Iterator[Any]:
        self._over = self._complete = False
        self._total = self._steps_in(loader, epochs) if steps is None else steps
        if self._order is None and epochs is not None:
            length = len(loader) if hasattr(loader, "__len__") else None
            check_equal(self._group, length, "number of batches", _EQUAL_BATCHES, os.environ)
        try:
            while True:
                self._complete = self._is_complete(epochs, steps)
                if self._complete or self._leaving:
                    return
                before, handed = self.steps_done, False
                for batch in self._epoch_of(loader):
                    handed = True
                    yield batch
                    if self._place == self._settled:
                        self._complete = self._is_complete(epochs, steps)
                        if self._complete or self._leaving:
                            return
                if handed and self.steps_done == before:
                    raise RuntimeError("a whole epoch went by without a call of step()")
        finally:
            self._over = True
            self._go_to(self._settled)

    def _epoch_of(self, loader: Any) -> Iterator[Any]:
        """What is left of the epoch; then the place is the start of the next one."""
        order = self._order
        if order is None:
            skipped = self._place.batches
            for place, batch in enumerate(self._io.watched(loader)):
                if place >= skipped:
                    self._place = self._place._replace(batches=place + 1)
                    yield batch
            self._place = _Place(self._place.epoch + 1)
            return
        for (position, keys), batch in zip(order.batches(), self._io.watched(loader)):
            self._samples += [index for _, index in keys]
            self._go_to(_Place(position=position))
            yield batch
        self._go_to(_Place(position=order.next_epoch(order.position)))

    def _is_complete(self, epochs: Optional[int], steps: Optional[int]) -> bool:
        if steps is not None:
            return self.steps_done >= steps
        assert epochs is not None
        order = self._order
        if order is not None and order.after(order.position) is None:
            return order.epoch + 1 >= epochs
        return self.epoch >= epochs

    def _steps_in(self, loader: Any, epochs: Optional[int]) -> Optional[int]:
        """For the progress bar. With several batches to a step it is too many; with a loader that does not
        know its length it is not known."""
        assert epochs is not None
        if self._order is not None:
            return self.steps_done + self._order.steps_until(epochs)
        return epochs * len(loader) if hasattr(loader, "__len__") else None

    def _go_to(self, place: _Place) -> None:
        self._place = place
        if self._order is not None and place.position is not None:
            self._order.position = place.position

    def _is_last_step(self) -> bool:
        return self._segment.until_step is not None and self.steps_done >= self._segment.until_step

    def _leave(self, reason: str) -> None:
        self._leaving = True
        self._voice.say("leaves after step {}: {}".format(self.steps_done, reason))

    def _wishes(self) -> _Agreed:
        needed = self._interval.save_seconds + 2 * self._interval.step_seconds
        self._reason = self._stop.reason(needed)
        keeper = self._keeper
        busy = keeper is not None and keeper.busy
        failed = keeper is not None and keeper.failed
        # Clocks differ between hosts: the leader's alone says when to save.
        due = self.rank == 0 and self._interval.due(time.monotonic(), self._stop.time_left())
        return _Agreed(int(self._reason is not None), int(due), int(busy), int(failed), self._io.took())

    def _is_due(self, agreed: _Agreed) -> bool:
        if self._every_steps is not None:
            return self.steps_done % self._every_steps == 0
        return bool(agreed.save and not agreed.busy)

    def _keep(self, keeper: Keeper) -> None:
        run: Dict[str, Any] = {"epoch": self._settled.epoch, "batches": self._settled.batches}
        samples = self._order.position.samples if self._order is not None else None
        keeper.keep(self.steps_done, run, samples)
        self._trace.state(self.steps_done, self._components)

    def _restore(self, keeper: Keeper) -> None:
        run = keeper.restore()
        if run is None:
            return
        self.steps_done = self.restored_step = keeper.kept_step or 0
        order = self._order
        if order is not None and order.batch_size_before != order.batch_size:
            self._voice.say(
                "not bit-identical: steps of {} samples before, of {} now".format(
                    order.batch_size_before, order.batch_size
                )
            )
        self._settled = self._place = _Place(run["epoch"], run["batches"])
        if self._is_last_step():  # an attempt before this one has kept it, and was lost after that
            self._leave("step {} is the segment's last".format(self._segment.until_step))

    def _close(self) -> None:
        """Everything is kept and the outcome is written when this returns."""
        self._io.rest(_Agreed(*self._pending()).waited)
        self._voice.line(self._io.news(last=True))
        self._trace.closing(self.steps_done, self._components)
        keeper = self._keeper
        if keeper is None:
            return
        # What became of the save before has to be known by all ranks alike before they go on to the last one.
        step = keeper.finish()
        if keeper.kept_step != self.steps_done:
            self._keep(keeper)
            step = keeper.finish()
        ended = self._complete or not self._leaving
        keeper.write_outcome(FINISHED if ended else CONTINUE, step)
