"""Run: a launched plan, which any client can follow. It stores no state: all state comes from the
services."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from html import escape
from itertools import islice
from typing import Any, NamedTuple

from smlaunch.aws.interfaces import CallError, JobSummary
from smlaunch.aws.retry import call_with_retries, user_error
from smlaunch.contract.formats import FormatError
from smlaunch.contract.names import JobName, is_run_id, parse_any_job_name, parse_job_name
from smlaunch.errors import JobError, Problem, SmlaunchError
from smlaunch.planner.external_execution import describe_driver
from smlaunch.planner.reconcile import Finish
from smlaunch.runs.chain_driver import ChainDriver, SleepFunction
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.job_poller import TERMINAL_STATUSES, Event, LogLine, host_count, host_of_stream, log_group
from smlaunch.runs.missing_files import add_missing_file_hint
from smlaunch.runs.outcome import RunOutcome, job_outcome
from smlaunch.runs.progress import ProgressTracker
from smlaunch.runs.run_format import check_format, unreadable_formats
from smlaunch.runs.run_state import RunFolder, external_run_name
from smlaunch.runs.submit import stop_job
from smlaunch.runs.target import Target
from smlaunch.text.did_you_mean import nearest_match

_MAX_JOBS_FOR_SUGGESTION = 200
"""Jobs that are searched for a name similar to an unknown one."""

_PARALLEL_DESCRIPTIONS = 8


@contextmanager
def translate_call_errors(target: Target) -> Iterator[None]:
    """Turn a CallError into the error that the user sees."""
    try:
        yield
    except CallError as error:
        raise user_error(error, target.location) from error
    except FormatError as error:
        raise JobError([Problem("", str(error))]) from error


class Run:
    """A run of a job: a single training job, or a chain of them.

    A run that was launched here is driven to its end by ``wait`` and ``follow``. A run that was attached to
    is only followed, until ``resume``.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        jobs: Sequence[str],
        *,
        attached: bool = False,
        chain_driver: ChainDriver | None = None,
        on_message: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self.target = target
        self.attached = attached
        """The run existed before this call."""
        self._jobs = list(jobs)
        self._on_message = on_message
        self._chain_driver = chain_driver
        # A run that was launched here has its chain driver, if any; for others it is searched when needed.
        self._chain_is_known = chain_driver is not None or not attached
        self._first_description: Mapping[str, Any] | None = None

    @classmethod
    def attach(
        cls, name: str, target: Target | None = None, on_message: Callable[[str], None] | None = None
    ) -> Run:
        """Find a run by its id or its execution's ARN, or any training job by its name.

        ``on_message`` receives sentences about what happens while the run is followed. Raises JobError when
        there is no such run.
        """
        target = target or Target.region()
        name_or_arn = name
        if name.startswith("arn:"):
            name = name.replace("/", ":").rpartition(":")[2]
        with translate_call_errors(target):
            parsed_and_full_names = sorted(
                (parsed_name, summary.name)
                for summary in (target.control.list(f"{name}-s") if is_run_id(name) else ())
                if (parsed_name := parse_job_name(summary.name)) is not None and parsed_name.run == name
            )
            if not parsed_and_full_names and is_run_id(name):
                # These modules import this one.
                from smlaunch.runs.external_run import attach_external_run
                from smlaunch.runs.sharded_run import attach_sharded_run

                group_run = attach_sharded_run(name, target, on_message) or attach_external_run(
                    name, target, on_message, []
                )
                if group_run is not None:
                    return group_run
            job_names = [job for _, job in parsed_and_full_names] or [name]
            try:
                newest_description = call_with_retries(partial(target.control.describe, job_names[-1]))
            except CallError as error:
                if error.code not in ("ValidationException", "ResourceNotFound"):
                    raise
                raise _unknown_run_error(name_or_arn, name, target) from error
            newest_parsed_name = parse_job_name(job_names[-1])
            check_format(
                newest_description, newest_parsed_name.run if newest_parsed_name else name, target.control
            )
            target.bucket_owners.add_from_environment(newest_description.get("Environment", {}))
            external_name = external_run_name(newest_description)
            if external_name is not None:
                from smlaunch.runs.external_run import attach_external_run

                external_run = attach_external_run(
                    external_name, target, on_message, job_names if parsed_and_full_names else None
                )
                if external_run is not None:
                    return external_run
            run = cls(
                newest_parsed_name.run if newest_parsed_name else name,
                target,
                job_names,
                attached=True,
                on_message=on_message,
            )
            run._first_description = newest_description
            return run

    def _repr_html_(self) -> str:
        """Return the run's place and jobs for a notebook's cell. Makes no request."""
        rows = {"run": self.name, "where": self.target.location, "jobs": ", ".join(self._jobs)}
        lines = "".join(f"<tr><th>{key}</th><td>{escape(text)}</td></tr>" for key, text in rows.items())
        state = "attached to it" if self.attached else "launched"
        return f"<div><p>{state}; <code>run.wait()</code> follows it</p><table>{lines}</table></div>"

    @property
    def jobs(self) -> tuple[str, ...]:
        """Names of the run's known training jobs, oldest first."""
        return tuple(self._jobs)

    @property
    def chain_driver(self) -> ChainDriver | None:
        """The driver of a chain; None for a single job."""
        if not self._chain_is_known:
            with translate_call_errors(self.target):
                self._chain_driver = self._find_chain_driver()
            self._chain_is_known = True
        return self._chain_driver

    @property
    def is_resumable(self) -> bool:
        """Whether another job can follow a stopped one."""
        return self.chain_driver is not None

    @property
    def is_driver(self) -> bool:
        """Whether this object submits the run's next jobs."""
        return self._chain_driver is not None and self._chain_driver.is_driving

    def segment_of(self, job: str) -> tuple[JobName, int | None] | None:
        """Return segment and attempt of a job and the number of planned segments, None where that is not
        known. Returns None for a run of a single job."""
        driver, task = self.chain_driver, parse_job_name(job)
        if driver is None or task is None or driver.workflow.is_single_job:
            return None
        return task, driver.workflow.segment_count

    def done(self) -> bool:
        """Return whether the newest job has ended and no further job follows."""
        driver = self.chain_driver
        return driver is None or isinstance(driver.choose_action(), Finish)

    def describe(self) -> RunOutcome:
        """Return the run's current state."""
        driver = self.chain_driver
        with translate_call_errors(self.target):
            if driver is None:
                describe = self.target.control.describe
                outcomes = [job_outcome(call_with_retries(partial(describe, job))) for job in self._jobs]
                return RunOutcome(self.name, tuple(outcomes))
            driver.choose_action(reads_checkpoints=True)
        return self._outcome_of_chain(driver)

    def refresh(self) -> RunOutcome:
        """Return the run's current state with its last metrics and a failure's complete traceback.

        Makes a few requests more than ``describe``, however long the log is.
        """
        driver = self.chain_driver
        follower = JobFollower(self.target, self._jobs[-1])
        with translate_call_errors(self.target):
            if driver is not None:
                driver.choose_action(reads_checkpoints=True)
                follower = JobFollower(
                    self.target, driver.job_history.known_descriptions[-1]["TrainingJobName"]
                )
            follower.refresh()
            if driver is not None:
                return self._outcome_of_chain(driver, follower)
            describe = self.target.control.describe
            earlier = [job_outcome(call_with_retries(partial(describe, job))) for job in self._jobs[:-1]]
        return RunOutcome(self.name, (*earlier, follower.outcome()))

    def outcome_from(self, follower: JobFollower) -> RunOutcome:
        """Return the run's state from what a follower has already read, without a request."""
        if self._chain_driver is None:
            return RunOutcome(self.name, (follower.outcome(),))
        return self._outcome_of_chain(self._chain_driver, follower)

    def host_count(self) -> int:
        """Return the number of hosts of the newest job."""
        with translate_call_errors(self.target):
            return host_count(call_with_retries(partial(self.target.control.describe, self._jobs[-1])))

    def follow(
        self, sleep: SleepFunction = time.sleep, *, from_first_job: bool = False
    ) -> Iterator[JobFollower]:
        """Yield a follower for one job after the other, and submit the next jobs if the run is driven here.

        The caller follows each job to its end before it takes the next one. ``from_first_job`` begins with
        the run's first job and not with the newest. Ends with the run, or when ``sleep`` returns True. Raises
        CallError, which ``wait`` translates.
        """
        progress = ProgressTracker()
        followed_jobs: set[str] = set()
        driver = None if from_first_job or not self.attached else self.chain_driver
        if driver is None:
            for job in self._jobs if from_first_job else self._jobs[-1:]:
                followed_jobs.add(job)
                yield JobFollower(self.target, job, progress)
        driver = self.chain_driver
        while driver is not None and (task_name := driver.next_job(sleep)) is not None:
            job = str(task_name)
            if job in followed_jobs:  # its follower was left before the job's end
                return
            followed_jobs.add(job)
            if job not in self._jobs:
                self._jobs.append(job)
            yield JobFollower(self.target, job, progress)

    def wait(self, on_event: Callable[[Event], None] | None = None) -> RunOutcome:
        """Follow the run to its end, and drive it if it was launched here or resumed.

        ``on_event`` receives every state change and log line. The result includes the last metrics. Raises
        TrainingFailed, StoppedByUser, LimitReached or ServiceError when the run did not complete.
        """
        with translate_call_errors(self.target):
            for follower in self.follow():
                for events in follower.event_batches():
                    for event in events:
                        if on_event is not None:
                            on_event(event)
        result = add_missing_file_hint(self.refresh(), self.target)
        error = result.error()
        if error is not None:
            raise error
        return result

    def resume(self) -> None:
        """Continue the run, also after a stop or a failure: ``wait`` drives it from now on. Starts nothing
        yet.

        Raises JobError for a single job that has ended, because no job can follow it.
        """
        driver = self.chain_driver
        if driver is None:
            if self.describe().exit_code is None:
                return
            text = f"{self.name} is a single job that has ended; launch it again under another --name"
            raise JobError([Problem("", text)])
        with translate_call_errors(self.target):
            driver.resume()

    def logs(self) -> Iterator[LogLine]:
        """Yield all log lines written so far, host by host, without waiting for more."""
        logs = self.target.logs
        with translate_call_errors(self.target):
            for job in self._jobs:
                group = log_group(self._describe_job(job))
                for stream in call_with_retries(partial(logs.streams, group, job + "/")):
                    token: str | None = None
                    previous_token: str | None = ""
                    while token != previous_token:
                        previous_token = token
                        events, token = call_with_retries(partial(logs.read, group, stream, token))
                        host = host_of_stream(job, stream)
                        yield from (LogLine(job, host, timestamp_ms, text) for timestamp_ms, text in events)

    def stop(self) -> RunOutcome:
        """Ask the run to stop and return at once. Hosts get SIGTERM and 120 seconds, and no further job
        starts.

        Does nothing to a run that has ended.
        """
        outcome = self.describe()
        if outcome.status in TERMINAL_STATUSES:
            return outcome
        with translate_call_errors(self.target):
            if self._chain_driver is not None:
                # Requested first, so that the run's driver sees it before the job has ended.
                self._chain_driver.folder.set_stop_requested(self.target.storage, True)
            if outcome.last_job.status not in TERMINAL_STATUSES:
                stop_job(outcome.last_job.name, self.target.control)
        return self.describe()

    def _describe_job(self, job: str) -> Mapping[str, Any]:
        """Return a job's description, for members that do not change."""
        return call_with_retries(partial(self.target.control.describe, job))

    def _find_chain_driver(self) -> ChainDriver | None:
        """Return the chain driver of a run that was launched elsewhere or earlier."""
        newest_job, target = self._jobs[-1], self.target
        if parse_job_name(newest_job) is None:
            return None
        description = self._first_description or call_with_retries(
            partial(target.control.describe, newest_job)
        )
        folder = RunFolder.from_description(self.name, description)
        workflow = None if folder is None else folder.load_workflow(target.storage)
        if folder is None or workflow is None:
            return None
        return ChainDriver(workflow, folder, target, on_message=self._on_message)

    def _outcome_of_chain(self, driver: ChainDriver, follower: JobFollower | None = None) -> RunOutcome:
        """Return the chain's outcome. ``follower`` has newer facts about its job than a description."""
        outcomes = [job_outcome(description) for description in driver.job_history.known_descriptions]
        if follower is not None and follower.is_described:
            followed_outcome = follower.outcome()
            outcomes = [
                followed_outcome if job.name == followed_outcome.name else job for job in outcomes
            ] or [followed_outcome]
        step = driver.checkpoint_status.step or None
        return RunOutcome(
            self.name, tuple(outcomes), is_chain=True, final_result=driver.final_result, step=step
        )


