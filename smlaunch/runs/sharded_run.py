"""A sharded run: several runs that each train on a shard of the data, with a job or chain of one host.

Each shard is a run like any other and has its own driver, so that a failed shard is retried alone. This
module describes, follows, stops and resumes all shards together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Event as Flag
from threading import Thread
from typing import Any

from smlaunch.aws.retry import call_with_retries
from smlaunch.contract.names import JobName, parse_job_name, parse_shard_number
from smlaunch.planner.reconcile import Finish
from smlaunch.runs.chain_driver import ChainDriver, SleepFunction
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.job_poller import Event, LogLine, StateChange
from smlaunch.runs.outcome import JobOutcome, RunOutcome, summarize_run
from smlaunch.runs.progress import ProgressEstimate, ProgressTracker
from smlaunch.runs.run import Run, translate_call_errors
from smlaunch.runs.run_format import check_format
from smlaunch.runs.run_state import RunFolder, external_run_name
from smlaunch.runs.target import Target

MessageCallback = Callable[[str], None]


@dataclass(frozen=True)
class ShardedRunOutcome(RunOutcome):
    """Outcome of a sharded run. ``jobs`` holds the jobs of all shards."""

    shard_outcomes: tuple[RunOutcome, ...] = ()

    @classmethod
    def from_shards(cls, run: str, shard_outcomes: Sequence[RunOutcome]) -> ShardedRunOutcome:
        jobs = tuple(job for shard in shard_outcomes for job in shard.jobs)
        final_result = _combined_result(shard_outcomes)
        return cls(run, jobs, is_chain=True, final_result=final_result, shard_outcomes=tuple(shard_outcomes))

    @property
    def last_job(self) -> JobOutcome:
        """The last job of the shard that decided how the run ended, else of the newest shard."""
        return _deciding_shard(self.shard_outcomes).last_job

    @property
    def individual_outcomes(self) -> tuple[RunOutcome, ...]:
        return self.shard_outcomes

    @property
    def model_artifacts(self) -> str | None:
        """None: each shard has its own model."""
        return None

    def to_dict(self) -> dict[str, Any]:
        rows = [
            {
                "run": shard.run,
                "status": shard.status,
                "exit_code": shard.exit_code,
                "because": summarize_run(shard),
                "model_artifacts": shard.model_artifacts,
                "output": shard.last_job.output_uri,
                "step": shard.step,
            }
            for shard in self.shard_outcomes
        ]
        return {**super().to_dict(), "shards": rows}


def _deciding_shard(shards: Sequence[RunOutcome]) -> RunOutcome:
    """Return the first shard that did not complete; else the last unfinished shard, or the last one."""
    failed = next((shard for shard in shards if shard.exit_code), None)
    unfinished = [shard for shard in shards if shard.exit_code is None]
    return failed or (unfinished or list(shards))[-1]


def _combined_result(shards: Sequence[RunOutcome]) -> Finish | None:
    """Return the run's final result; None while a shard goes on."""
    if any(shard.exit_code is None for shard in shards):
        return None
    completed = sum(shard.exit_code == 0 for shard in shards)
    if completed == len(shards):
        return Finish(0, "Completed", f"completed in all {completed} shards")
    deciding = _deciding_shard(shards)
    completed_text = f"; {completed} of {len(shards)} shards have completed"
    sentence = f"{deciding.run}: {summarize_run(deciding)}{completed_text}"
    return Finish(deciding.exit_code or 0, deciding.status, sentence, completed_text)


