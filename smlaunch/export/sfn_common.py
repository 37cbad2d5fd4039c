"""Shared by all states of an exported state machine: names, context, history limits, rules."""

from __future__ import annotations

from typing import Any

from smlaunch.api.retry_policy import CREATE_BACKOFF
from smlaunch.contract import formats
from smlaunch.contract.run_names import TAG_JOB
from smlaunch.contract.segment_outcome import FINISHED
from smlaunch.errors import EXIT_STOPPED
from smlaunch.export.asl import (
    ChoiceRule,
    State,
    and_rule,
    comparison_rule,
    fail_state,
    or_rule,
    retrier,
    states_format,
    states_math_add,
)
from smlaunch.export.run_template import ORCHESTRATOR_ERRORS, RunTemplate

BEGIN_STATE, FIRST_JOB, TAKE_OVER = "Begin", "First job", "Take over"
NAME_THE_JOB, DESCRIBE_JOB, CHECK_HISTORY, HAND_OVER = (
    "Name the job",
    "Look at the job",
    "Room in the history?",
    "Hand over",
)
START_NEXT_SEGMENT, RETRY_THIS_SEGMENT = "Next segment", "Again"
CHECK_STALE_OUTCOME, CLEAR_OUTCOME = "Finished, and failed after it?", "Clear the outcome"
RUN_DONE, RESULT = "Done", "Result"
AFTER_JOB_END = "What it left"

EXECUTION_STOPPED = {"Error": ORCHESTRATOR_ERRORS[EXIT_STOPPED], "Cause": "its execution was stopped"}
"""Defaults for an execution that was stopped, which has no Error and Cause."""

NO_REASON = "the service gave no reason"

HISTORY_LIMIT = 25_000
"""Events of one execution, after which it fails (Step Functions quotas)."""

MAX_EVENTS_BEFORE_HANDOVER = 20_000
"""After this many counted events, another execution takes over."""

EVENTS_PER_JOB = 600
EVENTS_PER_DESCRIBE = 100
EVENTS_PER_WAIT = 250
"""Upper bounds of the events of one job, one look at it, or one wait for its creation, with all retries; a
test computes the true numbers from the definition."""


INITIAL_POSITION = {
    "segment": 1,
    "attempt": 1,
    "step": 0,
    "reported": 0,
    "on_demand": False,
    "tried": 0,
    "waits": 0,
}
"""``step``: the newest committed step; ``reported``: the highest step in progress lines; ``tried``: jobs
since one of these increased; ``waits``: failed attempts to create this job."""


def error_state(exit_code: int, comment: str, cause: str) -> State:
    """Return the Fail state of a run that ends with this exit code."""
    return fail_state(comment, ORCHESTRATOR_ERRORS[exit_code], cause)


def s3_retriers(template: RunTemplate) -> list[State]:
    """Return the retriers of a call of S3."""
    return [retrier(["S3.S3Exception", "S3.SdkClientException"], CREATE_BACKOFF, template.time_scale, 5)]


def seconds_by_run_limit(template: RunTemplate) -> dict[str, int]:
    """Limits of the run in seconds, by name: training time and billed time."""
    limits = {"training": template.max_training_seconds, "billed": template.max_billed_seconds}
    return {name: seconds for name, seconds in limits.items() if seconds is not None}


def initial_limits(template: RunTemplate) -> dict[str, Any]:
    return {"remaining": seconds_by_run_limit(template)} if seconds_by_run_limit(template) else {}


def persistent_context(template: RunTemplate, source: str = "$") -> dict[str, Any]:
    remaining = {"remaining.$": f"{source}.remaining"} if seconds_by_run_limit(template) else {}
    return {**remaining, **({"shard.$": f"{source}.shard"} if template.shards else {})}


