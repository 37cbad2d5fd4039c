"""One attempt at a job: allocate hosts, provide the data, run the programs, upload the output."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from smlaunch.local.api_errors import ApiError
from smlaunch.local.executors.base import (
    Allocation,
    CannotAllocate,
    Executor,
    HostExit,
    HostProcess,
    ImageProblem,
    Program,
)
from smlaunch.local.faults import AttemptFaults
from smlaunch.local.job_store import JobStore
from smlaunch.local.jobs import artifacts, channels, contract
from smlaunch.local.jobs.checkpoints import CheckpointSync
from smlaunch.local.jobs.control import JobControl, JobStopping
from smlaunch.local.jobs.failure_reasons import INTERNAL, HostReport, failure_reason, with_disk_full_message
from smlaunch.local.jobs.host_monitor import HostMonitor
from smlaunch.local.jobs.job_kind import AttemptOutcome, HandlerContext, JobHandler
from smlaunch.local.jobs.listing import DataError
from smlaunch.local.jobs.metrics import MetricReader
from smlaunch.local.jobs.output import OutputPump
from smlaunch.local.jobs.pipes import Pipes
from smlaunch.local.jobs.stores import Logs, Metrics, Objects
from smlaunch.local.object_files import TornObject
from smlaunch.local.settings import Settings


@dataclass(frozen=True)
class EndpointServices:
    """What all jobs of an endpoint share."""

    job_store: JobStore
    objects: Objects
    logs: Logs
    metrics: Metrics
    executor: Executor
    settings: Settings
    credentials: Mapping[str, str]
    """Variables by which a script's AWS client reaches the endpoint."""
    remove_other_leftovers: Callable[[str], object] = lambda owner: None
    """Removes, for the id of a dead endpoint, what it left behind if it had another executor."""
    state_directory: Path = Path()
    """For messages only."""


