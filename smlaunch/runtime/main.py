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
from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple, Optional

from smlaunch.contract.launch_spec import AUTO, LEADER, MPI, TORCHRUN, LaunchSpec, LaunchSpecError
from smlaunch.contract.paths import (
    LAUNCH_FILE,
    PORT_VARIABLE,
    RUNTIME_CHANNEL,
    SECRET_FILE,
    SOURCE_CHANNEL,
    Paths,
    ProcessingPaths,
)
from smlaunch.contract.progress import PROGRESS_UNKNOWN
from smlaunch.contract.segment import (
    FINISHED_LINE_PREFIX,
    REPORT_FINISHED_VARIABLE,
    REQUIRED_LINE_PREFIX,
    REQUIRED_METRICS_VARIABLE,
    Segment,
)
from smlaunch.runtime import (
    accelerators,
    commands,
    environment,
    image_setup,
    oom_kills,
    outcome_files,
    runtime_dir,
    segment_lifecycle,
)
from smlaunch.runtime.cluster import Cluster, processing, training
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.host_outcome import HostOutcome, PeerStatus
from smlaunch.runtime.hyperparameters import read_hyperparameters
from smlaunch.runtime.log_streams import HostOutput
from smlaunch.runtime.signals import SignalQueue
from smlaunch.runtime.step_tracker import StepTracker
from smlaunch.runtime.supervisor import Supervisor

if TYPE_CHECKING:
    from smlaunch.contract.outcome import SegmentOutcome
    from smlaunch.runtime.control_channel import ControlChannel
    from smlaunch.runtime.independent_ranks import IndependentRanks

_INTERNAL_ERROR_EXIT_CODE = 70
"""sysexits.h: EX_SOFTWARE."""


class _HostTask(NamedTuple):
    """What this host has to do, as read at the start. ``runtime_dir``: the runtime's own folder."""

    spec: LaunchSpec
    paths: Paths
    cluster: Cluster
    resource_config: Dict[str, Any]
    channels: Dict[str, Any]
    runtime_dir: str
    segment: Segment
    segment_end: segment_lifecycle.SegmentEnd
    previous_outcome: outcome_files.PreviousOutcome
    hardware: environment.HostHardware
    independent_ranks: "Optional[IndependentRanks]"
    """None where ranks train together."""

    @property
    def has_ranks(self) -> bool:
        return self.spec.ranks.runs_on != LEADER or self.is_leader

    @property
    def is_leader(self) -> bool:
        return self.cluster.current_host == self.cluster.leader


def main(signals: SignalQueue) -> int:
    """Return the exit code. Raises StoppedDuringSetup when a stop signal arrives before any process is
    started.
    """
    started_at = time.time()
    paths = Paths.from_environment()
    host = None
    try:
        if isinstance(paths, ProcessingPaths):
            cluster, resource_config = processing.read_cluster(paths)
            host = cluster.current_host
            # A training job's platform sets both.
            os.environ["TRAINING_JOB_NAME"], channels = processing.read_job(paths)
        else:
            cluster, resource_config = training.read_cluster(paths.resource_config)
            host = cluster.current_host
            channels = environment.read_input_data_config(paths.input_data_config)
        return _run_segment(paths, cluster, resource_config, channels, signals, started_at)
    except SetupError as error:
        signals.defer()
        _report_setup_error(paths, host, str(error))
        return error.exit_code
    except Exception as error:
        signals.defer()
        import traceback

        _log(traceback.format_exc())
        _report_setup_error(paths, host, "the runtime failed: {}: {}".format(type(error).__name__, error))
        return _INTERNAL_ERROR_EXIT_CODE


