"""Which steps a running segment may delete: a decision about numbers and times, without files."""

from typing import Callable, Dict, Iterable, List, Set


class Kept:
    """The steps one job has committed, and when. Only they are ever deleted from inside the job.

    A delete in the directory is repeated in S3, where the steps that are to take the place of the deleted one
    may not have arrived. A step counts only ``settle_seconds`` after its commit; with a save every minute and
    five minutes to settle, the directory thus holds ``keep`` steps and five more.
    """

    def __init__(self, keep: int, settle_seconds: float, clock: Callable[[], float]) -> None:
        """``keep``: at least 1. ``clock`` gives seconds."""
        if keep < 1:
            raise ValueError("keep: at least one checkpoint has to be kept, not {}".format(keep))
        self._keep = keep
        self._settle_seconds = settle_seconds
        self._clock = clock
        self._since: Dict[int, float] = {}
        self._written: Set[int] = set()

    def found(self, steps: Iterable[int]) -> None:
        """Steps that were there before anything was written: nobody knows since when, so they settle from
        now on."""
        if not self._written:
            for step in steps:
                self._since.setdefault(step, self._clock())

    def written(self, step: int) -> None:
        """Something of it may be there; when it is never committed, that goes with the older steps.

        Steps beyond it that were found at the start could not be loaded: they take nobody's place.
        """
        self._written.add(step)
        self._since = {found: since for found, since in self._since.items() if found <= step}

    def committed(self, step: int) -> None:
        """Again, when a step was saved a second time after a restart."""
        self._since[step] = self._clock()

    def deleted(self, step: int) -> None:
        self._since.pop(step, None)
        self._written.discard(step)

    def to_delete(self, protected: Iterable[int] = ()) -> List[int]:
        """Oldest first."""
        now = self._clock()
        settled = sorted(step for step, since in self._since.items() if now - since >= self._settle_seconds)
        if len(settled) <= self._keep:
            return []
        oldest_kept = settled[-self._keep]
        spared = set(protected)
        there = self._written.union(self._since)
        return [step for step in sorted(there) if step < oldest_kept and step not in spared]
