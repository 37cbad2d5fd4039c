"""Run one host's part of a job: from the SageMaker contract to an exit code.

    job.json, resourceconfig.json   ->  what to start, and who the peers are
    source, requirements            ->  unpacked and installed
    the leader's name               ->  resolved, meanwhile
    services, then ranks            ->  started and supervised (supervisor.py); a host without ranks follows
                                        the leader (control_channel.py)
    the first failure               ->  the failure file and the exit code
    all ranks exited                ->  the outcome of the segment, beside its checkpoints

Exit codes: 0 when all ranks exited with 0, or were stopped at the segment's planned end and the outcome says
that the run continues; otherwise that of the first rank that failed (128 + n for a signal), 143 when ranks
ended by the SIGTERM that this host received; 124 after a hang; 2 when the job cannot run as it was sent, 70
when the runtime itself failed.
"""

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple, Optional, Sequence

from smlaunch.contract.launch_spec import AUTO, LEADER, MPI, TORCHRUN, LaunchSpec, LaunchSpecError
from smlaunch.contract.progress_line import PROGRESS_UNKNOWN
from smlaunch.contract.sagemaker_paths import (
    LAUNCH_FILE,
    PORT_VARIABLE,
    RUNTIME_CHANNEL,
    SECRET_FILE,
    SOURCE_CHANNEL,
    Paths,
    ProcessingPaths,
)
from smlaunch.contract.segment import (
    FINISHED_LINE_PREFIX,
    REPORT_FINISHED_VARIABLE,
    REQUIRED_LINE_PREFIX,
    REQUIRED_METRICS_VARIABLE,
    Segment,
)
from smlaunch.runtime import (
    accelerators,
    image_entry_point,
    oom_kills,
    process_commands,
    runtime_dir,
    sagemaker_environment,
    segment_lifecycle,
    segment_outcome_files,
)
from smlaunch.runtime.cluster import Cluster, processing, training
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.host_outcome import HostExitReport, HostOutcome
from smlaunch.runtime.hyperparameters import read_hyperparameters
from smlaunch.runtime.log_streams import HostOutput
from smlaunch.runtime.rank_supervisor import Supervisor
from smlaunch.runtime.signals import SignalQueue
from smlaunch.runtime.step_tracker import StepTracker

if TYPE_CHECKING:
    from smlaunch.contract.segment_outcome import SegmentOutcome
    from smlaunch.runtime import name_lookup
    from smlaunch.runtime.control_channel import ControlChannel
    from smlaunch.runtime.independent_ranks import IndependentRanks
    from smlaunch.runtime.service_processes import ServiceStart

_INTERNAL_ERROR_EXIT_CODE = 70
"""sysexits.h: EX_SOFTWARE."""


class _HostTask(NamedTuple):
    """What this host has to do, as read at the start. ``runtime_dir``: the runtime's own folder."""

    spec: LaunchSpec
    paths: Paths
    cluster: Cluster
    resource_config: Dict[str, Any]
    input_channels: Dict[str, Any]
    runtime_dir: str
    segment: Segment
    segment_deadline: segment_lifecycle.SegmentDeadline
    previous_outcome: segment_outcome_files.PreviousOutcome
    hardware: sagemaker_environment.HostHardware
    independent_ranks: "Optional[IndependentRanks]"
    """None where ranks train together."""

    @property
    def has_ranks(self) -> bool:
        return self.spec.ranks.runs_on != LEADER or self.is_leader

    @property
    def is_leader(self) -> bool:
        return self.cluster.current_host == self.cluster.leader


