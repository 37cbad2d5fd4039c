"""One host's way from the SageMaker contract to an exit code.

    job.json, resourceconfig.json   ->  what to start, and who the peers are
    source, requirements            ->  unpacked and installed
    the leader's name               ->  resolved, meanwhile
    services, then ranks            ->  started, looked after (supervise.py); on a host that has none, the
                                        leader is followed (link.py)
    the first failure               ->  the failure file and the exit code
    all are gone                    ->  the outcome of the segment, beside its checkpoints

Exit codes: 0 when all left with 0, or were stopped at the segment's planned end and others can read that the
run goes on; otherwise that of the first rank that failed (128 + n for a signal), 143 when ranks ended by the
SIGTERM this host was sent; 124 after a hang; 2 when the job cannot run as it was sent, 70 when the runtime
itself failed.
"""

import os
import time
from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple, Optional

from smlaunch.protocol.launch_spec import AUTO, LEADER, MPI, TORCHRUN, LaunchSpec, LaunchSpecError
from smlaunch.protocol.paths import (
    LAUNCH_FILE,
    PORT_VARIABLE,
    RUNTIME_CHANNEL,
    SECRET_FILE,
    SOURCE_CHANNEL,
    Paths,
    ProcessingPaths,
)
from smlaunch.protocol.progress import NOT_KNOWN
from smlaunch.protocol.segment import FINISHED_LINE, REQUIRED, REQUIRED_LINE, TELL_FINISHED, Segment
from smlaunch.runtime import accelerators, arguments, commands, environment, image, memory, own, segments
from smlaunch.runtime.cluster import Cluster, processing, training
from smlaunch.runtime.outcome import News, Outcome
from smlaunch.runtime.problems import Unusable
from smlaunch.runtime.reported import Reported
from smlaunch.runtime.signals import Signals
from smlaunch.runtime.streams import Output
from smlaunch.runtime.supervise import Supervisor

if TYPE_CHECKING:
    from smlaunch.protocol.checkpoint import Outcome as CheckpointOutcome
    from smlaunch.runtime.link import Link

_INTERNAL = 70
"""sysexits.h: EX_SOFTWARE."""


class _Work(NamedTuple):
    """What a host has been given to do, before anything has been prepared. ``folder``: the runtime's own."""

    spec: LaunchSpec
    paths: Paths
    cluster: Cluster
    resource_config: Dict[str, Any]
    channels: Dict[str, Any]
    folder: str
    segment: Segment
    end: segments.End
    before: segments.Left

    @property
    def has_ranks(self) -> bool:
        return self.spec.ranks.on != LEADER or self.leads

    @property
    def leads(self) -> bool:
        return self.cluster.current == self.cluster.leader


def main(signals: Signals) -> int:
    """Returns the exit code. Raises Stopped when a stop came before there were processes to stop."""
    began = time.time()
    paths = Paths.from_environment()
    host = None
    try:
        if isinstance(paths, ProcessingPaths):
            cluster, resource_config = processing.read(paths)
            host = cluster.current
            # As a training job's platform tells both.
            os.environ["TRAINING_JOB_NAME"], channels = processing.job_of(paths)
        else:
            cluster, resource_config = training.read(paths.resource_config)
            host = cluster.current
            channels = environment.read_input_data_config(paths.input_data_config)
        return _run(paths, cluster, resource_config, channels, signals, began)
    except Unusable as problem:
        signals.hold()
        _report_unusable(paths, host, str(problem))
        return problem.exit_code
    except Exception as error:
        signals.hold()
        import traceback

        _say(traceback.format_exc())
        _report_unusable(paths, host, "the runtime failed: {}: {}".format(type(error).__name__, error))
        return _INTERNAL


