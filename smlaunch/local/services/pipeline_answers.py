"""Stored pipelines, executions and steps as the API shows them, and the pages of their lists. Pure.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smlaunch.local.pipelines.definition import Step
from smlaunch.local.pipelines.records import Execution, Pipeline, StepRecord
from smlaunch.local.services.job_lists import offset

_PAGE = 10
"""Entries on a page when MaxResults does not say."""


def pipeline(one: Pipeline) -> dict[str, Any]:
    """DescribePipeline"""
    by = _by(one.by)
    return _present(
        PipelineArn=one.arn,
        PipelineName=one.name,
        PipelineDisplayName=one.display_name,
        PipelineDefinition=one.definition,
        PipelineDescription=one.description,
        RoleArn=one.role,
        PipelineStatus="Active",
        CreationTime=one.created,
        LastModifiedTime=one.modified,
        LastRunTime=one.last_run,
        CreatedBy=by,
        LastModifiedBy=by,
        ParallelismConfiguration=_parallelism(one.parallelism),
    )


def summary(one: Pipeline) -> dict[str, Any]:
    """A member of PipelineSummaries."""
    return _present(
        PipelineArn=one.arn,
        PipelineName=one.name,
        PipelineDisplayName=one.display_name,
        PipelineDescription=one.description,
        RoleArn=one.role,
        CreationTime=one.created,
        LastModifiedTime=one.modified,
        LastExecutionTime=one.last_run,
    )


def execution(one: Execution) -> dict[str, Any]:
    """DescribePipelineExecution"""
    by = _by(one.by)
    return _present(
        PipelineArn=one.pipeline,
        PipelineExecutionArn=one.arn,
        PipelineExecutionDisplayName=one.display_name,
        PipelineExecutionStatus=one.status,
        PipelineExecutionDescription=one.description,
        PipelineExperimentConfig=dict(one.experiment) or None,
        FailureReason=one.failure,
        CreationTime=one.created,
        LastModifiedTime=one.modified,
        CreatedBy=by,
        LastModifiedBy=by,
        ParallelismConfiguration=_parallelism(one.parallelism),
    )


def run(one: Execution) -> dict[str, Any]:
    """A member of PipelineExecutionSummaries."""
    return _present(
        PipelineExecutionArn=one.arn,
        StartTime=one.created,
        PipelineExecutionStatus=one.status,
        PipelineExecutionDescription=one.description,
        PipelineExecutionDisplayName=one.display_name,
        PipelineExecutionFailureReason=one.failure,
    )


def step(one: StepRecord, written: Step) -> dict[str, Any]:
    """A member of PipelineExecutionSteps."""
    return _present(
        StepName=one.name,
        StepDisplayName=written.display_name,
        StepDescription=written.description,
        StartTime=one.started,
        EndTime=one.ended,
        StepStatus=one.status,
        CacheHitResult=None if one.hit is None else {"SourcePipelineExecutionArn": one.hit},
        FailureReason=one.failure,
        Metadata=_metadata(one),
        AttemptCount=one.attempts or None,
    )


def _metadata(one: StepRecord) -> dict[str, Any] | None:
    if one.type == "Condition":
        return None if one.outcome is None else {"Condition": {"Outcome": str(one.outcome)}}
    if one.type == "Fail":
        return None if one.message is None else {"Fail": {"ErrorMessage": one.message}}
    return None if one.job is None else {f"{one.type}Job": {"Arn": one.job}}


def page(params: Mapping[str, Any], member: str, entries: Sequence[Any]) -> dict[str, Any]:
    """``entries`` are in ascending order; the newest come first unless SortOrder says otherwise. Raises a
    ValidationException for a token that is none of ours."""
    ordered = list(entries if params.get("SortOrder") == "Ascending" else reversed(entries))
    start = offset(params.get("NextToken"))
    end = start + (params.get("MaxResults") or _PAGE)
    answer: dict[str, Any] = {member: ordered[start:end]}
    if end < len(ordered):
        answer["NextToken"] = str(end)
    return answer


def _by(arn: str) -> dict[str, Any]:
    return {"IamIdentity": {"Arn": arn}}


def _parallelism(steps: int | None) -> dict[str, int] | None:
    return None if steps is None else {"MaxParallelExecutionSteps": steps}


def _present(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
