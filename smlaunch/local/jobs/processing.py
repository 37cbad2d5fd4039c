"""Processing jobs: inputs and outputs anywhere below /opt/ml/processing, and an exit message.

Source: API model, and the developer guide's byoc-run-image, byoc-config, byoc-input-and-output and
byoc-metadata.
"""

from __future__ import annotations

import json
import posixpath
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smlaunch.contract.paths import ProcessingPaths
from smlaunch.local import support
from smlaunch.local.executors.base import JobHost
from smlaunch.local.host_files import read_beginning
from smlaunch.local.job_store import JobRecord
from smlaunch.local.jobs.artifacts import (
    UploadError,
    merge_hosts,
    regular_files,
    summarize_problems,
    upload_as_objects,
)
from smlaunch.local.jobs.checkpoints import CheckpointSync
from smlaunch.local.jobs.job_kind import AttemptOutcome, HandlerContext
from smlaunch.local.jobs.spec import (
    CONTRACT_ROOT,
    DEFAULT_GROUP,
    DEFAULT_MAX_RUNTIME,
    CapacityWait,
    ChannelSpec,
    JobSpec,
    S3Location,
    capacity_wait_of_hosts,
    choose_instance,
    hosts_of_groups,
)

KIND = "processing-job"
PROCESSING_LOG_GROUP = "/aws/sagemaker/ProcessingJobs"

_MESSAGE_BYTES = 1024


@dataclass(frozen=True)
class OutputSpec:
    """An output of a processing job."""

    name: str
    location: S3Location
    target: str
    """The directory, relative to /opt/ml."""
    is_continuous: bool
    """Whether it is uploaded while hosts run (S3UploadMode Continuous)."""


@dataclass(frozen=True, kw_only=True)
class ProcessingSpec(JobSpec):
    """What the runner needs to know about a processing job. ``channels`` are its inputs, without those that
    the application manages itself."""

    outputs: tuple[OutputSpec, ...]
    """Without those that the application manages itself."""

    @property
    def output_locations(self) -> tuple[S3Location, ...]:
        return tuple(output.location for output in self.outputs)

    @property
    def required_folders(self) -> tuple[str, ...]:
        return tuple(output.target for output in self.outputs)


class ProcessingJobHandler:
    """The JobHandler of processing jobs."""

    log_group = PROCESSING_LOG_GROUP
    working_directory = "processing"
    reads_failure_file = False

    def __init__(self, record: JobRecord, instance_wait: CapacityWait) -> None:
        self.spec: ProcessingSpec = read_processing_request(
            record.request, record.arn, record.region, instance_wait
        )
        self._request = record.request
        self._syncs: list[CheckpointSync] = []

    def describe_selected_instance(self, selection: Mapping[str, Any]) -> Mapping[str, Any]:
        resources = self._request["ProcessingResources"]
        return {"ProcessingResources": {"ClusterConfig": {**resources["ClusterConfig"], **selection}}}

    def recorded_fields(self, runs_images: bool) -> Mapping[str, str]:
        notes = support.recorded_fields(self._request, support.processing_rows(runs_images))
        notes.pop("AppSpecification.ImageUri", None)
        return notes

    def write_host_files(self, hosts: Sequence[JobHost], current: JobHost) -> None:
        """Create the directories of the host ``current`` and its files with the job and the host names."""
        paths = ProcessingPaths(str(current.tree))
        for folder in (paths.config, paths.processing, paths.output):
            Path(folder).mkdir(parents=True, exist_ok=True)
        for target in self.spec.required_folders:
            (current.tree / target).mkdir(parents=True, exist_ok=True)
        documents = {
            paths.resource_config: {
                "current_host": current.network_name,
                "hosts": sorted(host.network_name for host in hosts),
            },
            paths.job_config: {"ProcessingJobArn": self.spec.arn, **self._request},
        }
        for path, document in documents.items():
            Path(path).write_text(json.dumps(document))

    def create_syncs(
        self, hosts: Sequence[JobHost], context: HandlerContext, raise_if_stopping: Callable[[], None]
    ) -> list[CheckpointSync]:
        """Return the syncs of the outputs that are uploaded continuously. Nothing is downloaded."""
        self._syncs = [
            CheckpointSync(
                output.location,
                f"{CONTRACT_ROOT}/{output.target}",
                hosts,
                context.objects,
                context.settings,
                context.write_note,
                description=f"output {output.name}:",
                deletes_in_s3=context.settings.processing_continuous_deletes,
            )
            for output in self.spec.outputs
            if output.is_continuous
        ]
        return self._syncs

    def collect_results(
        self, hosts: Sequence[JobHost], context: HandlerContext, reason: str | None, is_stopped: bool
    ) -> AttemptOutcome:
        """Upload the outputs of hosts that have ended, and return how the attempt ended, with their exit
        message. ``reason``: why the job failed; None if it did not."""
        result: dict[str, Any] = {}
        try:
            message = read_exit_messages(
                [(host.tree, posixpath.relpath(ProcessingPaths().message, CONTRACT_ROOT)) for host in hosts]
            )
            if message:
                result["ExitMessage"] = message
        except UnicodeDecodeError as error:
            text = f"the exit message in {ProcessingPaths().message} is not UTF-8 ({error})"
            if not is_stopped:
                # A failure of the job itself came earlier and has priority.
                return AttemptOutcome(reason or f"ClientError: {text}")
            context.write_note(hosts[0].name, text)
        if _is_uploaded(context.settings.processing_outputs_of, reason, is_stopped):
            try:
                for output in self.spec.outputs:
                    if not output.is_continuous:
                        _upload_output(output, hosts, context)
            except UploadError as error:
                return AttemptOutcome(f"ClientError: {error}", result=result)
        problems = [
            f"{text} ({host_name})"
            for sync in self._syncs
            for (host_name, _), text in sync.problems.items()
            if reason is None and not is_stopped
        ]
        if problems:
            return AttemptOutcome(
                f"ClientError: Data upload failed:{summarize_problems(problems)}", result=result
            )
        return AttemptOutcome(reason, result=result)


