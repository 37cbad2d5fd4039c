"""Where data and checkpoints may lie, and how they may be shared out."""

from __future__ import annotations

import posixpath

from smlaunch.errors import Problem
from smlaunch.planning.bucket_owners import stated
from smlaunch.planning.carry import too_few
from smlaunch.planning.case import Case
from smlaunch.planning.refusals.rule import Found, rule
from smlaunch.planning.storage import RESERVED_CHANNELS, fault_of_input, own_channels

MOST_CHANNELS = 20
MOST_PROCESSING_INPUTS = 10

_CONTRACT = {
    "input": "inputs come",
    "model": "the model is collected",
    "output": "output is collected",
    "code": "script mode puts code",
    "smlaunch": "the runtime keeps its own files",
    "python": "requirements are installed",
}
"""Directories of /opt/ml that have another use, as the ends of sentences."""

_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "sbin", "sys", "usr")


@rule(
    "inputs.reserved", "a channel with a name of smlaunch's own", "2.4", "input/data/<channel>/", "inputs.*"
)
def reserved_channels(case: Case) -> Found:
    for name in case.job.inputs:
        if name in RESERVED_CHANNELS:
            told = f"smlaunch's own channel {name!r} {RESERVED_CHANNELS[name]}; choose another name"
            yield Problem(f"inputs.{name}", told)


@rule(
    "inputs.there", "data that is not there, or cannot be listed", "2.1", "same region as the job", "inputs.*"
)
def missing_inputs(case: Case) -> Found:
    for name, channel in case.job.inputs.items():
        facts = case.surroundings.inputs.get(name)
        fault = None if facts is None or name in RESERVED_CHANNELS else fault_of_input(channel, facts)
        if fault is not None:
            yield Problem(f"inputs.{name}", fault)


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
def too_many_channels(case: Case) -> Found:
    own, given = own_channels(case.job), len(case.job.inputs)
    most, what = (
        (MOST_PROCESSING_INPUTS, "a processing job") if case.is_processing else (MOST_CHANNELS, "a job")
    )
    if given + own > most:
        with_ours = f"{given} and smlaunch's own {own} are {given + own}" if own else f"there are {given}"
        yield Problem("inputs", f"{with_ours}, and {what} may have {most}; put several into one prefix")


@rule(
    "inputs.fewer-objects",
    "more hosts than objects to deal out",
    "2.8",
    "don't use more instances than objects (some nodes get nothing, you still pay)",
    *("inputs.*", "compute.hosts", "segments"),
)
def more_hosts_than_objects(case: Case) -> Found:
    """The same for a split by bytes is told where it is made: planning.carry."""
    for name, channel in case.job.inputs.items():
        facts = case.surroundings.inputs.get(name)
        if facts is None or facts.capped or channel.split != "key":
            continue
        if facts.objects and facts.objects < case.hosts:
            yield Problem(f"inputs.{name}.split", too_few(facts.objects, "object", case.hosts))


@rule(
    "inputs.fastfile",
    "FastFile of a prefix that is no folder",
    "2.4",
    'FastFile: read-only FUSE, S3Prefix only, prefix must be a full "folder" (end it with `/`).',
    "inputs.*",
)
def fastfile_of_no_folder(case: Case) -> Found:
    for name, channel in case.job.inputs.items():
        if channel.mode == "FastFile" and not channel.is_local and not channel.uri.endswith("/"):
            told = f"FastFile shows a whole folder; end {channel.uri} with a slash, or take mode File"
            yield Problem(f"inputs.{name}.uri", told)


@rule(
    "checkpoints.path",
    "checkpoints in a directory that has another use",
    "2.4",
    "/opt/ml is reserved; image content under it is hidden.",
    "checkpoints.local_path",
)
def checkpoints_in_the_way(case: Case) -> Found:
    kept = case.job.checkpoints
    if kept is None:
        return
    fault = _fault_of_path(kept.local_path)
    if fault is not None:
        yield Problem("checkpoints.local_path", f"{kept.local_path}: {fault}")


def _fault_of_path(path: str) -> str | None:
    if not path.startswith("/") or ".." in path.split("/"):
        return "an absolute path without `..` is needed, such as /opt/ml/checkpoints"
    parts = [part for part in posixpath.normpath(path).split("/") if part]
    if parts[:2] == ["opt", "ml"]:
        if len(parts) == 2:
            return "all of the job lies there; take /opt/ml/checkpoints"
        use = _CONTRACT.get(parts[2])
        return use and f"/opt/ml/{parts[2]} is where {use}; take /opt/ml/checkpoints"
    if not parts or parts == ["opt"] or parts[0] in _SYSTEM:
        return "a directory of the system cannot be one of checkpoints; take /opt/ml/checkpoints"
    return None


@rule(
    "checkpoints.prefix",
    "checkpoints in the prefix of an input, or above the output",
    "2.7",
    "S3 → local before start on **every** instance (whole prefix). … **Local delete → S3 delete.**",
    *("checkpoints.uri", "inputs.*", "output"),
)
def checkpoints_over_other_data(case: Case) -> Found:
    kept = case.job.checkpoints
    if kept is None or kept.uri is None:
        return
    place = kept.uri.rstrip("/") + "/"
    for name, channel in case.job.inputs.items():
        if not channel.is_local and channel.uri.rstrip("/") + "/" == place:
            yield Problem(
                "checkpoints.uri",
                f"it is inputs.{name}'s prefix too: what is not kept of checkpoints is deleted there, and "
                "all of the data would come to every host with them; take a prefix of their own",
            )
    if case.job.output is not None and (case.job.output.rstrip("/") + "/").startswith(place):
        yield Problem(
            "checkpoints.uri",
            "output lies inside it, so that every model would come to each host with the checkpoints; take a "
            "prefix of their own",
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
def contradicting_owners(case: Case) -> Found:
    seen: dict[str, tuple[str, str]] = {}
    if case.surroundings.account:
        seen[case.surroundings.bucket] = ("it is your own default bucket", case.surroundings.account)
    for field, bucket, account in stated(case.job):
        if bucket is None:
            what = "data" if field.startswith("inputs.") else field.rpartition(".")[0] or "output"
            yield Problem(
                field, f"it is about a bucket of another account, and {what} names none; leave it out"
            )
            continue
        where, other = seen.setdefault(bucket, (f"{field} says", account))
        if other != account:
            yield Problem(
                field, f"{bucket} cannot belong to {account}: {where} {other}; a bucket has one owner"
            )


RULES = (
    contradicting_owners,
    reserved_channels,
    missing_inputs,
    too_many_channels,
    more_hosts_than_objects,
    fastfile_of_no_folder,
    checkpoints_in_the_way,
    checkpoints_over_other_data,
)
