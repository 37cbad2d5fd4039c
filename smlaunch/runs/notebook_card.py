"""The card of a run in a notebook's cell, updated in its place while the run is followed.

IPython is not imported: a program runs in a notebook only if IPython is there already.
"""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.job_poller import Event
from smlaunch.runs.run_observation import RunObservation

if TYPE_CHECKING:
    from smlaunch.runs.run import Run

_MIN_SECONDS, _MAX_SECONDS = 1.0, 60.0
"""Between two updates."""

_UPDATES_OF_A_LONG_RUN = 600
"""The time between two updates is this part of the time so far: while nobody looks at the notebook, its
server keeps all updates."""


def find_notebook_card(run: Run, observation: RunObservation) -> AbstractContextManager[NotebookCard | None]:
    """Return a card for the cell that is running, if this program is the kernel of a notebook. Elsewhere,
    such as in IPython on a terminal, nothing that was shown can be updated: then the context has None."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_shell() if callable(get_shell) else None
    if not hasattr(shell, "kernel") or not hasattr(shell, "display_pub"):
        return nullcontext()
    return NotebookCard(shell, run, observation)


class NotebookCard:
    """The card in one output of a cell, from the beginning of a ``with`` block to its end. An error of the
    display ends the display, and not what the program does."""

    def __init__(
        self, shell: Any, run: Run, observation: RunObservation, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shell: Any | None = shell
        """None after an error."""
        self._run = run
        self._observation = observation
        self._clock = clock
        self._display_id = uuid.uuid4().hex
        self._shown_since: float | None = None
        self._next_update_at = 0.0

    def __enter__(self) -> NotebookCard:
        self._try(self._show)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._try(self._show)

    def show_events(self, events: Sequence[Event], follower: JobFollower) -> None:
        """Add what the follower has read to the card, and show it unless it was shown a moment ago."""
        self._try(lambda: self._add_events(events, follower))

    def _add_events(self, events: Sequence[Event], follower: JobFollower) -> None:
        follows_one_job = follower.job in self._run.jobs
        self._observation.add_events(events, follower, follows_one_job=follows_one_job)
        if self._clock() < self._next_update_at and not follower.is_finished:
            return
        # The state of shards would have to be requested.
        if follows_one_job and follower.is_described:
            self._observation.keep_outcome(self._run.outcome_from(follower), has_logs=True)
        self._show()

    def _show(self) -> None:
        assert self._shell is not None
        now = self._clock()
        is_first = self._shown_since is None
        if self._shown_since is None:
            self._shown_since = now
        pause = (now - self._shown_since) / _UPDATES_OF_A_LONG_RUN
        self._next_update_at = now + min(max(_MIN_SECONDS, pause), _MAX_SECONDS)
        self._shell.display_pub.publish(
            data={"text/html": self._run._repr_html_(), "text/plain": repr(self._run)},
            metadata={},
            transient={"display_id": self._display_id},
            update=not is_first,
        )

    def _try(self, step: Callable[[], None]) -> None:
        if self._shell is None:
            return
        try:
            step()
        except Exception as error:
            self._shell = None
            logging.getLogger("smlaunch").warning("the run's card is not shown any more: %s", error)
