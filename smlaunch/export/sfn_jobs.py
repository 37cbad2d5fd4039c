"""States that create one job and wait for its end: name, request, ownership, errors."""

from __future__ import annotations

from smlaunch.api.retry_policy import CREATE_BACKOFF, QUOTA_BACKOFF, TRANSIENT_ERRORS
from smlaunch.chain.workflow import classify_ending
from smlaunch.errors import EXIT_BAD_JOB, EXIT_REFUSED, EXIT_SERVICE
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
from smlaunch.export.run_template import JOB_NAME_TEMPLATE, RunTemplate
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
    error_state,
    next_job_context,
    persistent_context,
    rule_access_is_denied,
    rule_execution_was_started,
    seconds_by_run_limit,
)
from smlaunch.export.sfn_time_limits import (
    first_state_of_job,
    rule_before_next_variant,
    time_limit_states,
    variant_state_name,
)

CHOOSE_REQUEST, NAME_IN_USE = "Which request?", "Another job has the name"
CHECK_ENDED, WAIT_FOR_JOB, COUNT_DESCRIBE = "Has it ended?", "While it runs", "One more look"
CHECK_DESCRIBE_HISTORY = "Room for a look?"
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


def retryable_error_names() -> list[str]:
    """Return the names under which Step Functions reports the transient errors of SageMaker's API:
    ``SageMaker.<code>Exception``. Errors of throttling also come without the prefix."""
    exception_names = sorted(
        {code if code.endswith("Exception") else f"{code}Exception" for code in TRANSIENT_ERRORS}
    )
    prefixed_names = [_ERROR_PREFIX + name for name in exception_names]
    throttling_names = [name for name in exception_names if "Throttl" in name]
    return prefixed_names + throttling_names


def shortest_transient_codes() -> list[str]:
    """Return the codes of transient errors to search for in the text of an error. A code that contains
    another one is left out, since a search for the other one finds it too."""

    def contains_other_code(code: str) -> bool:
        return any(other != code and other in code for other in TRANSIENT_ERRORS)

    return [code for code in sorted(TRANSIENT_ERRORS) if not contains_other_code(code)]


def job_states(template: RunTemplate) -> dict[str, State]:
    """Return the states of one job by name: from the choice of its variant, at ``first_state_of_job``, to its
    end, ``AFTER_JOB_END``, or to the next execution where this one's history is full. A job that exists
    already is this run's only if its tags say so."""
    return {
        **time_limit_states(template),
        **_job_name_states(template),
        **_create_states(template),
        DESCRIBE_JOB: _describe_state(template),
        **_ownership_check_states(template),
        **_wait_for_end_states(template),
        **_create_failure_states(template),
        **_hand_over_states(template),
    }


# ---- the job ----------------------------------------------------------------------------------------------


def _job_name_states(template: RunTemplate) -> dict[str, State]:
    """Return the Pass state that names the next job, and the Choice state that selects its request where
    there are several: a variant (consecutive segments with the same request) may have a request on demand
    beside the one on spot."""
    job_context = {
        "name.$": states_format(JOB_NAME_TEMPLATE.pieces),
        "fault": {"Error": "", "Cause": ""},  # of the call that creates the job
        "looks": 0,  # how often its outcome file was looked for
    }
    choice_rules = _request_choice_rules(template)
    # The last variant's own request has no rule: it is the default.
    default_state = _create_state_name(template, len(template.variants) - 1, on_demand=False)
    name_state = pass_state(
        "Made here, inside the loop: no two jobs share it, and whoever asks twice finds the first.",
        job_context,
        "$.job",
        CHOOSE_REQUEST if choice_rules else default_state,
    )
    if not choice_rules:
        return {NAME_THE_JOB: name_state}
    comment = "Spot until it has not come once in this segment; each variant has its own request."
    return {
        NAME_THE_JOB: name_state,
        CHOOSE_REQUEST: choice_state(comment, choice_rules, default_state),
    }