def main(signals: SignalQueue) -> int:
    """Run this host's part of the job; return the exit code of the container. Raises StoppedDuringSetup when
    a stop signal arrives before any process is started.

    ``signals``: installed already, so that no signal is lost; ``defer`` queues them instead of raising, so
    that the report of an error is not interrupted. Errors go to the log and the failure file.
    """
    started_at = time.time()
    paths = Paths.from_environment()  # SageMaker's folders and files in this container
    host = None
    try:
        if isinstance(paths, ProcessingPaths):
            cluster, resource_config = processing.read_cluster(paths)
            host = cluster.current_host
            # For training jobs the platform sets the name and writes the inputs' file.
            os.environ["TRAINING_JOB_NAME"], input_channels = processing.read_job(paths)
        else:
            cluster, resource_config = training.read_cluster(paths.resource_config)
            host = cluster.current_host
            input_channels = sagemaker_environment.read_input_data_config(paths.input_data_config)
        return _run_segment(paths, cluster, resource_config, input_channels, signals, started_at)
    except SetupError as error:
        signals.defer()
        _report_setup_error(paths, host, str(error))
        return error.exit_code
    except Exception as error:
        signals.defer()
        import traceback

        _log(traceback.format_exc())
        _report_setup_error(paths, host, "the runtime failed: {}: {}".format(type(error).__name__, error))
        return _INTERNAL_ERROR_EXIT_CODE  # 70, EX_SOFTWARE of sysexits.h


def _run_segment(
    paths: Paths,
    cluster: Cluster,
    resource_config: Dict[str, Any],
    input_channels: Dict[str, Any],
    signals: SignalQueue,
    started_at: float,
) -> int:
    """Run this host's part of a segment, one job of a chain that trains a run; nothing where an earlier one
    has trained to the end. Returns the exit code.

    ``resource_config`` and ``input_channels``: the platform's descriptions of the hosts and of the inputs,
    as they were read. ``started_at``: when this host started, in seconds since the epoch.
    """
    # job.json, which says what to start; it comes in an input channel of smlaunch's own.
    spec = _read_launch_spec(os.path.join(paths.channel_dir(RUNTIME_CHANNEL), LAUNCH_FILE))
    runtime_folder = runtime_dir.make_runtime_dir(paths)
    segment = segment_lifecycle.prepare_segment(spec, paths, runtime_folder, os.environ, started_at)
    segment_deadline = segment_lifecycle.make_segment_deadline(segment, spec)  # its planned end
    # What the outcome files of earlier segments say: ``finished``, or continue.
    previous_outcome = segment_outcome_files.read_previous_outcome(segment)
    if previous_outcome.finished_outcome is not None:
        _report_earlier_end(segment, previous_outcome.finished_outcome, cluster)  # a line in the log
        return 0
    hardware = sagemaker_environment.HostHardware.detect(cluster.instance_type)
    independent_ranks = None
    if spec.ranks.independent:  # they train apart from each other, and some may have finished before
        from smlaunch.runtime.independent_ranks import read_independent_ranks

        independent_ranks = read_independent_ranks(segment, cluster, _count_ranks_per_host(spec, hardware))
    task = _HostTask(
        spec=spec,
        paths=paths,
        cluster=cluster,
        resource_config=resource_config,
        input_channels=input_channels,
        runtime_dir=runtime_folder,
        segment=segment,
        segment_deadline=segment_deadline,
        previous_outcome=previous_outcome,
        hardware=hardware,
        independent_ranks=independent_ranks,
    )
    if task.is_leader:
        # For an orchestrator that sees only the metrics in the log: this training has not finished yet.
        _print_required_metrics()
        _print_finished_metric(0)
    # Then the other hosts run only services, and learn from the leader when to end.
    if spec.ranks.runs_on == LEADER and len(cluster.hosts) > 1:
        return _run_host_with_control_channel(task, signals)
    return _run_host(task, signals)


def _report_earlier_end(segment: Segment, finished_outcome: "SegmentOutcome", cluster: Cluster) -> None:
    """Report that the run has trained to its end in an earlier job: in the log, and on the leader in this
    attempt's outcome file too.
    """
    if cluster.current_host == cluster.leader:
        try:
            segment_outcome_files.write_finished_outcome(segment, finished_outcome)
        except OSError as error:
            _log(
                "error: {}: the outcome cannot be written: {}".format(segment.checkpoint_dir, error.strerror)
            )
    _print_required_metrics()
    _print_finished_metric(1)
    _log("run {} has trained to its end before: nothing is left to do".format(segment.run))


