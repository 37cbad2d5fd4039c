"""Rules about the location of data and checkpoints, about splitting data, and about names of buckets."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator

from smlaunch.catalog import regions
from smlaunch.contract.run_names import parse_job_name
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.errors import Problem
from smlaunch.facts.discovered_facts import CheckpointedRun
from smlaunch.job.model import Job
from smlaunch.planner.file_sharding import too_few_files_message
from smlaunch.planner.input_channels import (
    RESERVED_CHANNELS,
    RunS3Layout,
    count_smlaunch_channels,
    describe_input_problem,
)
from smlaunch.planner.plan import Reason
from smlaunch.planner.plan_context import PlanContext, PlanWarning, stated_output
from smlaunch.planner.rules.rule import Findings, Problems, rule

_PURPOSE_BY_OPT_ML_FOLDER = {
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
    "source.inputs",
    phase="advise",
    summary="inputs that lie in the source folder, which are not sent with the source",
    source="docs/source.md",
    quote="An input inside the source folder is not part of the archive.",
    fields=("inputs", "source", "entry"),
)
def explain_inputs_in_source(context: PlanContext) -> Findings:
    for name, path in context.facts.source.input_paths.items():
        yield Reason(
            "source.inputs",
            f"{path} is the input {name}, and no part of the source that is sent: on the hosts it is the "
            f"folder that SM_CHANNEL_{name.upper()} names.",
        )


@rule(
    "source.outside",
    summary="a script that names a file outside the source folder by its own path",
    source="docs/source.md",
    quote="On the hosts there is the source folder, and nothing beside it.",
    fields=("source", "entry"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_file_outside_source(context: PlanContext) -> Problems:
    outside_file = context.facts.script.outside_file
    if outside_file is None:
        return
    beginning = (
        f"{outside_file.place} names {outside_file.path}, which is outside of the source folder and not sent"
    )
    if outside_file.folder_with_both:
        folder = shlex.quote(outside_file.folder_with_both)
        yield Problem("source", f"{beginning}; send the folder that holds both", f"--source {folder}")
    else:
        yield Problem("source", f"{beginning}; copy it into the source folder, or give it as an input")


@rule(
    "inputs.reserved",
    summary="a channel with a name of smlaunch's own",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html",
    quote="input/data/<channel>/",
    fields=("inputs.*",),
)
def reject_reserved_channel_names(context: PlanContext) -> Problems:
    for name in context.job.inputs:
        if name in RESERVED_CHANNELS:
            message = f"smlaunch's own channel {name!r} {RESERVED_CHANNELS[name]}; choose another name"
            yield Problem(f"inputs.{name}", message)


@rule(
    "inputs.there",
    summary="data that does not exist, or cannot be listed",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/model-access-training-data.html",
    quote="same region as the job",
    fields=("inputs.*",),
    facts=("inputs",),
)
def reject_missing_inputs(context: PlanContext) -> Problems:
    """Yield a problem for each input that does not exist or cannot be read, by what discovery found about it
    (its facts)."""
    for name, channel in context.job.inputs.items():
        input_facts = context.facts.inputs.get(name)
        # Another rule rejects the names of smlaunch's own channels.
        if input_facts is None or name in RESERVED_CHANNELS:
            continue
        problem = describe_input_problem(channel, input_facts)
        if problem is not None:
            yield Problem(f"inputs.{name}", problem)


@rule(
    "inputs.number",
    summary="more than 20 channels (10 inputs of a processing job), smlaunch's own counted",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html",
    quote="1-20 channels",
    fields=("inputs", "entry", "algorithm", "image", "strategy"),
)
def reject_too_many_channels(context: PlanContext) -> Problems:
    """Yield a problem if the job's inputs and smlaunch's own are more than the service allows. These are the
    channels of its runtime, the source and lists of files."""
    smlaunch_count, stated_count = count_smlaunch_channels(context.job), len(context.job.inputs)
    total_count = stated_count + smlaunch_count
    kind = context.job_kind
    if kind.max_inputs is not None and total_count > kind.max_inputs:
        count_text = (
            f"{stated_count} and smlaunch's own {smlaunch_count} are {total_count}"
            if smlaunch_count
            else f"there are {stated_count}"
        )
        yield Problem(
            "inputs",
            f"{count_text}, and a {kind.noun} may have {kind.max_inputs}; put several into one prefix",
        )


@rule(
    "inputs.fewer-objects",
    summary="more hosts than objects to distribute",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html",
    quote="don't use more instances than objects (some nodes get nothing, you still pay)",
    fields=("inputs.*", "compute.hosts", "segments"),
    facts=("inputs",),
)
def reject_more_hosts_than_objects(context: PlanContext) -> Problems:
    """Yield a problem for each input with ``split: key``, whose objects the service distributes, that has
    fewer objects than the job has hosts. The planner checks the same for ``split: bytes``."""
    for name, channel in context.job.inputs.items():
        input_facts = context.facts.inputs.get(name)
        # Truncated: counting stopped early, at far more objects than a job has hosts.
        if input_facts is None or input_facts.is_truncated or channel.split != "key":
            continue
        hosts = context.job.hosts_of_channel(channel) if channel.instance_groups else context.hosts
        if input_facts.objects and input_facts.objects < hosts:
            yield Problem(f"inputs.{name}.split", too_few_files_message(input_facts.objects, "object", hosts))


@rule(
    "inputs.fastfile",
    summary="FastFile of a prefix that is no folder",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/model-access-training-data.html",
    quote="Fast file currently supports S3 prefixes only (that one has to be a folder is not confirmed)",
    fields=("inputs.*",),
)
def reject_fastfile_without_folder(context: PlanContext) -> Problems:
    for name, channel in context.job.inputs.items():
        _, prefix = split_s3_uri(channel.uri) or ("", "")
        if channel.mode == "FastFile" and prefix and not prefix.endswith("/") and not channel.is_listed:
            message = f"FastFile shows a whole folder; end {channel.uri} with a slash, or take mode File"
            yield Problem(f"inputs.{name}.uri", message)


@rule(
    "checkpoints.path",
    summary="checkpoints in a directory that has another use",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-dockerfile.html",
    quote="/opt/ml and all subdirectories are reserved by SageMaker training",
    fields=("checkpoints.local_path",),
)
def reject_checkpoints_in_reserved_directory(context: PlanContext) -> Problems:
    checkpoints = context.job.checkpoints
    if checkpoints is None:
        return
    problem = _checkpoint_directory_problem(checkpoints.local_path)
    if problem is not None:
        yield Problem("checkpoints.local_path", f"{checkpoints.local_path}: {problem}")


def _checkpoint_directory_problem(path: str) -> str | None:
    """Return why checkpoints cannot be in this directory of the host; None if they can. SageMaker uses
    /opt/ml, and some of its folders have a purpose already."""
    if not path.startswith("/") or ".." in path.split("/"):
        return "an absolute path without `..` is needed, such as /opt/ml/checkpoints"
    folders = [folder for folder in posixpath.normpath(path).split("/") if folder]
    if folders[:2] == ["opt", "ml"]:
        if len(folders) == 2:
            return "all files of the job are there; use /opt/ml/checkpoints"
        purpose = _PURPOSE_BY_OPT_ML_FOLDER.get(folders[2])
        if purpose is None:
            return None
        return f"/opt/ml/{folders[2]} is where {purpose}; use /opt/ml/checkpoints"
    if not folders or folders == ["opt"] or folders[0] in _SYSTEM_DIRECTORIES:
        return "a system directory cannot contain checkpoints; use /opt/ml/checkpoints"
    return None


@rule(
    "checkpoints.finished",
    summary="checkpoints of another run that has trained to its end, from which this run would continue",
    source="docs/checkpoints.md",
    quote="A run continues from the newest checkpoint of its prefix, whichever run has saved it.",
    fields=("checkpoints.uri",),
    may_be_allowed=True,
    allowed_when="to continue from them",
)
def reject_checkpoints_of_finished_run(context: PlanContext) -> Problems:
    """Yield a problem if the run would continue from checkpoints of another run that has nothing left to
    train: it would end at once with the other run's model, whatever its own job says."""
    other_run = _run_to_continue_from(context)
    if other_run is not None and other_run.has_finished and other_run.step is not None:
        yield Problem(
            "checkpoints.uri",
            f"{_checkpoints_of(other_run, context)}, which has trained to its end: this run would continue "
            "from them, and train only what its job asks for beyond; name another prefix to train anew",
        )


