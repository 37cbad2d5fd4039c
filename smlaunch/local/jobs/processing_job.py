"""Processing jobs: inputs and outputs anywhere below /opt/ml/processing, and an exit message.

Source: API model, and the developer guide's byoc-run-image, byoc-config, byoc-input-and-output and
byoc-metadata.
"""

from __future__ import annotations

import json
import posixpath
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from smlaunch.api.job_kinds import PROCESSING
from smlaunch.contract.sagemaker_paths import ProcessingPaths
from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs import lost_files
from smlaunch.local.jobs.artifact_upload import (
    UploadError,
    merge_host_folders,
    summarize_problems,
    upload_each_file,
)
from smlaunch.local.jobs.job_handler import AttemptOutcome, HandlerContext, JobHandler
from smlaunch.local.jobs.job_spec import (
    DEFAULT_GROUP,
    DEFAULT_MAX_RUNTIME,
    OPT_ML_ROOT,
    ChannelSpec,
    InstanceGroupSpec,
    JobSpec,
    S3Location,
    SecondsUntilAvailable,
    choose_preferred_instance,
    hosts_of_groups,
    seconds_until_all_available,
)
from smlaunch.local.jobs.s3_folder_sync import S3FolderSync
from smlaunch.local.json_types import JsonMapping
from smlaunch.local.stores.job_store import JobRecord
from smlaunch.local.untrusted_files import read_beginning

_MAX_MESSAGE_BYTES = 1024


@dataclass(frozen=True)
class OutputSpec:
    """An output of a processing job."""

    name: str
    location: S3Location
    target_folder: str
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
        return tuple(output.target_folder for output in self.outputs)


