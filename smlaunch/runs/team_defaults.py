"""The defaults of a team for a job that is about to be planned, and the errors that follow from them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from smlaunch.api.job_kinds import TRAINING, get_at_path, job_kind_of
from smlaunch.discovery.caller_identity import ROLE_VARIABLES
from smlaunch.discovery.config_files import read_team_settings
from smlaunch.errors import JobError
from smlaunch.facts.team_settings import Default, TeamFacts, TeamSettings, apply_defaults
from smlaunch.job.model import Job
from smlaunch.runs.call_errors import translate_call_errors
from smlaunch.runs.launch_target import Target


def read_settings(target: Target, *, has_account: bool) -> TeamSettings:
    """Return what the team's configuration files say. Those in S3 are read with the target's account, if it
    has one. Raises JobError for files that are wrong, and the target's errors."""
    read_s3 = target.input_storage.get_bytes if target.kind == "aws" and has_account else None
    with translate_call_errors(target):
        return read_team_settings(os.environ, read_s3)


def with_defaults(
    job: Job, settings: TeamSettings, target: Target, *, is_processing: bool
) -> tuple[Job, TeamFacts]:
    """Return the job as it is planned for the target, and where its defaults come from."""
    job_with_defaults, team = apply_defaults(
        job,
        settings,
        is_processing=is_processing,
        is_local=target.kind == "local",
        has_role=_has_role_variable(target),
    )
    if target.region_default is not None:
        team = replace(team, applied=(*team.applied, target.region_default))
    return job_with_defaults, team


def find_default_role(target: Target) -> Default | None:
    """Return the default role of a training job; None without one, and where a variable names a role. Raises
    as ``read_settings`` does."""
    defaults = () if _has_role_variable(target) else read_settings(target, has_account=True).defaults()
    return next((default for default in defaults if default.field == "role"), None)


def _has_role_variable(target: Target) -> bool:
    return any(target.environment.get(variable) for variable in ROLE_VARIABLES)


def name_defaults(error: JobError, team: TeamFacts) -> JobError:
    """Return the error with the file behind each problem of a value that a default has given."""
    problems = []
    for problem in error.problems:
        path = problem.path.partition("[")[0]  # an entry of subnets, for example
        default = team.find(problem.path) or team.find(path)
        text = "" if default is None else f" (a default: {default.origin})"
        problems.append(problem._replace(message=problem.message + text))
    return JobError(problems, error.job_mapping)


_COMPARED_FIELDS = (
    *("subnets", "security_groups", "network_isolation", "encrypt_traffic"),
    *("output", "output.kms_key", "compute.volume_kms_key", "image"),
)
"""Fields that defaults may set, and that both a request and a description have. A job's role may change."""

_DEFAULT_BEHIND_FIELD = {"output": "bucket", "image": "image_registry"}


def describe_differences(
    request: Mapping[str, Any], description: Mapping[str, Any], tags: Mapping[str, str], team: TeamFacts
) -> str:
    """Return what an existing job has otherwise than the request of the same name, of what defaults may set,
    with the defaults behind it; empty if nothing. ``description``: in the form of a training job's."""
    kind = job_kind_of(request)
    pairs = {
        field: (
            get_at_path(request, kind.request_path_by_field[field]) or None,
            get_at_path(description, TRAINING.request_path_by_field[field]) or None,
        )
        for field in _COMPARED_FIELDS
    }
    requested_tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags", ())}
    for default in team.applied:
        mapping, _, key = default.field.partition(".")
        if mapping == "tags":
            pairs[default.field] = requested_tags.get(key), tags.get(key)
        elif mapping == "environment":
            stated, existing = request.get("Environment", {}), description.get("Environment", {})
            pairs[default.field] = stated.get(key), existing.get(key)
    texts = []
    for field, (requested, existing) in pairs.items():
        if requested != existing:
            cause = team.find(_DEFAULT_BEHIND_FIELD.get(field, field))
            texts.append(field if cause is None else f"{field} (here {cause.origin})")
    return ", ".join(texts)
