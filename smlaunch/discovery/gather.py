"""Gathers the facts for a plan, once: the caller and its role, the inputs' data, the script's needs.

Only reads. Nothing here writes, creates or decides. A missing item is recorded with the reason and the next
step, so that the plan can report all problems at once. Raises ``CallError`` only where the caller cannot be
identified.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from smlaunch.aws.interfaces import CallError, Identity, ObjectStorage, Quotas
from smlaunch.contract.checkpoint import parse_step_path
from smlaunch.discovery.gitignore import SMLAUNCHIGNORE
from smlaunch.discovery.local_files import INCLUDE_HINT, excluded_secrets_warning, list_local_files
from smlaunch.discovery.protected_folders import protected_folder_reason
from smlaunch.discovery.script_analysis import (
    missing_packages,
    modules_mention_checkpoints,
    nearest_path_hint,
    transitive_features,
    transitive_imports,
    unreadable_reason,
)
from smlaunch.discovery.script_analysis import read_script as read_script
from smlaunch.discovery.sdk_images import resolve_image
from smlaunch.job.model import Channel, Job, parse_duration
from smlaunch.planner.facts import (
    CheckpointFacts,
    EndpointFacts,
    Facts,
    InputFacts,
    ScriptFacts,
    SourceFacts,
    StoredFile,
)
from smlaunch.planner.quotas import MAX_RUNTIME_QUOTA, relevant_quotas
from smlaunch.planner.script_capability import needs_module_scan
from smlaunch.planner.segments import DEFAULT_RUNTIME_QUOTA
from smlaunch.planner.sharding import SHARD_FOLDER, SHARD_INDEX, shard_names

MAX_LISTED_OBJECTS = 10_000
"""Objects counted for each input: ten pages, about a second in a region. Larger inputs have "at least" so
many."""

STUDIO_METADATA = Path("/opt/ml/metadata/resource-metadata.json")
"""SageMaker Studio and notebook instances write this file; it names their execution role (SageMaker SDK,
``get_execution_role``)."""

MAX_SPLIT_OBJECTS = 1_000_000
"""Objects of a channel that is split by bytes. All their names and sizes are needed, a thousand for each
request. Larger inputs need packing first."""

ROLE_VARIABLES = ("SMLAUNCH_ROLE", "SAGEMAKER_ROLE_ARN", "SAGEMAKER_ROLE")


class DiscoveryTarget(Protocol):
    """The members of a target that discovery reads. ``account``, ``role`` and ``bucket`` may be None."""

    @property
    def kind(self) -> Literal["aws", "local"]: ...
    @property
    def region_name(self) -> str: ...
    @property
    def account(self) -> str | None: ...
    @property
    def role(self) -> str | None: ...
    @property
    def bucket(self) -> str | None: ...
    @property
    def facts(self) -> EndpointFacts | None: ...
    @property
    def environment(self) -> Mapping[str, str]: ...
    @property
    def storage(self) -> ObjectStorage: ...
    @property
    def inputs(self) -> ObjectStorage: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def quotas(self) -> Quotas: ...


def gather_facts(
    job: Job, target: DiscoveryTarget, source: SourceFacts, pending_channels: Collection[str] = ()
) -> Facts:
    """Gather all facts for a plan. ``pending_channels`` names channels whose data does not exist yet."""
    caller = _Caller(target)
    role, role_problem = _find_role(job.role, target, caller)
    script = ScriptFacts() if job.entry is None else read_script(Path(job.entry))
    if script.features is not None and needs_module_scan(script):
        features = transitive_features(Path(job.entry or ""), Path(source.root))
        script = dataclasses.replace(script, features=features)
    if job.entry is not None and _runs_in_this_python(job, target.facts):
        missing = missing_packages(Path(job.entry), Path(source.root))
        script = dataclasses.replace(script, missing_packages=missing)
    checkpoints = None
    needs_several_jobs = _may_need_several_jobs(job)
    has_split_by_bytes = any(channel.split == "bytes" for channel in job.inputs.values())
    if job.entry is not None and (needs_several_jobs or has_split_by_bytes):
        entry, root = Path(job.entry), Path(source.root)
        script = dataclasses.replace(
            script,
            module_imports=transitive_imports(entry, root),
            names_checkpoint_dir=script.names_checkpoint_dir or modules_mention_checkpoints(entry, root),
        )
    if needs_several_jobs:
        checkpoints = _checkpoint_facts(job, target.storage)
    if job.entry is not None:
        source = dataclasses.replace(source, json_files=_read_named_json_files(job, Path(source.root)))
    return Facts(
        region=target.region_name,
        account=caller.account,
        partition=caller.partition,
        bucket=target.bucket or f"sagemaker-{target.region_name}-{caller.account}",
        role=role,
        role_problem=role_problem,
        source=source,
        script=script,
        target=target.kind,
        inputs={
            name: InputFacts(channel.uri, "s3", is_pending=True)
            if name in pending_channels
            else _input_facts(channel, target, job.include_secrets)
            for name, channel in job.inputs.items()
        },
        endpoint=target.facts or EndpointFacts(),
        **_quota_facts(job, target),
        today=datetime.now(timezone.utc).date(),
        checkpoints=checkpoints,
        resolved_image=resolve_image(job, target.region_name, target.kind == "aws", script.imports),
    )


def _runs_in_this_python(job: Job, facts: EndpointFacts | None) -> bool:
    """Return whether the script runs in this Python, without packages that the job adds."""
    here = facts is not None and facts.same_python
    return here and job.requirements is None and "PYTHONPATH" not in job.environment


_MAX_JSON_FILE_BYTES = 1 << 20


def _read_named_json_files(job: Job, root: Path) -> dict[str, str]:
    """Return small JSON files of the source that the job names. A strategy's check may need their content."""
    arguments = (*job.options.values(), *job.args, *job.hyperparameters.values())
    text_by_name: dict[str, str] = {}
    for argument in arguments:
        name = argument.rpartition("=")[2] if isinstance(argument, str) else ""
        if not name.endswith(".json") or name in text_by_name:
            continue
        path = root / name
        with contextlib.suppress(OSError, ValueError):  # missing, unreadable, or not text
            is_inside = path.resolve().is_relative_to(root.resolve())
            if is_inside and path.is_file() and path.stat().st_size <= _MAX_JSON_FILE_BYTES:
                text_by_name[name] = path.read_text("utf-8")
    return text_by_name


