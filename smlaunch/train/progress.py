"""What a training says while it runs: the progress line, and sentences about its checkpoints. Rank 0 only."""

import sys
from typing import Any, Dict, Mapping, Optional, Tuple

from smlaunch.protocol.progress import PROGRESS, format_line


class Voice:
    def __init__(self, speaks: bool) -> None:
        self._speaks = speaks
        self._held: Optional[Tuple[int, int, Mapping[str, Any]]] = None

    def say(self, sentence: str) -> None:
        if self._speaks:
            print("smlaunch.train: " + sentence, flush=True)

    def line(self, line: Optional[str]) -> None:
        """A line of the protocol that is ready to be printed; None: nothing."""
        if self._speaks and line is not None:
            self.flush()
            print(line, flush=True)

    def step(self, step: int, steps: Optional[int], metrics: Mapping[str, Any]) -> None:
        """One line per step. A number that is still being computed on a GPU is told one step later, when
        reading it does not hold the next step up."""
        if not self._speaks:
            return
        self.flush()
        self._held = (step, steps or 0, metrics)
        if not any(getattr(value, "is_cuda", False) for value in metrics.values()):
            self.flush()

    def flush(self) -> None:
        if self._held is None:
            return
        step, steps, metrics = self._held
        self._held = None
        values: Dict[str, Any] = {"step": step, **({"steps": steps} if steps else {})}
        values.update({name: "{:.6g}".format(float(value)) for name, value in metrics.items()})
        print(format_line(PROGRESS, **values), file=sys.stdout, flush=True)
