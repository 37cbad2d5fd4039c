"""States before a job that choose its variant and its time limit."""

from __future__ import annotations

from typing import Any

from smlaunch.errors import EXIT_LIMIT
from smlaunch.export.asl import (
    ChoiceRule,
    State,
    and_rule,
    choice_state,
    comparison_rule,
    or_rule,
    pass_state,
    rule_to_state,
    states_format,
    states_math_add,
)
from smlaunch.export.run_template import RunTemplate, VariantTemplate
from smlaunch.export.sfn_common import NAME_THE_JOB, error_state, seconds_by_run_limit

CHOOSE_VARIANT = "Which variant?"

_EXHAUSTED_STATE_BY_LIMIT = {"training": "Training time is used up", "billed": "Max cost is reached"}
_LABEL_BY_RUN_LIMIT = {"training": "time", "billed": "money"}


def first_state_of_job(template: RunTemplate) -> str:
    """Return the name of the state at which every job of a run begins."""
    return CHOOSE_VARIANT if len(template.variants) > 1 else _state_of_variant(template, 0)


def time_limit_states(template: RunTemplate) -> dict[str, State]:
    """Return the states by name from the choice of the next job's variant (the request of consecutive
    segments: instance types and hosts may differ between segments) to its time limit. Empty for a run of one
    variant without limits."""
    states = _variant_choice_states(template)
    if seconds_by_run_limit(template):
        for variant_index, variant in enumerate(template.variants):
            states |= _time_limit_states_of_variant(template, variant_index, variant)
    return states


def variant_state_name(name: str, template: RunTemplate, index: int) -> str:
    return name if len(template.variants) == 1 else f"{name} ({index + 1})"


def rule_before_next_variant(template: RunTemplate, variant_index: int) -> ChoiceRule:
    """Return the rule that the run has not come to the next variant: to a training step (``until_step``), or
    else to a segment number."""
    until_step = template.variants[variant_index].until_step
    if until_step is not None:
        # As chain.workflow.reached_step: the reported step counts where nothing is committed.
        return and_rule(
            comparison_rule("$.position.step", "NumericLessThan", until_step),
            or_rule(
                comparison_rule("$.position.step", "NumericGreaterThan", 0),
                comparison_rule("$.position.reported", "NumericLessThan", until_step),
            ),
        )
    next_first_segment = template.variants[variant_index + 1].first_segment
    return comparison_rule("$.position.segment", "NumericLessThan", next_first_segment)


def rules_past_last_step(template: RunTemplate, step_path: str) -> list[ChoiceRule]:
    """Return, for each variant with a last step (``until_step``), the rule that the job began before that
    step and trained past it. ``step_path``: of the highest step that the job has reported."""
    return [
        and_rule(
            rule_before_next_variant(template, index),
            comparison_rule(step_path, "IsNumeric", True),
            comparison_rule(step_path, "NumericGreaterThan", variant.until_step),
        )
        for index, variant in enumerate(template.variants[:-1])
        if variant.until_step is not None
    ]


def _state_of_variant(template: RunTemplate, index: int) -> str:
    """Return the name of the first state of a job of this variant."""
    return _limit_choice_state_name(template, index) if seconds_by_run_limit(template) else NAME_THE_JOB


def _limit_choice_state_name(template: RunTemplate, index: int) -> str:
    return variant_state_name("How long?", template, index)


def _variant_choice_states(template: RunTemplate) -> dict[str, State]:
    """Return the Choice state that selects the variant of the next job; none for a run of one variant."""
    *chosen_by_rule, last_variant_index = range(len(template.variants))
    if not chosen_by_rule:
        return {}
    choice_rules = [
        rule_to_state(_state_of_variant(template, index), rule_before_next_variant(template, index))
        for index in chosen_by_rule
    ]
    comment = "Segments differ: by the step they begin at, or by their number."
    # The last variant has no rule: it applies where no other does.
    default_state = _state_of_variant(template, last_variant_index)
    return {CHOOSE_VARIANT: choice_state(comment, choice_rules, default_state)}


