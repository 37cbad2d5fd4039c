"""A new job, of whatever kind, from a request that passed the validator to its record in the store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from smlaunch.local.caller import current
from smlaunch.local.errors import ApiError, validation_error
from smlaunch.local.jobs import states
from smlaunch.local.jobs.manager import JobManager
from smlaunch.local.store import JobRecord, JobStore, NameTaken


def create(
    store: JobStore,
    jobs: JobManager,
    kind: str,
    name: str,
    params: Mapping[str, Any],
    refused: Sequence[tuple[str, str]],
    billable_share: float = 1.0,
) -> JobRecord:
    """``refused``: (field, reason) for all that cannot be had here. Raises ApiError for those, and for a name
    that is taken."""
    if refused:
        lines = "; ".join(f"{field}: {reason}" for field, reason in refused)
        raise validation_error(f"This endpoint cannot run the job as it is written. {lines}")
    caller = current()
    record = JobRecord(
        kind=kind,
        region=caller.region,
        name=name,
        arn=caller.resource_arn("sagemaker", f"{kind}/{name.lower()}"),
        owner=jobs.owner.id,
        request={key: value for key, value in params.items() if key != "Tags"},
        state=states.begin(time.time(), billable_share),
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
