"""States that decide what follows the end of a job: ``chain.next_action`` as Choice states."""

from __future__ import annotations

from typing import Any

from smlaunch.api.job_kinds import TRAINING, FieldPath, JobKind, get_at_path
from smlaunch.chain.next_action import (
    ENDING_MESSAGES,
    NO_CAPACITY_ENDINGS,
    OUTCOME_GRACE_SECONDS,
    TIME_USED_ENDINGS,
)
from smlaunch.chain.workflow import (
    ENDING_BY_FAILURE_REASON,
    ENDING_BY_SECONDARY_STATUS,
    RULE_BY_ENDING,
    EndingRule,
    JobEnding,
    Remedy,
    classify_ending,
)
from smlaunch.contract.segment_outcome import CONTINUE, FINISHED
from smlaunch.errors import EXIT_LIMIT, EXIT_TRAINING_FAILED
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
    to_asl_parameters,
    wait_state,
)
from smlaunch.export.run_template import RunTemplate
from smlaunch.export.sfn_common import (
    AFTER_JOB_END,
    CHECK_HISTORY,
    CHECK_STALE_OUTCOME,
    EVENTS_PER_JOB,
    OUTCOME_JSON_PATH,
    PROGRESS_TEXT_PIECES,
    RESULT,
    RETRY_THIS_SEGMENT,
    RUN_DONE,
    START_NEXT_SEGMENT,
    append_progress,
    error_state,
    next_job_context,
    reads_outcome_file,
    rule_outcome_is_of_this_job,
    rule_training_is_finished,
)
from smlaunch.export.sfn_outcome import progress_states, stale_outcome_states
from smlaunch.export.sfn_time_limits import rules_past_last_step

CLASSIFY_ENDING, NO_PROGRESS = "How did it end?", "No progress"
CHECK_MORE_TO_TRAIN, WAIT_FOR_OUTCOME, COUNT_OUTCOME_READ = (
    "More to train?",
    "Wait for the outcome",
    "Look for it again",
)
CHOOSE_BACKOFF, ATTEMPT_BACKOFF, LONGEST_BACKOFF, WAIT_BEFORE_RETRY = (
    "How long to wait?",
    "So long",
    "As long as it may be",
    "Wait to try again",
)
SWITCH_TO_ON_DEMAND = "On demand now"

_STATUS_PATH, _SECONDARY_STATUS_PATH, _FAILURE_REASON_PATH = (
    f"$.description.job.{member}" for member in ("TrainingJobStatus", "SecondaryStatus", "FailureReason")
)
_MAX_OUTCOME_READS = 6


def choice_rules_by_ending(kind: JobKind = TRAINING) -> list[tuple[JobEnding, ChoiceRule]]:
    """Return each ending of a job (completed, stopped at its time limit, no capacity, ...) with the Choice
    rule of Step Functions that recognizes it, in the order in which the rules are tried: ``classify_ending``
    (the same in Python) as rules. A job that no rule recognizes has ended as ``other_failure`` says.
    """
    status_path = f"$.description.job.{kind.status_field}"
    is_completed = comparison_rule(status_path, "StringEquals", "Completed")
    is_stopped = comparison_rule(status_path, "StringEquals", "Stopped")
    is_failed = comparison_rule(status_path, "StringEquals", "Failed")
    rules: list[tuple[JobEnding, ChoiceRule]] = [(JobEnding.COMPLETED, is_completed)]
    # Without a secondary status, a job does not say who stopped it.
    if kind.has_secondary_status:
        for secondary_status, ending in ENDING_BY_SECONDARY_STATUS.items():
            has_secondary_status = comparison_rule(_SECONDARY_STATUS_PATH, "StringEquals", secondary_status)
            rules.append((ending, and_rule(is_stopped, has_secondary_status)))
    rules.append((JobEnding.STOPPED, is_stopped))  # after the rules above, which are narrower
    for failure_class, ending in ENDING_BY_FAILURE_REASON.items():
        # The reason is the class alone, such as "ClientError", or begins with it and a colon.
        has_failure_class = or_rule(
            comparison_rule(_FAILURE_REASON_PATH, "StringEquals", failure_class),
            comparison_rule(_FAILURE_REASON_PATH, "StringMatches", f"{failure_class}:*"),
        )
        rules.append((ending, and_rule(is_failed, has_failure_class)))
    return rules


