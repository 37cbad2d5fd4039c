"""A group of shards: several runs that each train on a shard of the data, with a job or chain of one host.

Each shard is a run like any other. This module describes, follows and resumes all shards together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Event as ThreadEvent
from threading import Thread
from typing import Any

from smlaunch.aws.service_errors import call_with_retries
from smlaunch.contract.run_names import parse_job_name, parse_shard_number
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.job_poller import Event, LogLine, StateChange
from smlaunch.runs.launch_target import Target
from smlaunch.runs.progress_estimate import ProgressEstimate, ProgressTracker
from smlaunch.runs.run import Run
from smlaunch.runs.run_outcome import JobOutcome
from smlaunch.runs.sharded_outcome import ShardedRunOutcome

AttachShard = Callable[[int, Sequence[str]], Run | None]
"""Returns the run of a shard, by its number and the names of its jobs; None where it has none."""


class ShardGroup:
    """The shards of a run. ``run_by_number`` has their runs, from 1; with ``attach_shard``, it grows while
    further shards begin."""

    def __init__(
        self,
        name: str,
        target: Target,
        run_by_number: dict[int, Run],
        attach_shard: AttachShard | None = None,
    ) -> None:
        self.name = name
        self._target = target
        self.run_by_number = run_by_number
        self._attach_shard = attach_shard

    @property
    def runs(self) -> Collection[Run]:
        return self.run_by_number.values()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the known jobs of all shards."""
        return tuple(job for shard in self.runs for job in shard.jobs)

    def find(self) -> None:
        """Add the shards that have begun and are not known. A shard is a run of its own on a part of the
        data; ``<name>-p3`` is the third one's."""
        assert self._attach_shard is not None
        list_jobs = partial(self._target.control_plane.list_jobs, f"{self.name}-p")
        job_names_by_shard: dict[int, list[str]] = {}
        for summary in call_with_retries(lambda: list(list_jobs())):
            parsed_name = parse_job_name(summary.name)
            shard_number = None if parsed_name is None else parse_shard_number(self.name, parsed_name.run)
            if shard_number is not None and shard_number not in self.run_by_number:
                job_names_by_shard.setdefault(shard_number, []).append(summary.name)
        for shard_number, job_names in sorted(job_names_by_shard.items()):
            shard = self._attach_shard(shard_number, job_names)
            if shard is not None:
                self.run_by_number[shard_number] = shard

    def outcome(self, *, reads_logs: bool = False, follower: JobFollower | None = None) -> ShardedRunOutcome:
        """Return the outcome of all shards, which are described anew."""
        return ShardedRunOutcome.from_shards(
            self.name, [shard.describe(reads_logs=reads_logs) for shard in self.runs]
        )

    def to_follow(self, followed: Collection[str], from_first_job: bool = False) -> tuple[str, ...]:
        """Return the names of the shards that are not followed yet."""
        return tuple(shard.name for shard in self.runs if shard.name not in followed)

    def follower(
        self, names: Sequence[str], progress: ProgressTracker, from_first_job: bool = False
    ) -> JobFollower:
        """Return one follower, which follows (and drives) all these shards at the same time."""
        shards = {number: shard for number, shard in self.run_by_number.items() if shard.name in names}
        return ShardsFollower(ShardGroup(self.name, self._target, shards), self._target, from_first_job)

    def host_count(self) -> int:
        return len(self.runs)

    def logs(self) -> Iterator[LogLine]:
        for shard_number, shard in self.run_by_number.items():
            for line in shard.logs():
                yield _add_shard_name_to_event(line, shard_number)

    def resume(self) -> None:
        """Resume the shards that have not completed."""
        for shard in self.runs:
            if shard.describe().exit_code != 0:
                shard.resume()


