"""Looks around, once: who is calling, with which role, what lies behind the inputs, what the script needs.

The edge that only reads. Nothing here writes, creates or decides; what is missing is recorded with the reason
and the next step, so that the plan can say everything that is wrong at once. Raises ``CallError`` where the
caller cannot even be identified.
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

from smlaunch.ignoring import OWN_FILE
from smlaunch.job import Channel, Job, parse_duration
from smlaunch.local_files import WISH, local_files, secrets_stay
from smlaunch.planning.capabilities import lacks_signs
from smlaunch.planning.carry import SHARD_FOLDER, SHARD_INDEX, shard_names
from smlaunch.planning.quotas import LONGEST_RUN, wanted
from smlaunch.planning.segments import DEFAULT_QUOTA
from smlaunch.planning.surroundings import (
    CheckpointFacts,
    EndpointFacts,
    InputFacts,
    ScriptFacts,
    SourceFacts,
    StoredFile,
    Surroundings,
)
from smlaunch.ports import CallError, Identity, ObjectStorage, Quotas
from smlaunch.private_places import private_place
from smlaunch.protocol.checkpoint import parse_step
from smlaunch.scripts import (
    absent_packages,
    closed,
    modules_name_checkpoints,
    near_path,
    reached_imports,
    reached_signs,
)
from smlaunch.scripts import read_script as read_script
from smlaunch.sdk_images import resolved_image

LISTING_CAP = 10_000
"""Objects counted per input: ten pages, about a second in a region. More are "at least" so many."""

STUDIO_METADATA = Path("/opt/ml/metadata/resource-metadata.json")
"""Written by SageMaker Studio and notebook instances; names their execution role (SageMaker SDK,
``get_execution_role``)."""

PARTS_CAP = 1_000_000
"""Objects of a channel that is split by bytes: all of them have to be known by name and size, a thousand to a
request. More are packed first."""

ROLE_VARIABLES = ("SMLAUNCH_ROLE", "SAGEMAKER_ROLE_ARN", "SAGEMAKER_ROLE")


class Place(Protocol):
    """What survey asks of a target. ``account``, ``role``, ``bucket``: known without asking, or None."""

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


def survey(job: Job, place: Place, source: SourceFacts, pending: Collection[str] = ()) -> Surroundings:
    """``pending``: channels whose data is not there yet."""
    caller = _Caller(place)
    role, role_problem = _role(job.role, place, caller)
    script = ScriptFacts() if job.entry is None else read_script(Path(job.entry))
    if script.signs is not None and lacks_signs(script):
        signs = reached_signs(Path(job.entry or ""), Path(source.root))
        script = dataclasses.replace(script, signs=signs)
    if job.entry is not None and _runs_here(job, place.facts):
        absent = absent_packages(Path(job.entry), Path(source.root))
        script = dataclasses.replace(script, absent=absent)
    kept = None
    several = _may_take_several_jobs(job)
    splits = any(channel.split == "bytes" for channel in job.inputs.values())
    if job.entry is not None and (several or splits):
        entry, root = Path(job.entry), Path(source.root)
        script = dataclasses.replace(
            script,
            reached=reached_imports(entry, root),
            names_checkpoints=script.names_checkpoints or modules_name_checkpoints(entry, root),
        )
    if several:
        kept = _kept(job, place.storage)
    if job.entry is not None:
        source = dataclasses.replace(source, named=_named(job, Path(source.root)))
    return Surroundings(
        region=place.region_name,
        account=caller.account,
        partition=caller.partition,
        bucket=place.bucket or f"sagemaker-{place.region_name}-{caller.account}",
        role=role,
        role_problem=role_problem,
        source=source,
        script=script,
        target=place.kind,
        inputs={
            name: InputFacts(channel.uri, "s3", pending=True)
            if name in pending
            else _input(channel, place, job.include_secrets)
            for name, channel in job.inputs.items()
        },
        endpoint=place.facts or EndpointFacts(),
        **_quotas(job, place),
        today=datetime.now(timezone.utc).date(),
        checkpoints=kept,
        resolved_image=resolved_image(job, place.region_name, place.kind == "aws", script.imports),
    )


def _runs_here(job: Job, facts: EndpointFacts | None) -> bool:
    """On this very Python, and nothing of the job's adds packages to it."""
    here = facts is not None and facts.same_python
    return here and job.requirements is None and "PYTHONPATH" not in job.environment


_LARGEST_NAMED = 1 << 20


