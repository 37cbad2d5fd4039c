"""Least-privilege policies for the role of a state machine: what its definition calls, and on what.

JSON has no room for a reason, so each statement's Sid has one in ``REASONS``; docs/step-functions.md shows
them, and a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from smlaunch.export.fan_out import results_at
from smlaunch.export.flow import Flow, Place, Text
from smlaunch.export.machine_words import kind_of
from smlaunch.protocol.checkpoint import OUTCOME

Statement = dict[str, Any]

REASONS: Mapping[str, str] = {
    "MakeJobs": "Train: a job, with its tags; stopped when the execution is stopped, looked at until it ends",
    "ReadTags": "Read its tags: whose a job is that has the name already; a new ARN cannot be known before",
    "PassTheJobsRole": "Train: the job runs under its own role, which only SageMaker may be given",
    "HearOfJobs": ".sync: Step Functions keeps a rule of this name to hear of a job's end",
    "ReadOutcome": "What it left: how far the run is",
    "ClearOutcome": "Clear the outcome: of a training that finished and whose job failed after it",
    "TellMissingFromForbidden": "Without it S3 answers 403 for an outcome that is not there yet",
    "GoOn": "Hand over: another execution goes on before the history is full; in parts, each is one",
    "WaitForWhatGoesOn": "Hand over: looked at until it ends, stopped when this one is stopped",
    "ReadParts": "Every part: what the parts differ in, where a Distributed Map reads it",
    "WriteResults": "Every part: each part's end, where the run's output says that it is",
    "WatchParts": "Every part: a Distributed Map's own executions are looked at, stopped with this one",
    "HearOfExecutions": ".sync:2: Step Functions keeps a rule of this name to hear of an execution's end",
}

UNCALLED: Mapping[str, str] = {
    "sagemaker:StopTrainingJob": "only when an execution is stopped while its job runs",
    "sagemaker:StopProcessingJob": "only when an execution is stopped while its job runs",
    "sagemaker:AddTags": "part of a create with tags; no call of its own",
    "sagemaker:ListTags": "only when a job failed, or its create was not answered",
    "iam:PassRole": "checked when a job is made; no call of its own",
    "events:PutTargets": "by Step Functions itself",
    "events:PutRule": "by Step Functions itself",
    "events:DescribeRule": "by Step Functions itself",
    "s3:ListBucket": "checked by GetObject of what is not there; no call of its own",
    "s3:DeleteObject": "only when a job failed after its training had finished",
    "states:StartExecution": "only when an execution's history is full, or the run is in parts",
    "states:DescribeExecution": "only when an execution's history is full, or the run is in parts",
    "states:StopExecution": "only when an execution is stopped that others go on for, or run parts of",
}
"""Allowed actions that an ordinary run does not call, and when they are."""

_EXECUTIONS = "StepFunctionsExecution"
"""Whose end is heard of, as the names of Step Functions' own rules have it; of jobs, by their kind."""