@rule(
    "checkpoints.other-run",
    summary="checkpoints of another run, from which this run continues",
    source="docs/checkpoints.md",
    quote="A run continues from the newest checkpoint of its prefix, whichever run has saved it.",
    fields=("checkpoints.uri",),
    phase="advise",
)
def warn_of_checkpoints_of_other_run(context: PlanContext) -> Findings:
    """Yield a warning if the run continues from checkpoints of another run."""
    other_run = _run_to_continue_from(context)
    if other_run is None:
        return
    if other_run.step is None:
        yield PlanWarning(
            f"{_prefix_of_run(context, other_run)} holds the script's own files of run {other_run.run}: this "
            "run gets them in its checkpoint directory, and continues from them if the script does."
        )
    elif not other_run.has_finished:
        yield PlanWarning(
            f"{_checkpoints_of(other_run, context)}: this run continues from them. Of two runs that train at "
            "the same time, each needs a prefix of its own."
        )


def _checkpoints_of(other_run: CheckpointedRun, context: PlanContext) -> str:
    prefix = _prefix_of_run(context, other_run)
    return f"{prefix} holds checkpoints of run {other_run.run} up to step {other_run.step}"


def _prefix_of_run(context: PlanContext, other_run: CheckpointedRun) -> str:
    uri = _checkpoint_uri(context)
    # Of all shards, without the folder of this one, such as p1.
    return uri.rstrip("/").rpartition("/")[0] + "/" if other_run.is_sharded else uri