def _named(job: Job, root: Path) -> dict[str, str]:
    """Small JSON files of the source that the job names: a strategy's check may have a word on them."""
    words = (*job.options.values(), *job.args, *job.hyperparameters.values())
    found: dict[str, str] = {}
    for word in words:
        name = word.rpartition("=")[2] if isinstance(word, str) else ""
        if not name.endswith(".json") or name in found:
            continue
        path = root / name
        with contextlib.suppress(OSError, ValueError):  # not there, not readable, or no text
            inside = path.resolve().is_relative_to(root.resolve())
            if inside and path.is_file() and path.stat().st_size <= _LARGEST_NAMED:
                found[name] = path.read_text("utf-8")
    return found


# ---- what a run of several jobs needs --------------------------------------------------------------------


def _may_take_several_jobs(job: Job) -> bool:
    """Only then is more looked at: every look is a request or a parsed file before the first line."""
    longest = None if job.limits.max_runtime is None else parse_duration(job.limits.max_runtime)
    asked = job.limits.segment is not None or bool(job.segments)
    return asked or (longest is not None and longest > DEFAULT_QUOTA)


def _wants_a_long_job(job: Job) -> bool:
    """Longer than every account may run one."""
    times = (job.limits.max_runtime, job.limits.segment)
    stated = [parse_duration(text) for text in times if text is not None]
    return min(stated, default=0) > DEFAULT_QUOTA


def _quotas(job: Job, place: Place) -> dict[str, Any]:
    """What Surroundings hold of the account's quotas: those that can matter, read in one pass, or why not."""
    long, names = _wants_a_long_job(job), wanted(job)
    if place.kind != "aws" or not (long or names):
        return {}
    try:
        found = place.quotas.values((*names, LONGEST_RUN) if long else names)
    except CallError as error:
        why = f"{error.operation}: {error.code}"
        return {"quotas_problem": why if names else None, "longest_run_problem": why if long else None}
    known: dict[str, Any] = {"quotas": {name: found.get(name) for name in names}}
    if LONGEST_RUN in found:
        known["longest_run"] = int(found[LONGEST_RUN])
    elif long:
        known["longest_run_problem"] = "Service Quotas does not list it"
    return known


def _kept(job: Job, storage: ObjectStorage) -> CheckpointFacts | None:
    """What lies in the job's own checkpoint prefix. None where it names none, or it cannot be listed: then
    the plan says that nobody knows."""
    if job.checkpoints is None or job.checkpoints.uri is None:
        return None
    bucket = urlsplit(job.checkpoints.uri, allow_fragments=False).netloc
    prefix = job.checkpoints.uri[len(f"s3://{bucket}/") :]
    steps: dict[int, int] = {}
    total = 0
    try:
        for stored in islice(storage.list(bucket, prefix), LISTING_CAP):
            total += stored.size
            step = parse_step(stored.key[len(prefix) :].lstrip("/").partition("/")[0])
            if step is not None:
                steps[step] = steps.get(step, 0) + stored.size
    except CallError:
        return None
    return CheckpointFacts(total, steps[max(steps)] if steps else None)


# ---- who, and as whom ------------------------------------------------------------------------------------


class _Caller:
    """Asks STS when something needs the answer, and then once."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._answer: tuple[str, str] | None = None

    @property
    def account(self) -> str:
        return self._place.account or self._asked()[0]

    @property
    def arn(self) -> str:
        return self._asked()[1]

    @property
    def partition(self) -> str:
        if self._place.role and self._place.account:
            return self._place.role.split(":")[1]
        return self.arn.split(":")[1]

    def _asked(self) -> tuple[str, str]:
        if self._answer is None:
            self._answer = self._place.identity.caller()
        return self._answer


def find_role(named: str | None, place: Place) -> tuple[str | None, str | None]:
    """The role a job of this caller would get, and why there is none. Raises CallError."""
    return _role(named, place, _Caller(place))


def _role(wanted: str | None, place: Place, caller: _Caller) -> tuple[str | None, str | None]:
    """The role and None, or None and why there is none. In order: the job, the environment, the target, the
    notebook's own, the role the caller has assumed (the last two as the SageMaker SDK finds them)."""
    named = wanted or next(
        (place.environment[name] for name in ROLE_VARIABLES if place.environment.get(name)), None
    )
    if named:
        if named.startswith("arn:"):
            return named, None
        known = place.identity.role_arn(named)
        return known or f"arn:{caller.partition}:iam::{caller.account}:role/{named}", None
    if place.role:
        return place.role, None
    studio = _studio_role()
    if studio:
        return studio, None
    kind, _, rest = caller.arn.rpartition(":")[2].partition("/")
    if kind == "assumed-role":
        name = rest.split("/")[0]
        # The caller's ARN has lost the role's path: IAM knows it, and SageMaker's own roles have a fixed one.
        path = "service-role/" if name.startswith("AmazonSageMaker-ExecutionRole") else ""
        known = place.identity.role_arn(name)
        return known or f"arn:{caller.partition}:iam::{caller.account}:role/{path}{name}", None
    return None, (
        f"no execution role is known, and the caller ({caller.arn}) is not one; "
        "give --role ARN, or `role:` in the job file, or set SMLAUNCH_ROLE"
    )


