"""Which steps a running segment may delete: decided from numbers and times, without files."""

from typing import Callable, Dict, Iterable, List, Set


class RetentionPolicy:
    """The steps one job has committed, and when. Only these may be deleted from inside the job.

    A delete in the directory is repeated in S3, where the newer steps may not have arrived yet. So a step
    counts only ``settle_seconds`` after its commit; with a save every minute and five minutes to settle, the
    directory holds ``keep_last`` steps and five more.
    """

    def __init__(self, keep_last: int, settle_seconds: float, clock: Callable[[], float]) -> None:
        """``keep_last``: at least 1. ``clock`` gives seconds."""
        if keep_last < 1:
            raise ValueError("keep: at least 1 checkpoint, not {}".format(keep_last))
        self._keep_last = keep_last
        self._settle_seconds = settle_seconds
        self._clock = clock
        self._committed_at_by_step: Dict[int, float] = {}
        """By the clock; of a step that was found, when it was found."""
        self._written_steps: Set[int] = set()

    def add_found_steps(self, steps: Iterable[int]) -> None:
        """Add steps that existed before anything was written: their age is unknown, so they settle from now
        on."""
        if not self._written_steps:
            for step in steps:
                self._committed_at_by_step.setdefault(step, self._clock())

    def add_written_step(self, step: int) -> None:
        """Add a step that may have files. If it is never committed, it is deleted with the older steps.

        Later steps that were found at the start could not be loaded: they do not count.
        """
        self._written_steps.add(step)
        self._committed_at_by_step = {
            found_step: committed_at
            for found_step, committed_at in self._committed_at_by_step.items()
            if found_step <= step
        }

    def add_committed_step(self, step: int) -> None:
        """Add a step that is committed now; also one that is saved a second time after a restart."""
        self._committed_at_by_step[step] = self._clock()

    def forget_step(self, step: int) -> None:
        self._committed_at_by_step.pop(step, None)
        self._written_steps.discard(step)

    def steps_to_delete(self, protected: Iterable[int] = ()) -> List[int]:
        """Return the steps that may be deleted, oldest first: those before the newest ``keep_last`` committed
        steps that have had time to reach S3 (settled). ``protected``: steps to retain in any case."""
        now = self._clock()
        settled_steps = sorted(
            step
            for step, committed_at in self._committed_at_by_step.items()
            if now - committed_at >= self._settle_seconds
        )
        if len(settled_steps) <= self._keep_last:
            return []
        oldest_retained_step = settled_steps[-self._keep_last]
        existing_steps = self._written_steps.union(self._committed_at_by_step)
        older_steps = sorted(step for step in existing_steps if step < oldest_retained_step)
        protected_steps = set(protected)
        return [step for step in older_steps if step not in protected_steps]
