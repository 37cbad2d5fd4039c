"""Least-privilege policies for the role of a state machine: the calls of its definition and their resources.

JSON has no comments, so the reason of each statement is in ``REASONS`` by its Sid; docs/step-functions.md
shows them, checked by a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from smlaunch.contract.segment_outcome import OUTCOME_PATH_PREFIX
from smlaunch.export.run_template import JobVariable, RunTemplate, TextTemplate
from smlaunch.export.sfn_shards import results_prefix

Statement = dict[str, Any]

REASONS: Mapping[str, str] = {
    "MakeJobs": "Train: a job, with its tags; stopped when the execution is stopped, looked at until it ends",
    "ReadTags": "Read its tags: whose a job is that has the name already; a new ARN cannot be known before",
    "PassTheJobsRole": "Train: the job runs under its own role, which only SageMaker may be given",
    "HearOfJobs": ".sync: Step Functions keeps a rule of this name to hear of a job's end",
    "ReadOutcome": "What it left: how far the run is",
    "ClearOutcome": "Clear the outcome: of a training that finished and whose job failed after it",
    "TellMissingFromForbidden": "Without it S3 answers 403 for an outcome that is not there yet",
    "GoOn": "Hand over: another execution goes on before the history is full; each shard is one too",
    "WaitForWhatGoesOn": "Hand over: looked at until it ends, stopped when this one is stopped",
    "ReadShards": "Every shard: what the shards differ in, where a Distributed Map reads it",
    "WriteResults": "Every shard: each shard's end, where the run's output says that it is",
    "WatchShards": "Every shard: a Distributed Map's own executions are looked at, stopped with this one",
    "HearOfExecutions": ".sync:2: Step Functions keeps a rule of this name to hear of an execution's end",
}

RARE_ACTIONS: Mapping[str, str] = {
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
    "states:StartExecution": "only when an execution's history is full, or the run is sharded",
    "states:DescribeExecution": "only when an execution's history is full, or the run is sharded",
    "states:StopExecution": "only when an execution is stopped that others go on for, or run shards of",
}
"""Allowed actions that an ordinary run does not call, and when they are called."""

_EXECUTION_EVENTS = "StepFunctionsExecution"
"""Event source in the name of the EventBridge rule that Step Functions uses for executions."""


def permissions_policy(template: RunTemplate, definition: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Policy of the role of executions, from the calls of the ``definition``. ``name``: of the state
    machine."""
    statements = [
        *_role_statements(template, find_service_integrations(definition), name),
        *_map_statements(template, definition, name),
    ]
    return {"Version": "2012-10-17", "Statement": statements}


def trust_policy(template: RunTemplate, name: str) -> dict[str, Any]:
    """Trust policy: only Step Functions may assume the role, for this state machine of this account."""
    statement = _allow_statement("StepFunctionsRunsTheMachine", ["sts:AssumeRole"], None)
    statement["Principal"] = {"Service": "states.amazonaws.com"}
    statement["Condition"] = {
        "StringEquals": {"aws:SourceAccount": template.account},
        "ArnLike": {"aws:SourceArn": _build_arn(template, "states", f"stateMachine:{name}")},
    }
    return {"Version": "2012-10-17", "Statement": [statement]}


def find_service_integrations(definition: Mapping[str, Any]) -> set[str]:
    """Return the service integrations that the Task states of a state machine use: the end of a state's
    ``Resource`` (``arn:aws:states:::<integration>``), such as ``sagemaker:createTrainingJob.sync``. States
    that are nested in Map and Parallel states count too."""
    service_integrations: set[str] = set()
    for state in definition["States"].values():
        if "Resource" in state:
            service_integrations.add(state["Resource"].split(":::", 1)[1])
        for nested_definition in (state.get("ItemProcessor"), *state.get("Branches", [])):
            if nested_definition is not None:
                service_integrations |= find_service_integrations(nested_definition)
    return service_integrations


def _role_statements(
    template: RunTemplate, service_integrations: set[str], machine_name: str
) -> Iterator[Statement]:
    """Yield the IAM statements of the state machine's role: the permissions for the service integrations
    (the actions of AWS services) that its states use."""
    if f"sagemaker:create{template.kind.name}Job.sync" in service_integrations:
        yield from _job_statements(
            template, may_read_tags="aws-sdk:sagemaker:listTags" in service_integrations
        )
    yield from _outcome_statements(template, service_integrations)
    if "states:startExecution.sync:2" in service_integrations:
        yield from _continuation_statements(template, machine_name)


