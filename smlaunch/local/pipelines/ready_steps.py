"""Which steps of an execution can start now: one pure function of the records of its steps.

A step starts when all steps that it depends on have succeeded. It never starts if its condition has the other
outcome, or if it depends on a step that will not succeed. Steps that depend on neither go on.
"""

from __future__ import annotations

from collections.abc import Mapping

from smlaunch.local.pipelines.definition import Definition
from smlaunch.local.pipelines.records import StepRecord

UNSUCCESSFUL_STATUSES = ("Failed", "Stopped")


def find_ready_steps(definition: Definition, records: Mapping[str, StepRecord]) -> list[str]:
    """Return the names of the steps that can start now, in the definition's order."""
    reachable = _find_reachable_steps(definition, records)
    return [
        name
        for name, step in definition.steps.items()
        if name not in records
        and name in reachable
        and all(other in records and records[other].status == "Succeeded" for other in step.dependencies)
    ]


def _find_reachable_steps(definition: Definition, records: Mapping[str, StepRecord]) -> set[str]:
    """Return the names of the steps that have succeeded or still can."""
    reachable: set[str] = set()
    for name in definition.order:
        step = definition.steps[name]
        record = records.get(name)
        if record is not None and record.status in UNSUCCESSFUL_STATUSES:
            continue
        if step.branch is not None:
            condition = records.get(step.branch[0])
            if condition is not None and condition.outcome not in (None, step.branch[1]):
                continue
        if step.dependencies <= reachable:
            reachable.add(name)
    return reachable