def _run_segment(
    paths: Paths,
    cluster: Cluster,
    resource_config: Dict[str, Any],
    channels: Dict[str, Any],
    signals: SignalQueue,
    started_at: float,
) -> int:
    """Run this host's part of a segment, unless the training is finished already. Returns the exit code.

    ``resource_config`` and ``channels``: the platform's descriptions of the hosts and of the inputs, as they
    were read. ``started_at``: when this host started, in seconds since the epoch.
    """
    spec = _read_launch_spec(os.path.join(paths.channel_dir(RUNTIME_CHANNEL), LAUNCH_FILE))
    runtime_folder = runtime_dir.make_runtime_dir(paths)
    segment = segment_lifecycle.prepare_segment(spec, paths, runtime_folder, os.environ, started_at)
    segment_end = segment_lifecycle.make_segment_end(segment, spec)
    previous_outcome = outcome_files.read_previous_outcome(segment)
    if previous_outcome.finished_outcome is not None:
        if cluster.current_host == cluster.leader:
            try:
                outcome_files.write_finished_outcome(segment, previous_outcome.finished_outcome)
            except OSError as error:
                _log(
                    "error: {}: the outcome cannot be written: {}".format(
                        segment.checkpoint_dir, error.strerror
                    )
                )
        _print_required_metrics()
        _print_finished_metric(1)
        _log("run {} has trained to its end before: nothing is left to do".format(segment.run))
        return 0
    hardware = environment.HostHardware.detect(cluster.instance_type)
    independent_ranks = None
    if spec.ranks.independent:
        from smlaunch.runtime.independent_ranks import read_independent_ranks

        independent_ranks = read_independent_ranks(segment, cluster, _ranks_per_host(spec, hardware))
    task = _HostTask(
        spec,
        paths,
        cluster,
        resource_config,
        channels,
        runtime_folder,
        segment,
        segment_end,
        previous_outcome,
        hardware,
        independent_ranks,
    )
    if task.is_leader:
        _print_required_metrics()
        _print_finished_metric(0)
    if spec.ranks.runs_on != LEADER or len(cluster.hosts) == 1:
        return _run_host(task, signals)
    from smlaunch.runtime import control_channel, secret

    key = secret.read_secret(os.path.join(paths.channel_dir(RUNTIME_CHANNEL), SECRET_FILE))
    channel = control_channel.open_channel(cluster, key, _first_port(spec, os.environ))
    try:
        exit_code = _run_host(task, signals, channel)
    except BaseException as error:
        channel.send_status(control_channel.status_of_error(cluster.current_host, error))
        raise
    channel.send_status(PeerStatus(exit_code))  # ignored where a status was sent before
    return exit_code


def _run_host(task: _HostTask, signals: SignalQueue, channel: "Optional[ControlChannel]" = None) -> int:
    """Prepare the host, run its processes and report how they ended. Returns the exit code.

    ``channel``: the connections to the other hosts, where only the leader has ranks.
    """
    spec, paths, cluster = task.spec, task.paths, task.cluster
    leader_lookup = None
    if (spec.ranks.rendezvous or spec.services or channel is not None) and len(cluster.hosts) > 1:
        from smlaunch.runtime import name_lookup

        leader_lookup = name_lookup.NameLookup(cluster.leader)
    if spec.source is not None:
        from smlaunch.runtime import source

        archive = os.path.join(paths.channel_dir(SOURCE_CHANNEL), spec.source)
        source.unpack_source(archive, paths.code, spec.source_sha256)
    if os.path.isdir(paths.code):
        os.chdir(paths.code)
    commands.check_source_files(spec, paths)

    hyperparameters = read_hyperparameters(paths.hyperparameters)
    python = commands.interpreter_path()
    step_tracker = StepTracker(segment_lifecycle.read_previous_highest_step(os.environ))
    output = HostOutput(1, step_tracker)
    if spec.requirements is not None:
        from smlaunch.runtime import requirements

        python = requirements.target_python(python, paths, os.environ)
        stop_signal = _install_requirements(spec.requirements, python, task, signals, output)
        if stop_signal is not None:
            return 128 + stop_signal

    hostname_problem = image_setup.make_hostname_resolve(cluster.current_host, os.environ)
    if hostname_problem is not None:
        _log("warning: " + hostname_problem)
    host_context = commands.HostContext(
        cluster=cluster,
        paths=paths,
        hyperparameters=hyperparameters,
        python=python,
        ranks_per_host=_ranks_per_host(spec, task.hardware),
        port=_first_port(spec, os.environ),
        import_dir=runtime_dir.write_import_package(task.runtime_dir, paths),
    )
    rank_environment = _rank_environment(task, host_context)
    launcher = spec.ranks.launcher
    rank_commands = []
    if task.has_ranks and launcher not in (TORCHRUN, MPI):
        rank_commands = commands.rank_commands(spec, host_context, rank_environment)
    if leader_lookup is not None:
        leader_lookup.wait()
    service_starts = []
    if spec.services:
        from smlaunch.runtime import services

        service_starts = services.plan_services(spec, host_context, rank_environment)
    supervisor = Supervisor(
        signals,
        output,
        spec.grace_seconds,
        spec.failure_grace_seconds,
        spec.hang_seconds,
        task.segment_end,
        channel,
    )
    oom_kills_before = oom_kills.count_oom_kills()
    if launcher == TORCHRUN:
        from smlaunch.runtime import torchrun

        outcome = torchrun.run(spec, host_context, rank_environment, supervisor)
    elif launcher == MPI:
        from smlaunch.runtime.mpi import mpirun

        outcome = mpirun.run(spec, host_context, rank_environment, supervisor)
    else:
        outcome = supervisor.run(rank_commands, service_starts)
    if task.segment_end.problem is not None:
        _log("error: " + task.segment_end.problem)
    is_planned_end = task.segment.checkpoint_dir is not None and outcome.is_planned_end(
        task.segment_end.has_passed and len(cluster.hosts) > 1
    )
    if task.is_leader:
        segment_outcome = _write_segment_outcome(task, step_tracker, outcome)
        # Exit code 0 without a readable outcome would look like the end of the run.
        is_planned_end = (
            is_planned_end and segment_outcome is not None and segment_outcome.result == "continue"
        )
    elif task.has_ranks and not spec.ranks.rendezvous:
        segment_outcome = _write_segment_outcome(task, step_tracker, outcome)
        is_planned_end = is_planned_end and segment_outcome is not None
    if is_planned_end and outcome.exit_code != 0:
        _log("the segment is at its planned end, and its ranks have been stopped: this is no failure")
        outcome = HostOutcome(())
    failure_text = _report_failure(paths, cluster.current_host, outcome, oom_kills_before)
    if channel is not None:
        channel.send_status(PeerStatus(outcome.exit_code, failure_text or "", outcome.failed_at))
    return outcome.exit_code