def _run(
    paths: Paths,
    cluster: Cluster,
    resource_config: Dict[str, Any],
    channels: Dict[str, Any],
    signals: Signals,
    began: float,
) -> int:
    spec = _read_launch_spec(os.path.join(paths.channel(RUNTIME_CHANNEL), LAUNCH_FILE))
    folder = own.folder(paths)
    segment = segments.segment_of(spec, paths, folder, os.environ, began)
    end = segments.end_of(segment, spec)
    before = segments.left_before(segment)
    if before.finished:
        _tell_required()
        _tell_finished(1)
        _say("run {} has trained to its end before: nothing is left to do".format(segment.run))
        return 0
    work = _Work(spec, paths, cluster, resource_config, channels, folder, segment, end, before)
    if work.leads:
        _tell_required()
        _tell_finished(0)
    if spec.ranks.on != LEADER or len(cluster.hosts) == 1:
        return _do(work, signals)
    from smlaunch.runtime import link as links
    from smlaunch.runtime import secret

    key = secret.read(os.path.join(paths.channel(RUNTIME_CHANNEL), SECRET_FILE))
    link = links.join(cluster, key, _port(spec, os.environ))
    try:
        code = _do(work, signals, link)
    except BaseException as error:
        link.tell(links.last_word(cluster.current, error))
        raise
    link.tell(News(code))  # where nothing more was said
    return code


def _do(work: _Work, signals: Signals, link: "Optional[Link]" = None) -> int:
    spec, paths, cluster = work.spec, work.paths, work.cluster
    resolution = None
    if (spec.ranks.rendezvous or spec.services or link is not None) and len(cluster.hosts) > 1:
        from smlaunch.runtime import names

        resolution = names.Resolution(cluster.leader)
    if spec.source is not None:
        from smlaunch.runtime import source

        archive = os.path.join(paths.channel(SOURCE_CHANNEL), spec.source)
        source.unpack(archive, paths.code, spec.source_sha256)
    if os.path.isdir(paths.code):
        os.chdir(paths.code)
    commands.check_entry(spec, paths)

    hyperparameters = arguments.read(paths.hyperparameters)
    machine = environment.Machine.seen(cluster.instance_type)
    python = commands.interpreter()
    reported = Reported(segments.reported_before(os.environ))
    output = Output(1, reported)
    if spec.requirements is not None:
        from smlaunch.runtime import requirements

        python = requirements.target_python(python, paths, os.environ)
        words = requirements.install_words(python, paths, spec.requirements)
        pip = Supervisor(signals, output, spec.grace_seconds, spec.failure_grace_seconds)
        outcome = pip.run([commands.plain_command(words, os.environ)])
        signals.release()
        if outcome.stopped_by is not None:
            return 128 + outcome.stopped_by
        if outcome.first_failure is not None:
            raise requirements.failed(spec.requirements, outcome.first_failure.tail)

    unresolved = image.make_hostname_resolve(cluster.current, os.environ)
    if unresolved is not None:
        _say("warning: " + unresolved)
    port = _port(spec, os.environ)
    rank_environment = dict(os.environ)
    rank_environment.update(image.cuda_variables(os.environ))
    rank_environment.update(
        environment.sagemaker_variables(
            paths,
            cluster,
            work.resource_config,
            work.channels,
            hyperparameters,
            machine,
            commands.entry_point(spec),
            spec.ranks.rendezvous,
            port,
            os.environ,
        )
    )
    rank_environment.update(work.segment.to_environment())
    host = commands.Host(
        cluster=cluster,
        paths=paths,
        hyperparameters=hyperparameters,
        python=python,
        per_host=_per_host(spec, machine),
        port=port,
        importable=own.importable(work.folder, paths),
    )
    launcher = spec.ranks.launcher
    ranks = []
    if work.has_ranks and launcher not in (TORCHRUN, MPI):
        ranks = commands.rank_commands(spec, host, rank_environment)
    if resolution is not None:
        resolution.wait()
    steps = []
    if spec.services:
        from smlaunch.runtime import services

        steps = services.steps(spec, host, rank_environment)
    supervisor = Supervisor(
        signals, output, spec.grace_seconds, spec.failure_grace_seconds, spec.hang_seconds, work.end, link
    )
    memory_kills = memory.out_of_memory_kills()
    if launcher == TORCHRUN:
        from smlaunch.runtime import torchrun

        outcome = torchrun.run(spec, host, rank_environment, supervisor)
    elif launcher == MPI:
        from smlaunch.runtime import mpi

        outcome = mpi.run(spec, host, rank_environment, supervisor)
    else:
        outcome = supervisor.run(ranks, steps)
    if work.end.problem is not None:
        _say("error: " + work.end.problem)
    planned = work.segment.checkpoints is not None and outcome.ended_by_plan(
        work.end.has_come and len(cluster.hosts) > 1
    )
    if work.leads:
        left = _leave_outcome(work, reported, outcome.exit_code == 0)
        # To end with 0 says that the run goes on; where nobody can read that, it would say that it is over.
        planned = planned and left is not None and left.result == "continue"
    if planned and outcome.exit_code != 0:
        _say("the segment is at its planned end, and its ranks have been stopped: no failure of theirs")
        outcome = Outcome(())
    text = _report_failure(paths, cluster.current, outcome, memory_kills)
    if link is not None:
        link.tell(News(outcome.exit_code, text or "", outcome.began))
    return outcome.exit_code


