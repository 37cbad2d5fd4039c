"""Which steps a host's ranks report in progress lines: what a chain goes by when it looks for progress."""

from typing import Optional


class Reported:
    """``before``: the highest step that jobs before had reported. ``highest``: that these ranks have, None
    when they have reported none.
    """

    def __init__(self, before: int = -1) -> None:
        self._before = before
        self._further = 0
        self._again = 0
        self.highest: Optional[int] = None

    def hear(self, step: int) -> None:
        self.highest = step if self.highest is None else max(step, self.highest)
        if step > self._before:
            self._further += 1
        else:
            self._again += 1

    @property
    def repeats(self) -> bool:
        """More lines told of steps that had been reported before than of further ones. Ranks that go on from
        a checkpoint go again through fewer steps than they add; those that begin anew may get a little
        further than the ones before on a machine that is quicker at the moment, and their work is lost all
        the same.
        """
        return self._again > self._further
