"""Run: a launched plan, which any client can follow. It stores no state: all state comes from the
services."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from smlaunch.contract.run_names import JobName
from smlaunch.errors import JobError, Problem, SmlaunchError
from smlaunch.runs.call_errors import translate_call_errors
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.job_poller import Event, LogLine, StateChange
from smlaunch.runs.launch_target import Target
from smlaunch.runs.missing_files import add_missing_file_hint
from smlaunch.runs.progress_estimate import ProgressTracker
from smlaunch.runs.run_driver import RunDriver, SleepFunction
from smlaunch.runs.run_observation import RunObservation
from smlaunch.runs.run_outcome import RunOutcome, count_jobs, summarize_run
from smlaunch.runs.submit_job import stop_job

if TYPE_CHECKING:
    from smlaunch.runs.chain_driver import ChainDriver
    from smlaunch.runs.metric_table import MetricTable
    from smlaunch.runs.notebook_card import NotebookCard


class RunJobs(Protocol):
    """What a run consists of: a ``JobList``, or a ``ShardGroup``. Raises CallError."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the known jobs, oldest first."""

    def outcome(self, *, reads_logs: bool = False, follower: JobFollower | None = None) -> RunOutcome:
        """Return the outcome as far as the jobs themselves decide it. ``reads_logs`` adds the last metrics
        and a failure's traceback; ``follower`` has newer facts about its job."""

    def to_follow(self, followed: Collection[str], from_first_job: bool = False) -> tuple[str, ...]:
        """Return which known jobs or shards to follow together after the ``followed`` ones; none if there are
        no others. Makes no request."""

    def follower(
        self, names: Sequence[str], progress: ProgressTracker, from_first_job: bool = False
    ) -> JobFollower: ...

    def host_count(self) -> int: ...

    def logs(self) -> Iterator[LogLine]: ...


class _WaitCancelled(Exception):
    """Whoever waited does so no longer."""


class _WaitLimit:
    """When a caller stops waiting: ``timeout`` seconds from now, when ``cancelled`` is set, or never."""

    def __init__(self, timeout: float | None = None, cancelled: threading.Event | None = None) -> None:
        if timeout is not None and (not isinstance(timeout, (int, float)) or math.isnan(timeout)):
            text = f"seconds for timeout are needed, or None, not {timeout!r:.60}: timeout=60"
            raise JobError([Problem("", text)])
        self.timeout = timeout
        self._at_monotonic = None if timeout is None else time.monotonic() + timeout
        self._cancelled = cancelled or threading.Event()

    def has_passed(self) -> bool:
        """Return whether the time is over. Raises _WaitCancelled once the wait is cancelled, so that it ends
        without the job that a timeout submits first."""
        if self._cancelled.is_set():
            raise _WaitCancelled
        return self._at_monotonic is not None and time.monotonic() >= self._at_monotonic

    def sleep(self, seconds: float) -> bool:
        """Sleep, at most until the limit, and return whether the time is over."""
        if self._at_monotonic is not None:
            seconds = max(0.0, min(seconds, self._at_monotonic - time.monotonic()))
        self._cancelled.wait(seconds)
        return self.has_passed()