def _install_requirements(
    requirements_file: str, python: str, task: _HostTask, signals: SignalQueue, output: HostOutput
) -> Optional[int]:
    """Install the source's requirements; return the stop signal that ended it, if any. Raises SetupError."""
    from smlaunch.runtime import requirements

    command = requirements.install_command(python, task.paths, requirements_file)
    pip = Supervisor(signals, output, task.spec.grace_seconds, task.spec.failure_grace_seconds)
    outcome = pip.run([commands.helper_command(command, os.environ)])
    signals.release()
    if outcome.stop_signal is None and outcome.first_failure is not None:
        raise requirements.install_error(requirements_file, outcome.first_failure.output_tail)
    return outcome.stop_signal


def _rank_environment(task: _HostTask, host_context: commands.HostContext) -> Dict[str, str]:
    """Return the environment that every program of the user inherits."""
    sagemaker_variables = environment.sagemaker_variables(
        task.paths,
        task.cluster,
        task.resource_config,
        task.channels,
        host_context.hyperparameters,
        task.hardware,
        commands.find_entry_point(task.spec),
        task.spec.ranks.rendezvous,
        host_context.port,
        os.environ,
    )
    return {
        **os.environ,
        **image_setup.cuda_variables(os.environ),
        **sagemaker_variables,
        **task.segment.to_environment(),
    }


def _write_segment_outcome(
    task: _HostTask, step_tracker: StepTracker, host_outcome: HostOutcome
) -> "Optional[SegmentOutcome]":
    """Write the segment's outcome and return it; None where nothing was written. The training itself is done,
    so a failure to write is only logged; the client continues a run whose outcome is missing.
    """
    segment, ranks_succeeded = task.segment, host_outcome.exit_code == 0
    were_signalled = host_outcome.stop_signal is not None
    ranks_end = outcome_files.RanksEnd(
        ranks_succeeded,
        were_signalled,
        task.spec.ranks.rendezvous or len(host_outcome.processes) == 1,
        host_outcome.processes,
        (task.paths.model, task.paths.output_data),
        partial(_may_read_stop_file, task),
        partial(_may_read_planned_end, task),
    )
    has_own_outcome = not task.is_leader or task.independent_ranks is not None
    try:
        outcome = outcome_files.write_outcome(
            segment,
            task.segment_end,
            task.previous_outcome,
            step_tracker,
            ranks_end,
            task.cluster.current_host if has_own_outcome else None,
            task.independent_ranks,
            is_leader=task.is_leader,
        )
    except OSError as error:
        _log("error: {}: the outcome cannot be written: {}".format(segment.checkpoint_dir, error.strerror))
        return None
    except ValueError as error:  # the ranks wrote it with another release of smlaunch.train
        _log("error: {}".format(error))
        return None
    if outcome is None or not task.is_leader:
        return outcome
    if task.segment_end.planned_at is not None and step_tracker.highest_step is None and outcome.step is None:
        _log(PROGRESS_UNKNOWN)
    if ranks_succeeded:
        # What ranks of other hosts have come to in this segment is not known here.
        scope_note = "" if task.independent_ranks is None else " (as far as this host knows)"
        _log("segment {} of run {}: {}{}".format(segment.segment, segment.run, outcome.result, scope_note))
        if outcome.result == "finished":
            _print_finished_metric(1)
    return outcome


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
    from smlaunch.contract.failure import format_failure

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


def _ranks_per_host(spec: LaunchSpec, hardware: environment.HostHardware) -> int:
    if spec.ranks.per_host == AUTO:
        return accelerators.default_ranks_per_host(hardware.gpus, hardware.neuron_cores, os.environ)
    return int(spec.ranks.per_host)


def _first_port(spec: LaunchSpec, environ: Mapping[str, str]) -> int:
    text = environ.get(PORT_VARIABLE)
    if not text:
        return spec.port
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise SetupError("{}: a port number is needed, not {!r}".format(PORT_VARIABLE, text))
    return int(text)
