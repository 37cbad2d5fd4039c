"""What can be read of a job with mistakes: so that everything else that is wrong with it is told at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from smlaunch.errors import JobError, Problem
from smlaunch.job import Job

_ENTRIES = ("environment", "hyperparameters", "inputs", "options", "tags")
"""Sections whose entries are apart: one that cannot be read says nothing of the others."""

_PROGRAMS = ("entry", "algorithm", "image")
"""One of which a job runs; where none is known the job has a stand-in, of which nothing is said."""

_FIELDS = ("compute", "limits", "workload")
"""Sections whose fields are."""


class Rest(NamedTuple):
    """``unknown``: the fields that were left out, as paths."""

    job: Job
    unknown: tuple[str, ...]


def rest_of(mapping: Mapping[str, Any], problems: Iterable[Problem]) -> Rest | None:
    """The job without what ``problems`` name; None where nothing is left that is a job."""
    left = {key: dict(value) if isinstance(value, Mapping) else value for key, value in mapping.items()}
    unknown: list[str] = []
    for problem in problems:
        if problem.path.startswith("--"):
            # An option that could not be laid over the job.
            unknown += ["inputs"] if problem.path == "--input" else []
            continue
        unknown.append(_take_out(left, problem.path))
    if not any(left.get(program) for program in _PROGRAMS):
        left["image"] = "unknown"
        unknown += _PROGRAMS
    try:
        return Rest(Job.from_mapping(left), tuple(unknown))
    except JobError:
        return None


def _take_out(left: dict[str, Any], path: str) -> str:
    """Removes the smallest part that ``path`` lies in and that can go alone; returns its path."""
    section = re.split(r"[.\[]", path, maxsplit=1)[0]
    held = left.get(section)
    inside = path[len(section) + 1 :]
    if section in _ENTRIES and isinstance(held, dict) and inside:
        # Names may hold dots: the longest one that the path begins with.
        names = [name for name in held if inside == str(name) or inside.startswith(f"{name}.")]
        if names:
            name = max(names, key=len)
            del held[name]
            return f"{section}.{name}"
    if section in _FIELDS and isinstance(held, dict) and inside:
        held.pop(re.split(r"[.\[]", inside, maxsplit=1)[0], None)
        return path
    left.pop(section, None)
    return section
