"""Names and tags by which smlaunch finds a run: the service's API is its only storage.

A job is called ``<run>-s<segment>-a<attempt>``; where a service makes its own names, the same three are tags.
The jobs of a SageMaker pipeline are called ``pipelines-<execution>-<step>-<random>``; an exported step is
called ``Segment-<number>``, after the name of its job where the pipeline has several, and its run
``<execution>`` or ``<execution>-<job>``.
"""

import re
from typing import NamedTuple, Optional

RUN_ID_REGEX = r"[a-z0-9](?:-?[a-z0-9]){0,39}"
RUN_ID_PATTERN = re.compile(RUN_ID_REGEX)
MAX_RUN_ID_LENGTH = 40
"""Leaves room for ``-s999-a99`` and more within the 63 characters of a job name."""

RESERVED_FOLDER = "smlaunch"
"""The folder in the checkpoint directory that smlaunch writes to."""

TAG_FORMAT = "smlaunch:format"
"""The version of formats.RUN: whether this release can continue the run."""

TAG_RUN = "smlaunch:run"
TAG_SEGMENT = "smlaunch:segment"
TAG_ATTEMPT = "smlaunch:attempt"
TAG_JOB = "smlaunch:job"
"""The job's hash: the same run id with another job is refused."""

_JOB_NAME = re.compile(r"(?P<run>" + RUN_ID_REGEX + r")-s(?P<segment>[0-9]+)-a(?P<attempt>[0-9]+)")

WRITER_REGEX = r"(?:(?P<run>" + RUN_ID_REGEX + r")-)?s(?P<segment>[0-9]+)-a(?P<attempt>[0-9]+)"
"""A CheckpointWriter in a file name."""

_PIPELINE_JOB_NAME = re.compile(r"pipelines-(?P<run>[a-z0-9-]+)-Segment-(?P<segment>[0-9]+)-[A-Za-z0-9]+")


class JobName(NamedTuple):
    """The name of a training job: an attempt of a segment of a run."""

    run: str
    segment: int
    attempt: int

    def __str__(self) -> str:
        return "{}-s{}-a{}".format(self.run, self.segment, self.attempt)


class CheckpointWriter(NamedTuple):
    """Which attempt of which segment wrote a file. ``run``: None for a job without a run."""

    run: Optional[str] = None
    segment: int = 1
    attempt: int = 1

    def __str__(self) -> str:
        """As in file names: the job's name, where smlaunch named it."""
        if self.run is None:
            return "s{}-a{}".format(self.segment, self.attempt)
        return str(JobName(self.run, self.segment, self.attempt))


def outcome_path(writer: CheckpointWriter) -> str:
    """Path of an attempt's outcome file, below the checkpoint directory."""
    return "{}/outcome-{}.json".format(RESERVED_FOLDER, writer)


def host_outcome_path(writer: CheckpointWriter, host: str) -> str:
    """Path of one host's outcome file of an attempt, below the checkpoint directory."""
    return "{}/outcome-{}.{}.json".format(RESERVED_FOLDER, writer, host)


def is_run_id(text: str) -> bool:
    return len(text) <= MAX_RUN_ID_LENGTH and RUN_ID_PATTERN.fullmatch(text) is not None


def parse_job_name(name: str) -> Optional[JobName]:
    match = _JOB_NAME.fullmatch(name)
    if match is None or not is_run_id(match.group("run")):
        return None
    return JobName(match.group("run"), int(match.group("segment")), int(match.group("attempt")))


def pipeline_job_prefix(run: str) -> str:
    """Prefix of the names of the run's jobs in a pipeline."""
    return "pipelines-{}-".format(run)


def parse_any_job_name(name: str) -> Optional[JobName]:
    """Parse the name of any job that contains its run. An exported pipeline's step has no attempt number: it
    is 1.
    """
    match = _PIPELINE_JOB_NAME.fullmatch(name)
    if match is None or not is_run_id(match.group("run")):
        return parse_job_name(name)
    return JobName(match.group("run"), int(match.group("segment")), 1)


def shard_run_id(run_id: str, shard: int) -> str:
    """The run that trains on one shard of another run's data. ``shard``: from 1."""
    return "{}-p{}".format(run_id, shard)


def parse_shard_number(run_id: str, name: str) -> Optional[int]:
    """Which shard of ``run_id`` the run called ``name`` trains on; None for any other run."""
    prefix, _, number = name.rpartition("-p")
    return int(number) if prefix == run_id and number.isdigit() and not number.startswith("0") else None
