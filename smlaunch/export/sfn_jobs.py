"""States that create one job and wait for its end: time limit, name, request, ownership, errors."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from smlaunch.errors import EXIT_BAD_JOB, EXIT_LIMIT, EXIT_REFUSED, EXIT_SERVICE
from smlaunch.export.asl import (
    JOB_NAME_PATH,
    State,
    add_numbers,
    all_of,
    any_of,
    catcher,
    choice_state,
    compare,
    format_text,
    go_to,
    merge_defaults,
    pass_state,
    retrier,
    subtract,
    task_state,
    to_parameters,
    wait_state,
)
from smlaunch.export.run_template import JOB_NAME_TEMPLATE, RequestTemplate, RunTemplate, VariantTemplate
from smlaunch.export.sfn_common import (
    CHECK_HISTORY,
    DESCRIBE_JOB,
    ERROR_FIELDS,
    EVENTS_PER_LOOK,
    EVENTS_PER_WAIT,
    HAND_OVER,
    HANDOVER_EVENTS,
    JOB_ENDED,
    NAME_JOB,
    StateMachineBuilder,
    active_limits,
    execution_started,
    is_access_denied,
    job_kind,
    next_job_context,
    persistent_context,
)
from smlaunch.planner.retry_policy import CREATE_BACKOFF, QUOTA_BACKOFF, TRANSIENT_ERRORS
from smlaunch.planner.workflow import classify_ending

CHECK_ENDED, WAIT_FOR_JOB, COUNT_LOOK = "Has it ended?", "While it runs", "One more look"
CHECK_CREATE, READ_TAGS, COMPARE_TAGS, CHECK_OWNERSHIP = (
    "Was its create answered?",
    "Read its tags",
    "Compare",
    "Is it ours?",
)
CHECK_CREATED, COUNT_WAIT = "Was it made?", "One more wait"
QUOTA_WAIT, SERVICE_WAIT = "Wait for the quota", "Wait for the service"
READ_DESCRIPTION, COUNT_TIME = "Read the answer", "Count its time"

WATCH_SECONDS = 120
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

    END_STATE = JOB_ENDED

    def __init__(self, builder: StateMachineBuilder) -> None:
        self.builder = builder
        self.template = builder.template
        self.kind = job_kind(builder.template)

    @staticmethod
    def entry_state(template: RunTemplate) -> str:
        if len(template.variants) > 1:
            return "Which variant?"
        return _limit_state_name(template, 0) if active_limits(template) else NAME_JOB

    def add(self) -> None:
        self._add_variant_choice()
        for index, variant in enumerate(self.template.variants):
            if active_limits(self.template):
                self._add_time_limit(index, variant)
        self._add_job_name()
        for index, variant in enumerate(self.template.variants):
            self._add_create(index, variant)
        self._add_describe()
        self._add_ownership_check()
        self._add_wait_for_end()
        self._add_create_failures()
        self._add_hand_over()

    # ---- which request, and for how long ------------------------------------------------------------------

    def _add_variant_choice(self) -> None:
        """Choose the variant as ``planner.workflow.variant_for`` does; the step is always known here."""
        variants = self.template.variants
        if len(variants) == 1:
            return
        rules = []
        for index, (variant, following) in enumerate(pairwise(variants)):
            limit = following.first_segment
            rule = compare("$.at.segment", "NumericLessThan", limit)
            if variant.until_step is not None:
                rule = compare("$.at.step", "NumericLessThan", variant.until_step)
            rules.append(go_to(self._state_after_choice(index), rule))
        comment = "Segments differ: by the step they begin at, or by their number."
        self.builder.add(
            "Which variant?", choice_state(comment, rules, self._state_after_choice(len(variants) - 1))
        )

    def _state_after_choice(self, index: int) -> str:
        if active_limits(self.template):
            return _limit_state_name(self.template, index)
        return NAME_JOB

    def _add_time_limit(self, index: int, variant: VariantTemplate) -> None:
        """Choose the time limit: the last job of a run may be shorter, with an earlier planned end."""
        template, limits = self.template, list(active_limits(self.template))
        reasons = {
            "training": f"its training time of {template.max_training_seconds} s is used up",
            "billed": f"its max_cost of ${template.policy.max_cost} is reached",
        }
        exhausted_states = {"training": "Training time is used up", "billed": "Max cost is reached"}
        rules = [
            go_to(
                exhausted_states[limit],
                compare(
                    f"$.left.{limit}",
                    "NumericLessThan",
                    min(variant.min_seconds, variant.max_runtime_seconds),
                ),
            )
            for limit in limits
        ]
        full_segment = _variant_state_name("A whole segment", template, index)
        has_room = [
            compare(f"$.left.{limit}", "NumericGreaterThanEquals", variant.max_runtime_seconds)
            for limit in limits
        ]
        rules.append(go_to(full_segment, all_of(*has_room)))
        remaining_states = {
            limit: _variant_state_name(f"What is left of its {_LIMIT_LABELS[limit]}", template, index)
            for limit in limits
        }
        if len(limits) > 1:
            rules.append(
                go_to(
                    remaining_states["training"],
                    compare("$.left.training", "NumericLessThanEqualsPath", "$.left.billed"),
                )
            )
        comment = (
            f"A job is not started for less than {variant.min_seconds} s, which its end alone would take."
        )
        self.builder.add(
            _limit_state_name(template, index), choice_state(comment, rules, remaining_states[limits[-1]])
        )
        time_limits: dict[str, Any] = {"limit": variant.max_runtime_seconds}
        stop_after = variant.stop_after(variant.max_runtime_seconds)
        if stop_after is not None:
            time_limits["stop_after"] = str(stop_after)
        self.builder.add(full_segment, pass_state("As planned.", time_limits, "$.size", NAME_JOB))
        for limit, name in remaining_states.items():
            remaining_limits: dict[str, Any] = {"limit.$": f"$.left.{limit}"}
            if variant.margin_seconds is not None:
                remaining_limits["stop_after.$"] = (
                    f"States.Format('{{}}', {add_numbers(f'$.left.{limit}', -variant.margin_seconds)})"
                )
            self.builder.add(
                name, pass_state("Still ends itself before its limit.", remaining_limits, "$.size", NAME_JOB)
            )
        for limit in limits:
            if exhausted_states[limit] not in self.builder.states:
                cause = format_text(
                    [f"{reasons[limit]}; the newest checkpoint told of is step ", "$.at.step"]
                )
                self.builder.add_fail(
                    exhausted_states[limit], EXIT_LIMIT, "The run stops at a checkpoint.", cause
                )

    # ---- the job ------------------------------------------------------------------------------------------

    def _add_job_name(self) -> None:
        """Add the states that name the next job and choose its variant."""
        values = {
            "name.$": format_text(JOB_NAME_TEMPLATE.pieces),
            "fault": {"Error": "", "Cause": ""},
            "looks": 0,
        }
        self.builder.add(
            NAME_JOB,
            pass_state(
                "Made here, inside the loop: no two jobs share it, and whoever asks twice finds the first.",
                values,
                "$.job",
                self._first_create_state(),
            ),
        )
        variants = self.template.variants
        rules = []
        for index, variant in enumerate(variants):
            next_variant = variants[index + 1] if index + 1 < len(variants) else None
            variant_rules = []
            if next_variant is not None:
                step = variant.until_step
                variant_rules = [
                    compare("$.at.step", "NumericLessThan", step)
                    if step is not None
                    else compare("$.at.segment", "NumericLessThan", next_variant.first_segment)
                ]
            if variant.on_demand_request is not None:
                is_on_demand = compare("$.at.on_demand", "BooleanEquals", True)
                rules.append(
                    go_to(
                        _create_state_name(self.template, index, True), all_of(*variant_rules, is_on_demand)
                    )
                )
            if variant_rules:
                rules.append(go_to(_create_state_name(self.template, index, False), all_of(*variant_rules)))
        if rules:
            comment = "Spot until it has not come once in this segment; each variant has its own request."
            default_state = _create_state_name(self.template, len(variants) - 1, False)
            self.builder.add("Which request?", choice_state(comment, rules, default_state))

    def _first_create_state(self) -> str:
        variants = self.template.variants
        if len(variants) > 1 or variants[0].on_demand_request is not None:
            return "Which request?"
        return _create_state_name(self.template, 0, False)

    def _add_create(self, index: int, variant: VariantTemplate) -> None:
        self.builder.add(_create_state_name(self.template, index, False), self._create_state(variant.request))
        if variant.on_demand_request is not None:
            self.builder.add(
                _create_state_name(self.template, index, True), self._create_state(variant.on_demand_request)
            )

    def _create_state(self, template: RequestTemplate) -> State:
        return task_state(
            "A create that was throttled made no job, and is sent again under the same name. Whatever else "
            "goes wrong, here or in the job, is read from the job itself.",
            f"sagemaker:create{self.kind}Job.sync",
            to_parameters(template),
            None,
            DESCRIBE_JOB,
            retry=[retrier(transient_errors(), CREATE_BACKOFF, self.template.time_scale)],
            catch=[catcher(["States.ALL"], "$.job.fault", DESCRIBE_JOB)],
        )

    # ---- its end ------------------------------------------------------------------------------------------

    def _add_describe(self) -> None:
        self.builder.add(
            DESCRIBE_JOB,
            task_state(
                "What the service says of it; the error that a failed job raises is not the same everywhere.",
                f"aws-sdk:sagemaker:describe{self.kind}Job",
                {f"{self.kind}JobName.$": JOB_NAME_PATH},
                "$.seen",
                CHECK_CREATE,
                retry=[
                    retrier(["States.ALL"], CREATE_BACKOFF, self.template.time_scale, MAX_DESCRIBE_ATTEMPTS)
                ],
                catch=[catcher(["States.ALL"], "$.unseen", CHECK_CREATED)],
            ),
        )

    def _add_ownership_check(self) -> None:
        """Check who created the job: the response may have been lost, or the name is in use by another
        job."""
        add = self.builder.add
        add(
            CHECK_CREATE,
            choice_state(
                "If it was, the job is ours.",
                [go_to(CHECK_ENDED, compare("$.job.fault.Error", "StringEquals", ""))],
                READ_TAGS,
            ),
        )
        add(
            READ_TAGS,
            task_state(
                "The job's hash is among them.",
                "aws-sdk:sagemaker:listTags",
                {"ResourceArn.$": f"$.seen.{self.kind}JobArn"},
                "$.tags",
                COMPARE_TAGS,
                retry=[
                    retrier(["States.ALL"], CREATE_BACKOFF, self.template.time_scale, MAX_DESCRIBE_ATTEMPTS)
                ],
            ),
        )
        ours = {"ours.$": "States.ArrayContains($.tags.Tags, $.blank.tag)"}
        add(COMPARE_TAGS, pass_state("Of the same job, source and data?", ours, "$.tags", CHECK_OWNERSHIP))
        add_fail = self.builder.add_fail
        add(
            CHECK_OWNERSHIP,
            choice_state(
                "A create whose answer was lost made our own job.",
                [go_to(CHECK_ENDED, compare("$.tags.ours", "BooleanEquals", True))],
                "Another job has the name",
            ),
        )
        add_fail(
            "Another job has the name",
            EXIT_BAD_JOB,
            "Never taken for this run's own.",
            format_text(
                [
                    f"the {self.kind.lower()} job ",
                    JOB_NAME_PATH,
                    " exists already and was made of another job, source or data; start the execution under "
                    "another name",
                ]
            ),
        )

    def _add_wait_for_end(self) -> None:
        template, add = self.template, self.builder.add
        has_ended = [
            compare(f"$.seen.{self.kind}JobStatus", "StringEquals", status)
            for status in ("Completed", "Failed", "Stopped")
            if classify_ending(status, "", "") is not None
        ]
        add(
            CHECK_ENDED,
            choice_state(
                "A job whose create was not answered may still run.",
                [go_to(READ_DESCRIPTION, any_of(*has_ended))],
                WAIT_FOR_JOB,
            ),
        )
        add(
            WAIT_FOR_JOB,
            wait_state("Looked at seldom.", COUNT_LOOK, seconds=template.scale_seconds(WATCH_SECONDS)),
        )
        counted_events = {"n.$": add_numbers("$.events.n", EVENTS_PER_LOOK), "hop.$": "$.events.hop"}
        add(
            COUNT_LOOK,
            pass_state("A look takes room in the history.", counted_events, "$.events", "Room for a look?"),
        )
        is_history_full = compare("$.events.n", "NumericGreaterThanEquals", HANDOVER_EVENTS)
        add(
            "Room for a look?",
            choice_state(
                "An execution may have 25,000 events.", [go_to(HAND_OVER, is_history_full)], DESCRIBE_JOB
            ),
        )
        description = {"job.$": merge_defaults("$.blank.job", "$.seen")}
        add(
            READ_DESCRIPTION,
            pass_state(
                "With a default for each member that an answer may lack.",
                description,
                "$.seen",
                COUNT_TIME if active_limits(template) else self.END_STATE,
            ),
        )
        if active_limits(template):
            duration_members = {"training": "TrainingTimeInSeconds", "billed": "BillableTimeInSeconds"}
            remaining = {
                f"{limit}.$": subtract(f"$.left.{limit}", f"$.seen.job.{duration_members[limit]}")
                for limit in active_limits(template)
            }
            add(COUNT_TIME, pass_state("Failed jobs count too.", remaining, "$.left", self.END_STATE))

    # ---- no job -------------------------------------------------------------------------------------------

    def _add_create_failures(self) -> None:
        builder, fault_path = self.builder, "$.job.fault"
        is_quota_error = compare(f"{fault_path}.Error", "StringMatches", "*ResourceLimitExceeded*")
        max_waits = int(QUOTA_BACKOFF.total_seconds / QUOTA_BACKOFF.max_seconds)
        waited_too_long = compare("$.at.waits", "NumericGreaterThanEquals", max_waits)
        patterns = [f"*{pattern}*" for pattern in transient_words()]
        is_transient = any_of(
            *(
                compare(f"{fault_path}.{field}", "StringMatches", pattern)
                for field in ERROR_FIELDS
                for pattern in patterns
            )
        )
        has_no_error = compare(f"{fault_path}.Error", "StringEquals", "")
        is_quota_unused = compare(f"{fault_path}.Cause", "StringMatches", "*with current utilization of 0 *")
        builder.add(
            CHECK_CREATED,
            choice_state(
                "There is no such job: the request was refused, for now or for good. A quota that others "
                "hold is waited for; one of which nothing is in use is too small.",
                [
                    go_to("Quota is too small", all_of(is_quota_error, is_quota_unused)),
                    go_to("May not look", is_access_denied("$.unseen")),
                    go_to(
                        "No answer for too long",
                        all_of(any_of(is_quota_error, is_transient, has_no_error), waited_too_long),
                    ),
                    go_to(QUOTA_WAIT, is_quota_error),
                    go_to(SERVICE_WAIT, any_of(is_transient, has_no_error)),
                    go_to("May not create", is_access_denied(fault_path)),
                ],
                "Request is refused",
            ),
        )
        for name, backoff in ((QUOTA_WAIT, QUOTA_BACKOFF), (SERVICE_WAIT, CREATE_BACKOFF)):
            seconds = self.template.scale_seconds(backoff.max_seconds)
            builder.add(name, wait_state(f"{max_waits} times at most.", COUNT_WAIT, seconds=seconds))
        values = next_job_context(self.template, EVENTS_PER_WAIT, {"waits": add_numbers("$.at.waits", 1)})
        builder.add(
            COUNT_WAIT, pass_state("The same job again, under the same name.", values, None, CHECK_HISTORY)
        )
        cause = f"{fault_path}.Cause"
        builder.add_fail("Quota is too small", EXIT_REFUSED, "Waiting would not help.", cause)
        builder.add_fail("May not look", EXIT_REFUSED, "See permissions.json.", "$.unseen.Cause")
        builder.add_fail("May not create", EXIT_REFUSED, "Of the machine's role: permissions.json.", cause)
        builder.add_fail("Request is refused", EXIT_BAD_JOB, "By the service, in its own words.", cause)
        builder.add_fail(
            "No answer for too long",
            EXIT_SERVICE,
            "A new execution under the same name goes on from here.",
            format_text(["no job could be made or seen: ", cause, "; ", "$.unseen.Cause"]),
        )

    def _add_hand_over(self) -> None:
        builder, template = self.builder, self.template
        is_history_full = compare("$.events.n", "NumericGreaterThanEquals", HANDOVER_EVENTS)
        comment = "An execution may have 25,000 events; before it has, another one goes on."
        builder.add(
            CHECK_HISTORY,
            choice_state(comment, [go_to(HAND_OVER, is_history_full)], JobStates.entry_state(template)),
        )
        context = {"run.$": "$.run", "at.$": "$.at", **persistent_context(template), "hop.$": "$.events.hop"}
        builder.add(
            HAND_OVER,
            task_state(
                "Waits for it, so that whoever waits for this execution waits for the run.",
                "states:startExecution.sync:2",
                {
                    "StateMachineArn.$": "$$.StateMachine.Id",
                    "Name.$": format_text(["$.run", "-part-", "$.events.hop"]),
                    "Input": {
                        "AWS_STEP_FUNCTIONS_STARTED_BY_EXECUTION_ID.$": "$$.Execution.Id",
                        "smlaunch": context,
                    },
                },
                "$.rest",
                "The rest went well",
                catch=[catcher(["States.ALL"], "$.rest", "Did the rest begin?")],
            ),
        )
        builder.add(
            "The rest went well",
            {"Type": "Succeed", "Comment": "With its result.", "OutputPath": "$.rest.Output"},
        )
        builder.add(
            "Did the rest begin?",
            choice_state(
                "A failed execution is told as JSON, a start that was refused in words.",
                [
                    go_to("How the rest ended", execution_started("$.rest")),
                    go_to("May not go on", is_access_denied("$.rest")),
                ],
                "Cannot go on",
            ),
        )
        builder.add_fail("May not go on", EXIT_REFUSED, "See permissions.json: GoOn.", "$.rest.Cause")
        builder.add_fail("Cannot go on", EXIT_SERVICE, "In the service's words.", "$.rest.Cause")
        builder.add(
            "How the rest ended",
            pass_state(
                "As JSON.",
                {"told.$": merge_defaults("$.blank.execution", "States.StringToJson($.rest.Cause)")},
                "$.rest",
                "The rest has failed",
            ),
        )
        builder.add(
            "The rest has failed",
            {
                "Type": "Fail",
                "Comment": "As the execution that went on.",
                "ErrorPath": "$.rest.told.Error",
                "CausePath": "$.rest.told.Cause",
            },
        )


_LIMIT_LABELS = {"training": "time", "billed": "money"}


def _variant_state_name(name: str, template: RunTemplate, index: int) -> str:
    return name if len(template.variants) == 1 else f"{name} ({index + 1})"


def _limit_state_name(template: RunTemplate, index: int) -> str:
    return _variant_state_name("How long?", template, index)


def _create_state_name(template: RunTemplate, index: int, on_demand: bool) -> str:
    if template.is_processing:
        return _variant_state_name("Process", template, index)
    return _variant_state_name("Train on demand" if on_demand else "Train", template, index)
