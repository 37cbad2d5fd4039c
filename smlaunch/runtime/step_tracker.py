"""The steps that a host's ranks report in progress lines: a chain uses them to detect progress."""

from typing import Optional


class StepTracker:
    """Records the steps of progress lines."""

    def __init__(self, previous_highest: int = -1) -> None:
        """``previous_highest``: the highest step that earlier jobs of the run had reported."""
        self._previous_highest = previous_highest
        self._new_steps = 0
        self._repeated_steps = 0
        self.highest_step: Optional[int] = None
        """The highest reported step; None before the first one."""
        self.has_reached_last_step = False
        """The last line reported the last step of the training."""
        self.is_before_last_step = False
        """The last line reported a step before the last one, whether steps are counted from 1 or from 0."""
        self.knows_total_steps = False
        """The last line had the number of steps of the whole training."""
        self.repeated_whole_training = False
        """The last step has been reported, by this job and by one before it."""

    def record_step(self, step: int, total_steps: Optional[int] = None) -> None:
        """Record the step of a rank's progress line. ``total_steps``: steps of the whole training; None where
        the line does not give them."""
        self.has_reached_last_step = total_steps is not None and 0 < total_steps <= step
        self.is_before_last_step = total_steps is not None and step < total_steps - 1
        self.knows_total_steps = total_steps is not None
        self.repeated_whole_training = self.has_reached_last_step and self._previous_highest >= step
        self.highest_step = step if self.highest_step is None else max(step, self.highest_step)
        if step > self._previous_highest:
            self._new_steps += 1
        else:
            self._repeated_steps += 1

    @property
    def mostly_repeated_steps(self) -> bool:
        """Whether most lines were about steps that had been reported before. Ranks that resume from a
        checkpoint repeat fewer steps than they add. Ranks that start again from zero may get slightly
        further than the previous job on a machine that is faster at the moment, and their work is lost all
        the same.
        """
        return self._repeated_steps > self._new_steps
