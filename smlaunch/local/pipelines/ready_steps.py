"""How far an execution has come, and which steps can begin: one pure function of what is known of each.

A step begins when all that it needs have succeeded. One whose condition turned out the other way, or that
needs a step that will not succeed, never begins; steps that need neither go on.
"""

from __future__ import annotations

from collections.abc import Mapping

from smlaunch.local.pipelines.definition import Definition
from smlaunch.local.pipelines.records import StepRecord

ENDED_BADLY = ("Failed", "Stopped")


def ready(definition: Definition, records: Mapping[str, StepRecord]) -> list[str]:
    """The steps that can begin now, in the definition's order."""
    possible = _possible(definition, records)
    return [
        name
        for name, step in definition.steps.items()
        if name not in records
        and name in possible
        and all(other in records and records[other].status == "Succeeded" for other in step.needs)
    ]


def _possible(definition: Definition, records: Mapping[str, StepRecord]) -> set[str]:
    """The steps that have succeeded or may still."""
    found: set[str] = set()
    for name in definition.order:
        step = definition.steps[name]
        record = records.get(name)
        if record is not None and record.status in ENDED_BADLY:
            continue
        if step.branch is not None:
            condition = records.get(step.branch[0])
            if condition is not None and condition.outcome not in (None, step.branch[1]):
                continue
        if step.needs <= found:
            found.add(name)
    return found