# ---- what a run of several jobs needs --------------------------------------------------------------------


def _may_need_several_jobs(job: Job) -> bool:
    """Return whether the run may be a chain. Only then more facts are gathered, because each takes time."""
    max_runtime = None if job.limits.max_runtime is None else parse_duration(job.limits.max_runtime)
    has_segments = job.limits.segment is not None or bool(job.segments)
    return has_segments or (max_runtime is not None and max_runtime > DEFAULT_RUNTIME_QUOTA)


def _exceeds_default_quota(job: Job) -> bool:
    """Return whether a job may run longer than every account allows."""
    texts = (job.limits.max_runtime, job.limits.segment)
    seconds = [parse_duration(text) for text in texts if text is not None]
    return min(seconds, default=0) > DEFAULT_RUNTIME_QUOTA


def _quota_facts(job: Job, target: DiscoveryTarget) -> dict[str, Any]:
    """Return the account's quotas that matter for the job, read in one pass, or why they cannot be read."""
    needs_long_job, names = _exceeds_default_quota(job), relevant_quotas(job)
    if target.kind != "aws" or not (needs_long_job or names):
        return {}
    try:
        quota_values = target.quotas.values((*names, MAX_RUNTIME_QUOTA) if needs_long_job else names)
    except CallError as error:
        problem = f"{error.operation}: {error.code}"
        return {
            "quotas_problem": problem if names else None,
            "max_runtime_quota_problem": problem if needs_long_job else None,
        }
    facts: dict[str, Any] = {"quotas": {name: quota_values.get(name) for name in names}}
    if MAX_RUNTIME_QUOTA in quota_values:
        facts["max_runtime_quota"] = int(quota_values[MAX_RUNTIME_QUOTA])
    elif needs_long_job:
        facts["max_runtime_quota_problem"] = "Service Quotas does not list it"
    return facts