def permissions(flow: Flow, definition: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The policy of the role that executions run under. ``definition``: what is called is read from it;
    ``name``: the state machine's."""
    statements = [*_statements(flow, resources(definition), name), *_distributed(flow, definition, name)]
    return {"Version": "2012-10-17", "Statement": statements}


def trust(flow: Flow, name: str) -> dict[str, Any]:
    """Who may take the role: Step Functions, for this account's machine of this name."""
    statement = _allow("StepFunctionsRunsTheMachine", ["sts:AssumeRole"], None)
    statement["Principal"] = {"Service": "states.amazonaws.com"}
    statement["Condition"] = {
        "StringEquals": {"aws:SourceAccount": flow.account},
        "ArnLike": {"aws:SourceArn": _arn(flow, "states", f"stateMachine:{name}")},
    }
    return {"Version": "2012-10-17", "Statement": [statement]}


def resources(definition: Mapping[str, Any]) -> set[str]:
    """The integrations that a definition's tasks use, without their ARN's beginning."""
    found = set()
    for state in definition["States"].values():
        if "Resource" in state:
            found.add(state["Resource"].split(":::", 1)[1])
        for inner in (state.get("ItemProcessor"), *state.get("Branches", [])):
            if inner is not None:
                found |= resources(inner)
    return found


def _statements(flow: Flow, used: set[str], name: str) -> Iterator[Statement]:
    kind = kind_of(flow)
    if f"sagemaker:create{kind}Job.sync" in used:
        jobs = [_arn(flow, "sagemaker", f"{kind.lower()}-job/{flow.run or '*'}-s*-a*")]
        actions = (f"Create{kind}Job", "AddTags", f"Describe{kind}Job", f"Stop{kind}Job")
        yield _allow("MakeJobs", [f"sagemaker:{action}" for action in actions], jobs)
        to_sagemaker = {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
        yield {**_allow("PassTheJobsRole", ["iam:PassRole"], [flow.role]), "Condition": to_sagemaker}
        yield _events(flow, "HearOfJobs", f"SageMaker{kind}Jobs")
        if "aws-sdk:sagemaker:listTags" in used:
            yield _allow("ReadTags", ["sagemaker:ListTags"], jobs)
    yield from _outcome(flow, used)
    if "states:startExecution.sync:2" in used:
        yield _allow("GoOn", ["states:StartExecution"], [_arn(flow, "states", f"stateMachine:{name}")])
        going_on = [_arn(flow, "states", f"execution:{name}:*")]
        watching = ["states:DescribeExecution", "states:StopExecution"]
        yield _allow("WaitForWhatGoesOn", watching, going_on)
        yield _events(flow, "HearOfExecutions", _EXECUTIONS)


def _distributed(flow: Flow, definition: Mapping[str, Any], name: str) -> Iterator[Statement]:
    """Beside what starts the parts: a Map's own executions are of the machine too, by its label."""
    for state in definition["States"].values():
        if "ItemReader" in state:
            read = state["ItemReader"]["Parameters"]
            item_file = f"arn:{flow.partition}:s3:::{read['Bucket']}/{read['Key']}"
            yield _owned(flow, "ReadParts", "s3:GetObject", item_file)
            results = results_at(flow).removeprefix("s3://")
            yield _owned(flow, "WriteResults", "s3:PutObject", f"arn:{flow.partition}:s3:::{results}*")
            watching = ["states:DescribeExecution", "states:StopExecution"]
            own = _arn(flow, "states", f"execution:{name}/{state['Label']}:*")
            yield _allow("WatchParts", watching, [own])


def _outcome(flow: Flow, used: set[str]) -> Iterator[Statement]:
    if flow.checkpoints is None or "aws-sdk:s3:getObject" not in used:
        return
    bucket, key = _pattern(flow.checkpoints)
    place = f"arn:{flow.partition}:s3:::{bucket}"
    yield _owned(flow, "ReadOutcome", "s3:GetObject", f"{place}/{key}{OUTCOME}")
    if "aws-sdk:s3:deleteObject" in used:
        yield _owned(flow, "ClearOutcome", "s3:DeleteObject", f"{place}/{key}{OUTCOME}")
    # No condition on s3:prefix: a GetObject of what is not there has none, and would be told 403 again.
    yield _owned(flow, "TellMissingFromForbidden", "s3:ListBucket", place)


def _pattern(prefix: Text) -> tuple[str, str]:
    """Bucket and key of a prefix, with a star for every place in it."""
    uri = "".join("*" if isinstance(word, Place) else word for word in prefix.words)
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def _events(flow: Flow, sid: str, whose: str) -> Statement:
    actions = ["events:PutTargets", "events:PutRule", "events:DescribeRule"]
    return _allow(sid, actions, [_arn(flow, "events", f"rule/StepFunctionsGetEventsFor{whose}Rule")])


def _owned(flow: Flow, sid: str, action: str, resource: str) -> Statement:
    """In a bucket of the account that it has to belong to: a bucket's ARN says nothing of its owner, and a
    Distributed Map's ItemReader can be told none."""
    bucket = resource.split(":::", 1)[1].partition("/")[0]
    owner = {"StringEquals": {"s3:ResourceAccount": flow.owner_of(bucket)}}
    return {**_allow(sid, [action], [resource]), "Condition": owner}


def _allow(sid: str, actions: list[str], resources: list[str] | None) -> Statement:
    statement: Statement = {"Sid": sid, "Effect": "Allow", "Action": actions}
    if resources is not None:
        statement["Resource"] = resources
    return statement


def _arn(flow: Flow, service: str, resource: str) -> str:
    return f"arn:{flow.partition}:{service}:{flow.region}:{flow.account}:{resource}"