def _checkpoint_uri(context: PlanContext) -> str:
    checkpoints = context.job.checkpoints
    return (checkpoints and checkpoints.uri) or ""


def _run_to_continue_from(context: PlanContext) -> CheckpointedRun | None:
    """Return the other run whose checkpoint is the newest in the job's prefix; None if it is this run's own,
    or there is none."""
    if context.facts.checkpoints is None or not context.run_id or not context.has_runtime:
        return None
    whole_run, _, shard_number = context.run_id.rpartition("-p")
    # The run of a shard, such as x-p3, has a folder of its own, p3, in the prefix.
    is_sharded = whole_run != "" and (_checkpoint_uri(context).rstrip("/")).endswith(f"/p{shard_number}")
    own_name = whole_run if is_sharded else context.run_id
    runs = [run for run in context.facts.checkpoints.runs if run.is_sharded == is_sharded]
    newest_step = max((run.step for run in runs if run.step is not None), default=None)
    newest_runs = [run for run in runs if run.step == newest_step]
    if not newest_runs or any(run.run == own_name for run in newest_runs):
        return None
    # Where the script writes its own checkpoints, it is not known whose are the newest.
    return min(newest_runs, key=lambda run: run.has_finished)


@rule(
    "inputs.variables",
    summary="inputs whose names differ only in case, for a script that finds them by variables",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html",
    quote="SM_CHANNEL_XXXX: the path of the directory with the data of the channel",
    fields=("inputs.*", "entry"),
    may_be_allowed=True,
    allowed_when="if the script reads the folders by their names",
)
def reject_inputs_with_one_variable(context: PlanContext) -> Problems:
    """Yield a problem for each input that shares its variable, SM_CHANNEL_ and its name in upper case, with
    another one."""
    if not context.has_runtime:
        return
    name_by_variable: dict[str, str] = {}
    for name in context.job.inputs:
        variable = f"SM_CHANNEL_{name.upper()}"
        other_name = name_by_variable.setdefault(variable, name)
        if other_name != name:
            yield Problem(
                f"inputs.{name}",
                f"its folder would be in {variable}, as that of inputs.{other_name}, and the script would "
                "find one of them twice; give one another name",
            )


