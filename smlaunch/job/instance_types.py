"""The field of an instance type: its name, or the accelerators that it has."""

from __future__ import annotations

import re
from typing import Annotated

from smlaunch.job.field_types import NonEmptyText
from smlaunch.job.sections import FieldError, FieldRule
from smlaunch.text.did_you_mean import did_you_mean, nearest_match

_INSTANCE_SIZE = r"(nano|micro|small|medium|large|[0-9]*xlarge|metal(-[0-9]+xl)?)"
"""Also of types that the catalog does not know."""

_ACCELERATORS = re.compile(r"([A-Za-z][A-Za-z0-9 -]{0,40}):([1-9][0-9]{0,2})")
"""A100:8, as SkyPilot writes it, in place of an instance type."""


def _check_instance_type(text: str) -> str:
    """Return the instance type; of accelerators and their number, the cheapest type that has them."""
    if (accelerators := _ACCELERATORS.fullmatch(text)) is not None:
        return _type_with_accelerators(accelerators[1], int(accelerators[2]))
    if not re.fullmatch(r"ml\.[a-z0-9-]+\.[a-z0-9-]+", text):
        is_without_prefix = re.fullmatch(r"(?!ml\.)[a-z0-9-]+\.[a-z0-9-]+", text)
        hint = f", did you mean 'ml.{text}'?" if is_without_prefix else ""
        raise FieldError(f"{text!r} is not an instance type such as ml.m5.xlarge{hint}")
    size = text.rpartition(".")[2]
    if not re.fullmatch(_INSTANCE_SIZE, size):
        from smlaunch.catalog.instances import known_types  # reads a table

        match = nearest_match(text, known_types())
        hint = f", did you mean {match!r}?" if match is not None else ""
        raise FieldError(f"{text!r} is no instance type: no size is called {size!r}{hint}")
    return text


def _type_with_accelerators(accelerator: str, count: int) -> str:
    from smlaunch.catalog import instances  # reads a table

    matches = instances.types_with_accelerators(accelerator, count)
    if matches:
        return matches[0].name
    others = instances.types_with_accelerators(accelerator)
    if not others:
        hint = did_you_mean(accelerator, instances.accelerator_names())
        raise FieldError(f"no instance type has {accelerator!r}{hint}; or name the type")
    counts = sorted({instance.accelerators for instance in others})
    raise FieldError(
        f"no instance type has {count} x {accelerator}: they have {', '.join(map(str, counts))}; more "
        "of them are several hosts (compute.hosts)"
    )


InstanceTypeName = Annotated[
    NonEmptyText,
    FieldRule(
        _check_instance_type,
        {"pattern": rf"^(ml\.[a-z0-9-]+\.{_INSTANCE_SIZE}|{_ACCELERATORS.pattern})$"},
    ),
]