def read_processing_request(
    request: Mapping[str, Any], arn: str, region: str, instance_wait: CapacityWait = lambda instance_type: 0.0
) -> ProcessingSpec:
    """Read the members of CreateProcessingJob. ``instance_wait`` tells how long hosts are unavailable."""
    application = request["AppSpecification"]
    entrypoint = application.get("ContainerEntrypoint") or ()
    arguments = application.get("ContainerArguments") or ()
    cluster = request["ProcessingResources"]["ClusterConfig"]
    selected_instance = choose_instance(cluster, instance_wait)
    count = cluster.get("InstanceCount") or 1
    hosts = hosts_of_groups([(DEFAULT_GROUP, *(selected_instance or (cluster["InstanceType"], count)))])
    stopping = request.get("StoppingCondition") or {}
    outputs = (request.get("ProcessingOutputConfig") or {}).get("Outputs") or ()
    return ProcessingSpec(
        name=request["ProcessingJobName"],
        arn=arn,
        region=region,
        image=application["ImageUri"],
        command=(*entrypoint, *arguments),
        has_entrypoint=True,
        entrypoint=tuple(entrypoint),
        arguments=tuple(arguments),
        hosts=hosts,
        channels=tuple(
            _channel(member)
            for member in request.get("ProcessingInputs") or ()
            if not member.get("AppManaged")
        ),
        environment=dict(request.get("Environment") or {}),
        outputs=tuple(_output(member) for member in outputs if not member.get("AppManaged")),
        max_runtime=stopping.get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME),
        isolated_network=bool((request.get("NetworkConfig") or {}).get("EnableNetworkIsolation")),
        selected_instance=selected_instance,
        capacity_wait=capacity_wait_of_hosts(hosts, instance_wait),
    )


def read_exit_messages(files: Sequence[tuple[Path, str]]) -> str:
    """Return the exit messages of all hosts, concatenated and cut to 1 KB. Of each, the first 1 KB is read.

    ``files`` has a host's tree and the path of its message in it. Raises UnicodeDecodeError for a message
    that is not UTF-8.
    """
    joined = b"".join(_complete_characters(_read_beginning(*file)) for file in files)
    return _complete_characters(joined[:_MESSAGE_BYTES]).decode()


def _complete_characters(beginning: bytes) -> bytes:
    """Remove a character that was cut at the end. Raises UnicodeDecodeError."""
    is_uncut = len(beginning) < _MESSAGE_BYTES
    return getincrementaldecoder("utf-8")().decode(beginning, final=is_uncut).encode()


def _read_beginning(tree: Path, name: str) -> bytes:
    try:
        return read_beginning(tree, name, _MESSAGE_BYTES)[0]
    except OSError:
        return b""


def _is_uploaded(setting: str, reason: str | None, is_stopped: bool) -> bool:
    """Return whether outputs are uploaded, by the setting processing_outputs_of, for a job with this failure
    reason."""
    if reason is not None:
        return setting == "all"
    return not is_stopped or setting != "completed"


def _upload_output(output: OutputSpec, hosts: Sequence[JobHost], context: HandlerContext) -> None:
    """Upload an output when the hosts have ended. Raises UploadError."""
    merged = merge_hosts(hosts, output.target, context.write_note)
    files = {
        relative: (output.location.key_below(relative), entry)
        for relative, entry in regular_files(merged.entries, output.target, context.write_note)
    }
    scratch = hosts[0].tree.parent
    bucket, prefix = output.location.bucket, output.location.key_below("")
    try:
        problems = upload_as_objects(
            files, output.target, context.objects, bucket, scratch, context.write_note
        )
    except KeyError:
        raise UploadError(
            f"Data upload failed:s3://{bucket}/{prefix} of {output.name}: the bucket does not exist"
        ) from None
    if merged.problems or problems:
        raise UploadError(
            f"Data upload failed:output {output.name}: {summarize_problems([*merged.problems, *problems])}"
        )


def target_of(local_path: str) -> str:
    """Return a local path relative to /opt/ml."""
    return posixpath.relpath(posixpath.normpath(local_path), CONTRACT_ROOT)


def _channel(member: Mapping[str, Any]) -> ChannelSpec:
    source = member["S3Input"]
    return ChannelSpec(
        name=member["InputName"],
        uri=source["S3Uri"],
        data_type=source["S3DataType"],
        is_sharded=source.get("S3DataDistributionType") == "ShardedByS3Key",
        mode=source.get("S3InputMode") or "File",
        target=target_of(source["LocalPath"]),
    )


def _output(member: Mapping[str, Any]) -> OutputSpec:
    s3 = member["S3Output"]
    location = S3Location.parse(s3["S3Uri"])
    return OutputSpec(
        member["OutputName"], location, target_of(s3["LocalPath"]), s3["S3UploadMode"] == "Continuous"
    )
