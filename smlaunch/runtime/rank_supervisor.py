"""Start a host's processes and supervise them until all have exited: the core of PID 1.

One loop waits for everything at once: signals, exits of processes, output of ranks, space in the host's
output, deadlines, other hosts. It never sleeps and never polls a process.

    services             started one after the other, each when the one before it is ready; then the ranks
    stop signal          forwarded to each rank (not to its group: loader workers must not die before the
                         rank that uses them), SIGKILL to the groups after ``grace_seconds``; the stop
                         file is made first, so that a rank finds it when it gets the signal
    planned end          by time, or by a training step that a rank reports: the stop file; ranks that do not
                         exit then are stopped as by a signal
    a rank fails         SIGTERM to the others, SIGKILL to the groups after ``failure_grace_seconds``
    a service exits      the same, while ranks are running
    all ranks hang       SIGABRT to all, so that they print their stacks (hang_detector.py), then as above
    an orphan exits      reaped
    all ranks exited     SIGTERM to the services, SIGKILL to their groups after ``_SERVICE_GRACE_SECONDS``;
                         then all remaining descendants are killed and the rest of the output is written

A host that follows the leader (control_channel.py) has no ranks. When it learns how the leader ended, it does
the same as after the exit of all ranks. Signals and the planned end are the leader's business.
"""

import os
import select
import signal
import time
from collections import deque
from typing import TYPE_CHECKING, Callable, Deque, List, Optional, Sequence, Set

from smlaunch.runtime import child_process, hang_detector, process_table, reaper
from smlaunch.runtime.child_process import ChildProcess
from smlaunch.runtime.host_outcome import HostExitReport, HostOutcome, UnreadyService
from smlaunch.runtime.host_processes import HostProcesses, kill_running_groups, to_finished_process
from smlaunch.runtime.log_streams import HostOutput
from smlaunch.runtime.process_commands import ProcessCommand
from smlaunch.runtime.segment_lifecycle import SegmentDeadline
from smlaunch.runtime.signals import STOP_SIGNALS, SignalQueue

if TYPE_CHECKING:
    from smlaunch.runtime.control_channel import ControlChannel
    from smlaunch.runtime.service_processes import ReadinessProbe, ServiceStart

_SERVICE_STOP_SECONDS = 5.0
"""Time for services to exit when all ranks have exited."""

_MAX_POLL_MS = 86_400_000
"""One day: poll takes no more milliseconds than a C int holds."""

_SIGKILL_WAS_SENT = float("inf")
"""In the place of the time of a SIGKILL: it was sent, and no other follows."""