class RunSummary(NamedTuple):
    """One row of ``smlaunch ls``: a run and its newest job. Times are seconds since the epoch."""

    run: str
    job: str
    status: str
    """Of the run; of the job where the run cannot be read."""

    created: float
    """When the first job was created."""
    ended: float | None
    """When the newest job ended; None while it runs."""
    other_format: str | None = None
    """Format version of a run that this release cannot read, ``none`` for a run without a version; None
    otherwise."""


def list_runs(target: Target, limit: int) -> list[RunSummary]:
    """Return the newest runs with their newest jobs.

    Of a run whose newest job has ended, the status is that of the run: a chain goes on after a completed job.
    """
    summary_by_run: dict[str, RunSummary] = {}
    arn_by_run: dict[str, str] = {}
    with translate_call_errors(target):
        for summary in target.control.list():
            parsed_name = parse_any_job_name(summary.name)
            name = parsed_name.run if parsed_name else summary.name
            if name in summary_by_run:
                summary_by_run[name] = summary_by_run[name]._replace(
                    created=min(summary_by_run[name].created, summary.created)
                )
                continue
            if len(summary_by_run) == limit:
                break
            summary_by_run[name] = RunSummary(
                name, summary.name, summary.status, summary.created, summary.ended
            )
            if parsed_name is not None:
                arn_by_run[name] = summary.arn
        format_by_arn = unreadable_formats(arn_by_run.values(), target.control)
    summaries = [
        summary._replace(other_format=format_by_arn.get(arn_by_run.get(summary.run, "")))
        for summary in summary_by_run.values()
    ]
    with ThreadPoolExecutor(_PARALLEL_DESCRIPTIONS) as pool:
        return list(pool.map(partial(_with_status_of_run, target=target), summaries))


