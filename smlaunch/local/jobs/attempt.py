"""One attempt at a job: hosts had, data in, programs run, output out. A job may need several."""

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
from smlaunch.local.jobs.control import JobControl, Stopping
from smlaunch.local.jobs.failure_reasons import INTERNAL, HostReport, failure_reason, machines_own
from smlaunch.local.jobs.host_monitor import HostMonitor
from smlaunch.local.jobs.job_kind import Outcome, Tools, Work
from smlaunch.local.jobs.listing import DataError
from smlaunch.local.jobs.metrics import MetricReader
from smlaunch.local.jobs.output import OutputPump
from smlaunch.local.jobs.pipes import Pipes
from smlaunch.local.jobs.stores import Logs, Metrics, Objects
from smlaunch.local.object_files import TornObject
from smlaunch.local.settings import Settings


@dataclass(frozen=True)
class Rooms:
    """What every job of an endpoint shares. ``credentials``: variables by which a script reaches it.
    ``recover_others``: Executor.recover of executors that earlier endpoints may have had. ``home``: the state
    directory."""

    store: JobStore
    objects: Objects
    logs: Logs
    metrics: Metrics
    executor: Executor
    settings: Settings
    credentials: Mapping[str, str]
    recover_others: Callable[[str], object] = lambda owner: None
    home: Path = Path()


