"""The training jobs of a run, and where they are found: by their own names.

Those of an orchestrator's run are found in another way (execution_jobs), those of a sharded run are the jobs
of its shards (shard_group).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

from smlaunch.api.job_kinds import TERMINAL_STATUSES
from smlaunch.aws.service_errors import call_with_retries
from smlaunch.contract import segment as variables
from smlaunch.contract.run_names import JobName, parse_job_name
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.job_poller import LogLine, host_count, host_of_log_stream, log_group_of
from smlaunch.runs.launch_target import Target
from smlaunch.runs.progress_estimate import ProgressTracker
from smlaunch.runs.run_outcome import RunOutcome, outcome_from_description

if TYPE_CHECKING:
    from smlaunch.chain.observed_run import ObservedJob


class JobFinder(Protocol):
    """Where the jobs of a run are found."""

    def find_names(self) -> Collection[str]: ...

    def is_own(self, description: Mapping[str, Any]) -> bool:
        """Return whether the described job, which was found, belongs to the run."""


def list_own_names(run: str, target: Target) -> list[str]:
    """Return the names of the jobs that are called after a run (``<run>-s<segment>`` and so on), in the order
    in which they run: parsed names sort by segment and attempt as numbers."""
    own_names: list[JobName] = []
    for summary in target.control_plane.list_jobs(f"{run}-s"):
        job_name = parse_job_name(summary.name)
        if job_name is not None and job_name.run == run:  # other runs' names may begin so too
            own_names.append(job_name)
    return [str(job_name) for job_name in sorted(own_names)]


class OwnNames:
    """Finds jobs that are called after their run."""

    def __init__(self, run: str, target: Target) -> None:
        self._list = partial(list_own_names, run, target)

    def find_names(self) -> Collection[str]:
        return call_with_retries(self._list)

    def is_own(self, description: Mapping[str, Any]) -> bool:
        return True


class JobList:
    """The jobs of one run. A job that has ended is described once, because it does not change any more.

    ``names`` are known jobs, oldest first. Without a ``finder``, further jobs are found by their own names.
    """

    def __init__(
        self, run: str, target: Target, names: Sequence[str] = (), finder: JobFinder | None = None
    ) -> None:
        self.run = run
        self._target = target
        self._finder = finder or OwnNames(run, target)
        self._description_by_name: dict[str, dict[str, Any]] = {name: {} for name in names}
        """DescribeTrainingJob's last responses; empty before the first one."""
        self._other_names: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the known jobs, oldest first."""
        return tuple(self._description_by_name)

    @property
    def descriptions(self) -> list[dict[str, Any]]:
        """DescribeTrainingJob's last responses, oldest job first."""
        return [description for description in self._description_by_name.values() if description]

    @property
    def is_running(self) -> bool:
        """Whether the newest job had not ended when it was last described."""
        return self.descriptions[-1]["TrainingJobStatus"] not in TERMINAL_STATUSES

    @property
    def is_stopping(self) -> bool:
        """Whether the newest job was stopping when it was last described."""
        return bool(self.descriptions[-1]["TrainingJobStatus"] == "Stopping")

    def add(self, name: str) -> None:
        """Add a job that was just created: the service's list may not show it yet."""
        self._description_by_name.setdefault(name, {})

    def find(self) -> None:
        """Look for new jobs of the run, and describe all that had not ended before."""
        for name in self._finder.find_names():
            if name not in self._other_names:
                self.add(name)
        self.describe()

    def describe(self) -> None:
        """Describe the known jobs that had not ended before."""
        for name, known_description in list(self._description_by_name.items()):
            if known_description.get("TrainingJobStatus") in TERMINAL_STATUSES:
                continue
            description = call_with_retries(partial(self._target.control_plane.describe_job, name))
            if self._finder.is_own(description):
                self._description_by_name[name] = description
            else:
                del self._description_by_name[name]
                self._other_names.add(name)
        self._description_by_name = dict(sorted(self._description_by_name.items(), key=_creation_order))

    def parsed_names(self) -> list[JobName]:
        """Return segment and attempt of each job. A job that states no attempt counts as the next one of its
        segment."""
        parsed_names: list[JobName] = []
        for name, description in self._description_by_name.items():
            parsed_name = parse_job_name(name)
            if parsed_name is None:
                segment = int(description.get("Environment", {}).get(variables.SEGMENT_VARIABLE, "1"))
                earlier_attempts = sum(earlier_name.segment == segment for earlier_name in parsed_names)
                parsed_name = JobName(self.run, segment, earlier_attempts + 1)
            parsed_names.append(parsed_name)
        return parsed_names

    def observed(self) -> list[ObservedJob]:
        """Return what decisions need of the jobs, as they were last described."""
        from smlaunch.runs.run_state import observed_job_from_description

        return list(map(observed_job_from_description, self.parsed_names(), self.descriptions))

    def outcome(self, *, reads_logs: bool = False, follower: JobFollower | None = None) -> RunOutcome:
        """Return the jobs' outcomes as they were last described. ``follower`` has newer facts about its job;
        ``reads_logs`` reads those of the newest job: its last metrics and a failure's traceback. If it has
        reported no metrics, as one that finds the training finished, those of the job before are read."""
        outcomes = map(outcome_from_description, self.descriptions)
        outcome_by_name = {outcome.name: outcome for outcome in outcomes}
        if reads_logs:
            for name in reversed(self.names[-2:]):
                follower = JobFollower(self._target, name)
                follower.refresh()
                outcome_by_name[name] = follower.outcome()
                if outcome_by_name[name].metrics:
                    break
        elif follower is not None and follower.is_described:
            outcome_by_name[follower.job] = follower.outcome()
        return RunOutcome(self.run, tuple(outcome_by_name.values()))

    def to_follow(self, followed: Collection[str], from_first_job: bool = False) -> tuple[str, ...]:
        """Return the job after the last followed one; without any, the newest, or the first one."""
        newer_names = list(takewhile(lambda name: name not in followed, reversed(self.names)))
        return tuple(newer_names[-1:] if followed or from_first_job else newer_names[:1])

    def follower(
        self, names: Sequence[str], progress: ProgressTracker, from_first_job: bool = False
    ) -> JobFollower:
        """Return a follower of the one job named, which adds to the run's progress."""
        return JobFollower(self._target, names[0], progress)

    def host_count(self) -> int:
        """Return the number of hosts of the newest job."""
        self.describe()
        return host_count(self.descriptions[-1])

    def logs(self) -> Iterator[LogLine]:
        """Yield all log lines that the jobs' hosts have written so far, host by host."""
        self.describe()
        for name, description in self._description_by_name.items():
            log_group = log_group_of(description)
            streams = call_with_retries(partial(self._target.logs.list_streams, log_group, name + "/"))
            for stream in streams:
                for timestamp_ms, text in self._read_log_stream(log_group, stream):
                    yield LogLine(name, host_of_log_stream(name, stream), timestamp_ms, text)

    def _read_log_stream(self, log_group: str, stream: str) -> Iterator[tuple[int, str]]:
        """Yield time in milliseconds and text of each line that a host's log stream has so far."""
        page_token: str | None = None  # None for the first page
        previous_token: str | None = ""
        while page_token != previous_token:  # at the end, CloudWatch Logs returns the same token again
            previous_token = page_token
            events, page_token = call_with_retries(
                partial(self._target.logs.read_page, log_group, stream, page_token)
            )
            yield from events


def _creation_order(item: tuple[str, Mapping[str, Any]]) -> tuple[float, JobName, str]:
    name, description = item
    return description["CreationTime"].timestamp(), parse_job_name(name) or JobName("", 0, 0), name