def _run_host_with_control_channel(task: _HostTask, signals: SignalQueue) -> int:
    """Run this host where only the leader has ranks: the other hosts run its services, and end as the leader
    does, over the control channel. Returns the exit code.
    """
    from smlaunch.runtime import control_channel, job_secret

    key = job_secret.read_secret(os.path.join(task.paths.channel_dir(RUNTIME_CHANNEL), SECRET_FILE))
    first_port = _read_first_port(task.spec, os.environ)
    channel = control_channel.open_control_channel(task.cluster, key, first_port)
    try:
        exit_code = _run_host(task, signals, channel)
    except BaseException as error:
        channel.send_host_exit(control_channel.host_exit_of_error(task.cluster.current_host, error))
        raise
    channel.send_host_exit(HostExitReport(exit_code))  # ignored where a status was sent before
    return exit_code


def _run_host(task: _HostTask, signals: SignalQueue, channel: "Optional[ControlChannel]" = None) -> int:
    """Prepare the host, run its processes (services, then ranks) and report how they ended. Returns the exit
    code.

    ``channel``: the connections to the other hosts, where only the leader has ranks; None elsewhere.
    """
    spec, paths, cluster = task.spec, task.paths, task.cluster  # spec: job.json, which says what to start
    leader_lookup = _start_leader_lookup(task, channel)  # in a thread; None where nothing connects to it
    _unpack_source(spec, paths)

    hyperparameters = read_hyperparameters(paths.hyperparameters)
    python = process_commands.interpreter_path()
    # Begins with the highest step that earlier jobs of the chain have reported.
    step_tracker = StepTracker(segment_lifecycle.read_previous_highest_step(os.environ))
    host_output = HostOutput(1, step_tracker)  # standard output; the tracker notes the steps that ranks print
    if spec.requirements is not None:
        from smlaunch.runtime import requirements_install

        # The interpreter to install for and to run the ranks with
        python = requirements_install.target_python(python, paths, os.environ)
        stop_signal = _install_requirements(spec.requirements, python, task, signals, host_output)
        if stop_signal is not None:
            return 128 + stop_signal  # as a shell reports it

    hostname_problem = image_entry_point.ensure_hostname_resolves(cluster.current_host, os.environ)
    if hostname_problem is not None:
        _log("warning: " + hostname_problem)
    host_context = process_commands.HostContext(
        cluster=cluster,
        paths=paths,
        hyperparameters=hyperparameters,
        python=python,
        ranks_per_host=_count_ranks_per_host(spec, task.hardware),
        port=_read_first_port(spec, os.environ),
        # Where ranks import smlaunch from, if it is not installed
        import_dir=runtime_dir.write_import_package(task.runtime_dir, paths),
    )
    rank_environment = _build_rank_environment(task, host_context)
    rank_commands = []
    if task.has_ranks and spec.ranks.launcher not in (TORCHRUN, MPI):  # these start the ranks themselves
        rank_commands = process_commands.build_rank_commands(spec, host_context, rank_environment)
    if leader_lookup is not None:
        leader_lookup.wait()  # until the leader's name resolves
    service_starts = _plan_services(spec, host_context, rank_environment)
    supervisor = Supervisor(
        signals=signals,
        output=host_output,
        grace_seconds=spec.grace_seconds,  # from SIGTERM to SIGKILL
        failure_grace_seconds=spec.failure_grace_seconds,  # the same after a failure
        hang_seconds=spec.hang_seconds,
        segment_deadline=task.segment_deadline,
        channel=channel,
    )
    oom_kills_before = oom_kills.count_oom_kills()  # processes that the kernel killed for lack of memory
    # Runs the ranks to their end, by torchrun or mpirun where the job has one of them as launcher.
    outcome = _run_launcher(spec, host_context, rank_environment, supervisor, rank_commands, service_starts)
    if task.segment_deadline.stop_file_error is not None:
        _log("error: " + task.segment_deadline.stop_file_error)
    if _write_outcome_and_check_planned_end(task, step_tracker, outcome) and outcome.exit_code != 0:
        _log("the segment is at its planned end, and its ranks have been stopped: this is no failure")
        outcome = HostOutcome(())  # without any failure: exit code 0
    failure_text = _report_failure(paths, cluster.current_host, outcome, oom_kills_before)
    if channel is not None:
        channel.send_host_exit(HostExitReport(outcome.exit_code, failure_text or "", outcome.failed_at))
    return outcome.exit_code