def _time_limit_states_of_variant(
    template: RunTemplate, variant_index: int, variant: VariantTemplate
) -> dict[str, State]:
    """Return the states that set the time limit of a variant's next job (``$.time_limits``). A run may limit
    its training time, its billed time (max_cost) or both; ``$.remaining`` has the seconds left of each. The
    run fails if less is left than a job needs (an exhausted limit); a job gets a full segment if enough is
    left; and otherwise what is left."""
    limit_names = list(seconds_by_run_limit(template))  # "training" before "billed"
    full_segment_state = variant_state_name("A whole segment", template, variant_index)
    partial_segment_state_by_limit = {
        limit_name: variant_state_name(
            f"What is left of its {_LABEL_BY_RUN_LIMIT[limit_name]}", template, variant_index
        )
        for limit_name in limit_names
    }
    needed_seconds = min(variant.min_job_seconds, variant.max_runtime_seconds)
    choice_rules = [
        rule_to_state(
            _EXHAUSTED_STATE_BY_LIMIT[limit_name],
            comparison_rule(f"$.remaining.{limit_name}", "NumericLessThan", needed_seconds),
        )
        for limit_name in limit_names
    ]
    has_full_segment_left = [
        comparison_rule(f"$.remaining.{limit_name}", "NumericGreaterThanEquals", variant.max_runtime_seconds)
        for limit_name in limit_names
    ]
    choice_rules.append(rule_to_state(full_segment_state, and_rule(*has_full_segment_left)))
    if len(limit_names) > 1:
        # The shorter one counts.
        has_less_training_left = comparison_rule(
            "$.remaining.training", "NumericLessThanEqualsPath", "$.remaining.billed"
        )
        choice_rules.append(rule_to_state(partial_segment_state_by_limit["training"], has_less_training_left))
    comment = (
        f"A job is not started for less than {variant.min_job_seconds} s, which its end alone would take."
    )
    return {
        _limit_choice_state_name(template, variant_index): choice_state(
            comment, choice_rules, partial_segment_state_by_limit[limit_names[-1]]
        ),
        full_segment_state: _full_segment_state(variant),
        **{
            partial_segment_state_by_limit[limit_name]: _partial_segment_state(limit_name, variant)
            for limit_name in limit_names
        },
        # All variants share these.
        **{
            _EXHAUSTED_STATE_BY_LIMIT[limit_name]: _exhausted_limit_state(template, limit_name)
            for limit_name in limit_names
        },
    }


def _full_segment_state(variant: VariantTemplate) -> State:
    """Return the Pass state that gives the next job the time limit of a full segment."""
    limits: dict[str, Any] = {"limit": variant.max_runtime_seconds}
    planned_end_seconds = variant.planned_end_seconds(variant.max_runtime_seconds)
    if planned_end_seconds is not None:
        limits["stop_after"] = str(planned_end_seconds)
    return pass_state("As planned.", limits, "$.time_limits", NAME_THE_JOB)


def _partial_segment_state(limit_name: str, variant: VariantTemplate) -> State:
    """Return the Pass state that gives the next job the time that is left of one limit of the run."""
    limits = {"limit.$": f"$.remaining.{limit_name}"}
    if variant.end_margin_seconds is not None:
        planned_end = states_math_add(f"$.remaining.{limit_name}", -variant.end_margin_seconds)
        limits["stop_after.$"] = f"States.Format('{{}}', {planned_end})"
    return pass_state("Still ends itself before its limit.", limits, "$.time_limits", NAME_THE_JOB)


def _exhausted_limit_state(template: RunTemplate, limit_name: str) -> State:
    """Return the Fail state for a limit of which too little is left."""
    reason = (
        f"its training time of {template.max_training_seconds} s is used up"
        if limit_name == "training"
        else f"its max_cost of ${template.policy.max_cost} is reached"
    )
    cause = states_format([f"{reason}; the newest checkpoint is step ", "$.position.step"])
    return error_state(EXIT_LIMIT, "The run stops at a checkpoint.", cause)