class ProcessingJobHandler(JobHandler):
    job_kind = PROCESSING
    working_directory = "processing"
    reads_failure_file = False

    def __init__(self, record: JobRecord, seconds_until_available: SecondsUntilAvailable) -> None:
        self.spec: ProcessingSpec = read_processing_request(
            record.request, record.arn, record.region, seconds_until_available
        )
        self.request = record.request
        self._syncs: list[S3FolderSync] = []

    def write_host_files(self, hosts: Sequence[JobHost], current_host: JobHost) -> None:
        """Create the directories of ``current_host``, and its configuration files below /opt/ml/config: one
        with the names of all hosts, one with the request. ``opt_ml_folder`` is the host's own /opt/ml, a
        directory of this machine; the folders that the job requires are those of its outputs."""
        paths = ProcessingPaths(str(current_host.opt_ml_folder))
        for folder in (paths.config, paths.processing, paths.output):
            Path(folder).mkdir(parents=True, exist_ok=True)
        for relative_folder in self.spec.required_folders:
            (current_host.opt_ml_folder / relative_folder).mkdir(parents=True, exist_ok=True)
        document_by_path = {
            paths.resource_config: {
                "current_host": current_host.network_name,
                "hosts": sorted(host.network_name for host in hosts),
            },
            paths.job_config: {"ProcessingJobArn": self.spec.arn, **self.request},
        }
        for path, document in document_by_path.items():
            Path(path).write_text(json.dumps(document))

    def create_syncs(
        self, hosts: Sequence[JobHost], context: HandlerContext, raise_if_stopping: Callable[[], None]
    ) -> list[S3FolderSync]:
        """Return the syncs of the outputs that are uploaded continuously. Nothing is downloaded."""
        self._syncs = [
            S3FolderSync(
                output.location,
                f"{OPT_ML_ROOT}/{output.target_folder}",
                hosts,
                context.object_store,
                context.settings,
                context.log_to_host,
                file_noun=f"output {output.name}:",
                deletes_in_s3=context.settings.processing_continuous_deletes,
            )
            for output in self.spec.outputs
            if output.is_continuous
        ]
        return self._syncs

    def upload_results(
        self, hosts: Sequence[JobHost], context: HandlerContext, failure_reason: str | None, is_stopped: bool
    ) -> AttemptOutcome:
        """Upload the outputs of hosts that have ended, and return how this attempt at the job ended, with the
        exit message, a text that the hosts' programs may write for DescribeProcessingJob.
        ``failure_reason``: why the job failed; None if it did not. ``is_stopped``: whether it was stopped.
        A failed upload at the end replaces the job's own failure; an invalid exit message does not."""
        exit_message_path = ProcessingPaths().message
        exit_message = ""
        try:
            exit_message = read_exit_messages(
                [(host.opt_ml_folder, posixpath.relpath(exit_message_path, OPT_ML_ROOT)) for host in hosts]
            )
        except UnicodeDecodeError as error:
            problem_text = f"the exit message in {exit_message_path} is not UTF-8 ({error})"
            if not is_stopped:
                # A failure of the job itself came earlier and has priority.
                return AttemptOutcome(failure_reason or f"ClientError: {problem_text}")
            context.log_to_host(hosts[0].name, problem_text)
        # Added to the response of DescribeProcessingJob.
        describe_fields = {"ExitMessage": exit_message} if exit_message else {}
        # The setting names the jobs whose outputs are uploaded: "completed", also "stopped" ones, or "all".
        if _should_upload_outputs(context.settings.processing_outputs_of, failure_reason, is_stopped):
            try:
                self._upload_outputs_at_end(hosts, context)
            except UploadError as error:
                # It replaces the reason for which the programs failed.
                return AttemptOutcome(f"ClientError: {error}", describe_fields=describe_fields)
        if failure_reason is None and not is_stopped:
            # Outputs with S3UploadMode Continuous were uploaded while the programs ran.
            failure_reason = self._find_failure_of_continuous_uploads()
        return AttemptOutcome(failure_reason, describe_fields=describe_fields)

    def _upload_outputs_at_end(self, hosts: Sequence[JobHost], context: HandlerContext) -> None:
        """Upload the outputs with S3UploadMode EndOfJob, and warn of files that other hosts' files of the
        same names replace. Raises UploadError."""
        outputs = [output for output in self.spec.outputs if not output.is_continuous]
        warning = lost_files.save_replaced_files(
            hosts,
            [output.target_folder for output in outputs],
            lost_files.saved_folder_of(self.spec.name, context.object_store.root),
        )
        if warning:
            context.log_to_host(hosts[0].name, warning)
        for output in outputs:
            _upload_output_at_end(output, hosts, context)

    def _find_failure_of_continuous_uploads(self) -> str | None:
        """Return FailureReason if a file of an output with S3UploadMode Continuous is not in S3, else
        None."""
        problems = [
            f"{problem_text} ({host_name})"
            for sync in self._syncs
            for (host_name, _), problem_text in sync.problem_by_file.items()
        ]
        return f"ClientError: Data upload failed:{summarize_problems(problems)}" if problems else None


def read_processing_request(
    request: JsonMapping,
    arn: str,
    region: str,
    seconds_until_available: SecondsUntilAvailable = lambda instance_type: 0.0,
) -> ProcessingSpec:
    """Return the content of a CreateProcessingJob request, which is valid, as the job's runner uses it; its
    inputs are the ``channels``. Inputs and outputs with AppManaged are left out: the program accesses their
    S3 addresses itself. ``seconds_until_available(instance_type)`` returns None for hosts that are never
    available."""
    application = request["AppSpecification"]
    entrypoint = application.get("ContainerEntrypoint") or ()
    arguments = application.get("ContainerArguments") or ()
    cluster = request["ProcessingResources"]["ClusterConfig"]
    selected_instance = choose_preferred_instance(cluster, seconds_until_available)
    instance_type, instance_count = selected_instance or (
        cluster["InstanceType"],
        cluster.get("InstanceCount") or 1,
    )
    hosts = hosts_of_groups([InstanceGroupSpec(DEFAULT_GROUP, instance_type, instance_count)])
    stopping_condition = request.get("StoppingCondition") or {}
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
            _parse_input(processing_input)
            for processing_input in request.get("ProcessingInputs") or ()
            if not processing_input.get("AppManaged")
        ),
        environment=dict(request.get("Environment") or {}),
        outputs=tuple(
            _parse_output(processing_output)
            for processing_output in outputs
            if not processing_output.get("AppManaged")
        ),
        max_runtime_seconds=stopping_condition.get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME),
        network_isolation=bool((request.get("NetworkConfig") or {}).get("EnableNetworkIsolation")),
        selected_instance=selected_instance,
        capacity_wait_seconds=seconds_until_all_available(hosts, seconds_until_available),
    )