@rule(
    "checkpoints.prefix",
    summary="checkpoints in, inside or above the prefix of an input, or above the output",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/model-checkpoints.html",
    quote=("S3 → local before start on **every** instance (whole prefix). … **Local delete → S3 delete.**"),
    fields=("checkpoints.uri", "inputs.*", "output"),
)
def reject_checkpoints_over_other_data(context: PlanContext) -> Problems:
    """Yield a problem if the checkpoints' prefix is that of an input, lies inside it, or contains it or the
    output. An input has all objects whose keys begin with its text; checkpoints have a whole folder."""
    checkpoints = context.job.checkpoints
    if checkpoints is None or checkpoints.uri is None:
        return
    # With one slash at the end, so that only whole folder names are compared.
    checkpoint_prefix = _as_folder_prefix(checkpoints.uri)
    for name, channel in context.job.inputs.items():
        if not channel.is_in_s3:
            continue
        if _as_folder_prefix(channel.uri) == checkpoint_prefix:
            yield Problem(
                "checkpoints.uri",
                f"it is inputs.{name}'s prefix too: old checkpoints are deleted there, and all of the data "
                "would be downloaded to every host with them; use separate prefixes",
            )
        elif checkpoint_prefix.startswith(channel.uri):
            yield Problem(
                "checkpoints.uri",
                f"it lies inside inputs.{name} ({channel.uri}), so that later jobs would get the checkpoints "
                "as data; use separate prefixes",
            )
        elif channel.uri.startswith(checkpoint_prefix):
            yield Problem(
                "checkpoints.uri",
                f"inputs.{name} ({channel.uri}) lies inside it, so that all of the data would be downloaded "
                "to every host with the checkpoints; use separate prefixes",
            )
    own_folder = _own_folder(context)
    folders_inside = checkpoint_prefix.removeprefix(own_folder).split("/")  # run, checkpoints, ...
    is_of_checkpoints = folders_inside[1:2] == ["checkpoints"]
    if own_folder.startswith(checkpoint_prefix) or (
        checkpoint_prefix.startswith(own_folder) and not is_of_checkpoints
    ):
        yield Problem(
            "checkpoints.uri",
            f"{own_folder} has sources, data, models and launch files of all runs: every host would "
            "download them with the checkpoints, and what a host deletes is deleted in S3 too; name a "
            "prefix outside, or none for a chain",
        )
    output = stated_output(context.job).uri
    if output is None:
        return
    output_prefix = _as_folder_prefix(output)
    result_folder = checkpoint_prefix.removeprefix(output_prefix).partition("/")[0]
    if checkpoint_prefix.startswith(output_prefix) and parse_job_name(result_folder) is not None:
        yield Problem(
            "checkpoints.uri",
            f"it lies in {output_prefix}{result_folder}/, where the results of a job of that name are: a "
            "model replaces a checkpoint of the same name, or is downloaded to each host; use separate "
            "prefixes",
        )
    if output_prefix.startswith(checkpoint_prefix):
        yield Problem(
            "checkpoints.uri",
            "output is inside it, so that every model would be downloaded to each host with the "
            "checkpoints; use separate prefixes",
        )


def _own_folder(context: PlanContext) -> str:
    return RunS3Layout(context.facts.bucket, context.run_id, context.facts.bucket_prefix).own_folder


def _as_folder_prefix(uri: str) -> str:
    """Return an S3 prefix with one slash at its end."""
    return uri.rstrip("/") + "/"


