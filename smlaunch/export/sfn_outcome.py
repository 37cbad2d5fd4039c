"""States that read the outcome file, which a job writes to S3: how far it came; and that clear it."""

from __future__ import annotations

from typing import Any

from smlaunch.contract.segment_outcome import OUTCOME_PATH_PREFIX
from smlaunch.errors import EXIT_SERVICE
from smlaunch.export.asl import (
    JOB_NAME_PATH,
    State,
    and_rule,
    catcher,
    choice_state,
    comparison_rule,
    pass_state,
    rule_to_state,
    states_format,
    states_math_add,
    states_merge_defaults,
    task_state,
)
from smlaunch.export.run_template import RunTemplate, TextTemplate
from smlaunch.export.sfn_common import (
    AFTER_JOB_END,
    CHECK_HISTORY,
    CHECK_STALE_OUTCOME,
    CLEAR_OUTCOME,
    OUTCOME_JSON_PATH,
    error_state,
    reads_outcome_file,
    rule_has_higher_reported_step,
    rule_has_newer_step,
    rule_training_is_finished,
    s3_retriers,
)

READ_OUTCOME, NO_OUTCOME, CHECK_NEWER_STEP = "Read the outcome", "No outcome yet", "A newer step?"
FOUND_NEWER_STEP, FOUND_NO_PROGRESS = "A newer step", "Nothing newer"
CHECK_REPORTED_STEP, FOUND_HIGHER_REPORTED_STEP = "Was a higher step reported?", "A higher step was reported"
CHECK_REPORTED_STEP_TOO, FOUND_BOTH_STEPS_HIGHER = "Was it reported too?", "A newer step, and reported"
UNREADABLE_OUTCOME = "Outcome cannot be read"


def progress_states(template: RunTemplate, next_state: str) -> dict[str, State]:
    """Return the states from the end of a job to ``next_state`` by name. They set ``$.progress``: ``step``,
    the newest step with a committed checkpoint; ``reported``, the highest step in the script's progress
    lines; ``tried``, how many jobs in a row increased neither. ``$.position`` has the values before the job.
    Only an outcome file can show progress."""
    unchanged_steps = {"step.$": "$.position.step", "reported.$": "$.position.reported"}
    no_progress_state = pass_state(
        "One more try.",
        {**unchanged_steps, "tried.$": states_math_add("$.position.tried", 1), "newer": False},
        "$.progress",
        next_state,
    )
    if not reads_outcome_file(template):
        # Nothing is read after the job, so that counting is the first state after its end.
        return {AFTER_JOB_END: no_progress_state}
    newer_step = {"step.$": f"{OUTCOME_JSON_PATH}.step"}
    higher_reported_step = {"reported.$": f"{OUTCOME_JSON_PATH}.reported_step"}
    changes_by_state = {
        FOUND_NEWER_STEP: newer_step,
        FOUND_HIGHER_REPORTED_STEP: higher_reported_step,
        FOUND_BOTH_STEPS_HIGHER: {**newer_step, **higher_reported_step},
    }
    return {
        **_read_outcome_states(template),
        **{
            state_name: pass_state(
                "What was tried before it counts no more.",
                {**unchanged_steps, **changes, "tried": 0, "newer": True},
                "$.progress",
                next_state,
            )
            for state_name, changes in changes_by_state.items()
        },
        FOUND_NO_PROGRESS: no_progress_state,
    }


def stale_outcome_states(template: RunTemplate) -> dict[str, State]:
    """Return the states that delete the outcome file of a training that has finished, but whose job failed
    after it: the next job would exit at once."""
    is_stale = and_rule(
        rule_training_is_finished(),
        comparison_rule(f"{OUTCOME_JSON_PATH}.ranks_succeeded", "BooleanEquals", True),
    )
    return {
        CHECK_STALE_OUTCOME: choice_state(
            "The training went to its end, and its job failed after it: the next one would do nothing.",
            [rule_to_state(CLEAR_OUTCOME, is_stale)],
            CHECK_HISTORY,
        ),
        CLEAR_OUTCOME: task_state(
            "So that it trains the rest, and writes its model, again.",
            "aws-sdk:s3:deleteObject",
            _outcome_object(template, "$.outcome.job"),
            None,
            CHECK_HISTORY,
            retriers=s3_retriers(template),
        ),
    }


def _outcome_object(template: RunTemplate, job: str) -> dict[str, Any]:
    """Arguments of S3 calls for the outcome file of a job. ``job``: path of the job name."""
    first, *rest = (template.checkpoints_prefix or TextTemplate(())).pieces
    bucket, _, key = str(first).removeprefix("s3://").partition("/")
    path = states_format([key, *rest, OUTCOME_PATH_PREFIX, job, ".json"])
    return {"Bucket": bucket, "ExpectedBucketOwner": template.bucket_owner(bucket), "Key.$": path}


def _read_outcome_states(template: RunTemplate) -> dict[str, State]:
    """Return the states that read the outcome file of a job, and compare its steps with those before."""
    missing_errors = ["S3.NoSuchKeyException", "S3.NoSuchKey", "States.IntrinsicFailure"]

    def outcome_state(comment: str, file: str) -> State:
        return pass_state(comment, {"file.$": file, "job.$": JOB_NAME_PATH}, "$.outcome", CHECK_NEWER_STEP)

    return {
        AFTER_JOB_END: task_state(
            "How far the run is stands in S3, where the job's own sync has put it. One that is cut off "
            "counts as missing.",
            "aws-sdk:s3:getObject",
            _outcome_object(template, JOB_NAME_PATH),
            "$.outcome",
            READ_OUTCOME,
            result_selector={"file.$": "States.StringToJson($.Body)"},
            retriers=s3_retriers(template),
            catchers=[
                catcher(missing_errors, None, NO_OUTCOME),
                catcher(["States.ALL"], "$.outcome", UNREADABLE_OUTCOME),
            ],
        ),
        READ_OUTCOME: outcome_state(
            "With a default for each member that it may lack.",
            states_merge_defaults("$.defaults.outcome", "$.outcome.file"),
        ),
        NO_OUTCOME: outcome_state("Missing means continue.", "$.defaults.outcome"),
        CHECK_NEWER_STEP: choice_state(
            "What another job of the run has said is not this one's word.",
            [rule_to_state(CHECK_REPORTED_STEP_TOO, rule_has_newer_step())],
            CHECK_REPORTED_STEP,
        ),
        CHECK_REPORTED_STEP_TOO: choice_state(
            "What was reported counts too.",
            [rule_to_state(FOUND_BOTH_STEPS_HIGHER, rule_has_higher_reported_step())],
            FOUND_NEWER_STEP,
        ),
        CHECK_REPORTED_STEP: choice_state(
            "A script that keeps checkpoints of its own may report steps, and commits none.",
            [rule_to_state(FOUND_HIGHER_REPORTED_STEP, rule_has_higher_reported_step())],
            FOUND_NO_PROGRESS,
        ),
        UNREADABLE_OUTCOME: error_state(
            EXIT_SERVICE,
            "Whether the run has finished stands in it: to guess would train again.",
            "$.outcome.Cause",
        ),
    }
