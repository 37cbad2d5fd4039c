"""Monitors the hosts of an attempt from their start to the end of the last one: stops them when one has
failed or a time limit is over, and kills those that do not stop.

Waits for events only: hosts that end, a request to stop, and the next deadline.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from smlaunch.contract.paths import Paths
from smlaunch.local.executors.base import HostExit, HostProcess, JobHost
from smlaunch.local.faults import AttemptFaults
from smlaunch.local.host_files import error_text, read_beginning
from smlaunch.local.jobs import states
from smlaunch.local.jobs.control import MAX_POLL_SECONDS, JobControl
from smlaunch.local.jobs.failure_reasons import HostReport
from smlaunch.local.settings import Settings

_MAX_FAILURE_FILE_BYTES = 4 * states.REASON_LIMIT
"""A character has four at most."""


@dataclass
class HostMonitor:
    """Monitors the hosts of one attempt."""

    processes: Sequence[HostProcess]
    job_control: JobControl
    """The state of the job, with the requests to stop it."""
    settings: Settings
    runtime_end: float
    """Time on the monotonic clock at which MaxRuntime is over."""
    faults: AttemptFaults
    add_hint: Callable[[HostExit], HostExit]
    """May add a hint to the message of a host's exit."""
    write_note: Callable[[str, str], None]
    """Writes a line, given as (host_name, text), to a host's log."""
    mark_host_lost: Callable[[str], None]
    """Called when the fault plan removes a host with its disk."""
    reads_failure_file: bool = True
    """Whether a host's output/failure gives the reason of its failure."""
    is_spot_interrupted: bool = False
    """After ``run``: whether a spot interruption took the hosts away."""
    _reports: list[HostReport] = field(default_factory=list)
    _stop_was_requested: bool = False
    _kill_time: float | None = None
    """Time on the monotonic clock at which hosts that still run get SIGKILL; None before they must stop."""
    lost_host_names: set[str] = field(default_factory=set)
    """After ``run``: names of the hosts that the fault plan removed."""

    def run(self) -> list[HostReport]:
        """Return how each host ended, in the order of their ends. When one fails, the others are stopped."""
        self._running_process_by_host = {process.host.name: process for process in self.processes}
        self._interruption_time, self._loss_time_by_host = self._read_fault_plan()
        with selectors.DefaultSelector() as selector:
            selector.register(self.job_control.wakeup_reader, selectors.EVENT_READ)
            for process in self.processes:
                selector.register(process.events, selectors.EVENT_READ, process)
            while self._running_process_by_host:
                for key, _ in selector.select(self._seconds_until_deadline()):
                    if key.data is None:
                        self.job_control.clear_wakeup()
                        continue
                    host_exit = key.data.read()
                    if host_exit is not None:
                        selector.unregister(key.fd)
                        self._on_host_end(key.data, host_exit)
                self._enforce_deadlines(time.monotonic())
        return self._reports

    def _read_fault_plan(self) -> tuple[float | None, dict[str, float]]:
        """Return the time of the spot interruption, if there is one, and the times at which hosts are lost,
        by the hosts' names."""
        now = time.monotonic()
        interruption_seconds = self.faults.interruption_seconds
        loss_time_by_host = {
            host_name: now + seconds
            for pattern, seconds in self.faults.lost_hosts
            for host_name in self._running_process_by_host
            if fnmatchcase(host_name, pattern)
        }
        interruption_time = None if interruption_seconds is None else now + interruption_seconds
        return interruption_time, loss_time_by_host

    def _seconds_until_deadline(self) -> float | None:
        """Return the seconds until the next deadline; None if there is none."""
        deadlines = [self._kill_time, *self._loss_time_by_host.values()]
        if not self._stop_was_requested:
            deadlines += [self.runtime_end, self.job_control.max_wait_end, self._interruption_time]
        times = [deadline for deadline in deadlines if deadline is not None]
        return min(max(0.0, min(times) - time.monotonic()), MAX_POLL_SECONDS) if times else None

    def _enforce_deadlines(self, now: float) -> None:
        """Do what is due at the time ``now`` (monotonic clock, seconds): kill the hosts that the fault plan
        removes, stop the job whose time limit is over, send SIGTERM to hosts that must stop, and SIGKILL when
        their grace period is over."""
        for host_name in [
            host_name for host_name, loss_time in self._loss_time_by_host.items() if now >= loss_time
        ]:
            del self._loss_time_by_host[host_name]
            if host_name in self._running_process_by_host:
                self.lost_host_names.add(host_name)
                self.mark_host_lost(host_name)
                self._running_process_by_host[host_name].kill()
        if not self._stop_was_requested:
            if self.job_control.max_wait_end is not None and now >= self.job_control.max_wait_end:
                self.job_control.stop("max_wait")
            elif now >= self.runtime_end:
                self.job_control.stop("max_runtime")
        grace_period = self._grace_period(now)
        if grace_period is not None and (not self._stop_was_requested or self._kill_time is not None):
            # A second request may have a shorter grace period: the earlier deadline counts.
            self._kill_time = (
                now + grace_period if self._kill_time is None else min(self._kill_time, now + grace_period)
            )
            if not self._stop_was_requested:
                self._stop_was_requested = True
                for process in self._running_process_by_host.values():
                    process.terminate()
        if self._kill_time is not None and now >= self._kill_time:
            self._kill_time = None
            for host_name, process in self._running_process_by_host.items():
                if self.is_spot_interrupted:
                    self.mark_host_lost(host_name)  # the interruption notice is over
                process.kill()

    def _grace_period(self, now: float) -> float | None:
        """Return the seconds that the hosts have, from ``now``, between SIGTERM and SIGKILL; None if they
        need not stop."""
        if self.job_control.is_stopping:
            return self.job_control.grace
        if self.is_spot_interrupted:
            return self.settings.spot_notice_seconds
        if self.job_control.abort_error or any(report.exit.code != 0 for report in self._reports):
            return self.settings.failed_peer_grace_seconds
        if self._interruption_time is not None and now >= self._interruption_time:
            self.is_spot_interrupted = True
            return self.settings.spot_notice_seconds
        return None

    def _on_host_end(self, process: HostProcess, host_exit: HostExit) -> None:
        """Record the end of a host."""
        host_name = process.host.name
        del self._running_process_by_host[host_name]
        if host_name in self.lost_host_names:
            host_exit = HostExit(host_exit.code, "lost", f"host {host_name} was lost, as the fault plan says")
            self._reports.append(HostReport(host_name, host_exit, time.time(), self._stop_was_requested))
            return
        self._reports.append(self._create_report(process.host, self.add_hint(host_exit)))

    def _create_report(self, host: JobHost, host_exit: HostExit) -> HostReport:
        """Return a host's report, with its failure file if its program wrote one."""
        report = HostReport(host.name, host_exit, time.time(), self._stop_was_requested)
        if not self.reads_failure_file:
            return report
        path = Paths().failure_file
        try:
            text, failure_time = read_beginning(
                host.tree, os.path.relpath(path, Paths().root), _MAX_FAILURE_FILE_BYTES
            )
        except FileNotFoundError:
            return report
        except OSError as error:
            read_problem = f"{path} is not read: {error_text(error)}"
            self.write_note(host.name, read_problem)
            has_reason = host_exit.code == 0 or host_exit.message or host_exit.signal
            return report if has_reason else replace(report, exit=replace(host_exit, message=read_problem))
        failure = text.decode("utf-8", "replace")[: states.REASON_LIMIT]
        return replace(report, failure=failure, failure_time=failure_time)
