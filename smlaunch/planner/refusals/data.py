"""Rules about the location of data and checkpoints, and about splitting data."""

from __future__ import annotations

import posixpath

from smlaunch.errors import Problem
from smlaunch.planner.bucket_owners import stated_owners
from smlaunch.planner.input_channels import RESERVED_CHANNELS, count_own_channels, input_problem
from smlaunch.planner.plan_context import PlanContext
from smlaunch.planner.refusals.rule import Problems, rule
from smlaunch.planner.sharding import too_few_message

MAX_CHANNELS = 20
MAX_PROCESSING_INPUTS = 10

_RESERVED_DIRECTORIES = {
    "input": "inputs come",
    "model": "the model is collected",
    "output": "output is collected",
    "code": "script mode puts code",
    "smlaunch": "the runtime writes its own files",
    "python": "requirements are installed",
}
"""Directories of /opt/ml with another purpose, as the ends of sentences."""

_SYSTEM_DIRECTORIES = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "sbin", "sys", "usr")


@rule(
    "inputs.reserved", "a channel with a name of smlaunch's own", "2.4", "input/data/<channel>/", "inputs.*"
)
def reserved_channels(context: PlanContext) -> Problems:
    for name in context.job.inputs:
        if name in RESERVED_CHANNELS:
            message = f"smlaunch's own channel {name!r} {RESERVED_CHANNELS[name]}; choose another name"
            yield Problem(f"inputs.{name}", message)


@rule(
    "inputs.there",
    "data that does not exist, or cannot be listed",
    "2.1",
    "same region as the job",
    "inputs.*",
)
def missing_inputs(context: PlanContext) -> Problems:
    """Yield a problem for each input that does not exist or cannot be read."""
    for name, channel in context.job.inputs.items():
        facts = context.facts.inputs.get(name)
        problem = None if facts is None or name in RESERVED_CHANNELS else input_problem(channel, facts)
        if problem is not None:
            yield Problem(f"inputs.{name}", problem)


@rule(
    "inputs.number",
    "more than 20 channels (10 inputs of a processing job), smlaunch's own counted",
    "2.1",
    "1-20 channels",
    "inputs",
    "entry",
    "algorithm",
    "image",
    "strategy",
)
def too_many_channels(context: PlanContext) -> Problems:
    """Yield a problem if the job's inputs and smlaunch's own are more than the service allows."""
    own_channels, stated_channels = count_own_channels(context.job), len(context.job.inputs)
    max_channels, job_kind = (
        (MAX_PROCESSING_INPUTS, "a processing job") if context.is_processing else (MAX_CHANNELS, "a job")
    )
    if stated_channels + own_channels > max_channels:
        count_text = (
            f"{stated_channels} and smlaunch's own {own_channels} are {stated_channels + own_channels}"
            if own_channels
            else f"there are {stated_channels}"
        )
        yield Problem(
            "inputs", f"{count_text}, and {job_kind} may have {max_channels}; put several into one prefix"
        )


@rule(
    "inputs.fewer-objects",
    "more hosts than objects to distribute",
    "2.8",
    "don't use more instances than objects (some nodes get nothing, you still pay)",
    *("inputs.*", "compute.hosts", "segments"),
)
def more_hosts_than_objects(context: PlanContext) -> Problems:
    """planner.sharding checks the same for ``split: bytes``."""
    for name, channel in context.job.inputs.items():
        facts = context.facts.inputs.get(name)
        if facts is None or facts.is_truncated or channel.split != "key":
            continue
        if facts.objects and facts.objects < context.hosts:
            yield Problem(f"inputs.{name}.split", too_few_message(facts.objects, "object", context.hosts))


@rule(
    "inputs.fastfile",
    "FastFile of a prefix that is no folder",
    "2.4",
    'FastFile: read-only FUSE, S3Prefix only, prefix must be a full "folder" (end it with `/`).',
    "inputs.*",
)
def fastfile_of_no_folder(context: PlanContext) -> Problems:
    for name, channel in context.job.inputs.items():
        if channel.mode == "FastFile" and not channel.is_local and not channel.uri.endswith("/"):
            message = f"FastFile shows a whole folder; end {channel.uri} with a slash, or take mode File"
            yield Problem(f"inputs.{name}.uri", message)