def _checkpoint_facts(job: Job, storage: ObjectStorage) -> CheckpointFacts | None:
    """Return what the job's own checkpoint prefix holds; None where it names none or it cannot be listed."""
    if job.checkpoints is None or job.checkpoints.uri is None:
        return None
    bucket = urlsplit(job.checkpoints.uri, allow_fragments=False).netloc
    prefix = job.checkpoints.uri[len(f"s3://{bucket}/") :]
    bytes_by_step: dict[int, int] = {}
    total_bytes = 0
    try:
        for stored in islice(storage.list(bucket, prefix), MAX_LISTED_OBJECTS):
            total_bytes += stored.size
            step = parse_step_path(stored.key[len(prefix) :].lstrip("/"))
            if step is not None:
                bytes_by_step[step] = bytes_by_step.get(step, 0) + stored.size
    except CallError:
        return None
    return CheckpointFacts(total_bytes, bytes_by_step[max(bytes_by_step)] if bytes_by_step else None)


# ---- caller and role ------------------------------------------------------------------------------------


class _Caller:
    """The caller's identity. Asks STS when it is first needed, and only once."""

    def __init__(self, target: DiscoveryTarget) -> None:
        self._target = target
        self._identity: tuple[str, str] | None = None

    @property
    def account(self) -> str:
        return self._target.account or self._get_identity()[0]

    @property
    def arn(self) -> str:
        return self._get_identity()[1]

    @property
    def partition(self) -> str:
        if self._target.role and self._target.account:
            return self._target.role.split(":")[1]
        return self.arn.split(":")[1]

    def _get_identity(self) -> tuple[str, str]:
        if self._identity is None:
            self._identity = self._target.identity.caller()
        return self._identity


def find_role(role_name: str | None, target: DiscoveryTarget) -> tuple[str | None, str | None]:
    """Return the role that a job of this caller gets, and otherwise why there is none. Raises CallError."""
    return _find_role(role_name, target, _Caller(target))


def _find_role(
    role_name: str | None, target: DiscoveryTarget, caller: _Caller
) -> tuple[str | None, str | None]:
    """Return the role and None, or None and the reason.

    The order is: the job, the environment, the target, the notebook's own role, the role that the caller has
    assumed. The last two follow the SageMaker SDK.
    """
    requested_role = role_name or next(
        (target.environment[name] for name in ROLE_VARIABLES if target.environment.get(name)), None
    )
    if requested_role:
        if requested_role.startswith("arn:"):
            return requested_role, None
        role_arn = target.identity.role_arn(requested_role)
        return role_arn or f"arn:{caller.partition}:iam::{caller.account}:role/{requested_role}", None
    if target.role:
        return target.role, None
    studio_role = _studio_role()
    if studio_role:
        return studio_role, None
    kind, _, role_and_session = caller.arn.rpartition(":")[2].partition("/")
    if kind == "assumed-role":
        name = role_and_session.split("/")[0]
        # The caller's ARN lacks the role's path. IAM knows it, and SageMaker's own roles have a fixed one.
        path = "service-role/" if name.startswith("AmazonSageMaker-ExecutionRole") else ""
        role_arn = target.identity.role_arn(name)
        return role_arn or f"arn:{caller.partition}:iam::{caller.account}:role/{path}{name}", None
    return None, (
        f"no execution role is known, and the caller ({caller.arn}) is not one; "
        "give --role ARN, or `role:` in the job file, or set SMLAUNCH_ROLE"
    )