def other_failure() -> JobEnding:
    """Return the ending of a failed job whose failure reason has no known class: the script's own failure."""
    return classify_ending("Failed", "", "") or JobEnding.ALGORITHM


def ending_states(template: RunTemplate) -> dict[str, State]:
    """Return the states after the end of a job by name, from ``AFTER_JOB_END`` to the next job or the end of
    the run."""
    return _EndingStates(template).states


class _EndingStates:
    """Adds the states after the end of a job to ``states``. A state is added only if the run needs it."""

    def __init__(self, template: RunTemplate) -> None:
        self.template = template
        self.states = progress_states(template, CLASSIFY_ENDING)
        rules = choice_rules_by_ending(template.kind)
        possible_endings = {other_failure(), *(ending for ending, _ in rules)}
        # Keeps its place before the states that it leads to, whose names are known when they are added.
        self.states[CLASSIFY_ENDING] = {}
        first_state_by_ending = {
            ending: self._add_states_after_ending(ending)
            for ending in JobEnding
            if ending in possible_endings
        }
        self.states[CLASSIFY_ENDING] = choice_state(
            "By its status, its secondary status and the first word of its failure's reason.",
            [rule_to_state(first_state_by_ending[ending], rule) for ending, rule in rules],
            first_state_by_ending[other_failure()],
        )
        self._add_next_job_states()
        self._add_success()

    # ---- what follows on each ending ----------------------------------------------------------------------

    def _add_states_after_ending(self, ending: JobEnding) -> str:
        """Add the states that follow a job that ended so, and return the name of the first one. A job that
        used its time goes on with the next segment or ends the run; any other ending has a remedy: fail or
        retry, on demand where spot capacity did not come. The outcome file, which the job wrote to S3, says
        whether training has finished; a job that was stopped may have."""
        if ending in TIME_USED_ENDINGS:
            return self._add_states_after_used_time(ending)
        first_state = remedy_state = _remedy_state_name(ending)
        if ending is JobEnding.STOPPED and reads_outcome_file(self.template):
            first_state = self._add_finished_check(remedy_state)
        elif ending in NO_CAPACITY_ENDINGS and self._has_spot_fallback():
            first_state = self._add_spot_check(ending, remedy_state)
        self._add_remedy_states(ending)
        return first_state

    def _has_spot_fallback(self) -> bool:
        """Return whether a segment on spot may be retried on demand."""
        return any(variant.on_demand_request is not None for variant in self.template.variants)

    def _add_spot_check(self, ending: JobEnding, remedy_state: str) -> str:
        """Add the Choice state that retries a job on demand if it was on spot, and return its name.
        ``remedy_state``: next state of a job that was on demand already."""
        spot_check_state = f"{_STATE_TITLE_BY_ENDING[ending]}: was it on spot?"
        was_on_spot = comparison_rule("$.description.job.EnableManagedSpotTraining", "BooleanEquals", True)
        self.states[spot_check_state] = choice_state(
            "On demand, where spot capacity did not come.",
            [rule_to_state(SWITCH_TO_ON_DEMAND, was_on_spot)],
            remedy_state,
        )
        return spot_check_state

    def _add_finished_check(self, stopped_state: str) -> str:
        """Add a Choice state that tells a finished training from one that was interrupted, and return its
        name. ``stopped_state``: next state of an interrupted training."""
        name = f"{_STATE_TITLE_BY_ENDING[JobEnding.STOPPED]}: had it finished?"
        had_finished = and_rule(
            rule_outcome_is_of_this_job(),
            comparison_rule(f"{OUTCOME_JSON_PATH}.result", "StringEquals", FINISHED),
            comparison_rule(f"{OUTCOME_JSON_PATH}.ranks_succeeded", "BooleanEquals", True),
        )
        self.states[name] = choice_state(
            "In its last minute.", [rule_to_state(RUN_DONE, had_finished)], stopped_state
        )
        return name

    def _add_remedy_states(self, ending: JobEnding) -> None:
        """Add the states that apply the remedy of a job's ending (``RULE_BY_ENDING``): a Fail state, or a
        check whether attempts are left, which fails or leads to the next attempt (state
        ``RETRY_THIS_SEGMENT``), where needed after a wait that grows with each attempt. ``$.progress.tried``
        counts the jobs in a row without progress."""
        ending_rule, ending_title = RULE_BY_ENDING[ending], _STATE_TITLE_BY_ENDING[ending]
        # The text of an ending is our own, or else the FailureReason in the description of the job.
        failure_text = ENDING_MESSAGES.get(ending, _FAILURE_REASON_PATH)
        remedy_state = _remedy_state_name(ending)
        if ending_rule.remedy in _COMMENT_BY_FINAL_REMEDY:  # a remedy that retries nothing
            self._add_failure_state(
                remedy_state, ending_rule, _COMMENT_BY_FINAL_REMEDY[ending_rule.remedy], failure_text
            )
            return
        given_up_state = f"{ending_title}: given up"
        next_try_state = f"{ending_title}: waits" if ending_rule.max_wait_seconds else RETRY_THIS_SEGMENT
        max_attempts = self.template.policy.attempts
        has_no_attempts_left = comparison_rule("$.progress.tried", "NumericGreaterThanEquals", max_attempts)
        comment = f"{max_attempts} in all may end without progress ({ending_rule.remedy.value})."
        self.states[remedy_state] = choice_state(
            comment, [rule_to_state(given_up_state, has_no_attempts_left)], next_try_state
        )
        self._add_failure_state(
            given_up_state, ending_rule, "Tried as often as the job allows.", failure_text
        )
        if ending_rule.max_wait_seconds:
            self._add_backoff_schedule_state(next_try_state, ending_rule)

    def _add_failure_state(
        self, state_name: str, ending_rule: EndingRule, comment: str, failure_text: str
    ) -> None:
        """Add a Fail state, which ends the execution with the error of the ending's exit code.
        ``failure_text``: what the user reads as its Cause, or the JSON path of that text in the execution.
        With an outcome file (what a job wrote to S3 at its end) the newest step is added to it."""
        kind, cause = self.template.kind, failure_text
        if reads_outcome_file(self.template):
            cause = append_progress(failure_text)
        elif failure_text == _FAILURE_REASON_PATH and kind.exit_message:
            # Only the exit message of such a job says which host failed, and why.
            exit_message_path = _description_path(kind.exit_message)
            cause = states_format([_FAILURE_REASON_PATH, "; exit message: ", exit_message_path])
        elif failure_text != _FAILURE_REASON_PATH and not kind.has_secondary_status:
            cause = (
                "its job was stopped, by somebody or at its limits.max_runtime: "
                f"of a {kind.noun} the service does not say which"
            )
        self.states[state_name] = error_state(ending_rule.exit_code, comment, cause)

    def _add_backoff_schedule_state(self, name: str, rule: EndingRule) -> None:
        """Add the waits before a retry: one for each attempt, up to the maximum."""
        wait_seconds: list[int] = []
        while not wait_seconds or rule.wait_seconds(len(wait_seconds)) < rule.max_wait_seconds:
            wait_seconds.append(self.template.scale_seconds(rule.wait_seconds(len(wait_seconds) + 1)))
        values = {"seconds": wait_seconds, "longest": wait_seconds[-1], "longest_from": len(wait_seconds)}
        self.states[name] = pass_state("Seconds after each attempt.", values, "$.wait", CHOOSE_BACKOFF)

    def _add_states_after_used_time(self, ending: JobEnding) -> str:
        """Add the states that follow a job that completed or was stopped at its time limit, and return the
        name of the first one (names in capitals are those of states). A chain is a run of several jobs in a
        row, one per segment. The outcome file, which a job writes to S3, may say that it completed before
        training had finished."""
        if self.template.workflow.is_multi_segment:
            if CHECK_MORE_TO_TRAIN not in self.states:  # both endings lead to it
                self._add_chain_continuation_states()
            return CHECK_MORE_TO_TRAIN
        if ending is JobEnding.TIME_LIMIT:
            time_over_state, rule = "Its time was over", RULE_BY_ENDING[ending]
            comment, failure_text = "One job, and its limit.", "stopped at its max_runtime"
            self._add_failure_state(time_over_state, rule, comment, failure_text)
            return time_over_state
        if reads_outcome_file(self.template):
            return self._add_early_end_states()
        return RUN_DONE

    def _add_early_end_states(self) -> str:
        """Add the states that fail a run of one job which completed, but whose outcome file says that
        training should continue in another job: it ended itself before its time limit. Return the name of the
        first."""
        outcome_check_state, early_state = "Was it to go on?", "It ended itself early"
        wants_to_continue = and_rule(
            rule_outcome_is_of_this_job(),
            comparison_rule(f"{OUTCOME_JSON_PATH}.result", "StringEquals", CONTINUE),
        )
        self.states[outcome_check_state] = choice_state(
            "A job that exited early on request completes too.",
            [rule_to_state(early_state, wants_to_continue)],
            RUN_DONE,
        )
        early_end_text = states_format(
            ["ended itself before its max_runtime; the newest checkpoint is step ", "$.progress.step"]
        )
        self.states[early_state] = error_state(
            EXIT_LIMIT, "There is no chain that would go on.", early_end_text
        )
        return outcome_check_state

    def _add_check_of_last_steps(self, is_finished: ChoiceRule) -> list[State]:
        """Add the state that fails a run whose last job trained past the step until which its variant
        applies. Return the choice that leads there, none without such steps."""
        is_past_last_step = rules_past_last_step(self.template, f"{OUTCOME_JSON_PATH}.reported_step")
        if not is_past_last_step:
            return []
        name = "Trained past its last step"
        cause = states_format(
            [
                "$.job.name",
                " trained to its end, step ",
                f"{OUTCOME_JSON_PATH}.reported_step",
                ", with settings that apply until an earlier one",
            ]
        )
        comment = "What segments state from there on was never used."
        self.states[name] = error_state(EXIT_TRAINING_FAILED, comment, cause)
        ended_so = and_rule(is_finished, rule_outcome_is_of_this_job(), or_rule(*is_past_last_step))
        return [rule_to_state(name, ended_so)]

    def _add_chain_continuation_states(self) -> None:
        """Add the choice after a job of a chain that completed or reached its time limit."""
        attempts = self.template.policy.attempts
        is_completed = comparison_rule(_STATUS_PATH, "StringEquals", "Completed")
        # In this job, and in all jobs before it.
        steps_unknown = [
            rule
            for member, counter in (("step", "step"), ("reported_step", "reported"))
            for rule in (
                comparison_rule(f"{OUTCOME_JSON_PATH}.{member}", "IsNull", True),
                comparison_rule(f"$.progress.{counter}", "NumericEquals", 0),
            )
        ]
        has_own_files = and_rule(rule_outcome_is_of_this_job(), *steps_unknown)
        outcome_missing = and_rule(
            {"Not": rule_outcome_is_of_this_job()},
            comparison_rule("$.job.looks", "NumericLessThan", _MAX_OUTCOME_READS),
        )
        attempts_used = comparison_rule("$.progress.tried", "NumericGreaterThanEquals", attempts)
        next_outcome_read = {
            "name.$": "$.job.name",
            "fault.$": "$.job.fault",
            "looks.$": states_math_add("$.job.looks", 1),
        }
        no_progress_text = states_format(
            [
                f"no progress: {attempts} jobs until ",
                "$.job.name",
                " came no further than jobs before them",
                *PROGRESS_TEXT_PIECES,
                "; the script begins anew in every job, or saves no checkpoint before a segment's end",
            ]
        )
        is_finished = and_rule(is_completed, rule_training_is_finished())
        self.states |= {
            CHECK_MORE_TO_TRAIN: choice_state(
                "Finished; or further than before; or a run that has reported no step, whose files nobody "
                f"compares here. Of {attempts} jobs that came no further, the next one will not either.",
                [
                    *self._add_check_of_last_steps(is_finished),
                    rule_to_state(RUN_DONE, is_finished),
                    rule_to_state(
                        START_NEXT_SEGMENT, comparison_rule("$.progress.newer", "BooleanEquals", True)
                    ),
                    rule_to_state(START_NEXT_SEGMENT, has_own_files),
                    rule_to_state(WAIT_FOR_OUTCOME, outcome_missing),
                    rule_to_state(NO_PROGRESS, attempts_used),
                ],
                RETRY_THIS_SEGMENT,
            ),
            WAIT_FOR_OUTCOME: wait_state(
                "It may still be on its way to S3.",
                COUNT_OUTCOME_READ,
                seconds=self.template.scale_seconds(OUTCOME_GRACE_SECONDS / _MAX_OUTCOME_READS),
            ),
            COUNT_OUTCOME_READ: pass_state(
                f"{OUTCOME_GRACE_SECONDS:.0f} s in all.", next_outcome_read, "$.job", AFTER_JOB_END
            ),
            NO_PROGRESS: error_state(EXIT_TRAINING_FAILED, "Going on would only cost.", no_progress_text),
        }

    # ---- going on -----------------------------------------------------------------------------------------

    def _add_next_job_states(self) -> None:
        """Add the states between the end of a job and the next one, each (its name in capitals) only if a
        state added before leads to it: the wait before another attempt of the segment, Pass states that count
        segments and attempts in ``$.position``, and the check for an outdated outcome file (what a job wrote
        to S3 at its end)."""
        next_attempt: dict[str, Any] = {
            **_COUNTED_PROGRESS_PATHS,  # step, reported and tried, as counted after this job
            "attempt": states_math_add("$.position.attempt", 1),
            "waits": 0,  # failed calls that create the job
        }
        if self._is_reached(CHOOSE_BACKOFF):
            self.states |= _backoff_states()
        if self._is_reached(SWITCH_TO_ON_DEMAND):
            comment = "Spot that did not come once is not waited for again in this segment."
            self._add_position_state(SWITCH_TO_ON_DEMAND, comment, {**next_attempt, "on_demand": True})
        if self._is_reached(RETRY_THIS_SEGMENT):
            comment = "The same segment, from the newest checkpoint there is."
            self._add_position_state(RETRY_THIS_SEGMENT, comment, next_attempt)
        if self._is_reached(START_NEXT_SEGMENT):
            next_segment: dict[str, Any] = {
                **_COUNTED_PROGRESS_PATHS,
                "tried": 0,  # attempts without progress
                "segment": states_math_add("$.position.segment", 1),
                "attempt": 1,
                "on_demand": False,
                "waits": 0,
            }
            comment = "From there; as planned again, on spot too."
            self._add_position_state(START_NEXT_SEGMENT, comment, next_segment)
        if self._is_reached(CHECK_STALE_OUTCOME):
            self.states |= stale_outcome_states(self.template)

    def _add_position_state(self, state_name: str, comment: str, position_changes: dict[str, Any]) -> None:
        """Add the Pass state that changes ``$.position`` (segment, attempt, step, ...) for the next job."""
        values = next_job_context(self.template, EVENTS_PER_JOB, position_changes)
        next_state = CHECK_HISTORY
        if reads_outcome_file(self.template):
            # The outcome stays in the context until it has been checked and cleared.
            values["outcome.$"] = "$.outcome"
            next_state = CHECK_STALE_OUTCOME
        self.states[state_name] = pass_state(comment, values, None, next_state)

    def _is_reached(self, state_name: str) -> bool:
        """Return whether a state that was added so far leads to this one."""
        return any(state_name in next_states(state) for state in self.states.values())

    def _add_success(self) -> None:
        values = {
            "run.$": "$.run",
            "status": "Completed",
            "job.$": "$.job.name",
            "segment.$": "$.position.segment",
            "attempt.$": "$.position.attempt",
        }
        kind = self.template.kind
        if kind.trains_model:
            artifacts_path = _description_path(kind.model_artifacts)
            values |= {"step.$": "$.progress.step", "model_artifacts.$": artifacts_path}
        else:
            request = self.template.variants[0].request
            values |= to_asl_parameters(
                {"output": get_at_path(request, kind.request_path_by_field["output"])}
            )
        self.states[RUN_DONE] = pass_state("What whoever started it gets.", values, None, RESULT)
        self.states[RESULT] = {"Type": "Succeed"}