def _request_choice_rules(template: RunTemplate) -> list[ChoiceRule]:
    """Return the rules that lead to the state which creates the next job, in the order in which they are
    tried."""
    choice_rules: list[ChoiceRule] = []
    last_variant_index = len(template.variants) - 1
    for variant_index, variant in enumerate(template.variants):
        is_last = variant_index == last_variant_index
        before_next_variant_rules = [] if is_last else [rule_before_next_variant(template, variant_index)]
        # First the narrower rule: an earlier attempt of this segment found no spot capacity.
        if variant.on_demand_request is not None:
            is_on_demand = comparison_rule("$.position.on_demand", "BooleanEquals", True)
            on_demand_state = _create_state_name(template, variant_index, on_demand=True)
            choice_rules.append(
                rule_to_state(on_demand_state, and_rule(*before_next_variant_rules, is_on_demand))
            )
        if not is_last:
            create_state = _create_state_name(template, variant_index, on_demand=False)
            choice_rules.append(rule_to_state(create_state, and_rule(*before_next_variant_rules)))
    return choice_rules


def _create_states(template: RunTemplate) -> dict[str, State]:
    """Return a Task state for each request of each variant."""
    return {
        _create_state_name(template, variant_index, on_demand): task_state(
            "A create that was throttled made no job, and is sent again under the same name. Whatever else "
            "goes wrong, here or in the job, is read from the job itself.",
            f"sagemaker:create{template.kind.name}Job.sync",
            to_asl_parameters(request),
            None,
            DESCRIBE_JOB,
            retriers=[retrier(retryable_error_names(), CREATE_BACKOFF, template.time_scale)],
            catchers=[catcher(["States.ALL"], "$.job.fault", DESCRIBE_JOB)],
        )
        for variant_index, variant in enumerate(template.variants)
        for on_demand, request in ((False, variant.request), (True, variant.on_demand_request))
        if request is not None
    }


# ---- its end ----------------------------------------------------------------------------------------------


def _describe_retriers(template: RunTemplate) -> list[State]:
    return [retrier(["States.ALL"], CREATE_BACKOFF, template.time_scale, MAX_DESCRIBE_ATTEMPTS)]


def _describe_state(template: RunTemplate) -> State:
    return task_state(
        "What the service says of it; the error that a failed job raises is not the same everywhere.",
        f"aws-sdk:sagemaker:describe{template.kind.name}Job",
        {f"{template.kind.name_field}.$": JOB_NAME_PATH},
        "$.description",
        CHECK_CREATE,
        retriers=_describe_retriers(template),
        catchers=[catcher(["States.ALL"], "$.describe_error", CHECK_CREATED)],
    )


def _ownership_check_states(template: RunTemplate) -> dict[str, State]:
    """Return the states that check who created the job: the response may have been lost, or the name is in
    use by another job."""
    was_created = comparison_rule("$.job.fault.Error", "StringEquals", "")
    is_own_job = comparison_rule("$.tags.ours", "BooleanEquals", True)
    comparison = {"ours.$": "States.ArrayContains($.tags.Tags, $.defaults.tag)"}
    name_in_use_text = states_format(
        [
            f"the {template.kind.noun} ",
            JOB_NAME_PATH,
            " exists already and was made of another job, source or data; start the execution under "
            "another name",
        ]
    )
    return {
        CHECK_CREATE: choice_state(
            "If it was, the job is ours.", [rule_to_state(CHECK_ENDED, was_created)], READ_TAGS
        ),
        READ_TAGS: task_state(
            "The job's hash is among them.",
            "aws-sdk:sagemaker:listTags",
            {"ResourceArn.$": f"$.description.{template.kind.arn_field}"},
            "$.tags",
            COMPARE_TAGS,
            retriers=_describe_retriers(template),
        ),
        COMPARE_TAGS: pass_state("Of the same job, source and data?", comparison, "$.tags", CHECK_OWNERSHIP),
        CHECK_OWNERSHIP: choice_state(
            "A create whose answer was lost made our own job.",
            [rule_to_state(CHECK_ENDED, is_own_job)],
            NAME_IN_USE,
        ),
        NAME_IN_USE: error_state(EXIT_BAD_JOB, "Never taken for this run's own.", name_in_use_text),
    }


