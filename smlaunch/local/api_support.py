"""Support matrix: what this endpoint does with every field of a request. A field is

    supported   it does here what it does on SageMaker;
    recorded    it is stored and shown by Describe, and has no effect; plan and log say so;
    rejected    the request fails with the field's name and the reason.

No field is ignored silently: tests find a field without a row. A row applies to all fields below it that have
no row of their own. The rows are in api_support.json, as ``"FIELD": [level, note, rejected_values]``; a note
that begins with ``@`` is one of its ``shared_notes``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from smlaunch.api.job_kinds import PROCESSING, TRAINING, JobKind

SupportLevel = Literal["supported", "recorded", "rejected"]


class SupportRow(NamedTuple):
    """Support of a field and of the fields below it."""

    level: SupportLevel
    note: str = ""
    """What happens instead, or the limits of a supported field."""
    rejected_values: Mapping[str, str] = MappingProxyType({})
    """Values of a supported field that are rejected, with the reason."""


SupportTable = Mapping[str, SupportRow]
"""Rows by the dotted path of a field, without indices."""


def _read_tables() -> dict[str, SupportTable]:
    """Read the tables from the JSON file beside this module. A row is a list: the level, a note (or ``@NAME``
    of a note that rows share) and the rejected values; the last two may be missing."""
    document = json.loads(Path(__file__).with_suffix(".json").read_bytes())
    shared_notes = {f"@{name}": note for name, note in document.pop("shared_notes").items()}

    def create_row(level: SupportLevel, note: str = "", *rejected_values: Mapping[str, str]) -> SupportRow:
        return SupportRow(level, shared_notes.get(note, note), *rejected_values)

    return {
        title: {path: create_row(*cells) for path, cells in rows.items()} for title, rows in document.items()
    }


SUPPORT_TABLES: Mapping[str, SupportTable] = _read_tables()
"""All tables by their titles."""
TRAINING_JOB_SUPPORT = SUPPORT_TABLES["CreateTrainingJob"]
PROCESSING_JOB_SUPPORT = SUPPORT_TABLES["CreateProcessingJob"]
OTHER_OPERATION_SUPPORT = SUPPORT_TABLES["Other operations"]
"""What else is asked about jobs, by operation and field."""
PIPELINE_SUPPORT = SUPPORT_TABLES["Pipelines"]
"""The same for pipelines. What is not documented: after a step has failed, those that do not need it go on,
and a Fail step lets none begin; a job that was stopped from outside fails its step; an execution whose
endpoint died is Failed and can be retried."""


def support_rows(kind: JobKind, runs_images: bool) -> SupportTable:
    """Return the rows of the request that creates a job. ``runs_images``: whether the executor runs images;
    then some rows are replaced."""
    rows = SUPPORT_TABLES[kind.create_operation]
    return {**rows, **SUPPORT_TABLES[f"{kind.create_operation} in containers"]} if runs_images else rows


_UNSET_VALUES: tuple[Any, ...] = (None, False, "", [], {})
"""Values that mean the same as a missing field."""


def recorded_fields(request: Mapping[str, Any], row_by_path: SupportTable) -> dict[str, str]:
    """Return the fields of a request that have no effect here, with their notes."""

    def is_set(dotted_path: str) -> bool:
        return any(value not in _UNSET_VALUES for _, value in values_at_dotted_path(request, dotted_path))

    return {
        dotted_path: row.note
        for dotted_path, row in row_by_path.items()
        if row.level == "recorded" and is_set(dotted_path)
    }


def notes_of_recorded_and_rejected_fields(
    runs_images: bool = False,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return, for plans, the notes of the fields that are recorded and of those that are rejected, by dotted
    path, for all kinds of jobs. ``runs_images``: whether the executor runs images."""
    # A path that is in several tables has the same row in all.
    row_by_path = {**support_rows(PROCESSING, runs_images), **support_rows(TRAINING, runs_images)}
    recorded_notes = {path: row.note for path, row in row_by_path.items() if row.level == "recorded"}
    rejected_notes = {path: row.note for path, row in row_by_path.items() if row.level == "rejected"}
    return recorded_notes, rejected_notes


def values_at_dotted_path(value: Any, dotted_path: str, path_of_value: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values at a dotted path below ``value``, in every entry of the lists on the way, each with
    its path: ``InputDataConfig.InputMode`` finds ``InputDataConfig[0].InputMode``, ``InputDataConfig[1]...``.
    ``path_of_value``: where ``value`` itself was found; "" is the whole request."""
    if not dotted_path:
        yield path_of_value, value
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from values_at_dotted_path(entry, dotted_path, f"{path_of_value}[{index}]")
    elif isinstance(value, Mapping):
        field_name, _, remaining_path = dotted_path.partition(".")
        if field_name in value:
            path_of_field = f"{path_of_value}.{field_name}" if path_of_value else field_name
            yield from values_at_dotted_path(value[field_name], remaining_path, path_of_field)