def _leave_outcome(work: _Work, reported: Reported, in_peace: bool) -> "Optional[CheckpointOutcome]":
    """The training itself is done: what cannot be written here must not make a failure of it. The client
    takes a missing outcome for one to be continued. None where nothing could be left.
    """
    segment = work.segment
    try:
        left = segments.leave_outcome(segment, work.end, work.before, reported, in_peace)
    except OSError as error:
        _say("error: {}: the outcome cannot be written: {}".format(segment.checkpoints, error.strerror))
        return None
    if left is None:
        return None
    if work.end.at is not None and left.reported is None and left.step is None:
        _say(NOT_KNOWN)
    if in_peace:
        _say("segment {} of run {}: {}".format(segment.segment, segment.run, left.result))
        if left.result == "finished":
            _tell_finished(1)
    return left


def _tell_required() -> None:
    for value in os.environ.get(REQUIRED, "").split():
        _say(REQUIRED_LINE + value)


def _tell_finished(finished: int) -> None:
    if os.environ.get(TELL_FINISHED):
        _say(FINISHED_LINE + str(finished))


def _report_failure(paths: Paths, host: str, outcome: Outcome, memory_kills: int) -> Optional[str]:
    """What there was to say."""
    if outcome.exit_code == 0:
        return None
    from smlaunch.runtime import failure

    text = failure.describe(host, outcome, memory.out_of_memory_kills() > memory_kills)
    if text is not None:
        _say(text.partition("\n")[0])
        _write_failure(paths, text, outcome.began)
    return text


def _report_unusable(paths: Paths, host: Optional[str], problem: str) -> None:
    from smlaunch.protocol.failure import format_failure

    _say("error: " + problem)
    _write_failure(paths, format_failure(host or "this host", None, None, problem))


def _write_failure(paths: Paths, text: str, began: Optional[float] = None) -> None:
    from smlaunch.runtime import failure

    try:
        failure.write(paths, text, began)
    except OSError as error:  # a full disk may be the very reason; the exit code still tells
        _say("error: {}: {}".format(paths.failure, error.strerror))


def _say(text: str) -> None:
    """On stderr; that nobody reads it must not change how this ends."""
    try:
        os.write(2, "smlaunch: {}\n".format(text).encode("utf-8", "replace"))
    except OSError:
        return


def _read_launch_spec(path: str) -> LaunchSpec:
    try:
        with open(path, encoding="utf-8") as file:
            return LaunchSpec.from_json(file.read())
    except OSError as error:
        raise Unusable("{}: {}".format(path, error.strerror)) from None
    except (LaunchSpecError, UnicodeDecodeError) as error:
        raise Unusable("{}: {}".format(path, error)) from None


def _per_host(spec: LaunchSpec, machine: environment.Machine) -> int:
    if spec.ranks.per_host == AUTO:
        return accelerators.usable(machine.gpus, machine.neuron_cores, os.environ)
    return int(spec.ranks.per_host)


def _port(spec: LaunchSpec, environ: Mapping[str, str]) -> int:
    text = environ.get(PORT_VARIABLE)
    if not text:
        return spec.port
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise Unusable("{}: a port number is needed, not {!r}".format(PORT_VARIABLE, text))
    return int(text)
