"""Names and tags a run is found by again: the control plane is the only memory smlaunch has.

A task's job is called ``<run>-s<segment>-a<attempt>``; where a service makes its own names, the same three
stand in its tags. The jobs of a SageMaker pipeline are called ``pipelines-<execution>-<step>-<random>``; an
exported step is called ``Segment-<number>``, after the name of its job where the pipeline has several, and
its run ``<execution>`` or ``<execution>-<job>``.
"""

import re
from typing import NamedTuple, Optional

RUN_PATTERN = re.compile(r"[a-z0-9](-?[a-z0-9]){0,39}")
RUN_LIMIT = 40
"""Leaves room for ``-s999-a99`` and more within the 63 characters of a job name."""

TAG_RUN = "smlaunch:run"
TAG_SEGMENT = "smlaunch:segment"
TAG_ATTEMPT = "smlaunch:attempt"
TAG_JOB = "smlaunch:job"
"""The job's hash: the same run id with another job is refused."""

_TASK = re.compile(r"(?P<run>[a-z0-9](?:-?[a-z0-9]){0,39})-s(?P<segment>[0-9]+)-a(?P<attempt>[0-9]+)")


_OF_PIPELINE = re.compile(r"pipelines-(?P<run>[a-z0-9-]+)-Segment-(?P<segment>[0-9]+)-[A-Za-z0-9]+")


class TaskName(NamedTuple):
    run: str
    segment: int
    attempt: int

    def __str__(self) -> str:
        return "{}-s{}-a{}".format(self.run, self.segment, self.attempt)


def is_run_id(text: str) -> bool:
    return len(text) <= RUN_LIMIT and RUN_PATTERN.fullmatch(text) is not None


def parse_task_name(name: str) -> Optional[TaskName]:
    match = _TASK.fullmatch(name)
    if match is None or not is_run_id(match.group("run")):
        return None
    return TaskName(match.group("run"), int(match.group("segment")), int(match.group("attempt")))


def pipeline_prefix(run: str) -> str:
    """What the names of its jobs begin with in a pipeline."""
    return "pipelines-{}-".format(run)


def task_of(name: str) -> Optional[TaskName]:
    """Of any job's name that tells its run. An exported pipeline's step tells no attempt: 1 stands for it."""
    match = _OF_PIPELINE.fullmatch(name)
    if match is None or not is_run_id(match.group("run")):
        return parse_task_name(name)
    return TaskName(match.group("run"), int(match.group("segment")), 1)


def part_run(run: str, part: int) -> str:
    """The run that trains one part of another one's data. ``part``: from 1."""
    return "{}-p{}".format(run, part)


def part_of(run: str, name: str) -> Optional[int]:
    """Which part of ``run`` the run called ``name`` trains; None for any other run."""
    head, _, number = name.rpartition("-p")
    return int(number) if head == run and number.isdigit() and not number.startswith("0") else None
