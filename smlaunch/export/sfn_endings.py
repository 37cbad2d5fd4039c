"""States that decide what follows the end of a job: ``planner.reconcile`` as choices, from the same table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smlaunch.contract.outcome import CONTINUE, FINISHED, OUTCOME_PATH_PREFIX
from smlaunch.errors import EXIT_LIMIT, EXIT_SERVICE, EXIT_TRAINING_FAILED
from smlaunch.export.asl import (
    JOB_NAME_PATH,
    ChoiceRule,
    add_numbers,
    all_of,
    any_of,
    catcher,
    choice_state,
    compare,
    format_text,
    go_to,
    pass_state,
    retrier,
    task_state,
    to_parameters,
    wait_state,
)
from smlaunch.export.run_template import TextTemplate
from smlaunch.export.sfn_common import (
    CHECK_HISTORY,
    CHECK_STALE_OUTCOME,
    CLEAR_OUTCOME,
    EVENTS_PER_JOB,
    JOB_ENDED,
    NEXT_SEGMENT,
    OUTCOME_PATH,
    PROGRESS_PIECES,
    RESULT,
    RETRY_SEGMENT,
    RUN_DONE,
    StateMachineBuilder,
    has_higher_reported_step,
    has_newer_step,
    is_own_outcome,
    is_training_finished,
    job_kind,
    next_job_context,
    reads_outcome,
    with_progress,
)
from smlaunch.planner.reconcile import (
    CONTINUING_ENDINGS,
    ENDING_MESSAGES,
    NO_CAPACITY_ENDINGS,
    OUTCOME_GRACE_SECONDS,
)
from smlaunch.planner.retry_policy import CREATE_BACKOFF
from smlaunch.planner.workflow import (
    ENDING_BY_FAILURE,
    ENDING_BY_STOP,
    ENDING_RULES,
    Ending,
    Remedy,
    classify_ending,
)
from smlaunch.planner.workflow import (
    EndingRule as EndingRule,
)

READ_OUTCOME, NO_OUTCOME, CHECK_NEWER_STEP = "Read the outcome", "No outcome yet", "A newer step?"
NEWER_STEP, NO_PROGRESS, CLASSIFY_ENDING = "A newer step", "Nothing newer", "How did it end?"
CHECK_REPORTED_STEP, HIGHER_REPORTED_STEP = "Was a higher step reported?", "A higher step was reported"
CHECK_BOTH_STEPS = "Was it reported too?"
BOTH_STEPS_HIGHER = "A newer step, and reported"
CHECK_MORE_TO_TRAIN, WAIT_FOR_OUTCOME, COUNT_OUTCOME_LOOK = (
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
UNREADABLE_OUTCOME = "Outcome cannot be read"

_STATUS, _SECONDARY, _REASON, _MESSAGE = (
    f"$.seen.job.{member}"
    for member in ("TrainingJobStatus", "SecondaryStatus", "FailureReason", "ExitMessage")
)
_MAX_OUTCOME_LOOKS = 6


def ending_rules(kind: str = "Training") -> list[tuple[Ending, ChoiceRule]]:
    """``planner.workflow.classify_ending`` as an ordered list of rules; an ending without a rule is
    ``other_failure``. A processing job has no secondary status, so it does not say who stopped it."""
    rules: list[tuple[Ending, ChoiceRule]] = []
    for status, ending_by_word, member_path in (
        ("Completed", {}, _SECONDARY),
        ("Stopped", ENDING_BY_STOP if kind == "Training" else {}, _SECONDARY),
        ("Failed", ENDING_BY_FAILURE, _REASON),
    ):
        has_status = compare(f"$.seen.job.{kind}JobStatus", "StringEquals", status)
        for reason_word, ending in ending_by_word.items():
            has_word = compare(member_path, "StringEquals", reason_word)
            if member_path == _REASON:
                has_word = any_of(has_word, compare(member_path, "StringMatches", f"{reason_word}:*"))
            rules.append((ending, all_of(has_status, has_word)))
        default_ending = classify_ending(status, "", "")
        if default_ending is not None and status != "Failed":
            rules.append((default_ending, has_status))
    return rules


def other_failure() -> Ending:
    return classify_ending("Failed", "", "") or Ending.ALGORITHM


class EndingStates:
    """Adds the states after the end of a job. They begin at ``JOB_ENDED``."""

    def __init__(self, builder: StateMachineBuilder) -> None:
        self.builder = builder
        self.template = builder.template
        self._deferred_states: list[Callable[[], None]] = []
        self._has_on_demand_fallback = False

    def add(self) -> None:
        reads_outcome_file = reads_outcome(self.template)
        if reads_outcome_file:
            self._add_outcome()
        self._add_progress_counts(reads_outcome_file)
        rules = ending_rules(job_kind(self.template))
        possible = {other_failure(), *(ending for ending, _ in rules)}
        targets = {ending: self._state_after(ending) for ending in Ending if ending in possible}
        comment = "By its status, its secondary status and the first word of its failure's reason."
        self.builder.add(
            CLASSIFY_ENDING,
            choice_state(
                comment,
                [go_to(targets[ending], rule) for ending, rule in rules],
                targets[other_failure()],
            ),
        )
        for write in self._deferred_states:
            write()
        self._add_next_job()
        self._add_success()

    @property
    def _state_before_next_job(self) -> str:
        """The state that comes before the next job."""
        return CHECK_STALE_OUTCOME if reads_outcome(self.template) else CHECK_HISTORY

    # ---- the outcome file ----------------------------------------------------------------------------------

    def _outcome_object(self, job: str) -> dict[str, Any]:
        """Arguments of S3 calls for the outcome file of a job. ``job``: path of the job name."""
        first, *rest = (self.template.checkpoints or TextTemplate(())).pieces
        bucket, _, key = str(first).removeprefix("s3://").partition("/")
        path = format_text([key, *rest, OUTCOME_PATH_PREFIX, job, ".json"])
        return {"Bucket": bucket, "ExpectedBucketOwner": self.template.bucket_owner(bucket), "Key.$": path}

    def _add_outcome(self) -> None:
        template, add = self.template, self.builder.add
        job_member = {"job.$": JOB_NAME_PATH}
        missing_errors = ["S3.NoSuchKeyException", "S3.NoSuchKey", "States.IntrinsicFailure"]
        add(
            JOB_ENDED,
            task_state(
                "How far the run is stands in S3, where the job's own sync has put it. One that is cut off "
                "counts as missing.",
                "aws-sdk:s3:getObject",
                self._outcome_object(JOB_NAME_PATH),
                "$.outcome",
                READ_OUTCOME,
                selector={"said.$": "States.StringToJson($.Body)"},
                retry=[
                    retrier(
                        ["S3.S3Exception", "S3.SdkClientException"], CREATE_BACKOFF, template.time_scale, 5
                    )
                ],
                catch=[
                    catcher(missing_errors, None, NO_OUTCOME),
                    catcher(["States.ALL"], "$.outcome", UNREADABLE_OUTCOME),
                ],
            ),
        )
        add(
            READ_OUTCOME,
            pass_state(
                "With a default for each member that it may lack.",
                {"said.$": "States.JsonMerge($.blank.outcome, $.outcome.said, false)", **job_member},
                "$.outcome",
                CHECK_NEWER_STEP,
            ),
        )
        add(
            NO_OUTCOME,
            pass_state(
                "Missing means continue.",
                {"said.$": "$.blank.outcome", **job_member},
                "$.outcome",
                CHECK_NEWER_STEP,
            ),
        )
        add(
            CHECK_NEWER_STEP,
            choice_state(
                "What another job of the run has said is not this one's word.",
                [go_to(CHECK_BOTH_STEPS, has_newer_step())],
                CHECK_REPORTED_STEP,
            ),
        )
        add(
            CHECK_BOTH_STEPS,
            choice_state(
                "What was reported counts too.",
                [go_to(BOTH_STEPS_HIGHER, has_higher_reported_step())],
                NEWER_STEP,
            ),
        )
        add(
            CHECK_REPORTED_STEP,
            choice_state(
                "A script that keeps checkpoints of its own may report steps, and commits none.",
                [go_to(HIGHER_REPORTED_STEP, has_higher_reported_step())],
                NO_PROGRESS,
            ),
        )
        self.builder.add_fail(
            UNREADABLE_OUTCOME,
            EXIT_SERVICE,
            "Whether the run has finished stands in it: to guess would train again.",
            "$.outcome.Cause",
        )

    def _add_progress_counts(self, reads_outcome_file: bool) -> None:
        """Compute ``count``: the progress of the run with this job, and the jobs without progress."""
        unchanged = {"step.$": "$.at.step", "reported.$": "$.at.reported"}
        no_progress = {**unchanged, "tried.$": add_numbers("$.at.tried", 1), "newer": False}
        step, reported = {"step.$": f"{OUTCOME_PATH}.step"}, {"reported.$": f"{OUTCOME_PATH}.reported_step"}
        changes_by_state = {
            NEWER_STEP: step,
            HIGHER_REPORTED_STEP: reported,
            BOTH_STEPS_HIGHER: {**step, **reported},
        }
        for name, changes in changes_by_state.items() if reads_outcome_file else ():
            values = {**unchanged, **changes, "tried": 0, "newer": True}
            comment = "What was tried before it counts no more."
            self.builder.add(name, pass_state(comment, values, "$.count", CLASSIFY_ENDING))
        name = NO_PROGRESS if reads_outcome_file else JOB_ENDED
        self.builder.add(name, pass_state("One more try.", no_progress, "$.count", CLASSIFY_ENDING))

    # ---- what follows on each ending ----------------------------------------------------------------------

    def _state_after(self, ending: Ending) -> str:
        """Return the first state after an ending. Its states are added later, in this order."""
        rule = ENDING_RULES[ending]
        if ending in CONTINUING_ENDINGS:
            return self._state_after_time_limit(ending)
        position = len(self._deferred_states)
        remedy_state = self._remedy_state(ending, rule)
        if ending is Ending.STOPPED and reads_outcome(self.template):
            return self._state_after_stop(position, remedy_state)
        has_spot_fallback = any(variant.on_demand_request is not None for variant in self.template.variants)
        if ending not in NO_CAPACITY_ENDINGS or not has_spot_fallback:
            return remedy_state
        name, on_demand_state = f"{_TITLES[ending]}: was it on spot?", "On demand now"
        was_on_spot = compare("$.seen.job.EnableManagedSpotTraining", "BooleanEquals", True)
        question = choice_state(
            "On demand, where spot capacity did not come.",
            [go_to(on_demand_state, was_on_spot)],
            remedy_state,
        )
        self._deferred_states.insert(position, lambda: self.builder.add(name, question))
        self._has_on_demand_fallback = True
        return name

    def _state_after_stop(self, position: int, stopped_state: str) -> str:
        """Return the state that tells a training that had finished from one that was cut."""
        name = f"{_TITLES[Ending.STOPPED]}: had it finished?"
        had_finished = all_of(
            is_own_outcome(),
            compare(f"{OUTCOME_PATH}.result", "StringEquals", FINISHED),
            compare(f"{OUTCOME_PATH}.ranks_succeeded", "BooleanEquals", True),
        )
        question = choice_state("In its last minute.", [go_to(RUN_DONE, had_finished)], stopped_state)
        self._deferred_states.insert(position, lambda: self.builder.add(name, question))
        return name

    def _remedy_state(self, ending: Ending, rule: EndingRule) -> str:
        """Return the name of the state that follows a job that ended so. Its states are added later, after
        those of all endings are known."""
        reason = ENDING_MESSAGES.get(ending, _REASON)
        if rule.remedy in (Remedy.GIVE_UP, Remedy.ON_DEMAND):
            name = _TITLES[ending]
            self._deferred_states.append(
                lambda: self._add_failure(name, rule, _COMMENTS[rule.remedy], reason)
            )
            return name
        name, given_up_state = f"{_TITLES[ending]}: try again?", f"{_TITLES[ending]}: given up"
        backoff_state = f"{_TITLES[ending]}: waits" if rule.max_wait_seconds else RETRY_SEGMENT
        attempts = self.template.policy.attempts

        def add_states() -> None:
            attempts_used = compare("$.count.tried", "NumericGreaterThanEquals", attempts)
            comment = f"{attempts} in all may end without progress ({rule.remedy.value})."
            self.builder.add(
                name, choice_state(comment, [go_to(given_up_state, attempts_used)], backoff_state)
            )
            self._add_failure(given_up_state, rule, "Tried as often as the job allows.", reason)
            if rule.max_wait_seconds:
                self._add_backoff(backoff_state, rule)

        self._deferred_states.append(add_states)
        return name

    def _add_failure(self, name: str, rule: EndingRule, comment: str, reason: str) -> None:
        """Add the state that ends the execution with this failure. ``reason``: text or path of the failure's
        cause."""
        cause = with_progress(reason) if reads_outcome(self.template) else reason
        if self.template.is_processing:
            # The exit message of a processing job says which host failed, and why; its reason does not.
            cause = (
                format_text([_REASON, "; exit message: ", _MESSAGE])
                if reason == _REASON
                else _PROCESSING_STOPPED_TEXT
            )
        self.builder.add_fail(name, rule.exit_code, comment, cause)

    def _add_backoff(self, name: str, rule: EndingRule) -> None:
        """Add the waits before a retry: one for each attempt, up to the maximum."""
        wait_seconds: list[int] = []
        while not wait_seconds or rule.wait_seconds(len(wait_seconds)) < rule.max_wait_seconds:
            wait_seconds.append(self.template.scale_seconds(rule.wait_seconds(len(wait_seconds) + 1)))
        values = {"seconds": wait_seconds, "longest": wait_seconds[-1], "longest_from": len(wait_seconds)}
        comment = "Seconds after each attempt."
        self.builder.add(name, pass_state(comment, values, "$.wait", CHOOSE_BACKOFF))

    def _state_after_time_limit(self, ending: Ending) -> str:
        """Return the name of the state that follows a job that used its time, or completed."""
        policy = self.template.policy
        if policy.chain:
            if ending is CONTINUING_ENDINGS[0]:
                self._deferred_states.append(self._add_chain_decision)
            return CHECK_MORE_TO_TRAIN
        if ending is not Ending.COMPLETED:
            name = "Its time was over"
            rule = ENDING_RULES[ending]
            self._deferred_states.append(
                lambda: self._add_failure(name, rule, "One job, and its limit.", "stopped at its max_runtime")
            )
            return name
        if not reads_outcome(self.template):
            return RUN_DONE
        name, early_state = "Was it to go on?", "It ended itself early"

        def add_states() -> None:
            wants_to_continue = all_of(
                is_own_outcome(), compare(f"{OUTCOME_PATH}.result", "StringEquals", CONTINUE)
            )
            comment = "A job that was told to leave completes too."
            self.builder.add(name, choice_state(comment, [go_to(early_state, wants_to_continue)], RUN_DONE))
            text = format_text(
                ["ended itself before its max_runtime; the newest checkpoint is step ", "$.count.step"]
            )
            self.builder.add_fail(early_state, EXIT_LIMIT, "There is no chain that would go on.", text)

        self._deferred_states.append(add_states)
        return name

    def _add_chain_decision(self) -> None:
        """Add the choice after a job of a chain that completed or reached its time limit."""
        template, add = self.template, self.builder.add
        is_completed = compare(_STATUS, "StringEquals", "Completed")
        steps_unknown = [
            compare(f"{OUTCOME_PATH}.{member}", "IsNull", True) for member in ("step", "reported_step")
        ]
        has_own_files = all_of(is_own_outcome(), *steps_unknown)
        outcome_missing = [
            {"Not": is_own_outcome()},
            compare("$.job.looks", "NumericLessThan", _MAX_OUTCOME_LOOKS),
        ]
        attempts = template.policy.attempts
        attempts_used, no_progress_state = (
            compare("$.count.tried", "NumericGreaterThanEquals", attempts),
            "No progress",
        )
        rules = [
            go_to(RUN_DONE, all_of(is_completed, is_training_finished())),
            go_to(NEXT_SEGMENT, compare("$.count.newer", "BooleanEquals", True)),
            go_to(NEXT_SEGMENT, has_own_files),
            go_to(WAIT_FOR_OUTCOME, all_of(*outcome_missing)),
            go_to(no_progress_state, attempts_used),
        ]
        comment = (
            "Finished; or further than before; or a script that reports no step, whose files nobody compares "
            f"here. Of {attempts} jobs that came no further, the next one will not either."
        )
        add(CHECK_MORE_TO_TRAIN, choice_state(comment, rules, RETRY_SEGMENT))
        seconds = template.scale_seconds(OUTCOME_GRACE_SECONDS / _MAX_OUTCOME_LOOKS)
        add(
            WAIT_FOR_OUTCOME,
            wait_state("It may still be on its way to S3.", COUNT_OUTCOME_LOOK, seconds=seconds),
        )
        reads_outcome_file = {
            "name.$": "$.job.name",
            "fault.$": "$.job.fault",
            "looks.$": add_numbers("$.job.looks", 1),
        }
        add(
            COUNT_OUTCOME_LOOK,
            pass_state(f"{OUTCOME_GRACE_SECONDS:.0f} s in all.", reads_outcome_file, "$.job", JOB_ENDED),
        )
        cause = format_text(
            [
                f"no progress: {attempts} jobs until ",
                "$.job.name",
                " came no further than jobs before them",
                *PROGRESS_PIECES,
                "; the script begins anew in every job, or saves no checkpoint before a segment's end",
            ]
        )
        self.builder.add_fail(no_progress_state, EXIT_TRAINING_FAILED, "Going on would only cost.", cause)

    # ---- going on -----------------------------------------------------------------------------------------

    def _next_job_state(self, comment: str, values: dict[str, Any]) -> dict[str, Any]:
        # The outcome stays in the context until it has been checked and cleared.
        return pass_state(comment, {**values, **self._outcome_context()}, None, self._state_before_next_job)

    def _outcome_context(self) -> dict[str, Any]:
        return {"outcome.$": "$.outcome"} if reads_outcome(self.template) else {}

    def _add_next_job(self) -> None:
        """Add the states that wait before a next attempt, and count segments and attempts."""
        template, add = self.template, self.builder.add
        next_attempt: dict[str, Any] = {"attempt": add_numbers("$.at.attempt", 1), "waits": 0}
        if CHOOSE_BACKOFF in self._target_states():
            is_longest = compare("$.at.attempt", "NumericGreaterThanEqualsPath", "$.wait.longest_from")
            add(
                CHOOSE_BACKOFF,
                choice_state(
                    "Longer with every attempt.", [go_to(LONGEST_BACKOFF, is_longest)], ATTEMPT_BACKOFF
                ),
            )
            wait_path = f"States.ArrayGetItem($.wait.seconds, {add_numbers('$.at.attempt', -1)})"
            add(
                ATTEMPT_BACKOFF,
                pass_state(
                    "The first attempt's is the first.", {"now.$": wait_path}, "$.wait", WAIT_BEFORE_RETRY
                ),
            )
            add(
                LONGEST_BACKOFF,
                pass_state("And no longer.", {"now.$": "$.wait.longest"}, "$.wait", WAIT_BEFORE_RETRY),
            )
            add(
                WAIT_BEFORE_RETRY,
                wait_state("Before the next attempt.", RETRY_SEGMENT, seconds_path="$.wait.now"),
            )
        target_states = self._target_states()
        if self._has_on_demand_fallback:
            values = next_job_context(
                template, EVENTS_PER_JOB, {**_PROGRESS_PATHS, **next_attempt, "on_demand": True}
            )
            text = "Spot that did not come once is not waited for again in this segment."
            add("On demand now", self._next_job_state(text, values))
        if RETRY_SEGMENT in target_states:
            values = next_job_context(template, EVENTS_PER_JOB, {**_PROGRESS_PATHS, **next_attempt})
            add(
                RETRY_SEGMENT,
                self._next_job_state("The same segment, from the newest checkpoint there is.", values),
            )
        if CHECK_MORE_TO_TRAIN in target_states:
            next_segment: dict[str, Any] = {
                **_PROGRESS_PATHS,
                "tried": 0,
                "segment": add_numbers("$.at.segment", 1),
                "attempt": 1,
                "on_demand": False,
                "waits": 0,
            }
            values = next_job_context(template, EVENTS_PER_JOB, next_segment)
            add(NEXT_SEGMENT, self._next_job_state("From there; as planned again, on spot too.", values))
        if CHECK_STALE_OUTCOME in self._target_states():
            self._add_clear_outcome()

    def _add_clear_outcome(self) -> None:
        add = self.builder.add
        is_stale = all_of(
            is_training_finished(), compare(f"{OUTCOME_PATH}.ranks_succeeded", "BooleanEquals", True)
        )
        comment = "The training went to its end, and its job failed after it: the next one would do nothing."
        add(CHECK_STALE_OUTCOME, choice_state(comment, [go_to(CLEAR_OUTCOME, is_stale)], CHECK_HISTORY))
        retry = [
            retrier(["S3.S3Exception", "S3.SdkClientException"], CREATE_BACKOFF, self.template.time_scale, 5)
        ]
        comment = "So that it trains the rest, and writes its model, again."
        add(
            CLEAR_OUTCOME,
            task_state(
                comment,
                "aws-sdk:s3:deleteObject",
                self._outcome_object("$.outcome.job"),
                None,
                CHECK_HISTORY,
                retry=retry,
            ),
        )

    def _target_states(self) -> set[str]:
        return {name for state in self.builder.states.values() for name in next_states(state)}

    def _add_success(self) -> None:
        values = {
            "run.$": "$.run",
            "status": "Completed",
            "job.$": "$.job.name",
            "segment.$": "$.at.segment",
            "attempt.$": "$.at.attempt",
        }
        if self.template.is_processing:
            first_output = self.template.variants[0].request["ProcessingOutputConfig"]["Outputs"][0]
            values |= to_parameters({"output": first_output["S3Output"]["S3Uri"]})
        else:
            artifacts = "$.seen.job.ModelArtifacts.S3ModelArtifacts"
            values |= {"step.$": "$.count.step", "model_artifacts.$": artifacts}
        self.builder.add(RUN_DONE, pass_state("What whoever started it gets.", values, None, RESULT))
        self.builder.add(RESULT, {"Type": "Succeed"})


_PROCESSING_STOPPED_TEXT = (
    "its job was stopped, by somebody or at its limits.max_runtime: of a processing job the service does not "
    "say which"
)

_PROGRESS_PATHS = {"step": "$.count.step", "reported": "$.count.reported", "tried": "$.count.tried"}

_TITLES = {
    Ending.WAIT_EXCEEDED: "Spot did not come",
    Ending.STOPPED: "Stopped",
    Ending.CAPACITY: "No capacity",
    Ending.SERVICE: "The service failed",
    Ending.CLIENT: "It cannot work",
    Ending.ALGORITHM: "The script failed",
}

_COMMENTS = {
    Remedy.GIVE_UP: "Another try would end the same.",
    Remedy.ON_DEMAND: "On demand only with on_demand_fallback.",
}


def next_states(state: dict[str, Any]) -> list[str]:
    """Return the states that may follow a state."""
    states = [state[key] for key in ("Next", "Default") if key in state]
    return states + [rule["Next"] for key in ("Choices", "Catch") for rule in state.get(key, [])]