def _backoff_states() -> dict[str, State]:
    """Return the states that choose the wait before the next attempt of a segment, and wait: longer with each
    attempt, up to the longest wait."""
    is_longest = comparison_rule("$.position.attempt", "NumericGreaterThanEqualsPath", "$.wait.longest_from")
    wait_of_attempt = f"States.ArrayGetItem($.wait.seconds, {states_math_add('$.position.attempt', -1)})"
    return {
        CHOOSE_BACKOFF: choice_state(
            "Longer with every attempt.", [rule_to_state(LONGEST_BACKOFF, is_longest)], ATTEMPT_BACKOFF
        ),
        ATTEMPT_BACKOFF: pass_state(
            "The first attempt's is the first.", {"now.$": wait_of_attempt}, "$.wait", WAIT_BEFORE_RETRY
        ),
        LONGEST_BACKOFF: pass_state(
            "And no longer.", {"now.$": "$.wait.longest"}, "$.wait", WAIT_BEFORE_RETRY
        ),
        WAIT_BEFORE_RETRY: wait_state(
            "Before the next attempt.", RETRY_THIS_SEGMENT, seconds_path="$.wait.now"
        ),
    }


def _description_path(member: FieldPath) -> str:
    """Path, in the execution's context, of a member of the job's description."""
    return ".".join(("$.description.job", *map(str, member)))