def next_job_context(template: RunTemplate, event_count: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Context for the next job; data of the current job is dropped. ``changes``: members of ``position``, as
    values, paths or functions."""
    position: dict[str, Any] = {}
    for key in INITIAL_POSITION:
        value = changes.get(key, f"$.position.{key}")
        position[f"{key}.$" if isinstance(value, str) else key] = value
    return {
        "run.$": "$.run",
        "position": position,
        **persistent_context(template),
        "events": {"n.$": states_math_add("$.events.n", event_count), "hop.$": "$.events.hop"},
        "defaults.$": "$.defaults",
    }


def response_defaults(template: RunTemplate) -> dict[str, Any]:
    """Defaults for members that a response may lack: a path to a missing member fails the execution."""
    defaults: dict[str, Any] = {
        "job": {"FailureReason": NO_REASON, **template.kind.description_defaults},
        "execution": EXECUTION_STOPPED,
        "tag": {"Key": TAG_JOB, "Value": template.workflow.job_hash},
    }
    if reads_outcome_file(template):
        defaults["outcome"] = {
            "version": "",
            "result": "",
            "step": None,
            "run": None,
            "job": None,
            "ranks_succeeded": False,
            "reported_step": None,
            "repeats_steps": False,
            "job_hash": None,
        }
    return defaults


def reads_outcome_file(template: RunTemplate) -> bool:
    """Whether outcome files are read: they say how far a job of a chain came. A single job needs none."""
    return template.checkpoints_prefix is not None and not template.workflow.is_single_job


# ---- the outcome file -------------------------------------------------------------------------------------

OUTCOME_JSON_PATH = "$.outcome.file"


def _is_readable_outcome() -> ChoiceRule:
    """It has a version that is read, and no other job has left it under the run's name."""
    hash_path = f"{OUTCOME_JSON_PATH}.job_hash"
    is_of_job = or_rule(
        comparison_rule(hash_path, "IsNull", True),
        and_rule(
            comparison_rule(hash_path, "IsString", True),
            comparison_rule(hash_path, "StringEqualsPath", "$.defaults.tag.Value"),
        ),
    )
    return and_rule(
        comparison_rule(f"{OUTCOME_JSON_PATH}.version", "StringMatches", f"{formats.OUTCOME.major}.*"),
        is_of_job,
    )


def rule_outcome_is_of_this_job() -> ChoiceRule:
    """The outcome file exists and is of this job: a job of another orchestrator may have the same segment and
    attempt."""
    return and_rule(
        _is_readable_outcome(), comparison_rule(f"{OUTCOME_JSON_PATH}.job", "StringEqualsPath", "$.job.name")
    )


def rule_training_is_finished() -> ChoiceRule:
    """The training is finished, in this job or an earlier one."""
    is_own_run = or_rule(
        comparison_rule(f"{OUTCOME_JSON_PATH}.run", "IsNull", True),
        and_rule(
            comparison_rule(f"{OUTCOME_JSON_PATH}.run", "IsString", True),
            comparison_rule(f"{OUTCOME_JSON_PATH}.run", "StringEqualsPath", "$.run"),
        ),
    )
    return and_rule(
        _is_readable_outcome(),
        comparison_rule(f"{OUTCOME_JSON_PATH}.result", "StringEquals", FINISHED),
        is_own_run,
    )


def rule_has_newer_step() -> ChoiceRule:
    return and_rule(
        rule_outcome_is_of_this_job(),
        comparison_rule(f"{OUTCOME_JSON_PATH}.step", "IsNumeric", True),
        comparison_rule(f"{OUTCOME_JSON_PATH}.step", "NumericGreaterThanPath", "$.position.step"),
    )


def rule_has_higher_reported_step() -> ChoiceRule:
    """The job reported a higher step than all earlier jobs, and did not repeat most of their steps."""
    return and_rule(
        rule_outcome_is_of_this_job(),
        comparison_rule(f"{OUTCOME_JSON_PATH}.reported_step", "IsNumeric", True),
        comparison_rule(
            f"{OUTCOME_JSON_PATH}.reported_step", "NumericGreaterThanPath", "$.position.reported"
        ),
        comparison_rule(f"{OUTCOME_JSON_PATH}.repeats_steps", "BooleanEquals", False),
    )


# ---- errors ---------------------------------------------------------------------------------------------

ERROR_FIELDS = ("Error", "Cause")


def rule_access_is_denied(error_path: str) -> ChoiceRule:
    """The role of the state machine lacks a permission. ``error_path``: path of the error."""
    patterns = ("*AccessDenied*", "*not authorized*")
    return or_rule(
        *(
            comparison_rule(f"{error_path}.{field}", "StringMatches", pattern)
            for field in ERROR_FIELDS
            for pattern in patterns
        )
    )


def rule_execution_was_started(error_path: str) -> ChoiceRule:
    """The awaited execution was started: the Cause of a failed execution is JSON, that of a refused start is
    text."""
    return comparison_rule(f"{error_path}.Cause", "StringMatches", "{*")


def append_progress(reason: str) -> str:
    """The reason of a run's end, followed by its progress."""
    return states_format([reason, *PROGRESS_TEXT_PIECES])


PROGRESS_TEXT_PIECES = (
    "; the newest checkpoint is step ",
    "$.progress.step",
    ", the highest step reported ",
    "$.progress.reported",
)
