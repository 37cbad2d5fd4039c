"""Reads and changes members of JSON documents by their paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from smlaunch.api.job_kinds import FieldPath


def paths_without_value(value: Any, path: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield the paths of members without a value."""
    if value is None:
        yield path
    elif isinstance(value, Mapping):
        for name, member in value.items():
            yield from paths_without_value(member, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from paths_without_value(item, (*path, index))


def remove_at_path(document: dict[str, Any], path: FieldPath) -> None:
    """Remove what is at a path, if it is there, and what it leaves empty on the way."""
    containers: list[Any] = [document]
    for step in path:
        if not _has_step(containers[-1], step):
            return
        containers.append(containers[-1][step])
    for container, step in zip(reversed(containers[:-1]), reversed(path), strict=True):
        del container[step]
        if container:
            return


def _has_step(container: Any, step: str | int) -> bool:
    if isinstance(container, list):
        return isinstance(step, int) and step < len(container)
    return isinstance(container, dict) and step in container