class ShardsFollower(JobFollower):
    """Follows all shards at once. One thread for each shard follows and drives it."""

    def __init__(self, shards: ShardGroup, target: Target, from_first_job: bool) -> None:
        self.job = shards.name
        self.progress = self._combined_progress = _CombinedProgress(len(shards.run_by_number))
        self._shards = shards
        self._target = target
        self._from_first_job = from_first_job
        self._follower_by_shard: dict[int, JobFollower] = {}
        self._finished_shards: set[int] = set()

    @property
    def is_described(self) -> bool:
        return any(follower.is_described for follower in self._follower_by_shard.values())

    @property
    def is_finished(self) -> bool:
        return len(self._finished_shards) == len(self._shards.run_by_number)

    def event_batches(self, sleep: Callable[[float], object] = time.sleep) -> Iterator[Sequence[Event]]:
        """Follow all shards in threads, and yield their events in batches until all have ended.

        A second call, after the first was ended early, follows the jobs that run then and submits nothing.
        Ends early when ``sleep`` returns True. Raises the first error of any shard.
        """
        event_queue: SimpleQueue[tuple[int, Sequence[Event] | BaseException | None]] = SimpleQueue()
        is_caller_gone = ThreadEvent()  # it has stopped iterating: the threads are to end

        def sleep_until_due(seconds: float) -> bool:
            """Sleep, and return whether the thread has to end."""
            return sleep(seconds) is True or is_caller_gone.is_set()

        # Created before the threads start: boto3 creates clients in one thread at a time only.
        _ = self._target.control_plane, self._target.logs, self._target.storage
        is_second_call = bool(self._follower_by_shard)
        unfinished_shards = [
            shard_number
            for shard_number in self._shards.run_by_number
            if shard_number not in self._finished_shards
        ]
        for shard_number in unfinished_shards:
            Thread(
                target=self._follow_shard,
                args=(shard_number, is_second_call, sleep_until_due, event_queue),
                daemon=True,
            ).start()
        try:
            running_threads = len(unfinished_shards)
            while running_threads:
                shard_number, events_or_error = event_queue.get()
                if events_or_error is None:  # the thread has ended
                    running_threads -= 1
                elif isinstance(events_or_error, BaseException):
                    raise events_or_error
                else:
                    yield [_add_shard_name_to_event(event, shard_number) for event in events_or_error]
        finally:
            is_caller_gone.set()

    def outcome(self) -> JobOutcome:
        return self._shards.outcome().last_job

    def _follow_shard(
        self,
        shard_number: int,
        continues_last_job: bool,
        sleep_until_due: Callable[[float], bool],
        event_queue: SimpleQueue[tuple[int, Sequence[Event] | BaseException | None]],
    ) -> None:
        """Follow one shard, a run on a part of the data, in a thread of its own. Puts pairs of shard number
        and events into ``event_queue``; at the end the error, if any, in place of events, and None.

        A shard's jobs have a follower each, which reads state and log. ``continues_last_job``: only go on
        with the last follower. ``sleep_until_due``: sleeps for so many seconds, and returns True to end.
        """
        try:
            followers: Iterator[JobFollower]
            if continues_last_job:
                followers = self._last_follower(shard_number)
            else:
                shard_run = self._shards.run_by_number[shard_number]
                followers = shard_run.follow(sleep_until_due, from_first_job=self._from_first_job)
            for follower in followers:
                self._follower_by_shard[shard_number] = follower
                self._combined_progress.tracker_by_shard[shard_number] = follower.progress
                for events in follower.event_batches(sleep_until_due):
                    event_queue.put((shard_number, events))
                if not follower.is_finished:  # ended early
                    return
            self._finished_shards.add(shard_number)
        except BaseException as error:  # the reading thread raises it
            event_queue.put((shard_number, error))
        finally:
            event_queue.put((shard_number, None))

    def _last_follower(self, shard_number: int) -> Iterator[JobFollower]:
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
        """Return the progress of all shards together: the sum of their steps, and the longest remaining time.
        Values that need all shards are None until each has reported. ``now``: in seconds since the epoch."""
        estimates: list[ProgressEstimate] = []
        for tracker in list(self.tracker_by_shard.values()):  # a copy, because other threads add shards
            shard_estimate = tracker.estimate(now)
            if shard_estimate is not None:
                estimates.append(shard_estimate)
        if not estimates:
            return None
        have_all_reported = len(estimates) == self._shard_count
        known_totals = [estimate.total_steps for estimate in estimates if estimate.total_steps is not None]
        known_etas = [estimate.eta_seconds for estimate in estimates if estimate.eta_seconds is not None]
        is_total_known = len(known_totals) == self._shard_count
        # Metrics of several shards, such as losses, cannot be combined.
        return ProgressEstimate(
            step=sum(estimate.step or 0 for estimate in estimates),
            total_steps=sum(known_totals) if is_total_known else None,
            steps_per_second=sum(estimate.steps_per_second or 0.0 for estimate in estimates) or None,
            eta_seconds=max(known_etas, default=None) if have_all_reported else None,
            metrics=estimates[0].metrics if len(estimates) == 1 else {},
        )


def _add_shard_name_to_event(event: Any, shard_number: int) -> Any:
    """Return an event of a shard's job with the shard's name, such as p3: in place of a log line's host if
    that is algo-1, which is usually the shard's only one, and before a state change's message. Other events
    are unchanged."""
    shard_name = f"p{shard_number}"
    if isinstance(event, LogLine):
        return event._replace(host=shard_name if event.host == "algo-1" else f"{shard_name}/{event.host}")
    if isinstance(event, StateChange):
        return event._replace(message=f"{shard_name}: {event.message}")
    return event