@rule(
    "checkpoints.path",
    "checkpoints in a directory that has another use",
    "2.4",
    "/opt/ml is reserved; image content under it is hidden.",
    "checkpoints.local_path",
)
def checkpoints_in_reserved_directory(context: PlanContext) -> Problems:
    checkpoints = context.job.checkpoints
    if checkpoints is None:
        return
    problem = _path_problem(checkpoints.local_path)
    if problem is not None:
        yield Problem("checkpoints.local_path", f"{checkpoints.local_path}: {problem}")


def _path_problem(path: str) -> str | None:
    """Why checkpoints cannot be in the directory; None if they can."""
    if not path.startswith("/") or ".." in path.split("/"):
        return "an absolute path without `..` is needed, such as /opt/ml/checkpoints"
    folders = [folder for folder in posixpath.normpath(path).split("/") if folder]
    if folders[:2] == ["opt", "ml"]:
        if len(folders) == 2:
            return "all files of the job are there; use /opt/ml/checkpoints"
        purpose = _RESERVED_DIRECTORIES.get(folders[2])
        return purpose and f"/opt/ml/{folders[2]} is where {purpose}; use /opt/ml/checkpoints"
    if not folders or folders == ["opt"] or folders[0] in _SYSTEM_DIRECTORIES:
        return "a system directory cannot contain checkpoints; use /opt/ml/checkpoints"
    return None


@rule(
    "checkpoints.prefix",
    "checkpoints in the prefix of an input, or above the output",
    "2.7",
    "S3 → local before start on **every** instance (whole prefix). … **Local delete → S3 delete.**",
    *("checkpoints.uri", "inputs.*", "output"),
)
def checkpoints_over_other_data(context: PlanContext) -> Problems:
    """Yield a problem if the checkpoints' prefix is that of an input, or contains the output."""
    checkpoints = context.job.checkpoints
    if checkpoints is None or checkpoints.uri is None:
        return
    checkpoint_prefix = checkpoints.uri.rstrip("/") + "/"
    for name, channel in context.job.inputs.items():
        if not channel.is_local and channel.uri.rstrip("/") + "/" == checkpoint_prefix:
            yield Problem(
                "checkpoints.uri",
                f"it is inputs.{name}'s prefix too: old checkpoints are deleted there, and all of the data "
                "would be downloaded to every host with them; use separate prefixes",
            )
    if context.job.output is not None and (context.job.output.rstrip("/") + "/").startswith(
        checkpoint_prefix
    ):
        yield Problem(
            "checkpoints.uri",
            "output is inside it, so that every model would be downloaded to each host with the "
            "checkpoints; use separate prefixes",
        )


@rule(
    "buckets.owner",
    "an account for a bucket that it cannot own",
    "2.1",
    "S3 refuses a request whose ExpectedBucketOwner is not the bucket's owner.",
    "bucket_owner",
    "inputs.*",
    "checkpoints",
    "output",
)
def contradicting_owners(context: PlanContext) -> Problems:
    """Yield a problem for each bucket that is said to belong to two accounts, or is not named."""
    owner_by_bucket: dict[str, tuple[str, str]] = {}
    if context.facts.account:
        owner_by_bucket[context.facts.bucket] = ("it is your own default bucket", context.facts.account)
    for field, bucket, account in stated_owners(context.job):
        if bucket is None:
            subject = "data" if field.startswith("inputs.") else field.rpartition(".")[0] or "output"
            yield Problem(
                field, f"it is about a bucket of another account, and {subject} names none; leave it out"
            )
            continue
        evidence, known_account = owner_by_bucket.setdefault(bucket, (f"{field} says", account))
        if known_account != account:
            yield Problem(
                field,
                f"{bucket} cannot belong to {account}: {evidence} {known_account}; a bucket has one owner",
            )


RULES = (
    contradicting_owners,
    reserved_channels,
    missing_inputs,
    too_many_channels,
    more_hosts_than_objects,
    fastfile_of_no_folder,
    checkpoints_in_reserved_directory,
    checkpoints_over_other_data,
)
