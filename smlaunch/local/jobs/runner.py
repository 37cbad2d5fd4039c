"""One training job from Starting to its end: the thin shell around states.py. One thread per job.

It waits on events only: hosts that end, a request to stop, and the next deadline.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smlaunch.local import honesty
from smlaunch.local.executors.base import Allocation, CannotAllocate, Executor, HostExit, HostProcess, Program
from smlaunch.local.jobs import artifacts, channels, contract, states
from smlaunch.local.jobs.checkpoints import CheckpointSync
from smlaunch.local.jobs.output import OutputPump
from smlaunch.local.jobs.ports import Logs, Objects
from smlaunch.local.jobs.spec import TrainingSpec, read_request
from smlaunch.local.jobs.states import JobState, StopCause
from smlaunch.local.jobs.verdict import HostReport, failure_reason
from smlaunch.local.settings import Settings
from smlaunch.local.store import JobRecord, JobStore
from smlaunch.protocol.paths import Paths


@dataclass(frozen=True)
class Rooms:
    """What every job of an endpoint shares. ``credentials``: variables by which a script reaches it."""

    store: JobStore
    objects: Objects
    logs: Logs
    executor: Executor
    settings: Settings
    credentials: Mapping[str, str]


class _Stopping(Exception):
    """The job was asked to stop; unwinds what was being prepared."""


class JobRunner:
    """``ended`` is called in the job's thread when all is over and nothing of the job is left."""

    def __init__(self, record: JobRecord, rooms: Rooms, ended: Callable[[JobRunner], None]) -> None:
        self.arn = record.arn
        self._request = record.request
        self._spec: TrainingSpec = read_request(record.request, record.arn, record.region)
        self._rooms = rooms
        self._ended = ended
        self._state = record.state
        self._lock = threading.Lock()
        self._woken, self._waker = os.pipe()
        self._grace = rooms.settings.stop_grace_seconds
        self._thread = threading.Thread(target=self._run, name=f"job {record.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def stop(self, cause: StopCause, message: str | None = None, grace: float | None = None) -> JobState:
        """Asks the job to stop; its hosts get SIGTERM, and SIGKILL after ``grace`` seconds (default: the
        setting). A job that has ended stays as it is."""
        with self._lock:
            if self._state.ended:
                return self._state
            if grace is not None:
                self._grace = min(grace, self._grace)
            stopping = states.stop(self._state, cause, time.time(), message)
            if stopping is not self._state:
                self._save(stopping)
            os.write(self._waker, b".")
            return self._state

    # The job's thread

    def _run(self) -> None:
        spec = self._spec
        output = OutputPump(spec.name, [host.label for host in spec.hosts], self._rooms.logs)
        allocation: Allocation | None = None
        reason = None
        result: dict[str, Any] = {}
        try:
            # Names are unique per region only, and two regions' jobs may run at once.
            allocation = self._rooms.executor.allocate(
                f"{spec.name}.{spec.region}", [host.label for host in spec.hosts], spec.isolated_network
            )
            reports, scratch = self._train(spec, allocation, output)
            reason = failure_reason(reports)
            if reason is None or self._is_stopping():
                reason = None  # a stopped job is Stopped, however its hosts left
                self._go("Uploading", even_stopping=True)
                address = artifacts.upload(
                    *(
                        spec,
                        allocation.places,
                        self._rooms.objects,
                        self._rooms.settings,
                        scratch,
                        output.note,
                    )
                )
                result["ModelArtifacts"] = {"S3ModelArtifacts": address}
        except _Stopping:
            pass  # nothing had been started: there is nothing to upload either
        except (channels.DataError, artifacts.UploadError) as error:
            reason = f"ClientError: {error}"
        except CannotAllocate as error:
            reason = f"CapacityError: Unable to provision requested ML compute capacity: {error}"
        except Exception as error:
            # The endpoint's own fault: the job must say so, and the endpoint must go on.
            traceback.print_exc()
            reason = f"InternalServerError: {type(error).__name__}: {error}"
        try:
            output.finish()
            self._end(reason, result)
            if allocation is not None:
                allocation.release()
        finally:
            with self._lock:
                os.close(self._waker)
                os.close(self._woken)
            self._ended(self)

    def _train(
        self, spec: TrainingSpec, allocation: Allocation, output: OutputPump
    ) -> tuple[list[HostReport], Path]:
        """Data in, hosts up, until the last host has ended and its checkpoints are safe."""
        settings = self._rooms.settings
        self._go("Downloading")
        places = allocation.places
        for line in (*self._remarks(), *self._made_buckets(), *allocation.offer.notes):
            output.note(places[0].label, line)
        for place in places:
            contract.lay_out(spec, places, place)
        views = channels.prepare(
            spec, places, self._rooms.objects, settings.sharding, allocation.offer.views, self._check
        )
        checkpoints = None
        if spec.checkpoints is not None:
            checkpoints = CheckpointSync(
                spec.checkpoints,
                spec.checkpoint_path,
                places,
                self._rooms.objects,
                settings.checkpoint_sync_seconds,
                output.note,
            )
            checkpoints.download(self._check)
        environment = contract.environment(
            spec,
            allocation.offer.environment,
            settings.inherit_environment,
            self._rooms.credentials,
            os.environ,
        )
        self._go("Training")
        hosts = allocation.start(
            [Program(spec.command, environment, tuple(views[place.label])) for place in places]
        )
        output.start({host.place.label: host.output for host in hosts})
        if checkpoints is not None:
            checkpoints.start()
        try:
            reports = self._watch(hosts)
        finally:
            if checkpoints is not None:
                checkpoints.finish()
        return reports, places[0].tree.parent

    def _remarks(self) -> list[str]:
        """What differs from SageMaker for this very job, said once at the top of the first host's log."""
        words = " ".join(self._spec.command)
        instead = words if self._spec.given_entrypoint else "`train`, from the PATH,"
        remarks = [
            f"image {self._spec.image or '(none)'} is not run: {instead} runs on this machine's Python "
            f"({self._rooms.executor.name}, isolation {self._rooms.executor.isolation})"
        ]
        told = honesty.without_effect(self._request)
        told.pop("AlgorithmSpecification.TrainingImage", None)
        return remarks + [f"{field}: {sentence}" for field, sentence in told.items()]

    def _made_buckets(self) -> list[str]:
        if not self._rooms.settings.make_buckets:
            return []
        wanted = {place.bucket for place in (self._spec.output, self._spec.checkpoints) if place is not None}
        made = [bucket for bucket in sorted(wanted) if self._rooms.objects.create_bucket(bucket)]
        return [f"bucket {bucket} was not there and has been made; SageMaker would fail" for bucket in made]

    def _watch(self, hosts: Sequence[HostProcess]) -> list[HostReport]:
        """Until all hosts have ended. The first that fails takes the others with it."""
        reports: list[HostReport] = []
        left = {host.place.label: host for host in hosts}
        runtime_end = self._runtime_end()
        told = False
        kill_at: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for host in hosts:
                selector.register(host.events, selectors.EVENT_READ, host)
            while left:
                deadlines = [at for at in (kill_at, None if told else runtime_end) if at is not None]
                timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
                for key, _ in selector.select(timeout):
                    if key.data is None:
                        os.read(self._woken, 4096)
                        continue
                    ended = key.data.read()
                    if ended is not None:
                        selector.unregister(key.fd)
                        del left[key.data.place.label]
                        reports.append(_report(key.data, self._explained(ended), told))
                now = time.monotonic()
                if not told and now >= runtime_end:
                    self.stop("max_runtime")
                grace = None
                if self._is_stopping():
                    grace = self._grace
                elif any(report.exit.code != 0 for report in reports):
                    grace = self._rooms.settings.failed_peer_grace_seconds
                if grace is not None and (not told or kill_at is not None):
                    # Asked again with less patience: the nearer deadline counts.
                    kill_at = now + grace if kill_at is None else min(kill_at, now + grace)
                    if not told:
                        told = True
                        for host in left.values():
                            host.terminate()
                if kill_at is not None and now >= kill_at:
                    kill_at = None
                    for host in left.values():
                        host.kill()
        return reports

    def _explained(self, ended: HostExit) -> HostExit:
        """Adds what to do where a training image would have brought the program."""
        if ended.how != "not_started" or self._spec.given_entrypoint:
            return ended
        hint = "this endpoint does not run images: give ContainerEntrypoint, or have `train` on the PATH"
        return replace(ended, message=f"{ended.message} ({hint})")

    def _runtime_end(self) -> float:
        """On the monotonic clock. ``max_runtime_from`` says from where it counts."""
        began = self._state.transitions[-1].start
        if self._rooms.settings.max_runtime_from == "Downloading":
            began = self._state.training_started or began
        return time.monotonic() + self._spec.max_runtime - max(0.0, time.time() - began)

    # The state: written under the lock, since stop() may come from any thread at any time

    def _go(self, secondary: str, even_stopping: bool = False) -> None:
        with self._lock:
            if self._state.stop_cause is not None:
                if even_stopping:
                    return
                raise _Stopping
            self._save(states.move(self._state, secondary, time.time()))

    def _end(self, reason: str | None, result: Mapping[str, Any]) -> None:
        with self._lock:
            now = time.time()
            ended = (
                states.finish(self._state, now) if reason is None else states.fail(self._state, reason, now)
            )
            self._save(ended, result)

    def _save(self, state: JobState, result: Mapping[str, Any] | None = None) -> None:
        self._rooms.store.save(self.arn, state, result)
        self._state = state

    def _is_stopping(self) -> bool:
        with self._lock:
            return self._state.stop_cause is not None

    def _check(self) -> None:
        if self._is_stopping():
            raise _Stopping


def _report(host: HostProcess, ended: HostExit, told: bool) -> HostReport:
    """With the failure file, when the host's program wrote one."""
    path = Path(Paths(str(host.place.tree)).failure)
    now = time.time()
    try:
        text = path.read_text("utf-8", "replace")[: states.REASON_LIMIT]
        written = path.stat().st_mtime
    except OSError:
        return HostReport(host.place.label, ended, now, told)
    return HostReport(host.place.label, ended, now, told, text, written)
