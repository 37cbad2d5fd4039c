"""Which steps of an execution can start now: one pure function of the records of its steps.

A step starts when all steps that it depends on have succeeded. It never starts if its condition has the other
outcome, or if it depends on a step that will not succeed. Steps that depend on neither go on.
"""

from __future__ import annotations

from collections.abc import Mapping

from smlaunch.local.pipelines.pipeline_records import StepRecord
from smlaunch.local.pipelines.pipeline_steps import Definition

UNSUCCESSFUL_STATUSES = ("Failed", "Stopped")


def find_ready_steps(definition: Definition, record_by_step_name: Mapping[str, StepRecord]) -> list[str]:
    """Return the names of the steps that can start now, in the definition's order: they have not started, can
    still succeed, and need only steps that have succeeded."""
    reachable_names = _find_reachable_step_names(definition, record_by_step_name)
    succeeded_names = {name for name, record in record_by_step_name.items() if record.status == "Succeeded"}
    return [
        name
        for name, step in definition.steps.items()
        if name in reachable_names
        and name not in record_by_step_name
        and step.dependencies <= succeeded_names
    ]


def _find_reachable_step_names(
    definition: Definition, record_by_step_name: Mapping[str, StepRecord]
) -> set[str]:
    """Return the names of the steps of an execution that have succeeded or still can. ``record_by_step_name``
    has the stored states of the steps that have started, with the outcome, true or false, of a condition
    step."""
    reachable_names: set[str] = set()
    for name in definition.topological_order:  # each step after its dependencies
        step = definition.steps[name]
        record = record_by_step_name.get(name)
        if record is not None and record.status in UNSUCCESSFUL_STATUSES:
            continue
        if step.branch is not None:
            condition_record = record_by_step_name.get(step.branch.condition_step_name)
            # The outcome is None until the condition is evaluated; then only one of its branches runs.
            if condition_record is not None and condition_record.outcome not in (None, step.branch.runs_if):
                continue
        if step.dependencies <= reachable_names:
            reachable_names.add(name)
    return reachable_names
