"""Checks which release's format a run has. A tag of each of its jobs states it (contract.formats.RUN)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from smlaunch.aws.interfaces import CallError, ControlPlane
from smlaunch.aws.service_errors import call_with_retries
from smlaunch.contract import formats
from smlaunch.contract.formats import FormatError
from smlaunch.contract.run_names import TAG_FORMAT, TAG_RUN

_PARALLEL_REQUESTS = 8


def check_tags(tags: Mapping[str, str], run: str) -> None:
    """Raise FormatError if this release cannot read the run. ``tags`` are those of one of its jobs.

    A job that smlaunch did not make passes.
    """
    if TAG_RUN in tags:
        formats.RUN.check_version(tags.get(TAG_FORMAT), run)


def check_format(description: Mapping[str, Any], run: str, control_plane: ControlPlane) -> None:
    """Raise FormatError if this release cannot read the run of the described job.

    ``description`` is DescribeTrainingJob's response. Raises CallError when the job's tags cannot be read.
    """
    check_tags(call_with_retries(lambda: control_plane.list_tags(str(description["TrainingJobArn"]))), run)


def unreadable_formats(arns: Iterable[str], control_plane: ControlPlane) -> dict[str, str]:
    """Return the format version of jobs that this release cannot read, by ARN; ``none`` for a run without a
    version.

    Jobs whose tags cannot be read are omitted.
    """
    job_arns = list(arns)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
        versions = list(pool.map(lambda arn: _read_unreadable_format(arn, control_plane), job_arns))
    return {arn: version for arn, version in zip(job_arns, versions, strict=True) if version is not None}


def _read_unreadable_format(arn: str, control_plane: ControlPlane) -> str | None:
    try:
        tags = control_plane.list_tags(arn)
        check_tags(tags, arn)
    except CallError:
        return None
    except FormatError:
        return tags.get(TAG_FORMAT, "none")
    return None
