"""Processing jobs: inputs and outputs anywhere below /opt/ml/processing, and a message in the end.

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
from smlaunch.local.executors.base import Place
from smlaunch.local.host_files import read_beginning
from smlaunch.local.job_store import JobRecord
from smlaunch.local.jobs.artifacts import UploadError, in_short, merge, regular, upload_files
from smlaunch.local.jobs.checkpoints import CheckpointSync
from smlaunch.local.jobs.job_kind import Outcome, Tools
from smlaunch.local.jobs.spec import (
    CONTRACT_ROOT,
    DEFAULT_GROUP,
    DEFAULT_MAX_RUNTIME,
    ChannelSpec,
    JobSpec,
    S3Location,
    Wait,
    capacity_in,
    hosts_of_groups,
    selected_instance,
)

KIND = "processing-job"
GROUP = "/aws/sagemaker/ProcessingJobs"

_MESSAGE_BYTES = 1024


@dataclass(frozen=True)
class OutputSpec:
    """``target``: the directory, relative to /opt/ml. ``continuous``: whether it is uploaded while hosts run,
    too."""

    name: str
    where: S3Location
    target: str
    continuous: bool


@dataclass(frozen=True, kw_only=True)
class ProcessingSpec(JobSpec):
    """Inputs are ``channels``; what the application manages itself is in neither of them."""

    outputs: tuple[OutputSpec, ...]

    @property
    def written(self) -> tuple[S3Location, ...]:
        return tuple(output.where for output in self.outputs)

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(output.target for output in self.outputs)


class ProcessingWork:
    log_group = GROUP
    directory = "processing"
    failure_file = False

    def __init__(self, record: JobRecord, wait: Wait) -> None:
        self.spec: ProcessingSpec = read_request(record.request, record.arn, record.region, wait)
        self._request = record.request
        self._syncs: list[CheckpointSync] = []

    def selected(self, chosen: Mapping[str, Any]) -> Mapping[str, Any]:
        resources = self._request["ProcessingResources"]
        return {"ProcessingResources": {"ClusterConfig": {**resources["ClusterConfig"], **chosen}}}

    def recorded_fields(self, runs_images: bool) -> Mapping[str, str]:
        notes = support.recorded_fields(self._request, support.processing_rows(runs_images))
        notes.pop("AppSpecification.ImageUri", None)
        return notes

    def lay_out(self, places: Sequence[Place], current: Place) -> None:
        paths = ProcessingPaths(str(current.tree))
        for folder in (paths.config, paths.processing, paths.output):
            Path(folder).mkdir(parents=True, exist_ok=True)
        for target in self.spec.folders:
            (current.tree / target).mkdir(parents=True, exist_ok=True)
        documents = {
            paths.resource_config: {
                "current_host": current.name,
                "hosts": sorted(place.name for place in places),
            },
            paths.job_config: {"ProcessingJobArn": self.spec.arn, **self._request},
        }
        for path, document in documents.items():
            Path(path).write_text(json.dumps(document))

    def synced(
        self, places: Sequence[Place], tools: Tools, check: Callable[[], None]
    ) -> list[CheckpointSync]:
        """Of outputs, those that are uploaded continuously: one way only, whatever is in S3 already."""
        self._syncs = [
            CheckpointSync(
                output.where,
                f"{CONTRACT_ROOT}/{output.target}",
                places,
                tools.objects,
                tools.settings,
                tools.note,
                what=f"output {output.name}:",
                mirror=tools.settings.processing_continuous_deletes,
            )
            for output in self.spec.outputs
            if output.continuous
        ]
        return self._syncs

    def finish(self, places: Sequence[Place], tools: Tools, reason: str | None, stopped: bool) -> Outcome:
        result: dict[str, Any] = {}
        try:
            message = exit_message(
                [
                    (place.tree, posixpath.relpath(ProcessingPaths().message, CONTRACT_ROOT))
                    for place in places
                ]
            )
            if message:
                result["ExitMessage"] = message
        except UnicodeDecodeError as error:
            text = f"the exit message in {ProcessingPaths().message} is not UTF-8 ({error})"
            if not stopped:
                # Another failure came before this one.
                return Outcome(reason or f"ClientError: {text}")
            tools.note(places[0].label, text)
        if _uploads(tools.settings.processing_outputs_of, reason, stopped):
            try:
                for output in self.spec.outputs:
                    if not output.continuous:
                        _upload(output, places, tools)
            except UploadError as error:
                return Outcome(f"ClientError: {error}", result=result)
        lost = [
            f"{text} ({label})"
            for sync in self._syncs
            for (label, _), text in sync.missing.items()
            if reason is None and not stopped
        ]
        if lost:
            return Outcome(f"ClientError: Data upload failed:{in_short(lost)}", result=result)
        return Outcome(reason, result=result)


def read_request(
    request: Mapping[str, Any], arn: str, region: str, wait: Wait = lambda instance_type: 0.0
) -> ProcessingSpec:
    """``request``: the members of CreateProcessingJob. ``wait``: what capacity there is."""
    application = request["AppSpecification"]
    entrypoint = application.get("ContainerEntrypoint") or ()
    arguments = application.get("ContainerArguments") or ()
    cluster = request["ProcessingResources"]["ClusterConfig"]
    selected = selected_instance(cluster, wait)
    count = cluster.get("InstanceCount") or 1
    hosts = hosts_of_groups([(DEFAULT_GROUP, *(selected or (cluster["InstanceType"], count)))])
    stopping = request.get("StoppingCondition") or {}
    outputs = (request.get("ProcessingOutputConfig") or {}).get("Outputs") or ()
    return ProcessingSpec(
        name=request["ProcessingJobName"],
        arn=arn,
        region=region,
        image=application["ImageUri"],
        command=(*entrypoint, *arguments),
        given_entrypoint=True,
        entrypoint=tuple(entrypoint),
        arguments=tuple(arguments),
        hosts=hosts,
        channels=tuple(
            _channel(given) for given in request.get("ProcessingInputs") or () if not given.get("AppManaged")
        ),
        environment=dict(request.get("Environment") or {}),
        outputs=tuple(_output(given) for given in outputs if not given.get("AppManaged")),
        max_runtime=stopping.get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME),
        isolated_network=bool((request.get("NetworkConfig") or {}).get("EnableNetworkIsolation")),
        selected=selected,
        capacity_in=capacity_in(hosts, wait),
    )


def exit_message(files: Sequence[tuple[Path, str]]) -> str:
    """What all hosts' messages say, one after the other, cut to 1 KB: of each the first 1 KB is read.

    ``files``: a host's tree and the message's path in it. Raises UnicodeDecodeError for one that is no UTF-8.
    """
    whole = b"".join(_text(_beginning(*file)) for file in files)
    return _text(whole[:_MESSAGE_BYTES]).decode()


def _text(beginning: bytes) -> bytes:
    """Without a character that the cut went through. Raises UnicodeDecodeError."""
    whole = len(beginning) < _MESSAGE_BYTES
    return getincrementaldecoder("utf-8")().decode(beginning, final=whole).encode()


def _beginning(tree: Path, name: str) -> bytes:
    try:
        return read_beginning(tree, name, _MESSAGE_BYTES)[0]
    except OSError:
        return b""


def _uploads(of: str, reason: str | None, stopped: bool) -> bool:
    if reason is not None:
        return of == "all"
    return not stopped or of != "completed"


def _upload(output: OutputSpec, places: Sequence[Place], tools: Tools) -> None:
    """Raises UploadError."""
    merged = merge(places, output.target, tools.note)
    files = {
        relative: (output.where.below(relative), entry)
        for relative, entry in regular(merged.entries, output.target, tools.note)
    }
    scratch = places[0].tree.parent
    bucket, prefix = output.where.bucket, output.where.below("")
    try:
        lost = upload_files(files, output.target, tools.objects, bucket, scratch, tools.note)
    except KeyError:
        raise UploadError(
            f"Data upload failed:s3://{bucket}/{prefix} of {output.name}: the bucket does not exist"
        ) from None
    if merged.lost or lost:
        raise UploadError(f"Data upload failed:output {output.name}: {in_short([*merged.lost, *lost])}")


def target_of(local_path: str) -> str:
    """Relative to /opt/ml."""
    return posixpath.relpath(posixpath.normpath(local_path), CONTRACT_ROOT)


def _channel(given: Mapping[str, Any]) -> ChannelSpec:
    source = given["S3Input"]
    return ChannelSpec(
        name=given["InputName"],
        uri=source["S3Uri"],
        data_type=source["S3DataType"],
        sharded=source.get("S3DataDistributionType") == "ShardedByS3Key",
        mode=source.get("S3InputMode") or "File",
        target=target_of(source["LocalPath"]),
    )


def _output(given: Mapping[str, Any]) -> OutputSpec:
    s3 = given["S3Output"]
    where = S3Location.parse(s3["S3Uri"])
    return OutputSpec(
        given["OutputName"], where, target_of(s3["LocalPath"]), s3["S3UploadMode"] == "Continuous"
    )