def _studio_role() -> str | None:
    try:
        metadata = json.loads(STUDIO_METADATA.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # not in Studio: the usual case
    role = metadata.get("ExecutionRoleArn") if isinstance(metadata, dict) else None
    return role if isinstance(role, str) else None


# ---- inputs ----------------------------------------------------------------------------------------------


def _input(channel: Channel, place: Place, include_secrets: bool) -> InputFacts:
    named = channel.split == "bytes"
    if channel.is_local:
        return _local_input(channel.uri, named, include_secrets)
    return _s3_input(channel.uri, place.inputs, named)


def _s3_input(uri: str, storage: ObjectStorage, named: bool) -> InputFacts:
    """``named``: with the names of all files."""
    parts = urlsplit(uri, allow_fragments=False)
    bucket, prefix = parts.netloc, uri[len(f"s3://{parts.netloc}/") :]
    cap = PARTS_CAP if named else LISTING_CAP
    try:
        listed = list(islice(storage.list(bucket, prefix), cap))
    except CallError as error:
        missing = error.code == "NoSuchBucket"
        why = f"there is no bucket {bucket!r}" if missing else f"it cannot be listed: {error.message}"
        return InputFacts(uri, "s3", exists=not missing, problem=f"{uri}: {why}")
    if not listed:
        near = "" if prefix.endswith("/") or not prefix else "; a folder's prefix ends with a slash"
        return InputFacts(
            uri, "s3", exists=False, objects=0, bytes=0, problem=f"there is no object under {uri}{near}"
        )
    size = sum(stored.size for stored in listed)
    facts = InputFacts(uri, "s3", objects=len(listed), bytes=size, capped=len(listed) == cap)
    if not named or facts.capped:
        return facts
    files = tuple(StoredFile(stored.key[len(prefix) :], stored.size) for stored in listed)
    return dataclasses.replace(facts, files=files, shards=_shards_in_s3(bucket, prefix, files, storage))


def _shards_in_s3(
    bucket: str, prefix: str, files: tuple[StoredFile, ...], storage: ObjectStorage
) -> tuple[str, ...] | None:
    """The packed place itself may be named, or its folder of shards."""
    inside = prefix.removesuffix(SHARD_FOLDER)
    if inside == prefix and not any(file.name == SHARD_INDEX for file in files):
        return None
    try:
        index = storage.get_bytes(bucket, inside + SHARD_INDEX)
    except CallError:
        return None  # it may be anybody's: the files are split as they are
    names = None if index is None else shard_names(index)
    skipped = len(prefix) - len(inside)
    return None if names is None else tuple(name[skipped:] for name in names)


def _local_input(uri: str, named: bool, include_secrets: bool) -> InputFacts:
    path = Path(uri).expanduser()
    if (shut := closed(path)) is not None:
        return InputFacts(uri, "local", problem=shut)
    if not path.exists():
        hint = near_path(path)
        return InputFacts(uri, "local", exists=False, problem=f"{uri} does not exist{hint}")
    digest, count, size = hashlib.sha256(), 0, 0
    files: list[StoredFile] = []
    secrets: list[str] = []
    try:
        if private := private_place(path):
            return InputFacts(uri, "local", problem=f"{uri} {private}; name the folder of the data itself")
        for file in local_files(path, None if include_secrets else secrets):
            digest.update(os.fsencode(file.relative) + b"\0" + _digest(file.path))
            count, size = count + 1, size + file.size
            if named:
                files.append(StoredFile(file.relative, file.size))
    except OSError as error:
        return InputFacts(uri, "local", directory=path.is_dir(), problem=f"it cannot be read: {error}")
    left_out = f", or all of it is left out by {OWN_FILE}" if (path / OWN_FILE).is_file() else ""
    problem = None if count else f"{uri} is empty{left_out}"
    facts = InputFacts(
        uri, "local", True, count, size, sha256=digest.hexdigest(), directory=path.is_dir(), problem=problem
    )
    if secrets:
        facts = dataclasses.replace(
            facts,
            notes=(secrets_stay(secrets),),
            left_out={name.rstrip("/"): f"may hold secrets; {WISH.format(name=name)}" for name in secrets},
        )
    if not named:
        return facts
    index = path / SHARD_INDEX
    names = shard_names(index.read_bytes()) if index.is_file() else None
    return dataclasses.replace(facts, files=tuple(files), shards=names)


def _digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.digest()