def _start_leader_lookup(
    task: _HostTask, channel: "Optional[ControlChannel]"
) -> "Optional[name_lookup.NameLookup]":
    """Start to look up the leader's name, in a thread, if this host connects to it; otherwise return None."""
    connects_to_leader = task.spec.ranks.rendezvous or task.spec.services or channel is not None
    if not connects_to_leader or len(task.cluster.hosts) == 1:
        return None
    from smlaunch.runtime import name_lookup

    return name_lookup.NameLookup(task.cluster.leader)


def _unpack_source(spec: LaunchSpec, paths: Paths) -> None:
    """Unpack the user's source, if the job has any, and make its folder the current one. Raises
    SetupError."""
    if spec.source is not None:
        from smlaunch.runtime import source_unpacking

        archive = os.path.join(paths.channel_dir(SOURCE_CHANNEL), spec.source)
        source_unpacking.unpack_source(archive, paths.code, spec.source_sha256)
    if os.path.isdir(paths.code):
        os.chdir(paths.code)
    process_commands.check_source_files(spec, paths)


def _plan_services(
    spec: LaunchSpec, host_context: process_commands.HostContext, environ: Mapping[str, str]
) -> "Sequence[ServiceStart]":
    """Return the services, programs beside the ranks, that this host starts or waits for."""
    if not spec.services:
        return ()
    from smlaunch.runtime import service_processes

    return service_processes.plan_services(spec, host_context, environ)


def _run_launcher(
    spec: LaunchSpec,
    host_context: process_commands.HostContext,
    rank_environment: Mapping[str, str],
    supervisor: Supervisor,
    rank_commands: Sequence[process_commands.ProcessCommand],
    service_starts: "Sequence[ServiceStart]",
) -> HostOutcome:
    """Run the job's ranks, by torchrun, mpirun or directly, and return when all processes have exited."""
    if spec.ranks.launcher == TORCHRUN:
        from smlaunch.runtime import torchrun

        return torchrun.run(spec, host_context, rank_environment, supervisor)
    if spec.ranks.launcher == MPI:
        from smlaunch.runtime.mpi import mpirun

        return mpirun.run(spec, host_context, rank_environment, supervisor)
    return supervisor.run(rank_commands, service_starts)


def _install_requirements(
    requirements_file: str, python: str, task: _HostTask, signals: SignalQueue, output: HostOutput
) -> Optional[int]:
    """Install the source's requirements; return the stop signal that ended it, if any. Raises SetupError."""
    from smlaunch.runtime import requirements_install

    command = requirements_install.install_command(python, task.paths, requirements_file)
    pip = Supervisor(signals, output, task.spec.grace_seconds, task.spec.failure_grace_seconds)
    outcome = pip.run([process_commands.helper_command(command, os.environ)])
    signals.release()
    if outcome.stop_signal is None and outcome.first_failure is not None:
        raise requirements_install.install_error(requirements_file, outcome.first_failure.output_tail)
    return outcome.stop_signal


def _build_rank_environment(task: _HostTask, host_context: process_commands.HostContext) -> Dict[str, str]:
    """Return the environment that every program of the user inherits."""
    sagemaker_variables = sagemaker_environment.build_sagemaker_variables(
        task.paths,
        task.cluster,
        task.resource_config,
        task.input_channels,
        host_context.hyperparameters,
        task.hardware,
        process_commands.find_entry_point(task.spec),
        task.spec.ranks.rendezvous,
        host_context.port,
        os.environ,
    )
    return {
        **os.environ,
        **image_entry_point.cuda_compat_variables(os.environ),
        **sagemaker_variables,
        **task.segment.to_environment(),
    }


