"""Hosts from their start to the end of the last one: who failed, who is told to leave, when patience ends.

Waits on events only: hosts that end, a request to stop, and the next deadline.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from smlaunch.contract.paths import Paths
from smlaunch.local.executors.base import HostExit, HostProcess, Place
from smlaunch.local.faults import AttemptFaults
from smlaunch.local.host_files import error_text, read_beginning
from smlaunch.local.jobs import states
from smlaunch.local.jobs.control import LONGEST_WAIT, JobControl
from smlaunch.local.jobs.failure_reasons import HostReport
from smlaunch.local.settings import Settings

_FAILURE_BYTES = 4 * states.REASON_LIMIT
"""A character has four at most."""


@dataclass
class HostMonitor:
    """``runtime_end``: when MaxRuntime is over, on the monotonic clock. ``explain`` may add to how a host
    ended. ``note(label, text)``: for a host's log. ``lose(label)``: the fault plan takes that host away, with
    its disk. ``failure_file``: whether what a host leaves in output/failure is its word on why it failed.
    After ``run``, ``interrupted`` says that the hosts were taken away (managed spot), and ``lost`` which were
    lost by the plan."""

    hosts: Sequence[HostProcess]
    control: JobControl
    settings: Settings
    runtime_end: float
    faults: AttemptFaults
    explain: Callable[[HostExit], HostExit]
    note: Callable[[str, str], None]
    lose: Callable[[str], None]
    failure_file: bool = True
    interrupted: bool = False
    _reports: list[HostReport] = field(default_factory=list)
    _stop_requested: bool = False
    _kill_at: float | None = None
    lost: set[str] = field(default_factory=set)

    def run(self) -> list[HostReport]:
        """How each host ended, in that order. The first that fails takes the others with it."""
        self._running_hosts = {host.place.label: host for host in self.hosts}
        self._interrupt_at, self._losses = self._planned()
        with selectors.DefaultSelector() as selector:
            selector.register(self.control.woken, selectors.EVENT_READ)
            for host in self.hosts:
                selector.register(host.events, selectors.EVENT_READ, host)
            while self._running_hosts:
                for key, _ in selector.select(self._timeout()):
                    if key.data is None:
                        self.control.drain()
                        continue
                    ended = key.data.read()
                    if ended is not None:
                        selector.unregister(key.fd)
                        self._ended(key.data, ended)
                self._act(time.monotonic())
        return self._reports

    def _planned(self) -> tuple[float | None, dict[str, float]]:
        now = time.monotonic()
        after = self.faults.interruption_seconds
        losses = {
            label: now + after
            for pattern, after in self.faults.lost_hosts
            for label in self._running_hosts
            if fnmatchcase(label, pattern)
        }
        return None if after is None else now + after, losses

    def _timeout(self) -> float | None:
        deadlines = [self._kill_at, *self._losses.values()]
        if not self._stop_requested:
            deadlines += [self.runtime_end, self.control.wait_end, self._interrupt_at]
        known = [at for at in deadlines if at is not None]
        return min(max(0.0, min(known) - time.monotonic()), LONGEST_WAIT) if known else None

    def _act(self, now: float) -> None:
        for label in [label for label, at in self._losses.items() if now >= at]:
            del self._losses[label]
            if label in self._running_hosts:
                self.lost.add(label)
                self.lose(label)
                self._running_hosts[label].kill()
        if not self._stop_requested:
            if self.control.wait_end is not None and now >= self.control.wait_end:
                self.control.stop("max_wait")
            elif now >= self.runtime_end:
                self.control.stop("max_runtime")
        grace = self._grace(now)
        if grace is not None and (not self._stop_requested or self._kill_at is not None):
            # Asked again with less patience: the nearer deadline counts.
            self._kill_at = now + grace if self._kill_at is None else min(self._kill_at, now + grace)
            if not self._stop_requested:
                self._stop_requested = True
                for host in self._running_hosts.values():
                    host.terminate()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            for label, host in self._running_hosts.items():
                if self.interrupted:
                    self.lose(label)  # the notice is over
                host.kill()

    def _grace(self, now: float) -> float | None:
        """How long the hosts may still take; None: nobody asks them to leave."""
        if self.control.is_stopping:
            return self.control.grace
        if self.interrupted:
            return self.settings.spot_notice_seconds
        if self.control.broken or any(report.exit.code != 0 for report in self._reports):
            return self.settings.failed_peer_grace_seconds
        if self._interrupt_at is not None and now >= self._interrupt_at:
            self.interrupted = True
            return self.settings.spot_notice_seconds
        return None

    def _ended(self, host: HostProcess, ended: HostExit) -> None:
        label = host.place.label
        del self._running_hosts[label]
        if label in self.lost:
            ended = HostExit(ended.code, "lost", f"host {label} was lost, as the fault plan says")
            self._reports.append(HostReport(label, ended, time.time(), self._stop_requested))
            return
        self._reports.append(self._report(host.place, self.explain(ended)))

    def _report(self, place: Place, ended: HostExit) -> HostReport:
        """With the failure file, when the host's program wrote one."""
        report = HostReport(place.label, ended, time.time(), self._stop_requested)
        if not self.failure_file:
            return report
        path = Paths().failure_file
        try:
            text, written = read_beginning(place.tree, os.path.relpath(path, Paths().root), _FAILURE_BYTES)
        except FileNotFoundError:
            return report
        except OSError as error:
            unread = f"{path} is not read: {error_text(error)}"
            self.note(place.label, unread)
            has_reason = ended.code == 0 or ended.message or ended.signal
            return report if has_reason else replace(report, exit=replace(ended, message=unread))
        failure = text.decode("utf-8", "replace")[: states.REASON_LIMIT]
        return replace(report, failure=failure, failure_time=written)
