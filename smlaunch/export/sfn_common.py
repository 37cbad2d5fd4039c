"""Shared by all states of an exported state machine: names, context, history limits, rules."""

from __future__ import annotations

from typing import Any

from smlaunch.contract import formats
from smlaunch.contract.names import TAG_JOB
from smlaunch.contract.outcome import FINISHED
from smlaunch.errors import EXIT_STOPPED
from smlaunch.export.asl import (
    ChoiceRule,
    State,
    add_numbers,
    all_of,
    any_of,
    compare,
    fail_state,
    format_text,
)
from smlaunch.export.run_template import ORCHESTRATOR_ERRORS, RunTemplate

BEGIN_STATE, FIRST_JOB, TAKE_OVER = "Begin", "First job", "Take over"
NAME_JOB, DESCRIBE_JOB, CHECK_HISTORY, HAND_OVER = (
    "Name the job",
    "Look at the job",
    "Room in the history?",
    "Hand over",
)
NEXT_SEGMENT, RETRY_SEGMENT = "Next segment", "Again"
CHECK_STALE_OUTCOME, CLEAR_OUTCOME = "Finished, and failed after it?", "Clear the outcome"
RUN_DONE, RESULT = "Done", "Result"
JOB_ENDED = "What it left"

EXECUTION_STOPPED = {"Error": ORCHESTRATOR_ERRORS[EXIT_STOPPED], "Cause": "its execution was stopped"}
"""Defaults for an execution that was stopped, which has no Error and Cause."""

NO_REASON = "the service gave no reason"

HISTORY_LIMIT = 25_000
"""Events of one execution, after which it fails (Step Functions quotas)."""

HANDOVER_EVENTS = 20_000
"""After this many counted events, another execution takes over."""

EVENTS_PER_JOB = 600
EVENTS_PER_LOOK = 100
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


def job_kind(template: RunTemplate) -> str:
    """Kind of the jobs in names of the API: ``Create<kind>Job``, ``<kind>JobStatus``."""
    return "Processing" if template.is_processing else "Training"


class StateMachineBuilder:
    """Collects the states of a state machine, in order."""

    def __init__(self, template: RunTemplate, name: str) -> None:
        self.template = template
        self.name = name
        self.states: dict[str, State] = {}

    def add(self, state_name: str, state: State, *further_states: tuple[str, State]) -> None:
        for name, new_state in ((state_name, state), *further_states):
            if name in self.states:
                raise ValueError(f"two states have the name {name!r}")
            self.states[name] = new_state

    def add_fail(self, name: str, exit_code: int, comment: str, cause: str) -> str:
        self.add(name, fail_state(comment, ORCHESTRATOR_ERRORS[exit_code], cause))
        return name


def active_limits(template: RunTemplate) -> dict[str, int]:
    """Limits of the run in seconds, by name: training time and billed time."""
    limits = {"training": template.max_training_seconds, "billed": template.max_billed_seconds}
    return {name: seconds for name, seconds in limits.items() if seconds is not None}


def initial_limits(template: RunTemplate) -> dict[str, Any]:
    return {"left": active_limits(template)} if active_limits(template) else {}


def persistent_context(template: RunTemplate, source: str = "$") -> dict[str, Any]:
    remaining = {"left.$": f"{source}.left"} if active_limits(template) else {}
    return {**remaining, **({"shard.$": f"{source}.shard"} if template.shards else {})}


