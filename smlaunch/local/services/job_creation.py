"""Create the record of a job of any kind from a validated request."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from smlaunch.local.api_errors import ApiError, validation_error
from smlaunch.local.job_store import JobRecord, JobStore, NameTaken
from smlaunch.local.jobs import states
from smlaunch.local.jobs.manager import JobManager
from smlaunch.local.request_context import current_context


def create_job(
    store: JobStore,
    jobs: JobManager,
    kind: str,
    name: str,
    params: Mapping[str, Any],
    rejections: Sequence[tuple[str, str]],
    billable_share: float = 1.0,
) -> JobRecord:
    """Store a new job and return it. Raises ApiError if there are ``rejections``, as (field, reason), and if
    the name is in use."""
    if rejections:
        lines = "; ".join(f"{field}: {reason}" for field, reason in rejections)
        raise validation_error(f"This endpoint cannot run the job as it is. {lines}")
    caller = current_context()
    record = JobRecord(
        kind=kind,
        region=caller.region,
        name=name,
        arn=caller.resource_arn("sagemaker", f"{kind}/{name.lower()}"),
        owner=jobs.owner.id,
        request={key: value for key, value in params.items() if key != "Tags"},
        state=states.initial_state(time.time(), billable_share),
        tags={tag["Key"]: tag["Value"] for tag in params.get("Tags") or []},
    )
    try:
        store.create(record)
    except NameTaken:
        raise ApiError(
            "ResourceInUse",
            f"Job name must be unique within an AWS account and region, and a job with this name already "
            f"exists ({record.arn})",
        ) from None
    return record