class Supervisor:
    """Runs one set of commands. ``signals`` must be installed, and stays deferred afterwards.
    ``segment_deadline``: of the segment that the ranks train. ``script_may_read_stop_file``: called where the
    ranks have reported the segment's last step. ``channel``: to the hosts that follow this one,
    or to the leader that this host follows.
    """

    def __init__(
        self,
        signals: SignalQueue,
        output: HostOutput,
        grace_seconds: float,
        failure_grace_seconds: float,
        hang_seconds: Optional[float] = None,
        segment_deadline: Optional[SegmentDeadline] = None,
        channel: "Optional[ControlChannel]" = None,
        script_may_read_stop_file: Callable[[], bool] = lambda: True,
    ) -> None:
        self._signals = signals
        self._host_output = output
        self._processes = HostProcesses(output)
        self._grace_seconds = grace_seconds
        self._failure_grace_seconds = failure_grace_seconds
        self._rank_commands: Sequence[ProcessCommand] = ()
        self._ranks_were_started = False
        self._rank_processes: List[ChildProcess] = []
        self._ranks_sigkill_at: Optional[float] = None
        """Time on the monotonic clock at which the ranks get SIGKILL. None while nothing stops them;
        _SIGKILL_WAS_SENT when they got it."""
        self._stop_signal: Optional[int] = None
        self._segment_deadline = segment_deadline
        self._script_may_read_stop_file = script_may_read_stop_file
        self._hang_seconds = hang_seconds
        self._hang_detector: Optional[hang_detector.HangDetector] = None
        self._detected_hang: Optional[hang_detector.Hang] = None
        self._aborted_pids: List[int] = []
        """Hung processes that were made to print their stacks, and may still do so."""
        self._overrun_seconds: Optional[float] = None
        """How long after the planned end the ranks were stopped."""
        self._pending_services: "Deque[ServiceStart]" = deque()
        self._readiness_probe: "Optional[ReadinessProbe]" = None
        """Waits until the first of ``_pending_services`` is ready."""
        self._service_processes: List[ChildProcess] = []
        self._services_sigkill_at: Optional[float] = None
        """The same for the services: None until they get SIGTERM."""
        self._failed_service: Optional[ChildProcess] = None
        """The service that exited before the ranks."""
        self._timed_out_probe: "Optional[ReadinessProbe]" = None
        """The probe of the service that was not ready in time."""
        self._control_channel = channel
        self._failed_peer_exit: Optional[HostExitReport] = None
        """On the leader: how another host ended, if its end stopped the ranks."""

    def run(self, commands: Sequence[ProcessCommand], services: "Sequence[ServiceStart]" = ()) -> HostOutcome:
        """Run the services and the commands; return when every process has exited. Raises SetupError when one
        of them cannot be started.
        """
        self._signals.defer()
        self._rank_commands, self._pending_services = commands, deque(services)
        try:
            self._start_next_processes()
            reaper.become_subreaper()
            self._run_loop()
        finally:
            if self._readiness_probe is not None:
                self._readiness_probe.close()
            self._processes.end_all()
        return self._make_outcome()

    def _start_next_processes(self) -> None:
        """Start the processes of this host that can be started now: services, which are programs beside the
        ranks, each when the one before it is ready, then the ranks. Does nothing when the ranks were started,
        or when everything is being stopped.
        """
        if self._ranks_were_started or self._is_stopping:
            return
        self._start_next_services()
        if self._pending_services:  # the first of them is not ready yet
            return
        if self._control_channel is not None:
            self._control_channel.report_services_ready()
            if self._control_channel.is_leader and not self._control_channel.are_all_hosts_ready:
                return  # their services are not up yet
        self._start_ranks()

    @property
    def _is_stopping(self) -> bool:
        """Whether a signal, a failure or a deadline has made this host stop its ranks."""
        return self._ranks_sigkill_at is not None

    def _start_next_services(self) -> None:
        """Start services up to the next one that others have to wait for, and a probe that connects to that
        one until it accepts.
        """
        while self._pending_services and self._readiness_probe is None:
            service = self._pending_services[0]
            if service.command is not None:  # None: it runs on other hosts only
                self._service_processes.append(self._processes.start(service.command))
            if service.ready_address is None:  # it is not waited for
                self._pending_services.popleft()
            else:
                self._readiness_probe = service.start_probe()

    def _start_ranks(self) -> None:
        """Start the ranks of this host, and watch them for a hang if the job wants that."""
        self._ranks_were_started = True
        for command in self._rank_commands:
            self._rank_processes.append(self._processes.start(command))
        if self._hang_seconds is None or not self._rank_processes:
            return
        # A process with FIFOs for ranks is a launcher, such as torchrun.
        launcher_pids = {process.pid for process in self._rank_processes if process.command.rank_fifos}
        service_pids = {process.pid for process in self._service_processes}
        self._hang_detector = hang_detector.HangDetector(
            self._hang_seconds, time.monotonic(), launcher_pids, service_pids
        )

    def _run_loop(self) -> None:
        """Wait for signals, output, messages and deadlines and handle them, until no process of this host
        runs any more. Services, programs beside the ranks, are stopped when the ranks have finished.
        """
        while True:
            if self._have_ranks_finished():
                self._stop_services()
                if not self._has_processes_beside_ranks():  # services, or hung ones that print stacks
                    return
            ready_fds = self._wait_for_descriptors()
            # Exits first: a killed rank must be noticed before the errors of its peers are read.
            signals = self._signals.take_pending()
            self._reap_processes(
                is_stop_pending=any(signal_number in STOP_SIGNALS for signal_number in signals)
            )
            for signal_number in signals:
                self._handle_signal(signal_number)
            self._stop_ranks_at_planned_end()
            self._kill_overdue_processes()  # those that got SIGTERM and have not exited in time
            self._forward_output(ready_fds)
            self._host_output.write_available()
            self._end_detected_hang()
            self._handle_probe_result(ready_fds)
            self._handle_control_messages()
            self._start_next_processes()  # for example the ranks, when the last service is ready

    def _wait_for_descriptors(self) -> Set[int]:
        """Wait until there is something to read, space for output, or until the next deadline. Return the
        descriptors that are ready.
        """
        # A new poll object each time: the set of descriptors is small and changes often.
        poll = select.poll()
        poll.register(self._signals.wakeup_fd, select.POLLIN)
        if self._host_output.has_pending:
            poll.register(self._host_output.descriptor, select.POLLOUT)
        if not self._host_output.is_full:  # otherwise their pipes fill up, and ranks wait to print
            for descriptor in self._processes.open_descriptors():
                poll.register(descriptor, select.POLLIN)
        if self._readiness_probe is not None:
            poll.register(self._readiness_probe.ready_fd, select.POLLIN)
        if self._control_channel is not None:
            poll.register(self._control_channel, select.POLLIN)
        return {descriptor for descriptor, _ in poll.poll(self._poll_timeout_ms())}

    def _has_processes_beside_ranks(self) -> bool:
        """Return whether services still run, or processes that were aborted in a hang still write their
        stacks. Forgets those that have exited.
        """
        if any(process.is_running for process in self._service_processes):
            return True
        self._aborted_pids = hang_detector.list_living_pids(self._aborted_pids) if self._aborted_pids else []
        return bool(self._aborted_pids) and self._ranks_sigkill_at != _SIGKILL_WAS_SENT

    def _have_ranks_finished(self) -> bool:
        """Return whether no rank runs any more, here or on the leader, and none will be started."""
        if any(process.is_running for process in self._rank_processes):
            return False
        if self._control_channel is None or self._control_channel.is_leader:
            return self._ranks_were_started or self._is_stopping
        service_failed = self._failed_service is not None or self._timed_out_probe is not None
        # A host that is stopped before it has connected need not wait for the leader's status.
        stopped_unconnected = self._stop_signal is not None and not self._control_channel.is_connected
        return (
            service_failed
            or stopped_unconnected
            or self._control_channel.peer_exit is not None
            or self._ranks_sigkill_at == _SIGKILL_WAS_SENT
        )

    def _stop_services(self) -> None:
        """Send SIGTERM to the services, programs beside the ranks, that still run, once; set the time at
        which they get SIGKILL.
        """
        if self._services_sigkill_at is not None:
            return
        self._services_sigkill_at = time.monotonic() + _SERVICE_STOP_SECONDS  # 5 s
        for process in self._service_processes:
            if process.is_running:
                process.was_stopped = True
                child_process.send_signal(process.pid, signal.SIGTERM)

    def _handle_probe_result(self, ready_fds: Set[int]) -> None:
        """Go on to the next service (a program beside the ranks) when the one that is probed is ready; stop
        everything when it is not ready in time. ``ready_fds``: descriptors that can be read.
        """
        probe = self._readiness_probe  # connects to the service until it accepts
        if probe is None:
            return
        if probe.ready_fd in ready_fds:
            self._pending_services.popleft()
        elif not self._is_stopping:
            if time.monotonic() < probe.deadline:
                return  # there is still time
            self._timed_out_probe = probe  # why this host fails
            self._stop_remaining_ranks()
        probe.close()
        self._readiness_probe = None

    def _handle_control_messages(self) -> None:
        """Handle messages of other hosts, where only the leader has ranks. On the leader, a host that failed
        stops the ranks; on the others, ``_have_ranks_finished`` reads how the leader ended.
        """
        channel = self._control_channel
        if channel is None:
            return
        channel.handle_events()
        if channel.pending_log_line:
            self._host_output.append("smlaunch: {}\n".format(channel.pending_log_line).encode())
        another_host_failed = channel.is_leader and channel.peer_exit is not None
        if not another_host_failed or self._failed_peer_exit is not None:  # only the first one counts
            return
        # After a stop signal, or when the ranks have finished, hosts end without having failed.
        if self._stop_signal is None and not self._have_ranks_finished():
            self._failed_peer_exit = channel.peer_exit
            if not self._is_stopping:
                self._stop_remaining_ranks()

    def _forward_output(self, ready_fds: Set[int]) -> None:
        """Forward what can be read from the pipes of ranks and services, which are among ``ready_fds``, to
        the host's output. Output of ranks shows that they do not hang; that of services does not. A step
        that they report may be the segment's last.
        """
        forwarded_outputs = self._processes.forward_output(ready_fds)
        service_outputs = [process.output for process in self._service_processes]
        if self._hang_detector is not None and any(
            output not in service_outputs for output in forwarded_outputs
        ):
            self._hang_detector.record_output()
        if self._segment_deadline is not None:
            self._segment_deadline.record_reported_step(
                self._host_output.step_tracker.highest_step, self._script_may_read_stop_file
            )

    def _end_detected_hang(self) -> None:
        """End a hang: if no rank has printed anything or used the CPU for too long, send SIGABRT to the
        processes, which then print their stacks, and set the time of their SIGKILL.
        """
        if self._hang_detector is None or self._is_stopping:
            return
        if self._host_output.is_full:
            # The ranks wait for the reader of the host's output, not for each other: count that as output.
            self._hang_detector.record_output()
        if not self._hang_detector.detect_hang(time.monotonic()):
            return
        silent_processes = [process for process in self._rank_processes if process.is_running]
        # A process is one rank, or a launcher of several.
        silent_ranks = tuple(rank for process in silent_processes for rank in process.command.ranks)
        self._detected_hang = hang_detector.Hang(self._hang_detector.timeout_seconds, silent_ranks)
        self._schedule_rank_sigkill(self._failure_grace_seconds)
        pids_to_abort = [process.pid for process in silent_processes]
        if not any(process.command.aborts_ranks for process in silent_processes):
            descendants = process_table.descendants_of(os.getpid(), process_table.list_processes())
            pids_to_abort += [pid for pid in descendants if pid not in pids_to_abort]
        self._aborted_pids = hang_detector.abort_processes(pids_to_abort)

    def _handle_signal(self, signal_number: int) -> None:
        """Forward a signal to the ranks. A stop signal (SIGTERM, SIGINT) also makes the stop file appear, by
        which scripts learn that they should save a checkpoint and exit, and sets the time of their SIGKILL.
        """
        if signal_number in STOP_SIGNALS:
            if self._stop_signal is not None:
                return  # a second stop changes nothing: handlers of ranks must not run twice
            self._stop_signal = signal_number
            self._schedule_rank_sigkill(self._grace_seconds)
            if self._segment_deadline is not None:
                self._segment_deadline.request_stop()  # before the signal: a handler may look for the file
                self._segment_deadline.record_stop_signal()
        for process in self._rank_processes:
            if process.is_running:
                child_process.send_signal(process.pid, signal_number)

    def _stop_ranks_at_planned_end(self) -> None:
        """Ask the ranks to exit, by the stop file, at the planned end of the segment, which is one job of a
        chain; send SIGTERM to those that run some time later. Nothing to do where a stop or a failure ends
        everything already.
        """
        deadline = self._segment_deadline
        if deadline is None or deadline.planned_end_at is None or self._is_stopping:
            return
        now = time.monotonic()
        if now >= deadline.planned_end_at:
            deadline.request_stop()
        if deadline.sigterm_at is not None and now >= deadline.sigterm_at:
            self._overrun_seconds = now - deadline.planned_end_at
            self._schedule_rank_sigkill(deadline.seconds_until_kill(now))
            self._handle_signal(signal.SIGTERM)

    def _reap_processes(self, is_stop_pending: bool) -> None:
        """Record the exits of processes. A failed one stops the others. ``is_stop_pending``: a stop signal
        has arrived and is not handled yet; services that exit then have not failed.
        """
        exited = self._processes.reap()
        if exited and not self._is_stopping:
            self._handle_exits(exited, is_stop_pending)

    def _handle_exits(self, exited: Sequence[ChildProcess], is_stop_pending: bool) -> None:
        """Stop the other processes if one of those that have ``exited`` has failed: a rank by its status, a
        service if it exits before the ranks. When both exit at the same time, the service failed and the
        rank missed it.

        ``is_stop_pending``: a stop signal has arrived, of which services may have exited.
        """
        services_exited_early = [
            process for process in exited if process.command.service and not process.was_stopped
        ]
        have_ranks_succeeded = bool(self._rank_processes) and all(
            process.status == 0 for process in self._rank_processes
        )
        if services_exited_early and not have_ranks_succeeded and not is_stop_pending:
            self._failed_service = services_exited_early[0]
        rank_failed = any(process.status != 0 for process in exited if not process.command.service)
        if self._failed_service is not None or rank_failed:
            self._stop_remaining_ranks()

    def _stop_remaining_ranks(self) -> None:
        """Send SIGTERM to the running ranks because something has failed."""
        self._schedule_rank_sigkill(self._failure_grace_seconds)
        for process in self._rank_processes:
            if process.is_running:
                process.was_stopped = True
                child_process.send_signal(process.pid, signal.SIGTERM)

    def _schedule_rank_sigkill(self, seconds: float) -> None:
        """Send SIGKILL after ``seconds`` at the latest."""
        kill_at = time.monotonic() + seconds
        self._ranks_sigkill_at = (
            kill_at if self._ranks_sigkill_at is None else min(kill_at, self._ranks_sigkill_at)
        )

    def _kill_overdue_processes(self) -> None:
        """Send SIGKILL to the process groups of ranks and services whose time to exit is over. None: they
        need not exit yet.
        """
        now = time.monotonic()
        if self._ranks_sigkill_at is not None and now >= self._ranks_sigkill_at:
            kill_running_groups(self._rank_processes)
            self._ranks_sigkill_at = _SIGKILL_WAS_SENT
        if self._services_sigkill_at is not None and now >= self._services_sigkill_at:
            kill_running_groups(self._service_processes)
            self._services_sigkill_at = _SIGKILL_WAS_SENT

    def _poll_timeout_ms(self) -> Optional[int]:
        """Return the milliseconds until the supervisor must act next even if nothing happens, for poll();
        None without a deadline.
        """
        deadlines = [self._ranks_sigkill_at, self._services_sigkill_at]
        if not self._is_stopping:
            if self._hang_detector is not None:
                deadlines.append(self._hang_detector.next_sample_at)
            if self._segment_deadline is not None:
                deadlines.append(self._segment_deadline.next_wakeup_at)
            if self._readiness_probe is not None:
                deadlines.append(self._readiness_probe.deadline)
            if self._control_channel is not None:
                deadlines.append(self._control_channel.next_wakeup_at)
        # _SIGKILL_WAS_SENT stands in the place of the time of a SIGKILL that is over.
        future_deadlines = [
            deadline for deadline in deadlines if deadline is not None and deadline != _SIGKILL_WAS_SENT
        ]
        if not future_deadlines:
            return None
        next_deadline = min(future_deadlines)
        milliseconds = max(0, int((next_deadline - time.monotonic()) * 1000) + 1)  # rounded up
        return min(milliseconds, _MAX_POLL_MS)  # a day; poll takes a C int

    def _make_outcome(self) -> HostOutcome:
        """Return how the processes of this host ended; with ``peer_exit`` where another host failed first,
        and on a host that follows the leader how that ended.
        """
        # A service (program beside the ranks) that exited before them, or was not ready in time
        failed_service, probe = self._failed_service, self._timed_out_probe
        outcome = HostOutcome(
            processes=tuple(to_finished_process(process) for process in self._rank_processes),
            stop_signal=self._stop_signal,
            detected_hang=self._detected_hang,
            overrun_seconds=self._overrun_seconds,
            failed_service=None if failed_service is None else to_finished_process(failed_service),
            unready_service=None if probe is None else UnreadyService(probe.service.name, probe.problem),
        )
        if self._control_channel is None or failed_service is not None or probe is not None:
            return outcome
        if not self._control_channel.is_leader:
            return outcome._replace(peer_exit=self._control_channel.peer_exit)
        peer_exit, own_failure = self._failed_peer_exit, outcome.first_failure
        if peer_exit is None:
            return outcome
        own_failure_came_first = (
            own_failure is not None
            and peer_exit.failed_at is not None
            and own_failure.failed_at < peer_exit.failed_at
        )
        return outcome if own_failure_came_first else outcome._replace(peer_exit=peer_exit)