def _job_statements(template: RunTemplate, *, may_read_tags: bool) -> Iterator[Statement]:
    """Yield the statements for creating the jobs of a run and waiting for them."""
    kind = template.kind
    job_pattern = f"{template.fixed_run_id or '*'}-s*-a*"
    job_arns = [_build_arn(template, "sagemaker", f"{kind.arn_resource}/{job_pattern}")]
    actions = (kind.create_operation, "AddTags", kind.describe_operation, kind.stop_operation)
    yield _allow_statement("MakeJobs", [f"sagemaker:{action}" for action in actions], job_arns)
    is_passed_to_sagemaker = {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
    yield {
        **_allow_statement("PassTheJobsRole", ["iam:PassRole"], [template.role]),
        "Condition": is_passed_to_sagemaker,
    }
    yield _events_statement(template, "HearOfJobs", f"SageMaker{kind.name}Jobs")
    if may_read_tags:
        yield _allow_statement("ReadTags", ["sagemaker:ListTags"], job_arns)


def _continuation_statements(template: RunTemplate, machine_name: str) -> Iterator[Statement]:
    """Yield the statements for starting another execution of the same state machine, which goes on when the
    history of the first one is full, or runs a shard."""
    yield _allow_statement(
        "GoOn",
        ["states:StartExecution"],
        [_build_arn(template, "states", f"stateMachine:{machine_name}")],
    )
    execution_arns = [_build_arn(template, "states", f"execution:{machine_name}:*")]
    execution_actions = ["states:DescribeExecution", "states:StopExecution"]
    yield _allow_statement("WaitForWhatGoesOn", execution_actions, execution_arns)
    yield _events_statement(template, "HearOfExecutions", _EXECUTION_EVENTS)


def _map_statements(template: RunTemplate, definition: Mapping[str, Any], name: str) -> Iterator[Statement]:
    """Statements for a Distributed Map: its items, its results and its own executions."""
    for state in definition["States"].values():
        if "ItemReader" in state:
            reader_parameters = state["ItemReader"]["Parameters"]
            item_file = (
                f"arn:{template.partition}:s3:::{reader_parameters['Bucket']}/{reader_parameters['Key']}"
            )
            yield _bucket_statement(template, "ReadShards", "s3:GetObject", item_file)
            results_path = results_prefix(template).removeprefix("s3://")
            yield _bucket_statement(
                template, "WriteResults", "s3:PutObject", f"arn:{template.partition}:s3:::{results_path}*"
            )
            actions = ["states:DescribeExecution", "states:StopExecution"]
            map_executions = _build_arn(template, "states", f"execution:{name}/{state['Label']}:*")
            yield _allow_statement("WatchShards", actions, [map_executions])


def _outcome_statements(template: RunTemplate, service_integrations: set[str]) -> Iterator[Statement]:
    """Yield the statements for reading and deleting outcome files, which jobs write below the prefix of the
    checkpoints. ``service_integrations``: those that the states use, such as ``aws-sdk:s3:getObject``."""
    if template.checkpoints_prefix is None or "aws-sdk:s3:getObject" not in service_integrations:
        return
    bucket, key_pattern = _object_pattern(template.checkpoints_prefix)
    bucket_arn = f"arn:{template.partition}:s3:::{bucket}"
    outcome_files_arn = f"{bucket_arn}/{key_pattern}{OUTCOME_PATH_PREFIX}*"
    yield _bucket_statement(template, "ReadOutcome", "s3:GetObject", outcome_files_arn)
    if "aws-sdk:s3:deleteObject" in service_integrations:
        yield _bucket_statement(template, "ClearOutcome", "s3:DeleteObject", outcome_files_arn)
    # No condition on s3:prefix: a GetObject of a missing object has no prefix, and would get 403 again.
    yield _bucket_statement(template, "TellMissingFromForbidden", "s3:ListBucket", bucket_arn)


def _object_pattern(prefix: TextTemplate) -> tuple[str, str]:
    """Bucket and key of a prefix, with * for every variable."""
    uri = "".join("*" if isinstance(piece, JobVariable) else piece for piece in prefix.pieces)
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def _events_statement(template: RunTemplate, sid: str, event_source: str) -> Statement:
    actions = ["events:PutTargets", "events:PutRule", "events:DescribeRule"]
    return _allow_statement(
        sid, actions, [_build_arn(template, "events", f"rule/StepFunctionsGetEventsFor{event_source}Rule")]
    )


def _bucket_statement(template: RunTemplate, sid: str, action: str, resource: str) -> Statement:
    """Statement for a bucket of a certain account: an ARN has no owner, and the ItemReader of a Distributed
    Map has no parameter for it."""
    bucket = resource.split(":::", 1)[1].partition("/")[0]
    condition = {"StringEquals": {"s3:ResourceAccount": template.bucket_owner(bucket)}}
    return {**_allow_statement(sid, [action], [resource]), "Condition": condition}


def _allow_statement(sid: str, actions: list[str], resources: list[str] | None) -> Statement:
    statement: Statement = {"Sid": sid, "Effect": "Allow", "Action": actions}
    if resources is not None:
        statement["Resource"] = resources
    return statement


def _build_arn(template: RunTemplate, service: str, resource: str) -> str:
    return f"arn:{template.partition}:{service}:{template.region}:{template.account}:{resource}"