def next_job_context(template: RunTemplate, event_count: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Context for the next job; data of the current job is dropped. ``changes``: members of ``at``, as
    values, paths or functions."""
    position: dict[str, Any] = {}
    for key in INITIAL_POSITION:
        value = changes.get(key, f"$.at.{key}")
        position[f"{key}.$" if isinstance(value, str) else key] = value
    return {
        "run.$": "$.run",
        "at": position,
        **persistent_context(template),
        "events": {"n.$": add_numbers("$.events.n", event_count), "hop.$": "$.events.hop"},
        "blank.$": "$.blank",
    }


def response_defaults(template: RunTemplate) -> dict[str, Any]:
    """Defaults for members that a response may lack: a path to a missing member fails the execution."""
    training_job = {
        "FailureReason": NO_REASON,
        "SecondaryStatus": "",
        "TrainingTimeInSeconds": 0,
        "BillableTimeInSeconds": 0,
        "EnableManagedSpotTraining": False,
        "ModelArtifacts": {"S3ModelArtifacts": ""},
    }
    processing_job = {"FailureReason": NO_REASON, "ExitMessage": "none"}
    defaults: dict[str, Any] = {
        "job": processing_job if template.is_processing else training_job,
        "execution": EXECUTION_STOPPED,
        "tag": {"Key": TAG_JOB, "Value": template.workflow.job_hash},
    }
    if reads_outcome(template):
        defaults["outcome"] = {
            "version": "",
            "result": "",
            "step": None,
            "run": None,
            "job": None,
            "ranks_succeeded": False,
            "reported_step": None,
            "repeats_steps": False,
        }
    return defaults


def reads_outcome(template: RunTemplate) -> bool:
    """Whether outcome files are read: they say how far a job of a chain came. A single job needs none."""
    return template.checkpoints is not None and not template.workflow.is_single_job


# ---- the outcome file -------------------------------------------------------------------------------------

OUTCOME_PATH = "$.outcome.said"


def _is_readable_outcome() -> ChoiceRule:
    return compare(f"{OUTCOME_PATH}.version", "StringMatches", f"{formats.OUTCOME.major}.*")


def is_own_outcome() -> ChoiceRule:
    """The outcome file exists and is of this job: a job of another orchestrator may have the same segment and
    attempt."""
    return all_of(_is_readable_outcome(), compare(f"{OUTCOME_PATH}.job", "StringEqualsPath", "$.job.name"))


def is_training_finished() -> ChoiceRule:
    """The training is finished, in this job or an earlier one."""
    is_own_run = any_of(
        compare(f"{OUTCOME_PATH}.run", "IsNull", True),
        all_of(
            compare(f"{OUTCOME_PATH}.run", "IsString", True),
            compare(f"{OUTCOME_PATH}.run", "StringEqualsPath", "$.run"),
        ),
    )
    return all_of(
        _is_readable_outcome(), compare(f"{OUTCOME_PATH}.result", "StringEquals", FINISHED), is_own_run
    )


def has_newer_step() -> ChoiceRule:
    return all_of(
        is_own_outcome(),
        compare(f"{OUTCOME_PATH}.step", "IsNumeric", True),
        compare(f"{OUTCOME_PATH}.step", "NumericGreaterThanPath", "$.at.step"),
    )


def has_higher_reported_step() -> ChoiceRule:
    """The job reported a higher step than all earlier jobs, and did not repeat most of their steps."""
    return all_of(
        is_own_outcome(),
        compare(f"{OUTCOME_PATH}.reported_step", "IsNumeric", True),
        compare(f"{OUTCOME_PATH}.reported_step", "NumericGreaterThanPath", "$.at.reported"),
        compare(f"{OUTCOME_PATH}.repeats_steps", "BooleanEquals", False),
    )


# ---- errors ---------------------------------------------------------------------------------------------

ERROR_FIELDS = ("Error", "Cause")


def is_access_denied(error_path: str) -> ChoiceRule:
    """The role of the state machine lacks a permission. ``error_path``: path of the error."""
    patterns = ("*AccessDenied*", "*not authorized*")
    return any_of(
        *(
            compare(f"{error_path}.{field}", "StringMatches", pattern)
            for field in ERROR_FIELDS
            for pattern in patterns
        )
    )


def execution_started(error_path: str) -> ChoiceRule:
    """The awaited execution was started: the Cause of a failed execution is JSON, that of a refused start is
    text."""
    return compare(f"{error_path}.Cause", "StringMatches", "{*")


def with_progress(reason: str) -> str:
    """The reason of a run's end, followed by its progress."""
    return format_text([reason, *PROGRESS_PIECES])


PROGRESS_PIECES = (
    "; the newest checkpoint told of is step ",
    "$.count.step",
    ", the highest step reported ",
    "$.count.reported",
)
