"""Start a host's processes and supervise them until all have exited: the core of PID 1.

One loop waits for everything at once: signals, exits of processes, output of ranks, space in the host's
output, deadlines, other hosts. It never sleeps and never polls a process.

    services             started one after the other, each when the one before it is ready; then the ranks
    stop signal          forwarded to each rank (not to its group: loader workers must not die before the
                         rank that uses them), SIGKILL to the groups after ``grace_seconds``; the stop
                         file is made first, so that a rank finds it when it gets the signal
    planned end          the stop file; ranks that do not exit then are stopped as by a signal
    a rank fails         SIGTERM to the others, SIGKILL to the groups after ``failure_grace_seconds``
    a service exits      the same, while ranks are running
    all ranks hang       SIGABRT to all, so that they print their stacks (hang.py), then as above
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
from typing import TYPE_CHECKING, Deque, Dict, List, Optional, Sequence, Set

from smlaunch.runtime import hang, reaper, spawn
from smlaunch.runtime.commands import ProcessCommand
from smlaunch.runtime.host_outcome import FinishedProcess, HostOutcome, PeerStatus
from smlaunch.runtime.log_streams import HostOutput, ProcessOutput
from smlaunch.runtime.segment_lifecycle import SegmentEnd
from smlaunch.runtime.signals import STOP_SIGNALS, SignalQueue
from smlaunch.runtime.spawn import ChildProcess

if TYPE_CHECKING:
    from smlaunch.runtime.control_channel import ControlChannel
    from smlaunch.runtime.services import ReadinessProbe, ServiceStart

_FLUSH_SECONDS = 5.0
"""How long the host may take to write its remaining output at the end."""

_SERVICE_GRACE_SECONDS = 5.0
"""Time for services to exit when all ranks have exited."""

_MAX_PIPE_BYTES = 1 << 20
"""How much is read from each pipe at the end: a writer that was not found and killed may go on writing."""


class Supervisor:
    """Runs one set of commands. ``signals`` must be installed, and stays deferred afterwards.
    ``segment_end``: of the segment that the ranks train. ``channel``: to the hosts that follow this one,
    or to the leader that this host follows.
    """

    def __init__(
        self,
        signals: SignalQueue,
        output: HostOutput,
        grace_seconds: float,
        failure_grace_seconds: float,
        hang_seconds: Optional[float] = None,
        segment_end: Optional[SegmentEnd] = None,
        channel: "Optional[ControlChannel]" = None,
    ) -> None:
        self._signals = signals
        self._host_output = output
        self._grace_seconds = grace_seconds
        self._failure_grace_seconds = failure_grace_seconds
        self._rank_commands: Sequence[ProcessCommand] = ()
        self._ranks_were_started = False
        self._rank_processes: List[ChildProcess] = []
        self._processes_by_pid: Dict[int, ChildProcess] = {}
        self._process_outputs: List[ProcessOutput] = []
        self._ranks_kill_time: Optional[float] = None
        """Time on the monotonic clock at which the ranks get SIGKILL. None while nothing stops them; infinity
        when they got it."""
        self._stop_signal: Optional[int] = None
        self._segment_end = segment_end
        self._hang_seconds = hang_seconds
        self._hang_detector: Optional[hang.HangDetector] = None
        self._hang: Optional[hang.Hang] = None
        self._aborted_pids: List[int] = []
        """Hung processes that were made to print their stacks, and may still do so."""
        self._overstayed_seconds: Optional[float] = None
        """How long after the planned end the ranks were stopped."""
        self._pending_services: "Deque[ServiceStart]" = deque()
        self._readiness_probe: "Optional[ReadinessProbe]" = None
        """Waits until the first of ``_pending_services`` is ready."""
        self._service_processes: List[ChildProcess] = []
        self._services_kill_time: Optional[float] = None
        """The same for the services."""
        self._failed_service: Optional[ChildProcess] = None
        """The service that exited before the ranks."""
        self._failed_probe: "Optional[ReadinessProbe]" = None
        """The probe of the service that was not ready in time."""
        self._control_channel = channel
        self._failed_peer_status: Optional[PeerStatus] = None
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
            self._clean_up()
        return self._make_outcome()

    def _start_next_processes(self) -> None:
        """Start the processes that can be started now: services in their order, then the ranks. Does nothing
        when the ranks were started, or when everything is being stopped."""
        if self._ranks_were_started or self._ranks_kill_time is not None:
            return
        while self._pending_services and self._readiness_probe is None:
            service = self._pending_services[0]
            if service.command is not None:
                self._service_processes.append(self._start(service.command))
            if service.ready_address is None:
                self._pending_services.popleft()
            else:
                self._readiness_probe = service.start_probe()
        if self._pending_services:
            return
        if self._control_channel is not None:
            self._control_channel.report_ready()
            if self._control_channel.is_leader and not self._control_channel.all_ready:
                return
        self._ranks_were_started = True
        for command in self._rank_commands:
            self._rank_processes.append(self._start(command))
        if self._hang_seconds is not None and self._rank_processes:
            launcher_pids = {process.pid for process in self._rank_processes if process.command.rank_fifos}
            service_pids = {process.pid for process in self._service_processes}
            self._hang_detector = hang.HangDetector(
                self._hang_seconds, time.monotonic(), launcher_pids, service_pids
            )

    def _start(self, command: ProcessCommand) -> ChildProcess:
        process = spawn.start_process(command, self._host_output)
        self._processes_by_pid[process.pid] = process
        self._process_outputs += (process.output, *process.rank_outputs.values())
        return process

    def _run_loop(self) -> None:
        """Wait for events and handle them until no process runs any more."""
        wakeup_fd = self._signals.wakeup_fd
        while self._is_unfinished():
            # A new poll object each time: the set of descriptors is small and changes often.
            poll = select.poll()
            poll.register(wakeup_fd, select.POLLIN)
            if self._host_output.has_pending:
                poll.register(self._host_output.descriptor, select.POLLOUT)
            if not self._host_output.is_full:
                for output in self._process_outputs:
                    if output.is_open:
                        poll.register(output.descriptor, select.POLLIN)
            if self._readiness_probe is not None:
                poll.register(self._readiness_probe.ready_fd, select.POLLIN)
            for descriptor in (
                self._control_channel.descriptors() if self._control_channel is not None else ()
            ):
                poll.register(descriptor, select.POLLIN)
            ready_fds = {descriptor for descriptor, _ in poll.poll(self._poll_timeout_ms())}
            # Exits first: a killed rank must be noticed before the errors of its peers are read.
            signals = self._signals.take_pending()
            self._reap_processes(is_stop_pending=not set(STOP_SIGNALS).isdisjoint(signals))
            for signal_number in signals:
                self._handle_signal(signal_number)
            self._check_segment_end()
            self._kill_when_due()
            self._forward_output(ready_fds)
            self._host_output.write_available()
            self._check_for_hang()
            self._check_probe(ready_fds)
            self._process_channel(ready_fds)
            self._start_next_processes()

    def _is_unfinished(self) -> bool:
        """Return whether ranks or services are running, or a hung process still writes its stacks."""
        if not self._ranks_finished():
            return True
        self._stop_services()
        if any(process.is_running for process in self._service_processes):
            return True
        self._aborted_pids = hang.living_pids(self._aborted_pids) if self._aborted_pids else []
        return bool(self._aborted_pids) and self._ranks_kill_time != float("inf")

    def _ranks_finished(self) -> bool:
        """Return whether no rank runs any more, here or on the leader, and none will be started."""
        if any(process.is_running for process in self._rank_processes):
            return False
        if self._control_channel is None or self._control_channel.is_leader:
            return self._ranks_were_started or self._ranks_kill_time is not None
        service_failed = self._failed_service is not None or self._failed_probe is not None
        # A host that is stopped before it has connected need not wait for the leader's status.
        stopped_unconnected = self._stop_signal is not None and not self._control_channel.is_connected
        return (
            service_failed
            or stopped_unconnected
            or self._control_channel.peer_status is not None
            or self._ranks_kill_time == float("inf")
        )

    def _stop_services(self) -> None:
        """Send SIGTERM to the services, once."""
        if self._services_kill_time is None:
            self._services_kill_time = time.monotonic() + _SERVICE_GRACE_SECONDS
            for process in self._service_processes:
                if process.is_running:
                    process.was_stopped = True
                    spawn.send_signal(process.pid, signal.SIGTERM)

    def _check_probe(self, ready_fds: Set[int]) -> None:
        """Go on to the next service when this one is ready; stop everything when it is not ready in time."""
        probe = self._readiness_probe
        if probe is None:
            return
        if probe.ready_fd in ready_fds:
            self._pending_services.popleft()
        elif time.monotonic() >= probe.deadline and self._ranks_kill_time is None:
            self._failed_probe = probe
            self._stop_remaining_ranks()
        elif self._ranks_kill_time is None:
            return
        probe.close()
        self._readiness_probe = None

    def _process_channel(self, ready_fds: Set[int]) -> None:
        """Handle messages of other hosts. A failed host stops the leader's ranks; ``_ranks_finished`` reads
        the leader's end. ``ready_fds``: descriptors that can be read.
        """
        channel = self._control_channel
        if channel is None:
            return
        channel.process_events(ready_fds)
        if channel.log_message:
            self._host_output.append("smlaunch: {}\n".format(channel.log_message).encode())
        peer_has_ended = channel.peer_status is not None and self._failed_peer_status is None
        if peer_has_ended and channel.is_leader and self._stop_signal is None and not self._ranks_finished():
            self._failed_peer_status = channel.peer_status
            if self._ranks_kill_time is None:
                self._stop_remaining_ranks()

    def _forward_output(self, ready_fds: Set[int]) -> None:
        """Pass on what can be read from the processes' pipes, ``ready_fds``, to the host's output."""
        service_outputs = [process.output for process in self._service_processes]
        for output in self._process_outputs:
            if not (output.is_open and output.descriptor in ready_fds and output.pump()):
                continue
            if self._hang_detector is not None and output not in service_outputs:
                self._hang_detector.record_output()

    def _check_for_hang(self) -> None:
        """Send SIGABRT to the ranks if none of them has printed anything or used the CPU for too long."""
        if self._hang_detector is None or self._ranks_kill_time is not None:
            return
        if self._host_output.is_full:
            # The ranks wait for the reader of the host's output, not for each other.
            self._hang_detector.record_output()
        if self._hang_detector.is_hang(time.monotonic()):
            silent_ranks = [process for process in self._rank_processes if process.is_running]
            rank_numbers = tuple(rank for process in silent_ranks for rank in process.command.ranks)
            self._hang = hang.Hang(self._hang_detector.seconds, rank_numbers)
            self._kill_within(self._failure_grace_seconds)
            self._aborted_pids = hang.abort_processes([process.pid for process in silent_ranks])

    def _handle_signal(self, signal_number: int) -> None:
        """Forward a signal to the ranks. A stop signal also sets the time of their SIGKILL."""
        if signal_number in STOP_SIGNALS:
            if self._stop_signal is not None:
                return  # a second stop changes nothing: handlers of ranks must not run twice
            self._stop_signal = signal_number
            self._kill_within(self._grace_seconds)
            if self._segment_end is not None:
                self._segment_end.request_stop()
                self._segment_end.record_signal()
        for process in self._rank_processes:
            if process.is_running:
                spawn.send_signal(process.pid, signal_number)

    def _check_segment_end(self) -> None:
        """Ask the ranks to exit at the planned end, and stop them later. Nothing to do where a stop or a
        failure ends everything already.
        """
        segment_end = self._segment_end
        if segment_end is None or self._ranks_kill_time is not None:
            return
        now = time.monotonic()
        if segment_end.planned_at is not None and now >= segment_end.planned_at:
            segment_end.request_stop()
        if (
            segment_end.planned_at is not None
            and segment_end.signal_at is not None
            and now >= segment_end.signal_at
        ):
            self._overstayed_seconds = now - segment_end.planned_at
            self._kill_within(segment_end.seconds_until_kill(now))
            self._handle_signal(signal.SIGTERM)

    def _reap_processes(self, is_stop_pending: bool) -> None:
        """Wait for exited processes. ``is_stop_pending``: a stop signal has arrived and is not handled
        yet."""
        exited = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            process = self._processes_by_pid.get(pid)
            if process is None:
                continue  # an orphan that came to us as its new parent
            process.status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            process.ended_at = time.time()
            exited.append(process)
        if exited and self._ranks_kill_time is None:
            self._handle_exits(exited, is_stop_pending)

    def _handle_exits(self, exited: Sequence[ChildProcess], is_stop_pending: bool) -> None:
        """Stop the other processes after a failure. When a service and a rank exit at the same time, the
        service failed and the rank missed it.
        """
        ended_services = [
            process for process in exited if process.command.service and not process.was_stopped
        ]
        all_succeeded = bool(self._rank_processes) and all(
            process.status == 0 for process in self._rank_processes
        )
        if ended_services and not all_succeeded and not is_stop_pending:
            self._failed_service = ended_services[0]
        rank_failed = any(process.status != 0 for process in exited if not process.command.service)
        if self._failed_service is not None or rank_failed:
            self._stop_remaining_ranks()

    def _stop_remaining_ranks(self) -> None:
        """Send SIGTERM to the running ranks because something has failed."""
        self._kill_within(self._failure_grace_seconds)
        for process in self._rank_processes:
            if process.is_running:
                process.was_stopped = True
                spawn.send_signal(process.pid, signal.SIGTERM)

    def _kill_within(self, seconds: float) -> None:
        """Send SIGKILL after ``seconds`` at the latest."""
        kill_at = time.monotonic() + seconds
        self._ranks_kill_time = (
            kill_at if self._ranks_kill_time is None else min(kill_at, self._ranks_kill_time)
        )

    def _kill_when_due(self) -> None:
        """Send SIGKILL to ranks and services whose time is over."""
        now = time.monotonic()
        if self._ranks_kill_time is not None and now >= self._ranks_kill_time:
            for process in self._rank_processes:
                if process.is_running:
                    spawn.kill_group(process.pid)
            self._ranks_kill_time = float("inf")
        if self._services_kill_time is not None and now >= self._services_kill_time:
            for process in self._service_processes:
                if process.is_running:
                    spawn.kill_group(process.pid)
            self._services_kill_time = float("inf")

    def _poll_timeout_ms(self) -> Optional[int]:
        """Return the milliseconds until the next deadline; None without one."""
        deadlines = [self._ranks_kill_time, self._services_kill_time]
        if self._ranks_kill_time is None:
            deadlines += [self._hang_detector.next_sample_at] if self._hang_detector is not None else []
            deadlines += [self._segment_end.next_action_at] if self._segment_end is not None else []
            deadlines += [self._readiness_probe.deadline] if self._readiness_probe is not None else []
            deadlines += [self._control_channel.next_action_at] if self._control_channel is not None else []
        next_deadline = min(
            (deadline for deadline in deadlines if deadline is not None), default=float("inf")
        )
        if next_deadline == float("inf"):
            return None
        # poll takes no more than a C int.
        return min(max(0, int((next_deadline - time.monotonic()) * 1000) + 1), 86_400_000)

    def _clean_up(self) -> None:
        """Kill remaining descendants and write what is left in the pipes. An orphan may hold a pipe open for
        ever, so not more than ``_MAX_PIPE_BYTES`` are read of each.
        """
        if self._readiness_probe is not None:
            self._readiness_probe.close()
        for process in self._processes_by_pid.values():
            spawn.kill_group(process.pid)
        self._reap_killed()
        reaper.kill_descendants()
        deadline = time.monotonic() + _FLUSH_SECONDS
        for output in self._process_outputs:
            remaining_bytes = _MAX_PIPE_BYTES
            while remaining_bytes > 0:
                size = output.pump()
                if not size:
                    break
                remaining_bytes -= size
                if self._host_output.is_full:
                    self._host_output.flush(deadline)
            output.close()
        self._host_output.flush(deadline)

    def _reap_killed(self) -> None:
        """Wait for processes that run after a start that failed half-way."""
        for process in self._processes_by_pid.values():
            if process.is_running:
                os.waitpid(process.pid, 0)
                process.status = -signal.SIGKILL

    def _make_outcome(self) -> HostOutcome:
        """Return the outcome of this host, or of the host that failed first."""
        outcome = HostOutcome(
            tuple(self._finished_process(process) for process in self._rank_processes),
            self._stop_signal,
            self._hang,
            self._overstayed_seconds,
            None if self._failed_service is None else self._finished_process(self._failed_service),
            None
            if self._failed_probe is None
            else (self._failed_probe.service.name, self._failed_probe.problem),
        )
        channel = self._control_channel
        if channel is None or (outcome.failed_service or outcome.unready_service) is not None:
            return outcome
        if not channel.is_leader:
            return outcome._replace(peer_status=channel.peer_status)
        peer_status, own_failure = self._failed_peer_status, outcome.first_failure
        if peer_status is None or (
            own_failure is not None
            and peer_status.failed_at is not None
            and own_failure.failed_at < peer_status.failed_at
        ):
            return outcome
        return outcome._replace(peer_status=peer_status)

    def _finished_process(self, process: ChildProcess) -> FinishedProcess:
        """Return the result of a process that has exited."""
        from smlaunch.runtime import tracebacks  # not before the ranks are started: they need not wait for it

        status = process.status if process.status is not None else 0
        output_tail = process.output.tail()
        traceback_at = process.output.traceback_at
        failed_at = process.ended_at
        if status != 0 and traceback_at is not None and tracebacks.find_cause(output_tail) is not None:
            failed_at = min(failed_at, traceback_at)
        rank = next(iter(process.command.ranks), None)
        rank_outputs = {
            rank: (output.tail(), output.traceback_at) for rank, output in process.rank_outputs.items()
        }
        service = process.command.service
        return FinishedProcess(
            rank, status, process.ended_at, failed_at, output_tail, process.was_stopped, rank_outputs, service
        )