_COUNTED_PROGRESS_PATHS = {
    "step": "$.progress.step",
    "reported": "$.progress.reported",
    "tried": "$.progress.tried",
}

_STATE_TITLE_BY_ENDING = {
    JobEnding.WAIT_EXCEEDED: "Spot did not come",
    JobEnding.STOPPED: "Stopped",
    JobEnding.CAPACITY: "No capacity",
    JobEnding.SERVICE: "The service failed",
    JobEnding.CLIENT: "It cannot work",
    JobEnding.ALGORITHM: "The script failed",
}

_COMMENT_BY_FINAL_REMEDY = {
    Remedy.GIVE_UP: "Another try would end the same.",
    Remedy.ON_DEMAND: "On demand only with on_demand_fallback.",
}
"""Comments of the Fail states of remedies that retry nothing; ``_add_spot_check`` comes before the second."""


def _remedy_state_name(ending: JobEnding) -> str:
    """Return the name of the first state of an ending's remedy: a question if it may retry the job."""
    title = _STATE_TITLE_BY_ENDING[ending]
    return title if RULE_BY_ENDING[ending].remedy in _COMMENT_BY_FINAL_REMEDY else f"{title}: try again?"


def next_states(state: dict[str, Any]) -> list[str]:
    """Return the states that may follow a state."""
    states = [state[key] for key in ("Next", "Default") if key in state]
    return states + [rule["Next"] for key in ("Choices", "Catch") for rule in state.get(key, [])]
