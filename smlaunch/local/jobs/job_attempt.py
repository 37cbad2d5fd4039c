"""One attempt at a job: allocate hosts, provide the data, run the programs, upload the output."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors.executor_base import Executor
from smlaunch.local.executors.executor_interface import (
    Allocation,
    CannotAllocate,
    HostExit,
    HostProcess,
    HostsRequest,
    ImageProblem,
    Program,
)
from smlaunch.local.fault_injection import AttemptFaults
from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.jobs import artifact_upload, channel_data, contract_files
from smlaunch.local.jobs.channel_listing import InputDataError
from smlaunch.local.jobs.failure_reasons import (
    INTERNAL_ERROR_PREFIX,
    HostReport,
    choose_failure_reason,
    explain_if_disk_full,
)
from smlaunch.local.jobs.host_monitor import HostMonitor
from smlaunch.local.jobs.host_output_log import HostOutputLogger
from smlaunch.local.jobs.job_control import JobControl, JobStopping
from smlaunch.local.jobs.job_handler import AttemptOutcome, HandlerContext, JobHandler
from smlaunch.local.jobs.metric_definitions import MetricReader
from smlaunch.local.jobs.pipe_mode import PipeFeeder
from smlaunch.local.jobs.s3_folder_sync import S3FolderSync
from smlaunch.local.jobs.store_interfaces import LogStorage, MetricStorage, S3ObjectStore
from smlaunch.local.state_dir import EndpointRegistration
from smlaunch.local.stores.job_store import JobStore
from smlaunch.local.stores.object_bodies import DamagedObject

DIFFERENCE_MARK = "note: "
"""Before the lines at the top of a log that say how this endpoint differs from SageMaker; a plan has them
too."""


@dataclass(frozen=True)
class JobServices:
    """What all jobs of an endpoint share."""

    job_store: JobStore
    object_store: S3ObjectStore
    log_store: LogStorage
    metric_store: MetricStorage
    executor: Executor
    registration: EndpointRegistration
    """This endpoint among those that share a state directory."""
    settings: Settings
    credentials: Mapping[str, str]
    """Variables by which a script's AWS client reaches the endpoint."""
    remove_leftovers: Callable[[str], object]
    """Removes, for the id of a dead endpoint, what it left of its hosts."""
    state_directory: Path = Path()
    """For messages only."""


class HostsResult(NamedTuple):
    """How the hosts of an attempt ended."""

    reports: list[HostReport]
    is_spot_interrupted: bool
    """Whether a spot interruption took the hosts away."""
    lost_host_names: Collection[str]
    """Names of the hosts that the fault plan removed."""