class ShardedRun(Run):
    """A run whose shards are runs of their own."""

    def __init__(
        self, name: str, target: Target, shard_runs: dict[int, Run], *, attached: bool = False
    ) -> None:
        super().__init__(name, target, [], attached=attached)
        self.shard_runs = shard_runs
        """By shard number, from 1."""
        self._chain_is_known = True

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(job for shard in self.shard_runs.values() for job in shard.jobs)

    @property
    def is_resumable(self) -> bool:
        return True

    @property
    def is_driver(self) -> bool:
        return any(shard.is_driver for shard in self.shard_runs.values())

    def describe(self) -> RunOutcome:
        return ShardedRunOutcome.from_shards(
            self.name, [_with_pending_job(shard.describe()) for shard in self.shard_runs.values()]
        )

    def refresh(self) -> RunOutcome:
        described = [shard.describe() for shard in self.shard_runs.values()]
        refreshed = [
            shard.refresh() if outcome.jobs else _with_pending_job(outcome)
            for shard, outcome in zip(self.shard_runs.values(), described, strict=True)
        ]
        return ShardedRunOutcome.from_shards(self.name, refreshed)

    def outcome_from(self, follower: JobFollower) -> RunOutcome:
        return self.describe()

    def host_count(self) -> int:
        return len(self.shard_runs)

    def follow(
        self, sleep: SleepFunction = time.sleep, *, from_first_job: bool = False
    ) -> Iterator[JobFollower]:
        """Yield one follower, which follows (and drives) all shards at the same time."""
        yield ShardedRunFollower(self, from_first_job)

    def resume(self) -> None:
        """Resume the shards that have not completed."""
        for shard in self.shard_runs.values():
            if shard.describe().exit_code != 0:
                shard.resume()

    def logs(self) -> Iterator[LogLine]:
        for shard_number, shard in self.shard_runs.items():
            for line in shard.logs():
                yield _name_shard_in_event(line, shard_number)

    def stop(self) -> RunOutcome:
        with translate_call_errors(self.target):
            for shard in self.shard_runs.values():
                if shard.chain_driver is not None:
                    # Request all stops first: an instance that one shard frees must not start another.
                    shard.chain_driver.folder.set_stop_requested(self.target.storage, True)
        for shard in self.shard_runs.values():
            if shard.describe().jobs:
                shard.stop()
        return self.describe()


def attach_sharded_run(
    name: str, target: Target, on_message: MessageCallback | None = None
) -> ShardedRun | None:
    """Return the sharded run of this name; None where there is none."""
    job_names = sorted(
        task
        for summary in target.control.list(f"{name}-p")
        if (task := parse_job_name(summary.name)) is not None
        and parse_shard_number(name, task.run) is not None
    )
    if not job_names:
        return None
    first_job = job_names[0]
    description = call_with_retries(partial(target.control.describe, str(first_job)))
    check_format(description, name, target.control)
    if external_run_name(description) is not None:
        from smlaunch.runs.external_sharded_run import ExternalShardedRun  # imports this module

        return ExternalShardedRun(name, target, [str(task) for task in job_names], on_message)
    # An ordinary run may end in -p1 too. The folder of the sharded run lists its shards, also those that
    # have no job yet.
    folder = RunFolder.from_description(first_job.run, description)
    run_names = (
        None
        if folder is None
        else folder.folder_of_sibling(first_job.run, name).load_shard_runs(target.storage)
    )
    if run_names is None or folder is None:
        return None
    shard_runs: dict[int, Run] = {}
    for run in run_names:
        shard_number = parse_shard_number(name, run) or 0
        shard_folder = folder.folder_of_sibling(first_job.run, run)
        workflow = shard_folder.load_workflow(target.storage)
        if workflow is not None:
            chain_driver = ChainDriver(
                workflow,
                shard_folder,
                target,
                on_message=prefix_messages(shard_number, on_message),
                waits_for_quota=True,
            )
            jobs = [str(task) for task in job_names if task.run == run] or [str(JobName(run, 1, 1))]
            shard_runs[shard_number] = Run(run, target, jobs, attached=True, chain_driver=chain_driver)
    return ShardedRun(name, target, shard_runs, attached=True)


def _with_pending_job(outcome: RunOutcome) -> RunOutcome:
    """Return the outcome with a placeholder job if the shard has none yet."""
    if outcome.jobs:
        return outcome
    job = JobOutcome(
        name=str(JobName(outcome.run, 1, 1)),
        arn="",
        status="InProgress" if outcome.final_result is None else outcome.final_result.status,
        secondary_status="NotBegun",
        exit_code=None if outcome.final_result is None else outcome.final_result.exit_code,
        failure_reason="",
        model_artifacts=None,
        output_uri=None,
        checkpoints_uri=None,
        metrics={},
        created=None,
        started=None,
        ended=None,
        training_seconds=None,
        billable_seconds=None,
        failure=None,
    )
    return RunOutcome(outcome.run, (job,), is_chain=True, final_result=outcome.final_result)


def prefix_messages(shard_number: int, on_message: MessageCallback | None) -> MessageCallback:
    """Return a callback that puts the shard's name before each message."""
    return lambda text: None if on_message is None else on_message(f"p{shard_number}: {text}")