class Attempt:
    """``run`` never raises; ``close`` gives the hosts back."""

    def __init__(
        self,
        work: Work,
        rooms: Rooms,
        control: JobControl,
        faults: AttemptFaults,
        reader: MetricReader,
    ) -> None:
        self._work = work
        self._spec = spec = work.spec
        self._rooms = rooms
        self._control = control
        self._faults = faults
        self._reader = reader
        self._allocation: Allocation | None = None
        self._unsaved_files: list[Path] = []
        labels = [host.label for host in spec.hosts]
        self._output = OutputPump(
            spec.name, labels, rooms.logs, reader.feed if spec.metrics else None, work.log_group
        )
        self._tools = Tools(rooms.objects, rooms.settings, self._output.note)

    def run(self) -> Outcome:
        try:
            outcome = self._run()
        except Stopping:
            outcome = Outcome()  # nothing had been started: there is nothing to upload either
        except (DataError, artifacts.UploadError, ImageProblem) as error:
            outcome = Outcome(f"ClientError: {error}")
        except TornObject as error:
            outcome = Outcome(f"ClientError: Data download failed:{error.message}")
        except CannotAllocate as error:
            outcome = Outcome(f"CapacityError: Unable to provision requested ML compute capacity: {error}")
        except Exception as error:
            # The endpoint's own fault: the job must say so, and the endpoint must go on.
            traceback.print_exc()
            outcome = Outcome(f"{INTERNAL}{type(error).__name__}: {error}")
        self._output.finish()
        reason = machines_own(outcome.reason, self._rooms.home)
        if reason is not None and self._unsaved_files:
            reason += f"; files that could not be stored: {', '.join(map(str, self._unsaved_files))}"
        return replace(outcome, reason=reason)

    def close(self) -> None:
        try:
            if self._allocation is not None:
                self._allocation.release()
        finally:
            self._output.close()

    def _run(self) -> Outcome:
        spec = self._spec
        # Names are unique per region only, and two regions' jobs may run at once.
        self._allocation = allocation = self._rooms.executor.allocate(
            f"{spec.name}.{spec.region}",
            [host.label for host in spec.hosts],
            spec.isolated_network,
            spec.image,
            self._control.check,
        )
        reports, interrupted, lost = self._train(allocation)
        stopping = self._control.is_stopping
        if interrupted and not stopping:
            for place in allocation.places:
                self._output.note(
                    place.label, "spot interruption, as the fault plan says: this host is taken away"
                )
            return Outcome(interrupted=True)
        reason = None if stopping else failure_reason(reports)
        if reason is None:
            self._control.upload()
        places = [place for place in allocation.places if place.label not in lost]
        return self._work.finish(places, self._tools, reason, stopping) if places else Outcome(reason)

    def _train(self, allocation: Allocation) -> tuple[list[HostReport], bool, Collection[str]]:
        """Data in, hosts up, until the last host has ended and its checkpoints are safe. Also whether the
        hosts were taken away, and which of them were lost by the fault plan."""
        self._control.go("Downloading")
        places = allocation.places
        for line in (*self._remarks(), *self._create_buckets(), *allocation.offer.notes):
            self._output.note(places[0].label, line)
        programs, syncs, pipes = self._prepare(allocation)
        self._control.go("Training")
        try:
            pipes.start()
            reports, interrupted, lost = self._follow(allocation.start(programs), syncs)
        finally:
            pipes.finish()
        if self._control.broken is not None and not self._control.is_stopping:
            raise self._control.broken
        return reports, interrupted, lost

    def _follow(
        self, hosts: Sequence[HostProcess], syncs: Sequence[CheckpointSync]
    ) -> tuple[list[HostReport], bool, Collection[str]]:
        self._output.start({host.place.label: host.output for host in hosts})
        for sync in syncs:
            sync.start()

        def lose(label: str) -> None:
            for sync in syncs:
                sync.lose(label)

        watch = HostMonitor(
            hosts,
            self._control,
            self._rooms.settings,
            self._runtime_end(),
            self._faults if self._spec.spot else replace(self._faults, interruption_seconds=None),
            self._explained,
            self._output.note,
            lose,
            self._work.failure_file,
        )
        try:
            reports = watch.run()
        finally:
            for sync in syncs:
                sync.finish()
                sync.keep()
                self._unsaved_files += sync.unsaved_files.values()
        return reports, watch.interrupted, watch.lost

    def _prepare(self, allocation: Allocation) -> tuple[list[Program], list[CheckpointSync], Pipes]:
        spec, settings, places = self._spec, self._rooms.settings, allocation.places
        for place in places:
            self._work.lay_out(places, place)
        offer = allocation.offer
        data = channels.prepare(
            spec,
            places,
            self._rooms.objects,
            settings,
            offer.views,
            self._control.check,
            offer.writable_views,
        )
        pipes = Pipes(data.feeds, self._rooms.objects, self._control.break_off)
        syncs = self._work.synced(places, self._tools, self._control.check)
        for place in places:
            data.views[place.label].extend(view for sync in syncs for view in sync.views(place))
        environment = contract.environment(
            spec,
            offer.environment,
            settings.inherit_environment,
            self._rooms.credentials if offer.reaches_endpoint else {},
            os.environ,
            self._rooms.executor.runs_images,
        )
        programs = [
            Program(
                spec.command,
                environment,
                tuple(data.views[place.label]),
                self._work.directory,
                spec.entrypoint,
                spec.arguments,
            )
            for place in places
        ]
        return programs, syncs, pipes

    def _remarks(self) -> list[str]:
        """What differs from SageMaker for this very job, said once at the top of the first host's log."""
        executor = self._rooms.executor
        remarks = [
            f"{path}: {sentence}"
            for path, sentence in self._work.recorded_fields(executor.runs_images).items()
        ]
        if executor.runs_images:
            return remarks  # which image runs is among the allocation's own notes
        words = " ".join(self._spec.command)
        instead = words if self._spec.given_entrypoint else "`train`, from the PATH,"
        remark = (
            f"image {self._spec.image or '(none)'} is not run: {instead} runs on this machine's Python "
            f"({executor.name}, isolation {executor.isolation})"
        )
        return [remark, *remarks]

    def _create_buckets(self) -> list[str]:
        if not self._rooms.settings.make_buckets:
            return []
        created = []
        for bucket in sorted({place.bucket for place in self._spec.written}):
            try:
                if self._rooms.objects.create_bucket(bucket):
                    created.append(bucket)
            except ApiError as error:
                raise artifacts.UploadError(f"{error.message} (bucket {bucket!r})") from None
        return [
            f"bucket {bucket} was not there and has been made; SageMaker would fail" for bucket in created
        ]

    def _explained(self, ended: HostExit) -> HostExit:
        """Adds what to do where a training image would have brought the program."""
        if ended.how != "not_started" or self._spec.given_entrypoint or self._rooms.executor.runs_images:
            return ended
        hint = (
            "this endpoint does not run images: take the executor `containers`, give ContainerEntrypoint, or "
            "have `train` on the PATH"
        )
        return replace(ended, message=f"{ended.message} ({hint})")

    def _runtime_end(self) -> float:
        """On the monotonic clock. MaxRuntimeInSeconds covers all attempts together (API model)."""
        counted = {"Training"}
        if self._rooms.settings.max_runtime_from == "Downloading":
            counted.add("Downloading")
        used = self._control.state.seconds_in(frozenset(counted), time.time())
        return time.monotonic() + self._spec.max_runtime - used