class Run:
    """A run of a job: a single training job, a chain of them, or one of either for each shard of the data.

    ``status``, ``done`` and ``describe`` say how the run is now. ``wait`` follows it to its end; ``result``
    and ``exception`` do so too, and judge how it ended. A run that was launched here is driven to its end
    meanwhile. A run that was attached to is only followed, until ``resume``.

    With a ``timeout``, in seconds, these three raise TimeoutError, as a ``concurrent.futures.Future`` does,
    and the run goes on. It is checked between two requests to the service, and each call first submits the
    job that is due of a run that it drives, so that calls with ``timeout=0`` in a loop drive it too.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        jobs: RunJobs,
        find_driver: Callable[[], RunDriver],
        *,
        attached: bool = False,
    ) -> None:
        self.name = name
        self.target = target
        self.attached = attached
        """The run existed before this call."""
        self._jobs = jobs
        self._find_driver = find_driver
        self._last_status = "attached" if attached else "launched"
        """As it was read last."""
        self._observation = RunObservation()
        self._final_metrics: MetricTable | None = None
        self._jobs_of_final_metrics: tuple[str, ...] = ()
        """With another job, one that has continued the run, the metrics are no longer the final ones."""

    def __repr__(self) -> str:
        """Return one line, with the status as it was read last. Makes no request."""
        return f"Run({self.name!r}, {self._last_status}, {count_jobs(self.jobs)}, {self.target.short_name})"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: it holds connections, and all its state is at the service."""
        raise TypeError(
            "a Run cannot be pickled or copied; take its name, and "
            f"smlaunch.attach({self.name!r}, {self.target.python_call})"
        )

    @cached_property
    def _driver(self) -> RunDriver:
        """Found when needed: for a run that was attached to, that takes requests."""
        with translate_call_errors(self.target):
            return self._find_driver()

    def _repr_html_(self) -> str:
        """Return the run's card for a notebook's cell, with what is known already. Makes no request."""
        from smlaunch.render.run_card import run_card_as_html

        card = self._observation.card(self.name, self.target, self.jobs, is_attached=self.attached)
        return run_card_as_html(card)

    def _notebook_card(self) -> AbstractContextManager[NotebookCard | None]:
        """Return a context in which a notebook's cell shows the card; None outside of notebooks."""
        if "IPython" not in sys.modules:
            return nullcontext()
        from smlaunch.runs.notebook_card import find_notebook_card

        return find_notebook_card(self, self._observation)

    @property
    def jobs(self) -> tuple[str, ...]:
        """Names of the run's known training jobs, oldest first. Makes no request."""
        return self._jobs.names

    @property
    def chain_drivers(self) -> Sequence[ChainDriver]:
        """The drivers of a chain, or of each shard's; none for a single job or an orchestrator's run, which
        cannot be resumed."""
        return self._driver.chain_drivers

    def segment_of(self, job: str) -> tuple[JobName, int | None] | None:
        """Return segment and attempt of a job and the number of planned segments, None where that is not
        known. Returns None for a run of a single job."""
        return self._driver.segment_of(job)

    @property
    def status(self) -> str:
        """The run's status now, in the words of TrainingJobStatus."""
        return self._observe().status

    def done(self) -> bool:
        """Return whether the run has ended: its newest job has, and no further one follows."""
        return self._observe().exit_code is not None

    def describe(self, *, reads_logs: bool = False) -> RunOutcome:
        """Return the run's current state.

        ``reads_logs`` adds its last metrics and a failure's complete traceback. That takes a few requests
        more, however long the log is.
        """
        return self._observe(reads_checkpoints=True, reads_logs=reads_logs)

    def _observe(self, *, reads_checkpoints: bool = False, reads_logs: bool = False) -> RunOutcome:
        driver = self._driver
        with translate_call_errors(self.target):
            driver.observe(reads_checkpoints=reads_checkpoints)
            outcome = driver.add_result(self._jobs.outcome(reads_logs=reads_logs))
        if outcome.jobs:  # a shard may have none yet
            self._last_status = outcome.status
            self._observation.keep_outcome(outcome, has_logs=reads_logs)
        return outcome

    def outcome_from(self, follower: JobFollower) -> RunOutcome:
        """Return the run's state from what a follower has already read."""
        return self._driver.add_result(self._jobs.outcome(follower=follower))

    def host_count(self) -> int:
        """Return the number of hosts of the newest job, or of shards."""
        with translate_call_errors(self.target):
            return self._jobs.host_count()

    def follow(
        self, sleep: SleepFunction = time.sleep, *, from_first_job: bool = False
    ) -> Iterator[JobFollower]:
        """Yield a follower (which reads a job's state and log) for each training job of this run, one after
        the other, and submit the next jobs if the run is driven here. One follower follows shards together.

        The caller follows each job to its end before it takes the next one. ``from_first_job`` begins with
        the run's first job and not with the newest. Ends with the run, when ``sleep`` returns True, or when
        the caller has left a follower early. Raises CallError, which ``wait`` translates.
        """
        progress_of_all_jobs = ProgressTracker()
        followed: set[str] = set()
        # Of a run that existed before, others may have submitted jobs: its driver finds the newest.
        begins_with_driver = self.attached and not from_first_job
        names = () if begins_with_driver else self._jobs.to_follow(followed, from_first_job)
        while True:
            names = names or self._driver.wait_for_next_jobs(sleep, followed)
            if not names:  # the run has ended
                return
            if followed.issuperset(names):  # it still runs, though its follower has seen its end
                return
            followed.update(names)
            follower = self._jobs.follower(names, progress_of_all_jobs, from_first_job)
            yield follower
            if not follower.is_finished:
                return
            names = self._jobs.to_follow(followed)

    def wait(
        self, on_event: Callable[[Event], None] | None = None, timeout: float | None = None
    ) -> RunOutcome:
        """Follow the run to its end, submit its further jobs if it was launched here or resumed, and return
        its outcome with the last metrics, however it ended.

        ``on_event`` receives every state change, log line and warning; without it, a notebook's cell shows
        the run's card, which is updated meanwhile. What the run waits for between two jobs, such as a client
        that submits the next one, is a message: see ``on_message`` of ``attach``. Raises TimeoutError if the
        run has not ended after ``timeout`` seconds.
        """
        return self._wait(on_event, _WaitLimit(timeout))

    def _wait(self, on_event: Callable[[Event], None] | None, limit: _WaitLimit) -> RunOutcome:
        with nullcontext() if on_event is not None else self._notebook_card() as card:
            return self._follow_to_end(on_event, card, limit)

    def _follow_to_end(
        self, on_event: Callable[[Event], None] | None, card: NotebookCard | None, limit: _WaitLimit
    ) -> RunOutcome:
        with translate_call_errors(self.target):  # a CallError becomes a ServiceError, for example
            for follower in self.follow(limit.sleep):  # one for each job
                for events in follower.event_batches(limit.sleep):
                    for event in events:
                        if on_event is not None:
                            on_event(event)
                    if any(isinstance(event, StateChange) for event in events):
                        self._keep_status(follower)
                    if card is not None:
                        card.show_events(events, follower)
                    if limit.has_passed():
                        break
                if limit.has_passed():
                    break
            if limit.has_passed():  # perhaps before the next job was due
                for driver in self.chain_drivers:
                    if driver.is_driving:
                        driver.wait_for_next_job(lambda _: True)
        outcome = self.describe(reads_logs=True)
        if outcome.exit_code is None and limit.has_passed():
            # With a hint, nothing goes on before somebody does what it says.
            state = f"{summarize_run(outcome)}; {outcome.hint}" if outcome.hint else summarize_run(outcome)
            goes_on = "" if outcome.hint else ", and goes on"
            raise TimeoutError(f"run {self.name} has not ended after {limit.timeout:g} s{goes_on}: {state}")
        # The hint is about a file that was not uploaded and that the script misses.
        outcome = add_missing_file_hint(outcome, self.target)
        self._observation.keep_outcome(outcome, has_logs=True)
        return outcome

    def _keep_status(self, follower: JobFollower) -> None:
        """Keep the status that a follower has read, for this run's one line."""
        if follower.job in self.jobs:
            self._last_status = self.outcome_from(follower).status
        elif not follower.is_finished:  # shards, whose outcome would take requests
            self._last_status = "InProgress"

    def result(self, timeout: float | None = None) -> RunOutcome:
        """Wait for the run's end, and return its outcome if it completed.

        Raises the run's exception otherwise: TrainingFailed, StoppedByUser, LimitReached, ServiceError or
        MachineError. Raises TimeoutError if the run has not ended after ``timeout`` seconds.
        """
        return _require_completed(self.wait(timeout=timeout))

    def exception(self, timeout: float | None = None) -> SmlaunchError | None:
        """Wait for the run's end, and return the exception that ``result`` raises; None for a completed
        run. Raises TimeoutError if the run has not ended after ``timeout`` seconds."""
        return self.wait(timeout=timeout).error

    def resume(self) -> None:
        """Continue the run, also after a stop or a failure: ``wait`` drives it from now on. Starts nothing
        yet.

        Raises JobError for a single job that was stopped or has failed, because no job can follow it, and for
        a run that an orchestrator drives, which alone can continue it.
        """
        driver = self._driver
        with translate_call_errors(self.target):
            driver.resume()

    def logs(self) -> Iterator[LogLine]:
        """Yield all log lines that this run's hosts have written so far, host by host, without waiting for
        more."""
        with translate_call_errors(self.target):
            yield from self._jobs.logs()

    @property
    def metrics(self) -> MetricTable:
        """The metrics that the first rank, or that of each shard, has reported so far, as a table.

        Reads the run's whole log, once more each time until the run has ended.
        """
        from smlaunch.runs.metric_table import build_metric_table

        outcome = self._observe()
        is_final = outcome.exit_code is not None and self._has_settled(outcome)
        if is_final and self._final_metrics is not None and self._jobs_of_final_metrics == self.jobs:
            return self._final_metrics
        table = build_metric_table(self.logs())
        if is_final:
            self._final_metrics, self._jobs_of_final_metrics = table, self.jobs
        return table

    def _has_settled(self, outcome: RunOutcome) -> bool:
        """Return whether the jobs ended so long ago that their logs are complete."""
        settled_at = time.time() - self.target.polling.settle_seconds
        return all(job.ended is not None and job.ended <= settled_at for job in outcome.jobs)

    def __await__(self) -> Generator[Any, None, RunOutcome]:
        """Wait as ``result`` does, in a thread, so that other tasks go on: ``outcome = await run``.

        When the task is cancelled, also by a timeout, nothing is followed and submitted any more, apart from
        the request under way. The run goes on.
        """
        from smlaunch.runs.awaited_run import await_in_thread

        return await_in_thread(
            lambda cancelled: _require_completed(self._wait(None, _WaitLimit(cancelled=cancelled)))
        )

    def stop(self) -> RunOutcome:
        """Ask the run to stop, and return its state at once. Hosts get SIGTERM and 120 seconds, and no
        further job starts.

        Does nothing to a run that has ended. Stops the known jobs also where the run's workflow is damaged,
        and raises the error about that. Raises JobError where an orchestrator drives the run, no job
        runs, and the execution cannot be stopped from here.
        """
        try:
            outcome = self.describe()
        except SmlaunchError:
            # What drives the run cannot be read. At least none of its jobs runs on.
            with translate_call_errors(self.target):
                for job in self.jobs:
                    stop_job(job, self.target.control_plane)
            raise
        if outcome.exit_code is not None:
            return outcome
        with translate_call_errors(self.target):
            self._driver.stop(outcome)
        return self.describe()


def _require_completed(outcome: RunOutcome) -> RunOutcome:
    """Return the outcome of a completed run. Raises the exception of any other."""
    if outcome.error is not None:  # None for a completed run
        raise outcome.error
    return outcome