def _wait_for_end_states(template: RunTemplate) -> dict[str, State]:
    """Return the states that wait for the end of a job, and read its description and its time."""
    has_ended = [
        comparison_rule(f"$.description.{template.kind.status_field}", "StringEquals", status)
        for status in ("Completed", "Failed", "Stopped")
        if classify_ending(status, "", "") is not None
    ]
    event_count = {"n.$": states_math_add("$.events.n", EVENTS_PER_DESCRIBE), "hop.$": "$.events.hop"}
    description = {"job.$": states_merge_defaults("$.defaults.job", "$.description")}
    run_limits = seconds_by_run_limit(template)  # "training" or "billed" time, or both
    states = {
        CHECK_ENDED: choice_state(
            "A job whose create was not answered may still run.",
            [rule_to_state(READ_DESCRIPTION, or_rule(*has_ended))],
            WAIT_FOR_JOB,
        ),
        WAIT_FOR_JOB: wait_state(
            "Looked at seldom.", COUNT_DESCRIBE, seconds=template.scale_seconds(DESCRIBE_INTERVAL_SECONDS)
        ),
        COUNT_DESCRIBE: pass_state(
            "A look takes room in the history.", event_count, "$.events", CHECK_DESCRIBE_HISTORY
        ),
        CHECK_DESCRIBE_HISTORY: _history_check_state("An execution may have 25,000 events.", DESCRIBE_JOB),
        READ_DESCRIPTION: pass_state(
            "With a default for each member that an answer may lack.",
            description,
            "$.description",
            COUNT_TIME if run_limits else AFTER_JOB_END,
        ),
    }
    if run_limits:
        duration_member_by_limit = {"training": "TrainingTimeInSeconds", "billed": "BillableTimeInSeconds"}
        remaining = {
            f"{limit}.$": states_subtract(
                f"$.remaining.{limit}", f"$.description.job.{duration_member_by_limit[limit]}"
            )
            for limit in run_limits
        }
        states[COUNT_TIME] = pass_state("Failed jobs count too.", remaining, "$.remaining", AFTER_JOB_END)
    return states


def _history_check_state(comment: str, next_state: str) -> State:
    """Return the Choice state that hands over to another execution where this one's history is full."""
    is_history_full = comparison_rule("$.events.n", "NumericGreaterThanEquals", MAX_EVENTS_BEFORE_HANDOVER)
    return choice_state(comment, [rule_to_state(HAND_OVER, is_history_full)], next_state)


# ---- no job -----------------------------------------------------------------------------------------------


