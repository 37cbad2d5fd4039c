"""Responses for pipelines, executions and steps, and the pages of their lists. Pure.

Times are in seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smlaunch.local.json_types import JsonMapping, JsonObject
from smlaunch.local.pipelines.pipeline_records import Execution, Pipeline, StepRecord
from smlaunch.local.pipelines.pipeline_steps import Step
from smlaunch.local.services.job_listing_pages import parse_offset

_ENTRIES_PER_PAGE = 10
"""Default of MaxResults."""


def describe_pipeline(pipeline: Pipeline) -> JsonObject:
    """Return the response of DescribePipeline."""
    created_by = _user_context(pipeline.created_by)
    return _without_none(
        PipelineArn=pipeline.arn,
        PipelineName=pipeline.name,
        PipelineDisplayName=pipeline.display_name,
        PipelineDefinition=pipeline.definition,
        PipelineDescription=pipeline.description,
        RoleArn=pipeline.role,
        PipelineStatus="Active",
        CreationTime=pipeline.created,
        LastModifiedTime=pipeline.modified,
        LastRunTime=pipeline.last_run,
        CreatedBy=created_by,
        LastModifiedBy=created_by,
        ParallelismConfiguration=_parallelism_configuration(pipeline.parallelism),
    )


def pipeline_summary(pipeline: Pipeline) -> JsonObject:
    """Return an entry of PipelineSummaries."""
    return _without_none(
        PipelineArn=pipeline.arn,
        PipelineName=pipeline.name,
        PipelineDisplayName=pipeline.display_name,
        PipelineDescription=pipeline.description,
        RoleArn=pipeline.role,
        CreationTime=pipeline.created,
        LastModifiedTime=pipeline.modified,
        LastExecutionTime=pipeline.last_run,
    )


def describe_execution(execution: Execution) -> JsonObject:
    """Return the response of DescribePipelineExecution."""
    created_by = _user_context(execution.created_by)
    return _without_none(
        PipelineArn=execution.pipeline,
        PipelineExecutionArn=execution.arn,
        PipelineExecutionDisplayName=execution.display_name,
        PipelineExecutionStatus=execution.status,
        PipelineExecutionDescription=execution.description,
        PipelineExperimentConfig=dict(execution.experiment) or None,
        FailureReason=execution.failure,
        CreationTime=execution.created,
        LastModifiedTime=execution.modified,
        CreatedBy=created_by,
        LastModifiedBy=created_by,
        ParallelismConfiguration=_parallelism_configuration(execution.parallelism),
    )


def execution_summary(execution: Execution) -> JsonObject:
    """Return an entry of PipelineExecutionSummaries."""
    return _without_none(
        PipelineExecutionArn=execution.arn,
        StartTime=execution.created,
        PipelineExecutionStatus=execution.status,
        PipelineExecutionDescription=execution.description,
        PipelineExecutionDisplayName=execution.display_name,
        PipelineExecutionFailureReason=execution.failure,
    )


def step_summary(record: StepRecord, definition: Step) -> JsonObject:
    """Return an entry of PipelineExecutionSteps."""
    return _without_none(
        StepName=record.name,
        StepDisplayName=definition.display_name,
        StepDescription=definition.description,
        StartTime=record.started,
        EndTime=record.ended,
        StepStatus=record.status,
        CacheHitResult=_cache_hit(record),
        FailureReason=record.failure,
        Metadata=_describe_step_metadata(record),
        AttemptCount=record.attempts or None,
    )


def _cache_hit(record: StepRecord) -> dict[str, str] | None:
    arn = record.cached_from_execution
    return None if arn is None else {"SourcePipelineExecutionArn": arn}


def _describe_step_metadata(record: StepRecord) -> JsonObject | None:
    """Return the Metadata of a pipeline's step in the response of ListPipelineExecutionSteps: the outcome of
    a Condition step (whether the condition holds), the message of a Fail step, or the ARN of the job of a
    Training or Processing step; None before there is one."""
    # Each type of step sets one of these three; None before it is known.
    condition_outcome, fail_message, job_arn = record.outcome, record.message, record.job
    if record.type == "Condition":
        return None if condition_outcome is None else {"Condition": {"Outcome": str(condition_outcome)}}
    if record.type == "Fail":
        return None if fail_message is None else {"Fail": {"ErrorMessage": fail_message}}
    return None if job_arn is None else {f"{record.type}Job": {"Arn": job_arn}}


def page_of_entries(params: JsonMapping, list_name: str, entries: Sequence[Any]) -> JsonObject:
    """Return the response with one page of ``entries`` as the list ``list_name``. They are given in ascending
    order; the service's default order is descending. Raises ApiError for an invalid token."""
    sorted_entries = list(entries if params.get("SortOrder") == "Ascending" else reversed(entries))
    page_start = parse_offset(params.get("NextToken"))
    page_end = page_start + (params.get("MaxResults") or _ENTRIES_PER_PAGE)
    response: JsonObject = {list_name: sorted_entries[page_start:page_end]}
    if page_end < len(sorted_entries):
        response["NextToken"] = str(page_end)
    return response


def _user_context(arn: str) -> JsonObject:
    return {"IamIdentity": {"Arn": arn}}


def _parallelism_configuration(steps: int | None) -> dict[str, int] | None:
    return None if steps is None else {"MaxParallelExecutionSteps": steps}


def _without_none(**fields: Any) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}