class Attempt:
    """One attempt at a job. ``run`` never raises; ``close`` releases the hosts."""

    def __init__(
        self,
        handler: JobHandler,
        services: EndpointServices,
        control: JobControl,
        faults: AttemptFaults,
        metric_reader: MetricReader,
    ) -> None:
        self._handler = handler
        self._spec = spec = handler.spec
        self._services = services
        self._control = control
        self._faults = faults
        self._metric_reader = metric_reader
        self._allocation: Allocation | None = None
        self._unsaved_files: list[Path] = []
        host_names = [host.name for host in spec.hosts]
        self._output = OutputPump(
            spec.name,
            host_names,
            services.logs,
            metric_reader.read_lines if spec.metric_definitions else None,
            handler.log_group,
        )
        self._context = HandlerContext(services.objects, services.settings, self._output.write_note)

    def run(self) -> AttemptOutcome:
        """Run the attempt and return its outcome, also for an error."""
        try:
            outcome = self._run()
        except JobStopping:
            outcome = AttemptOutcome()  # no program was started: there is nothing to upload
        except (DataError, artifacts.UploadError, ImageProblem) as error:
            outcome = AttemptOutcome(f"ClientError: {error}")
        except TornObject as error:
            outcome = AttemptOutcome(f"ClientError: Data download failed:{error.message}")
        except CannotAllocate as error:
            outcome = AttemptOutcome(
                f"CapacityError: Unable to provision requested ML compute capacity: {error}"
            )
        except Exception as error:
            # An error of the endpoint itself: the job fails with it, and the endpoint goes on.
            traceback.print_exc()
            outcome = AttemptOutcome(f"{INTERNAL}{type(error).__name__}: {error}")
        self._output.finish()
        reason = with_disk_full_message(outcome.reason, self._services.state_directory)
        if reason is not None and self._unsaved_files:
            reason += f"; files that could not be stored: {', '.join(map(str, self._unsaved_files))}"
        return replace(outcome, reason=reason)

    def close(self) -> None:
        """Release the hosts and close their logs."""
        try:
            if self._allocation is not None:
                self._allocation.release()
        finally:
            self._output.close()

    def _run(self) -> AttemptOutcome:
        """Allocate hosts, run the programs on them and collect the results. Return how the attempt ended."""
        spec = self._spec
        # Names are unique per region only, and two regions' jobs may run at once.
        self._allocation = allocation = self._services.executor.allocate(
            f"{spec.name}.{spec.region}",
            [host.name for host in spec.hosts],
            spec.isolated_network,
            spec.image,
            self._control.raise_if_stopping,
        )
        reports, is_spot_interrupted, lost_host_names = self._run_programs(allocation)
        is_stopping = self._control.is_stopping
        if is_spot_interrupted and not is_stopping:
            for host in allocation.hosts:
                self._output.write_note(
                    host.name, "spot interruption, as the fault plan says: this host is taken away"
                )
            return AttemptOutcome(is_spot_interrupted=True)
        reason = None if is_stopping else failure_reason(reports)
        if reason is None:
            self._control.begin_upload()
        hosts = [host for host in allocation.hosts if host.name not in lost_host_names]
        return (
            self._handler.collect_results(hosts, self._context, reason, is_stopping)
            if hosts
            else AttemptOutcome(reason)
        )

    def _run_programs(self, allocation: Allocation) -> tuple[list[HostReport], bool, Collection[str]]:
        """Provide the data and run the programs until the last host has ended and its checkpoints are
        uploaded. Return the hosts' reports, whether a spot interruption took the hosts away, and the names
        of the hosts that the fault plan removed."""
        self._control.move_to("Downloading")
        hosts = allocation.hosts
        for line in (*self._job_notes(), *self._create_buckets(), *allocation.info.notes):
            self._output.write_note(hosts[0].name, line)
        programs, syncs, pipes = self._prepare(allocation)
        self._control.move_to("Training")
        try:
            pipes.start()
            reports, is_spot_interrupted, lost_host_names = self._monitor_hosts(
                allocation.start(programs), syncs
            )
        finally:
            pipes.finish()
        if self._control.abort_error is not None and not self._control.is_stopping:
            raise self._control.abort_error
        return reports, is_spot_interrupted, lost_host_names

    def _monitor_hosts(
        self, processes: Sequence[HostProcess], syncs: Sequence[CheckpointSync]
    ) -> tuple[list[HostReport], bool, Collection[str]]:
        """Monitor running hosts until the last one has ended; the result is that of ``_run_programs``."""
        self._output.start({process.host.name: process.output for process in processes})
        for sync in syncs:
            sync.start()

        def mark_lost(host_name: str) -> None:
            for sync in syncs:
                sync.mark_host_lost(host_name)

        monitor = HostMonitor(
            processes,
            self._control,
            self._services.settings,
            self._runtime_end(),
            self._faults if self._spec.is_spot else replace(self._faults, interruption_seconds=None),
            self._with_image_hint,
            self._output.write_note,
            mark_lost,
            self._handler.reads_failure_file,
        )
        try:
            reports = monitor.run()
        finally:
            for sync in syncs:
                sync.finish()
                sync.save_unsaved_files()
                self._unsaved_files += sync.saved_folder_by_host.values()
        return reports, monitor.is_spot_interrupted, monitor.lost_host_names

    def _prepare(self, allocation: Allocation) -> tuple[list[Program], list[CheckpointSync], Pipes]:
        """Lay out the hosts' trees. Return one program per host, the syncs, and the FIFOs of Pipe mode."""
        spec, settings, hosts = self._spec, self._services.settings, allocation.hosts
        for host in hosts:
            self._handler.write_host_files(hosts, host)
        info = allocation.info
        prepared = channels.prepare_channels(
            spec,
            hosts,
            self._services.objects,
            settings,
            info.mounts,
            self._control.raise_if_stopping,
            info.writable_mounts,
        )
        pipes = Pipes(prepared.feeds, self._services.objects, self._control.abort)
        syncs = self._handler.create_syncs(hosts, self._context, self._control.raise_if_stopping)
        for host in hosts:
            prepared.mounts[host.name].extend(mount for sync in syncs for mount in sync.mounts(host))
        environment = contract.environment(
            spec,
            info.environment,
            settings.inherit_environment,
            self._services.credentials if info.reaches_endpoint else {},
            os.environ,
            self._services.executor.runs_images,
        )
        programs = [
            Program(
                spec.command,
                environment,
                tuple(prepared.mounts[host.name]),
                self._handler.working_directory,
                spec.entrypoint,
                spec.arguments,
            )
            for host in hosts
        ]
        return programs, syncs, pipes

    def _job_notes(self) -> list[str]:
        """Return what differs from SageMaker for this job; the lines are printed at the top of the first
        host's log."""
        executor = self._services.executor
        notes = [
            f"{path}: {sentence}"
            for path, sentence in self._handler.recorded_fields(executor.runs_images).items()
        ]
        if executor.runs_images:
            return notes  # the allocation's notes name the image
        command = " ".join(self._spec.command) if self._spec.has_entrypoint else "`train`, from the PATH,"
        image_note = (
            f"image {self._spec.image or '(none)'} is not run: {command} runs on this machine's Python "
            f"({executor.name}, isolation {executor.isolation})"
        )
        return [image_note, *notes]

    def _create_buckets(self) -> list[str]:
        """Create the missing buckets of the job's output, if the settings allow it. Return a line for the
        log about each. Raises UploadError."""
        if not self._services.settings.make_buckets:
            return []
        created_buckets = []
        for bucket in sorted({host.bucket for host in self._spec.output_locations}):
            try:
                if self._services.objects.create_bucket(bucket):
                    created_buckets.append(bucket)
            except ApiError as error:
                raise artifacts.UploadError(f"{error.message} (bucket {bucket!r})") from None
        return [
            f"bucket {bucket} was not there and has been made; SageMaker would fail"
            for bucket in created_buckets
        ]

    def _with_image_hint(self, host_exit: HostExit) -> HostExit:
        """Add a hint to the exit of a host whose program would have come from the training image."""
        if host_exit.how != "not_started" or self._spec.has_entrypoint or self._services.executor.runs_images:
            return host_exit
        hint = (
            "this endpoint does not run images: take the executor `containers`, give ContainerEntrypoint, or "
            "have `train` on the PATH"
        )
        return replace(host_exit, message=f"{host_exit.message} ({hint})")

    def _runtime_end(self) -> float:
        """Return the time on the monotonic clock at which MaxRuntimeInSeconds is over. It covers all
        attempts together (API model)."""
        counted_statuses = {"Training"}
        if self._services.settings.max_runtime_from == "Downloading":
            counted_statuses.add("Downloading")
        used_seconds = self._control.state.seconds_in(frozenset(counted_statuses), time.time())
        return time.monotonic() + self._spec.max_runtime - used_seconds