def _with_status_of_run(summary: RunSummary, target: Target) -> RunSummary:
    """Replace the status of an ended job by that of its run. Unchanged if that cannot be read."""
    if (
        parse_job_name(summary.job) is None
        or summary.status not in TERMINAL_STATUSES
        or summary.other_format is not None
    ):
        return summary
    try:
        return summary._replace(status=Run.attach(summary.run, target).describe().status)
    except SmlaunchError:
        return summary


def _unknown_run_error(name_or_arn: str, name: str, target: Target) -> JobError:
    """Return the error for a name that no run has. ``name_or_arn`` is the name, or the ARN that contains
    it."""
    execution = target.orchestrators.describe(name_or_arn)
    if execution is not None:
        message = f": {execution.message}" if execution.message else ""
        state = f"has ended without a job{message}" if execution.has_ended else "has made no job yet"
        next_step = "" if execution.has_ended else "; look again in a moment"
        return JobError([Problem("", f"{describe_driver(name_or_arn)} {state}{next_step}")])
    run_names: set[str] = set()
    for summary in islice(_list_jobs(target), _MAX_JOBS_FOR_SUGGESTION):
        parsed_name = parse_any_job_name(summary.name)
        run_names.add(parsed_name.run if parsed_name else summary.name)
    match = nearest_match(name, run_names)
    hint = f", did you mean {match!r}?" if match else "; `smlaunch ls` shows the runs there"
    return JobError([Problem("", f"there is no run {name!r} on {target.location}{hint}")])


def _list_jobs(target: Target) -> Iterator[JobSummary]:
    try:
        yield from target.control.list()
    except CallError:
        return  # only a suggestion depends on it
