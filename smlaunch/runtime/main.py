"""Run one host's part of a job: from the SageMaker contract to an exit code.

    job.json, resourceconfig.json   ->  what to start, and who the peers are
    source, requirements            ->  unpacked and installed
    the leader's name               ->  resolved, meanwhile
    services, then ranks            ->  started and supervised (rank_supervisor.py); a host without ranks
                                        follows the leader (control_channel.py)
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
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence

from smlaunch.contract.launch_spec import LEADER, MPI, TORCHRUN, LaunchSpec
from smlaunch.contract.sagemaker_paths import (
    LAUNCH_FILE,
    RUNTIME_CHANNEL,
    SECRET_FILE,
    SOURCE_CHANNEL,
    Paths,
    ProcessingPaths,
)
from smlaunch.runtime import (
    image_entry_point,
    oom_kills,
    process_commands,
    runtime_dir,
    sagemaker_environment,
    secret_values,
    segment_lifecycle,
    segment_outcome_files,
)
from smlaunch.runtime.cluster import Cluster, processing, training
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.host_outcome import HostExitReport, HostOutcome
from smlaunch.runtime.host_report import (
    ended_as_planned,
    log,
    may_read_stop_file,
    print_finished_metric,
    print_required_metrics,
    report_earlier_end,
    report_failure,
    report_setup_error,
    write_segment_outcome,
)
from smlaunch.runtime.host_task import HostTask, count_ranks_per_host, read_first_port, read_launch_spec
from smlaunch.runtime.hyperparameters import read_hyperparameters
from smlaunch.runtime.log_streams import HostOutput
from smlaunch.runtime.rank_supervisor import Supervisor
from smlaunch.runtime.signals import SignalQueue
from smlaunch.runtime.step_tracker import StepTracker

if TYPE_CHECKING:
    from smlaunch.runtime import name_lookup
    from smlaunch.runtime.control_channel import ControlChannel
    from smlaunch.runtime.service_processes import ServiceStart

_INTERNAL_ERROR_EXIT_CODE = 70
"""sysexits.h: EX_SOFTWARE."""


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
        report_setup_error(paths, host, str(error))
        return error.exit_code
    except Exception as error:
        signals.defer()
        import traceback

        log(traceback.format_exc())
        report_setup_error(paths, host, "the runtime failed: {}: {}".format(type(error).__name__, error))
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
    spec = read_launch_spec(os.path.join(paths.channel_dir(RUNTIME_CHANNEL), LAUNCH_FILE))
    runtime_folder = runtime_dir.make_runtime_dir(paths)
    segment = segment_lifecycle.prepare_segment(spec, paths, runtime_folder, os.environ, started_at)
    segment_deadline = segment_lifecycle.make_segment_deadline(segment, spec)  # its planned end
    # What the outcome files of earlier segments say: ``finished``, or continue.
    previous_outcome = segment_outcome_files.read_previous_outcome(segment)
    if previous_outcome.finished_outcome is not None:
        report_earlier_end(segment, previous_outcome.finished_outcome, cluster)  # a line in the log
        return 0
    hardware = sagemaker_environment.HostHardware.detect(cluster.instance_type)
    independent_ranks = None
    if spec.ranks.independent:  # they train apart from each other, and some may have finished before
        from smlaunch.runtime.independent_ranks import read_independent_ranks

        independent_ranks = read_independent_ranks(segment, cluster, count_ranks_per_host(spec, hardware))
    task = HostTask(
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
        print_required_metrics()
        print_finished_metric(0)
    # Then the other hosts run only services, and learn from the leader when to end.
    if spec.ranks.runs_on == LEADER and len(cluster.hosts) > 1:
        return _run_host_with_control_channel(task, signals)
    return _run_host(task, signals)


def _run_host_with_control_channel(task: HostTask, signals: SignalQueue) -> int:
    """Run this host where only the leader has ranks: the other hosts run its services, and end as the leader
    does, over the control channel. Returns the exit code.
    """
    from smlaunch.runtime import control_channel, job_secret

    key = job_secret.read_secret(os.path.join(task.paths.channel_dir(RUNTIME_CHANNEL), SECRET_FILE))
    first_port = read_first_port(task.spec, os.environ)
    channel = control_channel.open_control_channel(task.cluster, key, first_port)
    try:
        exit_code = _run_host(task, signals, channel)
    except BaseException as error:
        channel.send_host_exit(control_channel.host_exit_of_error(task.cluster.current_host, error))
        raise
    channel.send_host_exit(HostExitReport(exit_code))  # ignored where a status was sent before
    return exit_code


def _run_host(task: HostTask, signals: SignalQueue, channel: "Optional[ControlChannel]" = None) -> int:
    """Prepare the host, run its processes (services, then ranks) and report how they ended. Returns the exit
    code.

    ``channel``: the connections to the other hosts, where only the leader has ranks; None elsewhere.
    """
    spec, paths, cluster = task.spec, task.paths, task.cluster  # spec: job.json, which says what to start
    leader_lookup = _start_leader_lookup(task, channel)  # in a thread; None where nothing connects to it
    _unpack_source(spec, paths)

    python = process_commands.interpreter_path()
    # Begins with the highest step that earlier jobs of the chain have reported.
    step_tracker = StepTracker(segment_lifecycle.read_previous_highest_step(os.environ))
    host_output = HostOutput(1, step_tracker)  # standard output; the tracker notes the steps that ranks print
    if spec.requirements is not None:
        from smlaunch.runtime import requirements_install

        # The interpreter to install for and to run the ranks with
        python = requirements_install.target_python(python, paths, os.environ)
        os.environ["PATH"] = requirements_install.path_with_interpreter(python, os.environ)
        stop_signal = _install_requirements(spec.requirements, python, task, signals, host_output)
        if stop_signal is not None:
            return 128 + stop_signal  # as a shell reports it

    hostname_problem = image_entry_point.ensure_hostname_resolves(cluster.current_host, os.environ)
    if hostname_problem is not None:
        log("warning: " + hostname_problem)
    host_context = _describe_host(task, python)  # what references in job.json stand for
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
        script_may_read_stop_file=partial(may_read_stop_file, task),
    )
    oom_kills_before = oom_kills.count_oom_kills()  # processes that the kernel killed for lack of memory
    # Runs the ranks to their end, by torchrun or mpirun where the job has one of them as launcher.
    outcome = _run_launcher(spec, host_context, rank_environment, supervisor, rank_commands, service_starts)
    if task.segment_deadline.stop_file_error is not None:
        log("error: " + task.segment_deadline.stop_file_error)
    segment_outcome = write_segment_outcome(task, step_tracker, outcome)
    if outcome.exit_code != 0 and ended_as_planned(task, outcome, segment_outcome):
        log("the segment is at its planned end, and its ranks have been stopped: this is no failure")
        outcome = HostOutcome(())  # without any failure: exit code 0
    failure_text = report_failure(paths, cluster.current_host, outcome, oom_kills_before)
    if channel is not None:
        channel.send_host_exit(HostExitReport(outcome.exit_code, failure_text or "", outcome.failed_at))
    return outcome.exit_code


def _describe_host(task: HostTask, python: str) -> process_commands.HostContext:
    """Return the facts of this host to which job.json can refer. ``python``: the ranks' interpreter."""
    hyperparameters = read_hyperparameters(task.paths.hyperparameters)
    import_dir = runtime_dir.write_import_package(task.runtime_dir, task.paths)
    ranks = task.spec.ranks
    # Ranks that torch.distributed joins: MPI, and what runs beside ranks, join them in other ways.
    joins_hosts = ranks.rendezvous and ranks.launcher != MPI and not task.spec.services
    if joins_hosts and len(task.cluster.hosts) > 1:
        runtime_dir.write_torch_extension(import_dir)
    return process_commands.HostContext(
        cluster=task.cluster,
        paths=task.paths,
        hyperparameters=hyperparameters._replace(flags=dict(task.spec.ranks.flags)),
        python=python,
        ranks_per_host=count_ranks_per_host(task.spec, task.hardware),
        port=read_first_port(task.spec, os.environ),
        # Where ranks import smlaunch from, if it is not installed
        import_dir=import_dir,
    )


def _start_leader_lookup(
    task: HostTask, channel: "Optional[ControlChannel]"
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
    requirements_file: str, python: str, task: HostTask, signals: SignalQueue, output: HostOutput
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


def _build_rank_environment(task: HostTask, host_context: process_commands.HostContext) -> Dict[str, str]:
    """Return the environment that every program of the user inherits."""
    sagemaker_variables = sagemaker_environment.build_sagemaker_variables(
        paths=task.paths,
        cluster=task.cluster,
        resource_config=task.resource_config,
        channels=task.input_channels,
        hyperparameters=host_context.hyperparameters,
        hardware=task.hardware,
        entry_point=process_commands.find_entry_point(task.spec),
        distributed=task.spec.ranks.rendezvous,
        port=host_context.port,
        environ=os.environ,
    )
    return {
        **os.environ,
        **image_entry_point.cuda_compat_variables(os.environ),
        **sagemaker_variables,
        **task.segment.to_environment(),
        **secret_values.fetch_secrets(task.spec.secrets, os.environ),
    }
