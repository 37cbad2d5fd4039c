"""States that create one job and wait for its end: time limit, name, request, ownership, errors."""

from __future__ import annotations

from typing import Any

from smlaunch.api.retry_policy import CREATE_BACKOFF, QUOTA_BACKOFF, TRANSIENT_ERRORS
from smlaunch.chain.workflow import classify_ending
from smlaunch.errors import EXIT_BAD_JOB, EXIT_LIMIT, EXIT_REFUSED, EXIT_SERVICE
from smlaunch.export.asl import (
    JOB_NAME_PATH,
    ChoiceRule,
    State,
    and_rule,
    catcher,
    choice_state,
    comparison_rule,
    or_rule,
    pass_state,
    retrier,
    rule_to_state,
    states_format,
    states_math_add,
    states_merge_defaults,
    states_subtract,
    task_state,
    to_asl_parameters,
    wait_state,
)
from smlaunch.export.run_template import JOB_NAME_TEMPLATE, RequestTemplate, RunTemplate, VariantTemplate
from smlaunch.export.sfn_common import (
    AFTER_JOB_END,
    CHECK_HISTORY,
    DESCRIBE_JOB,
    ERROR_FIELDS,
    EVENTS_PER_DESCRIBE,
    EVENTS_PER_WAIT,
    HAND_OVER,
    MAX_EVENTS_BEFORE_HANDOVER,
    NAME_THE_JOB,
    StateMachineBuilder,
    next_job_context,
    persistent_context,
    rule_access_is_denied,
    rule_execution_was_started,
    seconds_by_run_limit,
)

CHECK_ENDED, WAIT_FOR_JOB, COUNT_DESCRIBE = "Has it ended?", "While it runs", "One more look"
CHECK_CREATE, READ_TAGS, COMPARE_TAGS, CHECK_OWNERSHIP = (
    "Was its create answered?",
    "Read its tags",
    "Compare",
    "Is it ours?",
)
CHECK_CREATED, COUNT_WAIT = "Was it made?", "One more wait"
QUOTA_WAIT, SERVICE_WAIT = "Wait for the quota", "Wait for the service"
READ_DESCRIPTION, COUNT_TIME = "Read the answer", "Count its time"

DESCRIBE_INTERVAL_SECONDS = 120
"""Seconds between two looks at a job whose create call got no response. This is rare, and Describe calls
share the rate limit of the account."""

MAX_DESCRIBE_ATTEMPTS = 5

_ERROR_PREFIX = "SageMaker."
"""Prefix of the error names of both SageMaker integrations in Step Functions."""


def transient_errors() -> list[str]:
    """Names of transient errors in Step Functions, with and without the suffix Exception."""
    names = {code if code.endswith("Exception") else f"{code}Exception" for code in TRANSIENT_ERRORS}
    return [_ERROR_PREFIX + name for name in sorted(names)] + [
        name for name in sorted(names) if "Throttl" in name
    ]


def transient_words() -> list[str]:
    """Codes of transient errors, to search for in a Cause; without codes that contain another one."""
    return [
        code
        for code in sorted(TRANSIENT_ERRORS)
        if not any(other != code and other in code for other in TRANSIENT_ERRORS)
    ]


