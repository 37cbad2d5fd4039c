"""Reads the valid fields of a job with mistakes, so that all other problems are reported at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from smlaunch.errors import JobError, Problem
from smlaunch.job.model import Job

_SECTIONS_OF_NAMED_ENTRIES = (
    *("environment", "hyperparameters", "inputs", "options", "outputs", "secrets", "tags"),
)
"""Sections with independent entries: an invalid entry does not affect the others."""

_PROGRAM_FIELDS = ("entry", "algorithm", "image")
"""A job runs one of these."""

_PLACEHOLDER_IMAGE = "unknown"

_SECTIONS_OF_FIELDS = ("compute", "limits", "workload")
"""Sections with independent fields."""


class PartialJob(NamedTuple):
    """A job without its invalid fields."""

    job: Job
    removed_fields: tuple[str, ...]
    """Paths of the fields that were left out."""


def parse_without_invalid_fields(
    job_mapping: Mapping[str, Any], problems: Iterable[Problem]
) -> PartialJob | None:
    """Return the job without the fields in which ``problems`` were found, and the paths of these fields, so
    that the valid ones can be checked further; None if the rest is no job either. The path of a problem is
    that of a field, such as ``inputs.train.uri``, or an option of the command line."""
    valid_fields = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in job_mapping.items()
    }
    removed_paths: list[str] = []
    for problem in problems:
        if problem.path == "--input":
            # This input is missing in the mapping, so that the others are not all inputs of the job.
            removed_paths.append("inputs")
        elif problem.path.startswith("request."):
            removed_paths += _remove_request(valid_fields)
        elif not problem.path.startswith("--"):  # other options in error change nothing in the mapping
            removed_paths.append(_remove_field(valid_fields, problem.path))
    if not any(valid_fields.get(program_field) for program_field in _PROGRAM_FIELDS):
        # A job needs a program. As these fields count as removed, the placeholder is never checked.
        valid_fields["image"] = _PLACEHOLDER_IMAGE
        removed_paths += _PROGRAM_FIELDS
    try:
        return PartialJob(Job.from_mapping(valid_fields), removed_fields=tuple(removed_paths))
    except JobError:
        return None


def _remove_request(job_mapping: dict[str, Any]) -> list[str]:
    """Remove the job's ``request``, and return the fields that it may state."""
    from smlaunch.api.job_kinds import JOB_KINDS

    if job_mapping.pop("request", None) is None:
        return []
    return ["request", *(field for kind in JOB_KINDS.values() for field in kind.request_path_by_field)]


def _remove_field(job_mapping: dict[str, Any], field_path: str) -> str:
    """Remove from the mapping the smallest field that contains ``field_path`` and that a job can do without:
    an entry of a section such as ``inputs`` (by its own name), a field of a section such as ``compute``, or
    the whole section. Return its path."""
    section = re.split(r"[.\[]", field_path, maxsplit=1)[0]
    section_value = job_mapping.get(section)
    path_in_section = field_path[len(section) + 1 :]
    if not isinstance(section_value, dict) or not path_in_section:
        job_mapping.pop(section, None)
        return section
    if section in _SECTIONS_OF_FIELDS:
        section_value.pop(re.split(r"[.\[]", path_in_section, maxsplit=1)[0], None)
        return field_path
    entry_name = (
        _longest_entry_name(section_value, path_in_section) if section in _SECTIONS_OF_NAMED_ENTRIES else None
    )
    if entry_name is None:
        del job_mapping[section]
        return section
    del section_value[entry_name]
    return f"{section}.{entry_name}"


def _longest_entry_name(section_value: Mapping[str, Any], path_in_section: str) -> str | None:
    """Return the entry that a path leads into; None without one. Names may hold dots, so that a path may
    begin with several: the longest counts."""
    matching_names = [
        name
        for name in section_value
        if path_in_section == str(name) or path_in_section.startswith(f"{name}.")
    ]
    return max(matching_names, key=len, default=None)
