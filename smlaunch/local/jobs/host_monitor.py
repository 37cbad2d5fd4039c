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

from smlaunch.contract.sagemaker_paths import Paths
from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors.executor_interface import HostExit, HostProcess, JobHost
from smlaunch.local.fault_injection import AttemptFaults
from smlaunch.local.jobs import job_state
from smlaunch.local.jobs.failure_reasons import HostReport
from smlaunch.local.jobs.job_control import MAX_POLL_SECONDS, JobControl
from smlaunch.local.untrusted_files import error_text, read_beginning

_MAX_FAILURE_FILE_BYTES = 4 * job_state.MAX_REASON_CHARACTERS
"""A character has four bytes at most."""


@dataclass
class HostMonitor:
    """Monitors the hosts of one attempt."""

    processes: Sequence[HostProcess]
    job_control: JobControl
    """The state of the job, with the requests to stop it."""
    settings: Settings
    max_runtime_deadline: float
    """Time on the monotonic clock at which MaxRuntime is over."""
    injected_faults: AttemptFaults
    add_exit_hint: Callable[[HostExit], HostExit]
    """May add a hint to the message of a host's exit."""
    log_to_host: Callable[[str, str], None]
    """Writes a line, given as (host_name, text), to a host's log."""
    mark_host_lost: Callable[[str], None]
    """Called when the fault plan removes a host with its disk."""
    reads_failure_file: bool = True
    """Whether a host's output/failure gives the reason of its failure."""
    is_spot_interrupted: bool = False
    """After ``run``: whether a spot interruption took the hosts away."""
    _host_reports: list[HostReport] = field(default_factory=list)
    _sigterm_was_sent: bool = False
    _sigkill_time: float | None = None
    """Time on the monotonic clock at which hosts that still run get SIGKILL; None before they must stop."""
    lost_host_names: set[str] = field(default_factory=set)
    """After ``run``: names of the hosts that the fault plan removed."""

    def run(self) -> list[HostReport]:
        """Monitor the hosts until the last one has ended, and return how each ended, in the order of their
        ends. When one fails, the others are stopped. Injects the faults of the fault plan: a spot
        interruption, and hosts that are lost."""
        self._running_process_by_host = {process.host.name: process for process in self.processes}
        self._spot_interruption_time, self._planned_loss_time_by_host = self._schedule_faults()
        with selectors.DefaultSelector() as selector:
            # The other entries have a host's process as their data; this one, a pipe, has None.
            selector.register(self.job_control.wakeup_read_fd, selectors.EVENT_READ, None)
            for process in self.processes:
                selector.register(process.events_fd, selectors.EVENT_READ, process)
            while self._running_process_by_host:
                for selector_key, _ in selector.select(self._seconds_until_deadline()):
                    host_process: HostProcess | None = selector_key.data
                    if host_process is None:
                        self.job_control.clear_wakeup()  # another thread has changed the job's state
                        continue
                    host_exit = host_process.read_exit()  # None: the host still runs
                    if host_exit is not None:
                        selector.unregister(selector_key.fd)
                        self._record_host_end(host_process, host_exit)
                self._enforce_deadlines(time.monotonic())
        return self._host_reports

    def _schedule_faults(self) -> tuple[float | None, dict[str, float]]:
        """Return the time of the spot interruption, if there is one, and the times at which hosts are lost,
        by the hosts' names."""
        now = time.monotonic()
        interruption_seconds = self.injected_faults.interruption_seconds
        loss_time_by_host = {
            host_name: now + loss_seconds
            for host_name_pattern, loss_seconds in self.injected_faults.lost_hosts
            for host_name in self._running_process_by_host
            if fnmatchcase(host_name, host_name_pattern)
        }
        interruption_time = None if interruption_seconds is None else now + interruption_seconds
        return interruption_time, loss_time_by_host

    def _seconds_until_deadline(self) -> float | None:
        """Return the seconds until the next deadline of the hosts, all on the monotonic clock; None if
        there is none."""
        deadlines = [self._sigkill_time, *self._planned_loss_time_by_host.values()]
        if not self._sigterm_was_sent:
            deadlines += [
                self.max_runtime_deadline,
                self.job_control.max_wait_deadline,
                self._spot_interruption_time,
            ]
        set_deadlines = [deadline for deadline in deadlines if deadline is not None]
        if not set_deadlines:
            return None
        return min(max(0.0, min(set_deadlines) - time.monotonic()), MAX_POLL_SECONDS)

    def _enforce_deadlines(self, now: float) -> None:
        """Do what is due at the time ``now`` (monotonic clock, seconds): kill the hosts that the fault
        plan (fault injection) removes, begin its spot interruption, stop the job whose time limit is over,
        send SIGTERM to hosts that must stop, and SIGKILL when their grace period is over."""
        self._kill_hosts_of_fault_plan(now)
        if not self._sigterm_was_sent:  # hosts that end already need no further reason to stop
            self._request_stop_at_time_limit(now)
        self._begin_due_spot_interruption(now)
        grace_seconds = self._find_grace_seconds()
        if grace_seconds is not None:  # None: the hosts need not stop
            self._send_sigterm_or_advance_sigkill(sigkill_time=now + grace_seconds)
        if self._sigkill_time is not None and now >= self._sigkill_time:
            self._sigkill_time = None
            for host_name, process in self._running_process_by_host.items():
                if self.is_spot_interrupted:
                    self.mark_host_lost(host_name)  # the machine is taken away: nothing more reaches S3
                process.kill()

    def _request_stop_at_time_limit(self, now: float) -> None:
        """Ask the job to stop if MaxWaitTimeInSeconds or MaxRuntimeInSeconds is over at the time ``now``
        (monotonic clock)."""
        max_wait_deadline = self.job_control.max_wait_deadline  # None: no limit
        if max_wait_deadline is not None and now >= max_wait_deadline:
            self.job_control.request_stop("max_wait")
        elif now >= self.max_runtime_deadline:
            self.job_control.request_stop("max_runtime")

    def _kill_hosts_of_fault_plan(self, now: float) -> None:
        """Kill the hosts that the fault plan removes by the time ``now`` (monotonic clock)."""
        due_host_names = [
            host_name for host_name, loss_time in self._planned_loss_time_by_host.items() if now >= loss_time
        ]
        for host_name in due_host_names:
            del self._planned_loss_time_by_host[host_name]
            if host_name in self._running_process_by_host:
                self.lost_host_names.add(host_name)
                self.mark_host_lost(host_name)
                self._running_process_by_host[host_name].kill()

    def _send_sigterm_or_advance_sigkill(self, sigkill_time: float) -> None:
        """Send SIGTERM to all hosts, if they have not had it, and set the time (monotonic clock) at which
        those that still run get SIGKILL. Further calls may only bring that time forward."""
        if not self._sigterm_was_sent:
            self._sigterm_was_sent = True
            self._sigkill_time = sigkill_time
            for process in self._running_process_by_host.values():
                process.terminate()
        elif self._sigkill_time is not None:  # None: SIGKILL was sent
            # A second request may have a shorter grace period: the earlier deadline counts.
            self._sigkill_time = min(self._sigkill_time, sigkill_time)

    @property
    def _has_failed(self) -> bool:
        """Whether a host has failed, or a Pipe mode feed has aborted the job."""
        has_failed_host = any(report.host_exit.code != 0 for report in self._host_reports)
        return has_failed_host or self.job_control.abort_error is not None

    def _begin_due_spot_interruption(self, now: float) -> None:
        """Begin the spot interruption of the fault plan if it is due at the time ``now`` (monotonic clock).
        A job that is stopping or has failed is not interrupted any more."""
        if self._spot_interruption_time is None or now < self._spot_interruption_time:
            return
        if not self.job_control.is_stopping and not self._has_failed:
            self.is_spot_interrupted = True

    def _find_grace_seconds(self) -> float | None:
        """Return the seconds between SIGTERM and SIGKILL for the hosts; None if they need not stop. Of
        several causes to stop, a request comes first: its grace period is the caller's choice."""
        if self.job_control.is_stopping:
            return self.job_control.grace_seconds
        if self.is_spot_interrupted:
            return self.settings.spot_notice_seconds
        if self._has_failed:
            return self.settings.failed_peer_grace_seconds
        return None

    def _record_host_end(self, process: HostProcess, host_exit: HostExit) -> None:
        """Record the end of a host."""
        host_name = process.host.name
        del self._running_process_by_host[host_name]
        if host_name in self.lost_host_names:
            host_exit = HostExit(host_exit.code, "lost", f"host {host_name} was lost, as the fault plan says")
            self._host_reports.append(HostReport(host_name, host_exit, time.time(), self._sigterm_was_sent))
            return
        self._host_reports.append(self._create_host_report(process.host, self.add_exit_hint(host_exit)))

    def _create_host_report(self, host: JobHost, host_exit: HostExit) -> HostReport:
        """Return how a host ended, with the text of /opt/ml/output/failure if its program wrote that file
        (``reads_failure_file``: whether it counts for this kind of job). If the file is unreadable, the log
        says so, and the report too unless it has another explanation of the exit."""
        report = HostReport(
            host.name, host_exit, ended_at=time.time(), was_asked_to_stop=self._sigterm_was_sent
        )
        if not self.reads_failure_file:
            return report
        failure_file_path = Paths().failure_file  # as the program sees it: /opt/ml/output/failure
        try:
            # read_beginning follows no symbolic links; the time is that of the last modification.
            failure_bytes, failure_file_time = read_beginning(
                host.opt_ml_folder, os.path.relpath(failure_file_path, Paths().root), _MAX_FAILURE_FILE_BYTES
            )
        except FileNotFoundError:
            return report
        except OSError as error:  # unreadable, a directory, a link, ...
            read_problem = f"{failure_file_path} is not read: {error_text(error)}"
            self.log_to_host(host.name, read_problem)
            is_exit_explained = bool(host_exit.code == 0 or host_exit.message or host_exit.signal)
            if is_exit_explained:
                return report
            return replace(report, host_exit=replace(host_exit, message=read_problem))
        failure_file_text = failure_bytes.decode("utf-8", "replace")[: job_state.MAX_REASON_CHARACTERS]
        return replace(report, failure_file_text=failure_file_text, failure_file_time=failure_file_time)