def _create_failure_states(template: RunTemplate) -> dict[str, State]:
    """Return the states after a call that created no job: a wait before the same call, or the run's end.
    ``$.job.fault`` is the error of that call, ``$.describe_error`` that of the search for the job."""
    fault_path, describe_error_path = "$.job.fault", "$.describe_error"
    cause_path = f"{fault_path}.Cause"
    max_waits = int(QUOTA_BACKOFF.total_seconds / QUOTA_BACKOFF.max_seconds)
    waited_too_long = comparison_rule("$.position.waits", "NumericGreaterThanEquals", max_waits)
    is_transient = or_rule(
        *(
            comparison_rule(f"{fault_path}.{field}", "StringMatches", f"*{code}*")
            for field in ERROR_FIELDS  # Error and Cause
            for code in shortest_transient_codes()
        )
    )
    has_no_error = comparison_rule(f"{fault_path}.Error", "StringEquals", "")
    is_quota_error = comparison_rule(f"{fault_path}.Error", "StringMatches", "*ResourceLimitExceeded*")
    is_quota_unused = comparison_rule(cause_path, "StringMatches", "*with current utilization of 0 *")
    one_more_wait = next_job_context(
        template, EVENTS_PER_WAIT, {"waits": states_math_add("$.position.waits", 1)}
    )
    no_answer_text = states_format(
        ["no job could be made or seen: ", cause_path, "; ", f"{describe_error_path}.Cause"]
    )
    return {
        CHECK_CREATED: choice_state(
            "There is no such job: the request was refused, for now or for good. A quota that others "
            "hold is waited for; one of which nothing is in use is too small.",
            [
                rule_to_state("Quota is too small", and_rule(is_quota_error, is_quota_unused)),
                rule_to_state("May not look", rule_access_is_denied(describe_error_path)),
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
        **{
            name: wait_state(
                f"{max_waits} times at most.", COUNT_WAIT, seconds=template.scale_seconds(backoff.max_seconds)
            )
            for name, backoff in ((QUOTA_WAIT, QUOTA_BACKOFF), (SERVICE_WAIT, CREATE_BACKOFF))
        },
        COUNT_WAIT: pass_state(
            "The same job again, under the same name.", one_more_wait, None, CHECK_HISTORY
        ),
        "Quota is too small": error_state(EXIT_REFUSED, "Waiting would not help.", cause_path),
        "May not look": error_state(EXIT_REFUSED, "See permissions.json.", f"{describe_error_path}.Cause"),
        "May not create": error_state(EXIT_REFUSED, "Of the machine's role: permissions.json.", cause_path),
        "Request is refused": error_state(EXIT_BAD_JOB, "By the service, in its own words.", cause_path),
        "No answer for too long": error_state(
            EXIT_SERVICE, "A new execution under the same name goes on from here.", no_answer_text
        ),
    }


def _hand_over_states(template: RunTemplate) -> dict[str, State]:
    """Return the states that start another execution where this one's history is full, and end as it does."""
    context = {
        "run.$": "$.run",
        "position.$": "$.position",
        **persistent_context(template),
        "hop.$": "$.events.hop",
    }
    # Of a failed execution: its Error and Cause.
    failure = {
        "failure.$": states_merge_defaults(
            "$.defaults.execution", "States.StringToJson($.continuation.Cause)"
        )
    }
    return {
        CHECK_HISTORY: _history_check_state(
            "An execution may have 25,000 events; before it has, another one goes on.",
            first_state_of_job(template),
        ),
        HAND_OVER: task_state(
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
        "The rest went well": {
            "Type": "Succeed",
            "Comment": "With its result.",
            "OutputPath": "$.continuation.Output",
        },
        "Did the rest begin?": choice_state(
            "The Cause of a failed execution is JSON, that of a refused start is text.",
            [
                rule_to_state("How the rest ended", rule_execution_was_started("$.continuation")),
                rule_to_state("May not go on", rule_access_is_denied("$.continuation")),
            ],
            "Cannot go on",
        ),
        "May not go on": error_state(EXIT_REFUSED, "See permissions.json: GoOn.", "$.continuation.Cause"),
        "Cannot go on": error_state(EXIT_SERVICE, "In the service's words.", "$.continuation.Cause"),
        "How the rest ended": pass_state("As JSON.", failure, "$.continuation", "The rest has failed"),
        "The rest has failed": {
            "Type": "Fail",
            "Comment": "As the execution that went on.",
            "ErrorPath": "$.continuation.failure.Error",
            "CausePath": "$.continuation.failure.Cause",
        },
    }


def _create_state_name(template: RunTemplate, index: int, on_demand: bool) -> str:
    verb = template.kind.verb
    return variant_state_name(f"{verb} on demand" if on_demand else verb, template, index)