def _studio_role() -> str | None:
    """Return the execution role of the SageMaker Studio app that this process runs in; None elsewhere."""
    try:
        metadata = json.loads(STUDIO_METADATA.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # not in Studio: the usual case
    role = metadata.get("ExecutionRoleArn") if isinstance(metadata, dict) else None
    return role if isinstance(role, str) else None


# ---- inputs ----------------------------------------------------------------------------------------------


def _input_facts(channel: Channel, target: DiscoveryTarget, include_secrets: bool) -> InputFacts:
    list_names = channel.split == "bytes"
    if channel.is_local:
        return _local_input_facts(channel.uri, list_names, include_secrets)
    return _s3_input_facts(channel.uri, target.inputs, list_names)


def _s3_input_facts(uri: str, storage: ObjectStorage, list_names: bool) -> InputFacts:
    """Return the facts of an S3 prefix. ``list_names`` adds the names of all files."""
    url = urlsplit(uri, allow_fragments=False)
    bucket, prefix = url.netloc, uri[len(f"s3://{url.netloc}/") :]
    limit = MAX_SPLIT_OBJECTS if list_names else MAX_LISTED_OBJECTS
    try:
        listed_objects = list(islice(storage.list(bucket, prefix), limit))
    except CallError as error:
        missing = error.code == "NoSuchBucket"
        problem = f"there is no bucket {bucket!r}" if missing else f"it cannot be listed: {error.message}"
        return InputFacts(uri, "s3", exists=not missing, problem=f"{uri}: {problem}")
    if not listed_objects:
        hint = "" if prefix.endswith("/") or not prefix else "; a folder's prefix ends with a slash"
        return InputFacts(
            uri, "s3", exists=False, objects=0, bytes=0, problem=f"there is no object under {uri}{hint}"
        )
    total_bytes = sum(stored.size for stored in listed_objects)
    facts = InputFacts(
        uri, "s3", objects=len(listed_objects), bytes=total_bytes, is_truncated=len(listed_objects) == limit
    )
    if not list_names or facts.is_truncated:
        return facts
    files = tuple(StoredFile(stored.key[len(prefix) :], stored.size) for stored in listed_objects)
    return dataclasses.replace(
        facts, files=files, shard_names=_shard_names_in_s3(bucket, prefix, files, storage)
    )


def _shard_names_in_s3(
    bucket: str, prefix: str, files: tuple[StoredFile, ...], storage: ObjectStorage
) -> tuple[str, ...] | None:
    """Return the shards of packed data. The prefix may be the packed folder or its folder of shards."""
    packed_prefix = prefix.removesuffix(SHARD_FOLDER)
    if packed_prefix == prefix and not any(file.name == SHARD_INDEX for file in files):
        return None
    try:
        index = storage.get_bytes(bucket, packed_prefix + SHARD_INDEX)
    except CallError:
        return None  # the index may not be readable: the files are split as they are
    names = None if index is None else shard_names(index)
    skipped_chars = len(prefix) - len(packed_prefix)
    return None if names is None else tuple(name[skipped_chars:] for name in names)


def _local_input_facts(uri: str, list_names: bool, include_secrets: bool) -> InputFacts:
    """Return what a channel's local file or folder holds: number of files, bytes and a digest of all.
    ``list_names``: list the files too. ``include_secrets``: do not exclude files that look like secrets."""
    path = Path(uri).expanduser()
    if (unreadable_text := unreadable_reason(path)) is not None:
        return InputFacts(uri, "local", problem=unreadable_text)
    if not path.exists():
        hint = nearest_path_hint(path)
        return InputFacts(uri, "local", exists=False, problem=f"{uri} does not exist{hint}")
    digest, file_count, total_bytes = hashlib.sha256(), 0, 0
    files: list[StoredFile] = []
    excluded_secrets: list[str] = []
    try:
        if protected_reason := protected_folder_reason(path):
            return InputFacts(
                uri, "local", problem=f"{uri} {protected_reason}; name the folder of the data itself"
            )
        for file in list_local_files(path, None if include_secrets else excluded_secrets):
            digest.update(os.fsencode(file.relative_path) + b"\0" + _file_digest(file.path))
            file_count, total_bytes = file_count + 1, total_bytes + file.size
            if list_names:
                files.append(StoredFile(file.relative_path, file.size))
    except OSError as error:
        return InputFacts(uri, "local", is_directory=path.is_dir(), problem=f"it cannot be read: {error}")
    hint = f", or {SMLAUNCHIGNORE} excludes all of it" if (path / SMLAUNCHIGNORE).is_file() else ""
    problem = None if file_count else f"{uri} is empty{hint}"
    facts = InputFacts(
        uri,
        "local",
        True,
        file_count,
        total_bytes,
        sha256=digest.hexdigest(),
        is_directory=path.is_dir(),
        problem=problem,
    )
    if excluded_secrets:
        facts = dataclasses.replace(
            facts,
            warnings=(excluded_secrets_warning(excluded_secrets),),
            excluded_files={
                name.rstrip("/"): f"may hold secrets; {INCLUDE_HINT.format(name=name)}"
                for name in excluded_secrets
            },
        )
    if not list_names:
        return facts
    index = path / SHARD_INDEX
    names = shard_names(index.read_bytes()) if index.is_file() else None
    return dataclasses.replace(facts, files=tuple(files), shard_names=names)


def _file_digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.digest()
