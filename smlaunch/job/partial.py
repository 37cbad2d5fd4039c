"""Reads the valid fields of a job with mistakes, so that all other problems are reported at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from smlaunch.errors import JobError, Problem
from smlaunch.job.model import Job

_MAPPING_SECTIONS = ("environment", "hyperparameters", "inputs", "options", "tags")
"""Sections with independent entries: an invalid entry does not affect the others."""

_PROGRAM_FIELDS = ("entry", "algorithm", "image")
"""A job runs one of these. Without any, the partial job has a placeholder, which is not checked."""

_OBJECT_SECTIONS = ("compute", "limits", "workload")
"""Sections with independent fields."""


class PartialJob(NamedTuple):
    """A job without its invalid fields."""

    job: Job
    unknown_fields: tuple[str, ...]
    """Paths of the fields that were left out."""


def parse_valid_fields(mapping: Mapping[str, Any], problems: Iterable[Problem]) -> PartialJob | None:
    """Return the job without the fields that ``problems`` name; None where the others make no job."""
    remaining = {key: dict(value) if isinstance(value, Mapping) else value for key, value in mapping.items()}
    unknown_fields: list[str] = []
    for problem in problems:
        if problem.path.startswith("--"):
            # An option that could not be merged into the job.
            unknown_fields += ["inputs"] if problem.path == "--input" else []
            continue
        unknown_fields.append(_remove_field(remaining, problem.path))
    if not any(remaining.get(program) for program in _PROGRAM_FIELDS):
        remaining["image"] = "unknown"
        unknown_fields += _PROGRAM_FIELDS
    try:
        return PartialJob(Job.from_mapping(remaining), tuple(unknown_fields))
    except JobError:
        return None


def _remove_field(remaining: dict[str, Any], path: str) -> str:
    """Remove the smallest independent field that contains ``path``, and return its path."""
    section = re.split(r"[.\[]", path, maxsplit=1)[0]
    section_value = remaining.get(section)
    subpath = path[len(section) + 1 :]
    if section in _MAPPING_SECTIONS and isinstance(section_value, dict) and subpath:
        # Names may hold dots: the longest one that the path begins with.
        names = [name for name in section_value if subpath == str(name) or subpath.startswith(f"{name}.")]
        if names:
            name = max(names, key=len)
            del section_value[name]
            return f"{section}.{name}"
    if section in _OBJECT_SECTIONS and isinstance(section_value, dict) and subpath:
        section_value.pop(re.split(r"[.\[]", subpath, maxsplit=1)[0], None)
        return path
    remaining.pop(section, None)
    return section