def _write_outcome_and_check_planned_end(
    task: _HostTask, step_tracker: StepTracker, host_outcome: HostOutcome
) -> bool:
    """Write the segment's outcome file, where this host has to. Return whether the ranks were only stopped at
    the planned end of the segment, so that the next one continues the training from a checkpoint.
    """
    was_planned_end = task.segment.checkpoint_dir is not None and host_outcome.is_planned_end(
        other_hosts_stopping=task.segment_deadline.has_passed and len(task.cluster.hosts) > 1
    )
    if task.is_leader:
        segment_outcome = _write_segment_outcome(task, step_tracker, host_outcome)
        # Exit code 0 without a readable outcome would look like the end of the run.
        return was_planned_end and segment_outcome is not None and segment_outcome.result == "continue"
    if task.has_ranks and not task.spec.ranks.rendezvous:
        # Ranks that do not meet at a rendezvous may end apart from each other.
        segment_outcome = _write_segment_outcome(task, step_tracker, host_outcome)
        return was_planned_end and segment_outcome is not None
    return was_planned_end


def _write_segment_outcome(
    task: _HostTask, step_tracker: StepTracker, host_outcome: HostOutcome
) -> "Optional[SegmentOutcome]":
    """Write the outcome of the segment, whether the training has finished or is to be continued by the next
    job, and return it; None where nothing was written. ``host_outcome``: how this host's processes ended.
    A failure to write is only logged; the client continues a run whose outcome is missing. The stop file
    appears at the planned end, and asks the ranks to exit; ``script_may_read_...`` searches the source for
    it.
    """
    segment, ranks_succeeded = task.segment, host_outcome.exit_code == 0
    ranks_result = segment_outcome_files.RanksResult(
        all_succeeded=ranks_succeeded,
        got_stop_signal=host_outcome.stop_signal is not None,
        # Then the steps that one rank reports are those of all. Ranks meet at a rendezvous to train together.
        train_together=task.spec.ranks.rendezvous or len(host_outcome.processes) == 1,
        processes=host_outcome.processes,
        result_dirs=(task.paths.model, task.paths.output_data),
        script_may_read_stop_file=partial(_may_read_stop_file, task),
        script_may_read_planned_end=partial(_may_read_planned_end, task),
    )
    # The leader's file is that of the job; hosts that train apart write one for each host too.
    writes_file_of_host = not task.is_leader or task.independent_ranks is not None
    try:
        outcome = segment_outcome_files.write_attempt_outcome(
            segment,
            task.segment_deadline,
            task.previous_outcome,
            step_tracker,
            ranks_result,
            host=task.cluster.current_host if writes_file_of_host else None,
            independent_ranks=task.independent_ranks,
            is_leader=task.is_leader,
        )
    except OSError as error:
        _log("error: {}: the outcome cannot be written: {}".format(segment.checkpoint_dir, error.strerror))
        return None
    except ValueError as error:  # the ranks wrote it with another release of smlaunch.train
        _log("error: {}".format(error))
        return None
    if outcome is not None and task.is_leader:
        _log_segment_outcome(task, step_tracker, outcome, ranks_succeeded)
    return outcome


def _log_segment_outcome(
    task: _HostTask, step_tracker: StepTracker, outcome: "SegmentOutcome", ranks_succeeded: bool
) -> None:
    """Log whether the training has finished or continues, and where nothing is known of its progress."""
    reported_no_step = step_tracker.highest_step is None and outcome.step is None
    if task.segment_deadline.planned_end_at is not None and reported_no_step:
        _log(PROGRESS_UNKNOWN)  # a warning: whether the chain makes progress cannot be told
    if not ranks_succeeded:
        return
    # What ranks of other hosts have come to in this segment is not known here.
    scope_note = "" if task.independent_ranks is None else " (as far as this host knows)"
    segment = task.segment
    _log("segment {} of run {}: {}{}".format(segment.segment, segment.run, outcome.result, scope_note))
    if outcome.result == "finished":
        _print_finished_metric(1)  # for an orchestrator that sees only the metrics in the log