def read_exit_messages(message_files: Sequence[tuple[Path, str]]) -> str:
    """Return the exit messages of all hosts, concatenated and cut to 1 KB. Of each, the first 1 KB is read.

    ``message_files`` has, for each host, its /opt/ml folder and the path of the message in it. Raises
    UnicodeDecodeError for a message that is not UTF-8.
    """
    joined_messages = b"".join(
        _drop_cut_character(_read_message(*message_file)) for message_file in message_files
    )
    return _drop_cut_character(joined_messages[:_MAX_MESSAGE_BYTES]).decode()


def _drop_cut_character(beginning: bytes) -> bytes:
    """Remove a character that was cut at the end. Raises UnicodeDecodeError."""
    is_uncut = len(beginning) < _MAX_MESSAGE_BYTES
    return getincrementaldecoder("utf-8")().decode(beginning, final=is_uncut).encode()


def _read_message(opt_ml_folder: Path, relative_path: str) -> bytes:
    try:
        return read_beginning(opt_ml_folder, relative_path, _MAX_MESSAGE_BYTES)[0]
    except OSError:
        return b""


def _should_upload_outputs(outputs_setting: str, failure_reason: str | None, is_stopped: bool) -> bool:
    """Return whether the outputs of a job with this failure reason (None: it did not fail) are uploaded.
    ``outputs_setting`` names the jobs whose outputs are: "completed" ones, also "stopped" ones, or "all"."""
    if failure_reason is not None:
        return outputs_setting == "all"
    return not is_stopped or outputs_setting != "completed"


def _upload_output_at_end(output: OutputSpec, hosts: Sequence[JobHost], context: HandlerContext) -> None:
    """Upload an output of a processing job, merged from all hosts, which have ended. Raises UploadError."""
    merged_output = merge_host_folders(hosts, output.target_folder, context.log_to_host)
    scratch_folder = hosts[0].opt_ml_folder.parent
    bucket, prefix = output.location.bucket, output.location.folder_prefix
    try:
        problems = upload_each_file(
            merged_output.entry_by_path,
            output.target_folder,
            context.object_store,
            output.location,
            scratch_folder,
            context.log_to_host,
        )
    except KeyError:  # raised by the object store for an unknown bucket
        raise UploadError(
            f"Data upload failed:s3://{bucket}/{prefix} of {output.name}: the bucket does not exist"
        ) from None
    if merged_output.problems or problems:
        summary = summarize_problems([*merged_output.problems, *problems])
        raise UploadError(f"Data upload failed:output {output.name}: {summary}")


def path_below_opt_ml(local_path: str) -> str:
    """Return a local path relative to /opt/ml."""
    return posixpath.relpath(posixpath.normpath(local_path), OPT_ML_ROOT)


def _parse_input(processing_input: JsonMapping) -> ChannelSpec:
    s3_input = processing_input["S3Input"]
    return ChannelSpec(
        name=processing_input["InputName"],
        s3_uri=s3_input["S3Uri"],
        data_type=s3_input["S3DataType"],
        is_sharded=s3_input.get("S3DataDistributionType") == "ShardedByS3Key",
        input_mode=s3_input.get("S3InputMode") or "File",
        target_folder=path_below_opt_ml(s3_input["LocalPath"]),
    )


def _parse_output(processing_output: JsonMapping) -> OutputSpec:
    s3_output = processing_output["S3Output"]
    location = S3Location.parse(s3_output["S3Uri"])
    return OutputSpec(
        processing_output["OutputName"],
        location,
        path_below_opt_ml(s3_output["LocalPath"]),
        s3_output["S3UploadMode"] == "Continuous",
    )