class ShardedRunFollower(JobFollower):
    """Follows all shards at once. One thread for each shard follows and drives it."""

    def __init__(self, run: ShardedRun, from_first_job: bool = False) -> None:
        self.job = run.name
        self.progress = self._combined_progress = _CombinedProgress(len(run.shard_runs))
        self._run = run
        self._from_first_job = from_first_job
        self._follower_by_shard: dict[int, JobFollower] = {}
        self._finished_shards: set[int] = set()

    @property
    def is_described(self) -> bool:
        return any(follower.is_described for follower in self._follower_by_shard.values())

    @property
    def is_finished(self) -> bool:
        return len(self._finished_shards) == len(self._run.shard_runs)

    def event_batches(self, sleep: Callable[[float], object] = time.sleep) -> Iterator[Sequence[Event]]:
        """Yield events until all shards have ended.

        A second call, after the first was ended early, follows the jobs that run then and submits nothing.
        """
        batches: SimpleQueue[tuple[int, Sequence[Event] | BaseException | None]] = SimpleQueue()
        abandoned = Flag()

        def pause(seconds: float) -> bool:
            return sleep(seconds) is True or abandoned.is_set()

        # Opened before the threads start: boto3 creates clients in one thread at a time only.
        _ = self._run.target.control, self._run.target.logs, self._run.target.storage
        is_restart = bool(self._follower_by_shard)
        unfinished = [
            shard_number for shard_number in self._run.shard_runs if shard_number not in self._finished_shards
        ]
        for shard_number in unfinished:
            Thread(
                target=self._follow_shard, args=(shard_number, is_restart, pause, batches), daemon=True
            ).start()
        try:
            running_threads = len(unfinished)
            while running_threads:
                shard_number, batch = batches.get()
                if batch is None:
                    running_threads -= 1
                elif isinstance(batch, BaseException):
                    raise batch
                else:
                    yield [_name_shard_in_event(event, shard_number) for event in batch]
        finally:
            abandoned.set()

    def outcome(self) -> JobOutcome:
        return self._run.describe().last_job

    def _follow_shard(
        self, shard_number: int, is_restart: bool, pause: Callable[[float], bool], batches: Any
    ) -> None:
        """Follow one shard in a thread of its own, and put its events into the queue ``batches``; at the end
        its error, if any, and None. ``is_restart``: continue with its previous follower. ``pause``: sleeps
        for so many seconds, and returns True to stop."""
        try:
            followers = (
                self._previous_follower(shard_number)
                if is_restart
                else self._run.shard_runs[shard_number].follow(pause, from_first_job=self._from_first_job)
            )
            for follower in followers:
                self._follower_by_shard[shard_number] = follower
                self._combined_progress.tracker_by_shard[shard_number] = follower.progress
                for events in follower.event_batches(pause):
                    batches.put((shard_number, events))
                if not follower.is_finished:
                    return
            self._finished_shards.add(shard_number)
        except BaseException as error:  # the reading thread raises it
            batches.put((shard_number, error))
        finally:
            batches.put((shard_number, None))

    def _previous_follower(self, shard_number: int) -> Iterator[JobFollower]:
        if shard_number in self._follower_by_shard:
            yield self._follower_by_shard[shard_number]


class _CombinedProgress(ProgressTracker):
    """Progress of all shards together. Steps are added; their total is known once every shard has reported
    its own."""

    def __init__(self, shard_count: int) -> None:
        super().__init__()
        self._shard_count = shard_count
        self.tracker_by_shard: dict[int, ProgressTracker] = {}

    def estimate(self, now: float | None = None) -> ProgressEstimate | None:
        estimates = [
            estimate
            for tracker in list(self.tracker_by_shard.values())
            if (estimate := tracker.estimate(now))
        ]
        if not estimates:
            return None
        steps = [estimate.total_steps for estimate in estimates]
        etas = [
            estimate.eta_seconds
            for estimate in estimates
            if estimate.eta_seconds is not None and len(estimates) == self._shard_count
        ]
        return ProgressEstimate(
            step=sum(estimate.step or 0 for estimate in estimates),
            total_steps=None
            if None in steps or len(estimates) < self._shard_count
            else sum(total or 0 for total in steps),
            steps_per_second=sum(estimate.steps_per_second or 0.0 for estimate in estimates) or None,
            eta_seconds=max(etas, default=None),
            metrics=estimates[0].metrics if len(estimates) == 1 else {},
        )


def _name_shard_in_event(event: Any, shard_number: int) -> Any:
    """Return the event with the shard's name as host, because each shard's only host is algo-1."""
    if isinstance(event, LogLine):
        return event._replace(
            host=f"p{shard_number}" if event.host == "algo-1" else f"p{shard_number}/{event.host}"
        )
    if isinstance(event, StateChange):
        return event._replace(message=f"p{shard_number}: {event.message}")
    return event