def _may_read_stop_file(task: _HostTask) -> bool:
    """Return whether the program may read the stop file. True for a program of the image, which cannot be
    searched.
    """
    if task.spec.source is None:
        return True
    from smlaunch.runtime import stop_file_scan

    ranks = task.spec.ranks
    texts = [value for name, value in os.environ.items() if not name.startswith("SMLAUNCH_")]
    texts += [arg for arg in (*ranks.argv, *(value for _, value in ranks.env)) if isinstance(arg, str)]
    texts.append(str(read_hyperparameters(task.paths.hyperparameters)))
    return stop_file_scan.may_read_stop_file(task.paths.code, texts)


def _may_read_planned_end(task: _HostTask) -> bool:
    """Return whether the program may read when the planned end is. False for a program of the image."""
    if task.spec.source is None:
        return False
    from smlaunch.runtime import stop_file_scan

    return stop_file_scan.may_read_planned_end(task.paths.code)


def _print_required_metrics() -> None:
    for value in os.environ.get(REQUIRED_METRICS_VARIABLE, "").split():
        _log(REQUIRED_LINE_PREFIX + value)


def _print_finished_metric(finished: int) -> None:
    if os.environ.get(REPORT_FINISHED_VARIABLE):
        _log(FINISHED_LINE_PREFIX + str(finished))


def _report_failure(paths: Paths, host: str, outcome: HostOutcome, oom_kills_before: int) -> Optional[str]:
    """Log the failure and write the failure file. Returns the text."""
    if outcome.exit_code == 0:
        return None
    from smlaunch.runtime import failure_file

    text = failure_file.describe_failure(host, outcome, oom_kills.count_oom_kills() > oom_kills_before)
    if text is not None:
        _log(text.partition("\n")[0])
        _write_failure(paths, text, outcome.failed_at)
    return text


def _report_setup_error(paths: Paths, host: Optional[str], problem: str) -> None:
    from smlaunch.contract.failure_reason import format_failure

    _log("error: " + problem)
    _write_failure(paths, format_failure(host or "this host", None, None, problem))


def _write_failure(paths: Paths, text: str, failed_at: Optional[float] = None) -> None:
    from smlaunch.runtime import failure_file

    try:
        failure_file.write_failure_file(paths, text, failed_at)
    except OSError as error:  # for example a full disk; the exit code still reports the failure
        _log("error: {}: {}".format(paths.failure_file, error.strerror))


def _log(text: str) -> None:
    """Print a line on stderr. That nobody reads it must not change the exit code."""
    try:
        os.write(2, "smlaunch: {}\n".format(text).encode("utf-8", "replace"))
    except OSError:
        return


def _read_launch_spec(path: str) -> LaunchSpec:
    """Read job.json. Raises SetupError."""
    try:
        with open(path, encoding="utf-8") as file:
            return LaunchSpec.from_json(file.read())
    except OSError as error:
        raise SetupError("{}: {}".format(path, error.strerror)) from None
    except (LaunchSpecError, UnicodeDecodeError) as error:
        raise SetupError("{}: {}".format(path, error)) from None


def _count_ranks_per_host(spec: LaunchSpec, hardware: sagemaker_environment.HostHardware) -> int:
    if spec.ranks.per_host == AUTO:
        return accelerators.default_ranks_per_host(hardware.gpus, hardware.neuron_cores, os.environ)
    return int(spec.ranks.per_host)


def _read_first_port(spec: LaunchSpec, environ: Mapping[str, str]) -> int:
    text = environ.get(PORT_VARIABLE)
    if not text:
        return spec.port
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise SetupError("{}: a port number is needed, not {!r}".format(PORT_VARIABLE, text))
    return int(text)