class JobStates:
    """Adds the states of one job. They begin at ``entry_state``; a job that has ended leads to
    ``END_STATE``."""

    END_STATE = AFTER_JOB_END

    def __init__(self, builder: StateMachineBuilder) -> None:
        self.builder = builder
        self.template = builder.template
        self.kind = builder.template.kind

    @staticmethod
    def entry_state(template: RunTemplate) -> str:
        if len(template.variants) > 1:
            return "Which variant?"
        return _limit_choice_state_name(template, 0) if seconds_by_run_limit(template) else NAME_THE_JOB

    def add_states(self) -> None:
        """Add the states of one job to the state machine: from the choice of its variant (the request of
        consecutive segments: instance types and hosts may differ between segments) to its end, or to the next
        execution where this one's history is full. A job that exists already is this run's only if its tags
        say so."""
        variants = self.template.variants
        self._add_variant_choice_state()
        if seconds_by_run_limit(self.template):
            for variant_index, variant in enumerate(variants):
                self._add_time_limit_states(variant_index, variant)
        self._add_job_name_states()
        for variant_index, variant in enumerate(variants):
            self._add_create_states(variant_index, variant)
        self._add_describe_state()
        self._add_ownership_check_states()
        self._add_wait_for_end_states()
        self._add_create_failure_states()
        self._add_hand_over_states()

    # ---- which request, and for how long ------------------------------------------------------------------

    def _add_variant_choice_state(self) -> None:
        """Add the Choice state that selects the variant of the next job: the request of consecutive segments.
        Nothing to add for a run of one variant."""
        last_variant_index = len(self.template.variants) - 1
        if last_variant_index == 0:
            return
        choice_rules = [
            rule_to_state(
                self._state_after_variant_choice(variant_index), self._rule_before_next_variant(variant_index)
            )
            for variant_index in range(last_variant_index)
        ]
        comment = "Segments differ: by the step they begin at, or by their number."
        # The last variant has no rule: it applies where no other does.
        default_state = self._state_after_variant_choice(last_variant_index)
        self.builder.add_state("Which variant?", choice_state(comment, choice_rules, default_state))

    def _rule_before_next_variant(self, variant_index: int) -> ChoiceRule:
        """Return the rule that the run has not come to the next variant: to a training step
        (``until_step``), or else to a segment number."""
        until_step = self.template.variants[variant_index].until_step
        if until_step is not None:
            return comparison_rule("$.position.step", "NumericLessThan", until_step)
        next_first_segment = self.template.variants[variant_index + 1].first_segment
        return comparison_rule("$.position.segment", "NumericLessThan", next_first_segment)

    def _state_after_variant_choice(self, index: int) -> str:
        if seconds_by_run_limit(self.template):
            return _limit_choice_state_name(self.template, index)
        return NAME_THE_JOB

    def _add_time_limit_states(self, variant_index: int, variant: VariantTemplate) -> None:
        """Add the states that set the time limit of a variant's next job (``$.time_limits``). A run may limit
        its training time, its billed time (max_cost) or both; ``$.remaining`` has the seconds left of each.
        The run fails if less is left than a job needs (an exhausted limit); a job gets a full segment if
        enough is left; and otherwise what is left."""
        template = self.template
        limit_names = list(seconds_by_run_limit(template))  # "training" before "billed"
        full_segment_state = _variant_state_name("A whole segment", template, variant_index)
        partial_segment_state_by_limit = {
            limit_name: _variant_state_name(
                f"What is left of its {_LABEL_BY_RUN_LIMIT[limit_name]}", template, variant_index
            )
            for limit_name in limit_names
        }
        choice_rules = [self._exhausted_limit_rule(limit_name, variant) for limit_name in limit_names]
        has_full_segment_left = [
            comparison_rule(
                f"$.remaining.{limit_name}", "NumericGreaterThanEquals", variant.max_runtime_seconds
            )
            for limit_name in limit_names
        ]
        choice_rules.append(rule_to_state(full_segment_state, and_rule(*has_full_segment_left)))
        if len(limit_names) > 1:
            # The shorter one counts.
            has_less_training_left = comparison_rule(
                "$.remaining.training", "NumericLessThanEqualsPath", "$.remaining.billed"
            )
            choice_rules.append(
                rule_to_state(partial_segment_state_by_limit["training"], has_less_training_left)
            )
        comment = (
            f"A job is not started for less than {variant.min_job_seconds} s, which its end alone would take."
        )
        self.builder.add_state(
            _limit_choice_state_name(template, variant_index),
            choice_state(comment, choice_rules, partial_segment_state_by_limit[limit_names[-1]]),
        )
        self._add_full_segment_state(full_segment_state, variant)
        for limit_name, partial_segment_state in partial_segment_state_by_limit.items():
            self._add_partial_segment_state(partial_segment_state, limit_name, variant)
        for limit_name in limit_names:
            self._add_exhausted_limit_state(limit_name)

    def _exhausted_limit_rule(self, limit_name: str, variant: VariantTemplate) -> ChoiceRule:
        """Return the rule that leads to the end of the run if less is left of a limit than a job needs."""
        needed_seconds = min(variant.min_job_seconds, variant.max_runtime_seconds)
        has_too_little_left = comparison_rule(f"$.remaining.{limit_name}", "NumericLessThan", needed_seconds)
        return rule_to_state(_EXHAUSTED_STATE_BY_LIMIT[limit_name], has_too_little_left)

    def _add_full_segment_state(self, state_name: str, variant: VariantTemplate) -> None:
        """Add the Pass state that gives the next job the time limit of a full segment."""
        full_segment_limits: dict[str, Any] = {"limit": variant.max_runtime_seconds}
        planned_end_seconds = variant.planned_end_seconds(variant.max_runtime_seconds)
        if planned_end_seconds is not None:
            full_segment_limits["stop_after"] = str(planned_end_seconds)
        self.builder.add_state(
            state_name, pass_state("As planned.", full_segment_limits, "$.time_limits", NAME_THE_JOB)
        )

    def _add_partial_segment_state(self, state_name: str, limit_name: str, variant: VariantTemplate) -> None:
        """Add the Pass state that gives the next job the time that is left of one limit of the run."""
        shortened_limits: dict[str, Any] = {"limit.$": f"$.remaining.{limit_name}"}
        if variant.end_margin_seconds is not None:
            planned_end = states_math_add(f"$.remaining.{limit_name}", -variant.end_margin_seconds)
            shortened_limits["stop_after.$"] = f"States.Format('{{}}', {planned_end})"
        comment = "Still ends itself before its limit."
        self.builder.add_state(
            state_name, pass_state(comment, shortened_limits, "$.time_limits", NAME_THE_JOB)
        )

    def _add_exhausted_limit_state(self, limit_name: str) -> None:
        """Add the Fail state for a limit of which too little is left; all variants share it."""
        state_name = _EXHAUSTED_STATE_BY_LIMIT[limit_name]
        if state_name in self.builder.states:
            return
        reason = (
            f"its training time of {self.template.max_training_seconds} s is used up"
            if limit_name == "training"
            else f"its max_cost of ${self.template.policy.max_cost} is reached"
        )
        cause = states_format([f"{reason}; the newest checkpoint is step ", "$.position.step"])
        self.builder.add_fail_state(state_name, EXIT_LIMIT, "The run stops at a checkpoint.", cause)

    # ---- the job ------------------------------------------------------------------------------------------

    def _add_job_name_states(self) -> None:
        """Add the Pass state that names the next job, and the Choice state that selects its request."""
        job_context = {
            "name.$": states_format(JOB_NAME_TEMPLATE.pieces),
            "fault": {"Error": "", "Cause": ""},  # of the call that creates the job
            "looks": 0,  # how often its outcome file was looked for
        }
        self.builder.add_state(
            NAME_THE_JOB,
            pass_state(
                "Made here, inside the loop: no two jobs share it, and whoever asks twice finds the first.",
                job_context,
                "$.job",
                self._first_create_state(),
            ),
        )
        choice_rules = self._request_choice_rules()
        if choice_rules:
            comment = "Spot until it has not come once in this segment; each variant has its own request."
            default_state = _create_state_name(
                self.template, len(self.template.variants) - 1, on_demand=False
            )
            self.builder.add_state("Which request?", choice_state(comment, choice_rules, default_state))

    def _request_choice_rules(self) -> list[ChoiceRule]:
        """Return the rules that lead to the state which creates the next job, in the order in which they are
        tried: a variant (consecutive segments with the same request) may have a request on demand beside the
        one on spot. The last variant's own request has no rule: it is the default."""
        choice_rules: list[ChoiceRule] = []
        last_variant_index = len(self.template.variants) - 1
        for variant_index, variant in enumerate(self.template.variants):
            is_last = variant_index == last_variant_index
            before_next_variant_rules = [] if is_last else [self._rule_before_next_variant(variant_index)]
            # First the narrower rule: an earlier attempt of this segment found no spot capacity.
            if variant.on_demand_request is not None:
                is_on_demand = comparison_rule("$.position.on_demand", "BooleanEquals", True)
                on_demand_state = _create_state_name(self.template, variant_index, on_demand=True)
                choice_rules.append(
                    rule_to_state(on_demand_state, and_rule(*before_next_variant_rules, is_on_demand))
                )
            if not is_last:
                create_state = _create_state_name(self.template, variant_index, on_demand=False)
                choice_rules.append(rule_to_state(create_state, and_rule(*before_next_variant_rules)))
        return choice_rules

    def _first_create_state(self) -> str:
        variants = self.template.variants
        if len(variants) > 1 or variants[0].on_demand_request is not None:
            return "Which request?"
        return _create_state_name(self.template, 0, False)

    def _add_create_states(self, index: int, variant: VariantTemplate) -> None:
        self.builder.add_state(
            _create_state_name(self.template, index, False), self._create_state(variant.request)
        )
        if variant.on_demand_request is not None:
            self.builder.add_state(
                _create_state_name(self.template, index, True), self._create_state(variant.on_demand_request)
            )

    def _create_state(self, template: RequestTemplate) -> State:
        return task_state(
            "A create that was throttled made no job, and is sent again under the same name. Whatever else "
            "goes wrong, here or in the job, is read from the job itself.",
            f"sagemaker:create{self.kind.name}Job.sync",
            to_asl_parameters(template),
            None,
            DESCRIBE_JOB,
            retriers=[retrier(transient_errors(), CREATE_BACKOFF, self.template.time_scale)],
            catchers=[catcher(["States.ALL"], "$.job.fault", DESCRIBE_JOB)],
        )

    # ---- its end ------------------------------------------------------------------------------------------

    def _add_describe_state(self) -> None:
        self.builder.add_state(
            DESCRIBE_JOB,
            task_state(
                "What the service says of it; the error that a failed job raises is not the same everywhere.",
                f"aws-sdk:sagemaker:describe{self.kind.name}Job",
                {f"{self.kind.name_member}.$": JOB_NAME_PATH},
                "$.description",
                CHECK_CREATE,
                retriers=[
                    retrier(["States.ALL"], CREATE_BACKOFF, self.template.time_scale, MAX_DESCRIBE_ATTEMPTS)
                ],
                catchers=[catcher(["States.ALL"], "$.describe_error", CHECK_CREATED)],
            ),
        )

    def _add_ownership_check_states(self) -> None:
        """Check who created the job: the response may have been lost, or the name is in use by another
        job."""
        add = self.builder.add_state
        add(
            CHECK_CREATE,
            choice_state(
                "If it was, the job is ours.",
                [rule_to_state(CHECK_ENDED, comparison_rule("$.job.fault.Error", "StringEquals", ""))],
                READ_TAGS,
            ),
        )
        add(
            READ_TAGS,
            task_state(
                "The job's hash is among them.",
                "aws-sdk:sagemaker:listTags",
                {"ResourceArn.$": f"$.description.{self.kind.arn_member}"},
                "$.tags",
                COMPARE_TAGS,
                retriers=[
                    retrier(["States.ALL"], CREATE_BACKOFF, self.template.time_scale, MAX_DESCRIBE_ATTEMPTS)
                ],
            ),
        )
        ours = {"ours.$": "States.ArrayContains($.tags.Tags, $.defaults.tag)"}
        add(COMPARE_TAGS, pass_state("Of the same job, source and data?", ours, "$.tags", CHECK_OWNERSHIP))
        add_fail = self.builder.add_fail_state
        add(
            CHECK_OWNERSHIP,
            choice_state(
                "A create whose answer was lost made our own job.",
                [rule_to_state(CHECK_ENDED, comparison_rule("$.tags.ours", "BooleanEquals", True))],
                "Another job has the name",
            ),
        )
        add_fail(
            "Another job has the name",
            EXIT_BAD_JOB,
            "Never taken for this run's own.",
            states_format(
                [
                    f"the {self.kind.noun} ",
                    JOB_NAME_PATH,
                    " exists already and was made of another job, source or data; start the execution under "
                    "another name",
                ]
            ),
        )

    def _add_wait_for_end_states(self) -> None:
        template, add = self.template, self.builder.add_state
        has_ended = [
            comparison_rule(f"$.description.{self.kind.status_member}", "StringEquals", status)
            for status in ("Completed", "Failed", "Stopped")
            if classify_ending(status, "", "") is not None
        ]
        add(
            CHECK_ENDED,
            choice_state(
                "A job whose create was not answered may still run.",
                [rule_to_state(READ_DESCRIPTION, or_rule(*has_ended))],
                WAIT_FOR_JOB,
            ),
        )
        add(
            WAIT_FOR_JOB,
            wait_state(
                "Looked at seldom.", COUNT_DESCRIBE, seconds=template.scale_seconds(DESCRIBE_INTERVAL_SECONDS)
            ),
        )
        counted_events = {"n.$": states_math_add("$.events.n", EVENTS_PER_DESCRIBE), "hop.$": "$.events.hop"}
        add(
            COUNT_DESCRIBE,
            pass_state("A look takes room in the history.", counted_events, "$.events", "Room for a look?"),
        )
        is_history_full = comparison_rule(
            "$.events.n", "NumericGreaterThanEquals", MAX_EVENTS_BEFORE_HANDOVER
        )
        add(
            "Room for a look?",
            choice_state(
                "An execution may have 25,000 events.",
                [rule_to_state(HAND_OVER, is_history_full)],
                DESCRIBE_JOB,
            ),
        )
        description = {"job.$": states_merge_defaults("$.defaults.job", "$.description")}
        add(
            READ_DESCRIPTION,
            pass_state(
                "With a default for each member that an answer may lack.",
                description,
                "$.description",
                COUNT_TIME if seconds_by_run_limit(template) else self.END_STATE,
            ),
        )
        if seconds_by_run_limit(template):
            duration_members = {"training": "TrainingTimeInSeconds", "billed": "BillableTimeInSeconds"}
            remaining = {
                f"{limit}.$": states_subtract(
                    f"$.remaining.{limit}", f"$.description.job.{duration_members[limit]}"
                )
                for limit in seconds_by_run_limit(template)
            }
            add(COUNT_TIME, pass_state("Failed jobs count too.", remaining, "$.remaining", self.END_STATE))

    # ---- no job -------------------------------------------------------------------------------------------

    def _add_create_failure_states(self) -> None:
        builder, fault_path = self.builder, "$.job.fault"
        is_quota_error = comparison_rule(f"{fault_path}.Error", "StringMatches", "*ResourceLimitExceeded*")
        max_waits = int(QUOTA_BACKOFF.total_seconds / QUOTA_BACKOFF.max_seconds)
        waited_too_long = comparison_rule("$.position.waits", "NumericGreaterThanEquals", max_waits)
        patterns = [f"*{pattern}*" for pattern in transient_words()]
        is_transient = or_rule(
            *(
                comparison_rule(f"{fault_path}.{field}", "StringMatches", pattern)
                for field in ERROR_FIELDS
                for pattern in patterns
            )
        )
        has_no_error = comparison_rule(f"{fault_path}.Error", "StringEquals", "")
        is_quota_unused = comparison_rule(
            f"{fault_path}.Cause", "StringMatches", "*with current utilization of 0 *"
        )
        builder.add_state(
            CHECK_CREATED,
            choice_state(
                "There is no such job: the request was refused, for now or for good. A quota that others "
                "hold is waited for; one of which nothing is in use is too small.",
                [
                    rule_to_state("Quota is too small", and_rule(is_quota_error, is_quota_unused)),
                    rule_to_state("May not look", rule_access_is_denied("$.describe_error")),
                    rule_to_state(
                        "No answer for too long",
                        and_rule(or_rule(is_quota_error, is_transient, has_no_error), waited_too_long),
                    ),
                    rule_to_state(QUOTA_WAIT, is_quota_error),
                    rule_to_state(SERVICE_WAIT, or_rule(is_transient, has_no_error)),
                    rule_to_state("May not create", rule_access_is_denied(fault_path)),
                ],
                "Request is refused",
            ),
        )
        for name, backoff in ((QUOTA_WAIT, QUOTA_BACKOFF), (SERVICE_WAIT, CREATE_BACKOFF)):
            seconds = self.template.scale_seconds(backoff.max_seconds)
            builder.add_state(name, wait_state(f"{max_waits} times at most.", COUNT_WAIT, seconds=seconds))
        values = next_job_context(
            self.template, EVENTS_PER_WAIT, {"waits": states_math_add("$.position.waits", 1)}
        )
        builder.add_state(
            COUNT_WAIT, pass_state("The same job again, under the same name.", values, None, CHECK_HISTORY)
        )
        cause = f"{fault_path}.Cause"
        builder.add_fail_state("Quota is too small", EXIT_REFUSED, "Waiting would not help.", cause)
        builder.add_fail_state(
            "May not look", EXIT_REFUSED, "See permissions.json.", "$.describe_error.Cause"
        )
        builder.add_fail_state(
            "May not create", EXIT_REFUSED, "Of the machine's role: permissions.json.", cause
        )
        builder.add_fail_state("Request is refused", EXIT_BAD_JOB, "By the service, in its own words.", cause)
        builder.add_fail_state(
            "No answer for too long",
            EXIT_SERVICE,
            "A new execution under the same name goes on from here.",
            states_format(["no job could be made or seen: ", cause, "; ", "$.describe_error.Cause"]),
        )

    def _add_hand_over_states(self) -> None:
        builder, template = self.builder, self.template
        is_history_full = comparison_rule(
            "$.events.n", "NumericGreaterThanEquals", MAX_EVENTS_BEFORE_HANDOVER
        )
        comment = "An execution may have 25,000 events; before it has, another one goes on."
        builder.add_state(
            CHECK_HISTORY,
            choice_state(
                comment, [rule_to_state(HAND_OVER, is_history_full)], JobStates.entry_state(template)
            ),
        )
        context = {
            "run.$": "$.run",
            "position.$": "$.position",
            **persistent_context(template),
            "hop.$": "$.events.hop",
        }
        builder.add_state(
            HAND_OVER,
            task_state(
                "Waits for it, so that whoever waits for this execution waits for the run.",
                "states:startExecution.sync:2",
                {
                    "StateMachineArn.$": "$$.StateMachine.Id",
                    "Name.$": states_format(["$.run", "-part-", "$.events.hop"]),
                    "Input": {
                        "AWS_STEP_FUNCTIONS_STARTED_BY_EXECUTION_ID.$": "$$.Execution.Id",
                        "smlaunch": context,
                    },
                },
                "$.continuation",
                "The rest went well",
                catchers=[catcher(["States.ALL"], "$.continuation", "Did the rest begin?")],
            ),
        )
        builder.add_state(
            "The rest went well",
            {"Type": "Succeed", "Comment": "With its result.", "OutputPath": "$.continuation.Output"},
        )
        builder.add_state(
            "Did the rest begin?",
            choice_state(
                "The Cause of a failed execution is JSON, that of a refused start is text.",
                [
                    rule_to_state("How the rest ended", rule_execution_was_started("$.continuation")),
                    rule_to_state("May not go on", rule_access_is_denied("$.continuation")),
                ],
                "Cannot go on",
            ),
        )
        builder.add_fail_state(
            "May not go on", EXIT_REFUSED, "See permissions.json: GoOn.", "$.continuation.Cause"
        )
        builder.add_fail_state(
            "Cannot go on", EXIT_SERVICE, "In the service's words.", "$.continuation.Cause"
        )
        builder.add_state(
            "How the rest ended",
            pass_state(
                "As JSON.",
                {
                    "failure.$": states_merge_defaults(
                        "$.defaults.execution", "States.StringToJson($.continuation.Cause)"
                    )
                },
                "$.continuation",
                "The rest has failed",
            ),
        )
        builder.add_state(
            "The rest has failed",
            {
                "Type": "Fail",
                "Comment": "As the execution that went on.",
                "ErrorPath": "$.continuation.failure.Error",
                "CausePath": "$.continuation.failure.Cause",
            },
        )


_EXHAUSTED_STATE_BY_LIMIT = {"training": "Training time is used up", "billed": "Max cost is reached"}
_LABEL_BY_RUN_LIMIT = {"training": "time", "billed": "money"}


def _variant_state_name(name: str, template: RunTemplate, index: int) -> str:
    return name if len(template.variants) == 1 else f"{name} ({index + 1})"


def _limit_choice_state_name(template: RunTemplate, index: int) -> str:
    return _variant_state_name("How long?", template, index)


def _create_state_name(template: RunTemplate, index: int, on_demand: bool) -> str:
    if template.is_processing:
        return _variant_state_name("Process", template, index)
    return _variant_state_name("Train on demand" if on_demand else "Train", template, index)