class Attempt:
    """One attempt at a job. ``run`` never raises; ``close`` releases the hosts."""

    def __init__(
        self,
        handler: JobHandler,
        services: JobServices,
        job_control: JobControl,
        faults: AttemptFaults,
        metric_reader: MetricReader,
    ) -> None:
        self._job_handler = handler
        self._spec = spec = handler.spec
        self._services = services
        self._job_control = job_control
        self._injected_faults = faults
        self._metric_reader = metric_reader
        self._allocation: Allocation | None = None
        self._failed_upload_folders: list[Path] = []
        host_names = [host.name for host in spec.hosts]
        self._output_logger = HostOutputLogger(
            spec.name,
            host_names,
            services.log_store,
            metric_reader.store_metrics_in_lines if spec.metric_definitions else None,
            handler.job_kind.log_group,
        )
        self._handler_context = HandlerContext(
            services.object_store, services.settings, self._output_logger.log_to_host
        )

    def run(self) -> AttemptOutcome:
        """Run one attempt at the job and return its outcome. Never raises: an error becomes the outcome's
        FailureReason, in SageMaker's form: the type of the error, a colon and a text."""
        try:
            outcome = self._run_on_hosts()
        except JobStopping:
            outcome = AttemptOutcome()  # no program was started: there is nothing to upload
        except (InputDataError, artifact_upload.UploadError, ImageProblem) as error:
            outcome = AttemptOutcome(failure_reason=f"ClientError: {error}")
        except DamagedObject as error:  # an object's file was changed outside of the local endpoint
            outcome = AttemptOutcome(failure_reason=f"ClientError: Data download failed:{error.message}")
        except CannotAllocate as error:
            outcome = AttemptOutcome(
                failure_reason=f"CapacityError: Unable to provision requested ML compute capacity: {error}"
            )
        except Exception as error:
            # An error of the local endpoint itself: the job fails with it, and the local endpoint goes on.
            traceback.print_exc()
            outcome = AttemptOutcome(failure_reason=f"{INTERNAL_ERROR_PREFIX}{type(error).__name__}: {error}")
        self._output_logger.finish()  # all output of the hosts is in their logs
        # A full disk of the local endpoint itself is named, whatever has failed because of it.
        failure_reason = explain_if_disk_full(outcome.failure_reason, self._services.state_directory)
        if failure_reason is not None and self._failed_upload_folders:
            failure_reason += (
                f"; files that could not be stored: {', '.join(map(str, self._failed_upload_folders))}"
            )
        return replace(outcome, failure_reason=failure_reason)

    def close(self) -> None:
        """Release the hosts and close their logs."""
        try:
            if self._allocation is not None:
                self._allocation.release()
        finally:
            self._output_logger.close()

    def _run_on_hosts(self) -> AttemptOutcome:
        """Allocate the job's hosts, run its programs on them and upload the output. Return how the attempt
        ended. A fault plan (fault injection) may interrupt it as SageMaker interrupts spot instances, or lose
        hosts with their disks. The job handler does what differs between training and processing jobs. Raises
        JobStopping if the job is stopped before its programs run."""
        spec = self._spec
        # Job names are unique per region only, and two regions' jobs may run at once.
        job_id = f"{spec.name}.{spec.region}"
        request = HostsRequest(
            job_id=job_id,
            endpoint_id=self._services.registration.id,
            folder=self._services.registration.create_hosts_dir() / job_id,
            host_names=[host.name for host in spec.hosts],
            isolated_network=spec.network_isolation,
            image=spec.image,
            raise_if_stopping=self._job_control.raise_if_stopping,
        )
        self._allocation = allocation = self._services.executor.allocate(request)
        hosts_result = self._run_programs(allocation)
        is_stopping = self._job_control.is_stopping
        if hosts_result.is_spot_interrupted and not is_stopping:
            for host in allocation.hosts:
                self._output_logger.log_to_host(
                    host.name, "spot interruption, as the fault plan says: this host is taken away"
                )
            return AttemptOutcome(is_spot_interrupted=True)
        # A stopped job has not failed, whatever the exit codes of its programs are.
        failure_reason = None if is_stopping else choose_failure_reason(hosts_result.reports)
        if failure_reason is None:
            self._job_control.move_to_uploading()
        remaining_hosts = [host for host in allocation.hosts if host.name not in hosts_result.lost_host_names]
        if not remaining_hosts:
            return AttemptOutcome(failure_reason)  # all hosts were lost, and their output with them
        # Training and processing jobs upload different folders.
        return self._job_handler.upload_results(
            remaining_hosts, self._handler_context, failure_reason, is_stopping
        )

    def _run_programs(self, allocation: Allocation) -> HostsResult:
        """Provide the data and run the programs until the last host has ended and its checkpoints are
        uploaded. Raises JobStopping, and the error for which a Pipe mode feed has aborted the job."""
        self._job_control.move_to_status("Downloading")
        hosts = allocation.hosts
        for line in (*self._list_differences(), *allocation.info.notes):
            self._output_logger.log_to_host(hosts[0].name, f"{DIFFERENCE_MARK}{line}")
        for line in self._create_output_buckets():
            self._output_logger.log_to_host(hosts[0].name, line)
        programs, folder_syncs, pipe_feeder = self._prepare_hosts(allocation)
        self._job_control.move_to_status("Training")
        try:
            pipe_feeder.start()
            hosts_result = self._monitor_hosts(allocation.start(programs), folder_syncs)
        finally:
            pipe_feeder.finish()
        if self._job_control.abort_error is not None and not self._job_control.is_stopping:
            raise self._job_control.abort_error
        return hosts_result

    def _monitor_hosts(
        self, processes: Sequence[HostProcess], folder_syncs: Sequence[S3FolderSync]
    ) -> HostsResult:
        """Log the output of running hosts and sync their folders with S3 until the last host has ended. A
        sync uploads the changes of a folder, such as /opt/ml/checkpoints, while the programs run."""
        self._output_logger.start({process.host.name: process.output_fd for process in processes})
        for sync in folder_syncs:
            sync.start()

        def stop_uploads_from(host_name: str) -> None:
            for sync in folder_syncs:
                sync.mark_host_lost(host_name)

        injected_faults = self._injected_faults
        if not self._spec.is_spot:  # SageMaker interrupts spot instances only
            injected_faults = replace(injected_faults, interruption_seconds=None)

        monitor = HostMonitor(
            processes=processes,
            job_control=self._job_control,
            settings=self._services.settings,
            max_runtime_deadline=self._max_runtime_deadline(),
            injected_faults=injected_faults,
            add_exit_hint=self._add_image_hint,  # says why a program may be missing: images may not run here
            log_to_host=self._output_logger.log_to_host,
            mark_host_lost=stop_uploads_from,
            reads_failure_file=self._job_handler.reads_failure_file,  # training jobs have a failure file
        )
        try:
            reports = monitor.run()
        finally:
            for sync in folder_syncs:
                sync.finish()  # uploads what has changed since its last pass
                sync.save_failed_uploads()  # moves files that could not be uploaded to a folder of their own
                self._failed_upload_folders += sync.failed_upload_folder_by_host.values()
        return HostsResult(reports, monitor.is_spot_interrupted, monitor.lost_host_names)

    def _prepare_hosts(self, allocation: Allocation) -> tuple[list[Program], list[S3FolderSync], PipeFeeder]:
        """Create the files and input channels of the hosts. Return one program per host, the syncs that
        upload the hosts' directories while the programs run, and the feeder that writes channels in Pipe mode
        to FIFOs. ``allocation.info`` says what hosts of this executor can do; the job handler does what
        differs between training and processing jobs."""
        spec, settings, hosts = self._spec, self._services.settings, allocation.hosts
        for host in hosts:
            self._job_handler.write_host_files(hosts, host)
        allocation_info = allocation.info
        prepared_channels = channel_data.prepare_channels(
            spec,
            hosts,
            self._services.object_store,
            settings,
            can_mount=allocation_info.can_mount,
            raise_if_stopping=self._job_control.raise_if_stopping,
            can_mount_writable=allocation_info.can_mount_writable,
        )
        pipe_feeder = PipeFeeder(
            prepared_channels.pipe_feeds, self._services.object_store, self._job_control.abort
        )
        folder_syncs = self._job_handler.create_syncs(
            hosts, self._handler_context, self._job_control.raise_if_stopping
        )
        # Synced directories outside /opt/ml, the hosts' own directory, have to be mounted.
        for host in hosts:
            prepared_channels.mounts_by_host[host.name].extend(
                mount for sync in folder_syncs for mount in sync.mounts_for_host(host)
            )
        environment = contract_files.host_environment(
            spec,
            executor_variables=allocation_info.environment,
            inherited_names=settings.inherit_environment,
            credentials=self._services.credentials if allocation_info.can_reach_endpoint else {},
            endpoint_environment=os.environ,
            uses_endpoint_python=self._services.executor.uses_endpoint_python,
        )
        programs = [
            Program(
                argv=spec.command,
                environment=environment,
                mounts=tuple(prepared_channels.mounts_by_host[host.name]),
                directory=self._job_handler.working_directory,
                entrypoint=spec.entrypoint,
                arguments=spec.arguments,
            )
            for host in hosts
        ]
        return programs, folder_syncs, pipe_feeder

    def _list_differences(self) -> list[str]:
        """Return what differs from SageMaker for this job, as lines for the top of the first host's log."""
        executor = self._services.executor
        field_notes = [
            f"{field_path}: {note}"
            for field_path, note in self._job_handler.recorded_fields(executor.runs_images).items()
        ]
        if executor.runs_images:
            return field_notes  # the allocation's notes name the image
        command = " ".join(self._spec.command) if self._spec.has_entrypoint else "`train`, from the PATH,"
        python = "this machine's Python" if executor.uses_endpoint_python else "the hosts' Python"
        hosts_text = executor.describe_isolation(executor.isolation)
        if executor.takes_isolation:
            hosts_text = f"{executor.name}, {hosts_text}"
        image_note = (
            f"image {self._spec.image or '(none)'} is not run: {command} runs on {python} ({hosts_text})"
        )
        return [image_note, *field_notes]

    def _create_output_buckets(self) -> list[str]:
        """Create the missing S3 buckets of the job's output, if the setting ``make_buckets`` allows it.
        Return a line for the job's log about each new bucket. Raises UploadError."""
        if not self._services.settings.make_buckets:
            return []
        created_buckets: list[str] = []
        for bucket in sorted({location.bucket for location in self._spec.output_locations}):
            try:
                is_new = self._services.object_store.create_bucket(bucket)
                if is_new:
                    created_buckets.append(bucket)
            except ApiError as error:
                raise artifact_upload.UploadError(f"{error.message} (bucket {bucket!r})") from None
        return [
            f"bucket {bucket} was not there and has been made; SageMaker would fail"
            for bucket in created_buckets
        ]

    def _add_image_hint(self, host_exit: HostExit) -> HostExit:
        """Add a hint to the exit of a host whose program would have come from the training image."""
        if (
            host_exit.kind != "not_started"
            or self._spec.has_entrypoint
            or self._services.executor.runs_images
        ):
            return host_exit
        hint = (
            "this endpoint does not run images: take the executor `containers`, give ContainerEntrypoint, or "
            "have `train` on the PATH"
        )
        return replace(host_exit, message=f"{host_exit.message} ({hint})")

    def _max_runtime_deadline(self) -> float:
        """Return the time on the monotonic clock at which MaxRuntimeInSeconds is over. It covers all
        attempts together (API model)."""
        counted_statuses = {"Training"}
        if self._services.settings.max_runtime_from == "Downloading":
            counted_statuses.add("Downloading")
        used_seconds = self._job_control.state.seconds_in_statuses(frozenset(counted_statuses), time.time())
        return time.monotonic() + self._spec.max_runtime_seconds - used_seconds
