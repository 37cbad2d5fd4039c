"""Properties of a definition: its graph, history, bytes and policies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smlaunch.chain.workflow import JobEnding, classify_ending
from smlaunch.errors import JobError
from smlaunch.export.run_template import ORCHESTRATOR_ERRORS, build_run_template
from smlaunch.export.sfn_after_job_end import choice_rules_by_ending, next_states, other_failure
from smlaunch.export.sfn_common import (
    EVENTS_PER_DESCRIBE,
    EVENTS_PER_JOB,
    EVENTS_PER_WAIT,
    HISTORY_LIMIT,
    MAX_EVENTS_BEFORE_HANDOVER,
)
from smlaunch.export.sfn_policies import (
    RARE_ACTIONS,
    REASONS,
    find_service_integrations,
    permissions_policy,
    trust_policy,
)
from smlaunch.export.step_functions import DEFINITION_FILE, PERMISSIONS_FILE, TASK_FILE, export_step_functions
from tests.conftest import ROOT
from tests.export.asl_interpreter import Execution
from tests.export.jobs import CHAIN, PROCESSING, plan_of
from tests.export.step_functions_page import PAGE, update_page
from tests.export.test_step_functions import JOBS, MACHINES, PLANS, definition_of

GOLDEN = ROOT / "tests" / "export" / "chain.asl.json"


@pytest.mark.parametrize("job", JOBS)
def test_every_state_is_reached_and_leads_somewhere(job: str) -> None:
    states, reached, waiting = MACHINES[job]["States"], set(), [MACHINES[job]["StartAt"]]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += next_states(states[name])
    assert reached == set(states)
    for name, state in states.items():
        assert next_states(state) or state["Type"] in ("Succeed", "Fail"), name
        assert len(name) <= 80, name
        assert state.get("Comment") or state["Type"] == "Succeed", name
        if state["Type"] == "Fail" and "Error" in state:
            assert state["Error"] in ORCHESTRATOR_ERRORS.values()


@pytest.mark.parametrize("job", JOBS)
def test_every_ending_has_exactly_one_rule(job: str) -> None:
    """The machine classifies every final state of a job as ``classify_ending`` does."""
    execution = Execution(MACHINES[job], lambda *_: None, "x")
    kind = build_run_template(PLANS[job]).kind
    rules = choice_rules_by_ending(kind)
    statuses = {
        "Completed": ["Completed"],
        "Stopped": ["Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded", "Unheard"],
        "Failed": ["Failed"],
    }
    if not kind.has_secondary_status:
        statuses["Stopped"] = [""]
    reasons = [
        "",
        "AlgorithmError: x",
        "ClientError",
        "CapacityError: y",
        "InternalServerError: z",
        "Algorithm",
    ]
    for status, secondaries in statuses.items():
        for secondary in secondaries:
            for reason in reasons:
                members = {kind.status_field: status, "SecondaryStatus": secondary, "FailureReason": reason}
                holds = [
                    end for end, rule in rules if execution.holds(rule, {"description": {"job": members}})
                ]
                ending = holds[0] if holds else other_failure()
                assert ending is classify_ending(status, secondary, reason), members
    targets = [rule["Next"] for rule in MACHINES[job]["States"]["How did it end?"]["Choices"]]
    assert len(targets) == len(rules)
    by_time = {JobEnding.TIME_LIMIT, JobEnding.WAIT_EXCEEDED} if not kind.has_secondary_status else set()
    assert {end for end, _ in rules} | {other_failure()} == set(JobEnding) - by_time - {JobEnding.DISK_FULL}


def events_of(state: dict[str, Any]) -> int:
    """Return the most history events of one visit: entered, exited, a task's own, and its retries'."""
    tries = 1 + sum(one["MaxAttempts"] for one in state.get("Retry", []))
    return 2 + 5 * tries if state["Type"] == "Task" else 2


def longest(states: dict[str, Any], start: str, stops: frozenset[str]) -> int:
    """Return the most history events of a path to ``stops`` that visits no state twice."""
    lengths: dict[str, int] = {}
    visiting: set[str] = set()

    def walk(name: str) -> int:
        if name in stops or name in visiting:
            return 0
        if name not in lengths:
            visiting.add(name)
            after = [walk(following) for following in next_states(states[name])]
            visiting.discard(name)
            lengths[name] = events_of(states[name]) + max(after, default=0)
        return lengths[name]

    return walk(start)


@pytest.mark.parametrize("job", JOBS)
def test_no_job_makes_more_history_than_is_counted_for_it(job: str) -> None:
    """The bound covers all retries and all paths; a loop counts as often as it may run."""
    states = MACHINES[job]["States"]
    history, entry = "Room in the history?", MACHINES[job]["States"]["Room in the history?"]["Default"]
    for_outcome = 0
    if "Wait for the outcome" in states:
        (looks,) = (
            one["NumericLessThan"]
            for rule in states["More to train?"]["Choices"]
            for one in rule.get("And", [])
            if one.get("Variable") == "$.job.looks"
        )
        # Each time passes two choices: the ending's, and the one that returns here.
        events = longest(states, "Wait for the outcome", frozenset({"How did it end?"})) + 2 + 2
        for_outcome = looks * events
    ways_out = frozenset({history, "While it runs", "Wait for the outcome"})
    assert longest(states, entry, ways_out) + 2 + for_outcome <= EVENTS_PER_JOB
    wait_stops = frozenset({history})
    create_stops = frozenset({"Was it made?", "Has it ended?", *ways_out})
    events = (
        longest(states, "Wait for the service", wait_stops) + 2 + longest(states, entry, create_stops) + 2
    )
    assert events <= EVENTS_PER_WAIT
    look_stops = frozenset({"Hand over", "Has it ended?", "Was it made?"})
    assert longest(states, "While it runs", look_stops) + 2 <= EVENTS_PER_DESCRIBE
    # The history is checked between two jobs only, and another job may follow the check.
    assert MAX_EVENTS_BEFORE_HANDOVER + 2 * EVENTS_PER_JOB < HISTORY_LIMIT


def test_an_execution_whose_history_is_full_hands_over_and_ends_as_the_next_one() -> None:
    machine = MACHINES["chain"]
    first = Execution(machine, lambda *_: None, "nightly")
    full = {
        "run": "nightly",
        "position": {"segment": 40},
        "remaining": {"training": 9},
        "events": {"n": 20_000, "hop": 2},
    }
    task = machine["States"]["Hand over"]
    handover = first.build(task["Parameters"], full)
    assert handover["Name"] == "nightly-part-2"
    assert handover["StateMachineArn"] == "arn:machine"
    second = Execution(machine, lambda *_: None, "nightly-part-2")
    assert second.holds(machine["States"]["Begin"]["Choices"][0], handover["Input"])
    next_input = second.build(machine["States"]["Take over"]["Parameters"], handover["Input"])
    assert (next_input["run"], next_input["position"], next_input["remaining"]) == (
        "nightly",
        {"segment": 40},
        {"training": 9},
    )
    assert next_input["events"] == {"n": 0, "hop": 3}


def test_the_same_job_gives_the_same_bytes() -> None:
    assert export_step_functions(plan_of(CHAIN), "train") == export_step_functions(plan_of(CHAIN), "train")


def test_the_golden_file() -> None:
    """`python -m tests.export.test_sfn_runs` writes the file."""
    assert export_step_functions(plan_of(CHAIN), "train")[DEFINITION_FILE] == GOLDEN.read_text()


def test_the_page_is_of_today() -> None:
    assert PAGE.read_text() == update_page(PAGE.read_text())


def test_a_fixed_name_is_every_executions_run() -> None:
    plan = plan_of(CHAIN)
    fixed = definition_of(plan, fixed_run_id="digits")
    assert fixed["States"]["First job"]["Parameters"]["run"] == "digits"
    task = json.loads(
        export_step_functions(plan, "train", fixed_run_id="digits", with_embedding_task=True)[TASK_FILE]
    )["Train"]
    assert "Name.$" not in task["Parameters"]


def test_what_the_machine_cannot_do_is_refused_by_name() -> None:
    with pytest.raises(JobError) as refused:
        export_step_functions(plan_of(CHAIN), "a name")
    assert [problem.path for problem in refused.value.problems] == ["--called"]


@pytest.mark.parametrize("strategy", ["processing", "spark"])
def test_a_processing_job_is_made_watched_and_told_by_its_own_operations(strategy: str) -> None:
    files = export_step_functions(plan_of({**PROCESSING, "strategy": strategy}), "clean")
    definition = json.loads(files[DEFINITION_FILE])
    assert {name for name in find_service_integrations(definition) if "sagemaker" in name} == {
        "sagemaker:createProcessingJob.sync",
        "aws-sdk:sagemaker:describeProcessingJob",
        "aws-sdk:sagemaker:listTags",
    }
    jobs, _, hears, *_ = json.loads(files[PERMISSIONS_FILE])["Statement"]
    assert jobs["Resource"] == ["arn:aws:sagemaker:us-east-1:123456789012:processing-job/*-s*-a*"]
    assert hears["Resource"][0].endswith("rule/StepFunctionsGetEventsForSageMakerProcessingJobsRule")
    assert "TrainingJob" not in files[DEFINITION_FILE] + files[PERMISSIONS_FILE]


# ---- policies -------------------------------------------------------------------------------------------

ACTIONS = {
    "sagemaker:createTrainingJob.sync": {"sagemaker:CreateTrainingJob"},
    "aws-sdk:sagemaker:describeTrainingJob": {"sagemaker:DescribeTrainingJob"},
    "sagemaker:createProcessingJob.sync": {"sagemaker:CreateProcessingJob"},
    "aws-sdk:sagemaker:describeProcessingJob": {"sagemaker:DescribeProcessingJob"},
    "aws-sdk:sagemaker:listTags": {"sagemaker:ListTags"},
    "aws-sdk:s3:getObject": {"s3:GetObject"},
    "aws-sdk:s3:deleteObject": {"s3:DeleteObject"},
    "aws-sdk:s3:putObject": {"s3:PutObject"},
    "states:startExecution.sync:2": {"states:StartExecution", "states:DescribeExecution"},
}


@pytest.mark.parametrize("job", JOBS)
def test_what_is_called_is_allowed_and_what_is_allowed_is_called_or_has_its_reason(job: str) -> None:
    policy = permissions_policy(build_run_template(PLANS[job]), MACHINES[job], "train")
    allowed = {action for one in policy["Statement"] for action in one["Action"]}
    called = set().union(*(ACTIONS[used] for used in find_service_integrations(MACHINES[job])))
    assert called <= allowed
    assert allowed <= called | set(RARE_ACTIONS)
    assert {one["Sid"] for one in policy["Statement"]} <= set(REASONS)
    assert not any(resource == "*" for one in policy["Statement"] for resource in one["Resource"])


def test_a_fixed_run_narrows_what_may_be_touched() -> None:
    flow = build_run_template(PLANS["chain"], fixed_run_id="digits")
    policy = {one["Sid"]: one for one in permissions_policy(flow, MACHINES["chain"], "train")["Statement"]}
    jobs = "arn:aws:sagemaker:us-east-1:123456789012:training-job/digits-s*-a*"
    assert policy["MakeJobs"]["Resource"] == [jobs]
    (place,) = policy["ReadOutcome"]["Resource"]
    assert place.endswith("/smlaunch/digits/checkpoints/smlaunch/outcome-*")
    assert policy["PassTheJobsRole"]["Condition"] == {
        "StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}
    }


def test_only_step_functions_may_take_the_role() -> None:
    (statement,) = trust_policy(build_run_template(PLANS["chain"]), "train")["Statement"]
    assert statement["Principal"] == {"Service": "states.amazonaws.com"}
    assert statement["Condition"]["StringEquals"] == {"aws:SourceAccount": "123456789012"}


if __name__ == "__main__":
    GOLDEN.write_text(export_step_functions(plan_of(CHAIN), "train")[DEFINITION_FILE])