@rule(
    "output.prefix",
    phase="advise",
    summary="an output that is part of an input",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html",
    quote="SageMaker uses all objects that match the specified key name prefix",
    fields=("output", "inputs.*"),
)
def warn_of_output_inside_input(context: PlanContext) -> Findings:
    """Report each input in which a later job would find what this one writes: its output, which by default is
    in a folder of smlaunch's own in the default bucket, with the run's other files."""
    stated_uri = stated_output(context.job).uri
    output_prefix = stated_uri or _own_folder(context)
    for name, channel in context.job.inputs.items():
        if channel.is_in_s3 and _as_folder_prefix(output_prefix).startswith(channel.uri):
            content = "output" if stated_uri else "the run's own files"
            yield PlanWarning(
                f"inputs.{name}: {channel.uri} contains {output_prefix}, where {content} will be: jobs that "
                "start later get that as data too; use separate prefixes."
            )


def stated_buckets(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the bucket of each S3 address that the job states, with the field of the address."""
    for field, uri in _stated_addresses(job):
        address = split_s3_uri(uri)
        if address is not None:
            yield field, address[0]


def _stated_addresses(job: Job) -> Iterator[tuple[str, str]]:
    for name, channel in job.inputs.items():
        if channel.is_in_s3:
            yield f"inputs.{name}.uri", channel.uri
    if job.checkpoints is not None and job.checkpoints.uri is not None:
        yield "checkpoints.uri", job.checkpoints.uri
    output_uri = stated_output(job).uri
    if output_uri is not None:
        yield "output", output_uri
    for name, output in job.outputs.items():
        if output.uri is not None:
            yield f"outputs.{name}.uri", output.uri


_BUCKET_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_MAX_BUCKET_NAME = 63


@rule(
    "buckets.name",
    summary="a bucket whose name S3 does not allow",
    source="https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html",
    quote="lowercase letters, numbers, periods (.), and hyphens (-) (not confirmed: seen in a copy)",
    fields=("inputs.*", "checkpoints", "output"),
    may_be_allowed=True,
    allowed_when="for a bucket that was made in us-east-1 before March 2018",
)
def reject_impossible_bucket_names(context: PlanContext) -> Problems:
    """An access point stands for a bucket by its ARN."""
    for field, name in stated_buckets(context.job):
        if name.startswith("arn:"):
            continue
        if not _BUCKET_NAME.fullmatch(name):
            yield Problem(
                field,
                f"no bucket is called {name!r}: names of buckets have small letters, digits, dashes and dots "
                "only, and begin and end with a letter or a digit",
            )
        elif len(name) > _MAX_BUCKET_NAME:
            yield Problem(
                field, f"no bucket is called {name!r}: a name has at most {_MAX_BUCKET_NAME} characters"
            )


DEFAULT_BUCKET = re.compile(r"sagemaker-(?P<region>[a-z]{2,}(?:-[a-z]+)+-[0-9]+)-(?P<account>[0-9]{12})")
"""Name of the SageMaker SDK's default bucket of an account in a region."""


@rule(
    "buckets.region",
    summary="the default bucket of another region, by its name",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/model-access-training-data.html",
    quote="same region as the job",
    fields=("inputs.*", "checkpoints", "output"),
    facts=("account",),
    may_be_allowed=True,
    allowed_when="if the bucket is in the job's region",
)
def reject_default_bucket_of_other_region(context: PlanContext) -> Problems:
    region = context.facts.region
    if context.facts.target != "aws":
        return
    for field, bucket in stated_buckets(context.job):
        match = DEFAULT_BUCKET.fullmatch(bucket)
        if match is not None and match["region"] != region and match["region"] in regions.known_regions():
            yield Problem(
                field,
                f"{bucket} is a bucket in {match['region']} by its name, and the job runs in {region}; "
                "name a bucket of that region",
            )
