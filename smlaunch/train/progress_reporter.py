"""What a training prints: the progress line, and messages about its checkpoints. Rank 0 only."""

import sys
from typing import Any, Dict, Mapping, Optional, Tuple

from smlaunch.contract.progress_line import PROGRESS_KIND, format_line


class ProgressReporter:
    def __init__(self, is_enabled: bool) -> None:
        self._is_enabled = is_enabled
        self._pending_step: Optional[Tuple[int, int, Mapping[str, Any]]] = None

    def print_message(self, message: str) -> None:
        if self._is_enabled:
            print("smlaunch.train: " + message, flush=True)

    def print_line(self, line: Optional[str]) -> None:
        """Print a finished line of the progress protocol; nothing for None."""
        if self._is_enabled and line is not None:
            self.flush()
            print(line, flush=True)

    def report_step(self, step: int, steps: Optional[int], metrics: Mapping[str, Any]) -> None:
        """Print one line per step. A number that is still being computed on a GPU is printed one step later,
        when reading it does not delay the next step."""
        if not self._is_enabled:
            return
        self.flush()
        self._pending_step = (step, steps or 0, metrics)
        if not any(getattr(value, "is_cuda", False) for value in metrics.values()):
            self.flush()

    def flush(self) -> None:
        """Print the pending step's line, if there is one."""
        if self._pending_step is None:
            return
        step, steps, metrics = self._pending_step
        self._pending_step = None
        values: Dict[str, Any] = {"step": step}
        if steps:  # of the whole training, if it is known
            values["steps"] = steps
        values.update({name: "{:.6g}".format(float(value)) for name, value in metrics.items()})
        print(format_line(PROGRESS_KIND, **values), file=sys.stdout, flush=True)
