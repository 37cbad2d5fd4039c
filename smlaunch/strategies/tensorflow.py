"""tensorflow: every process finds the others by TF_CONFIG, as tf.distribute reads it.

    multi-worker       MultiWorkerMirroredStrategy: one worker on each host; the first one is the chief
    parameter-server   ParameterServerStrategy: the script is the chief, on the leader; beside it the same
                       script runs as a worker and as a parameter server on every host, which end with it

Docs: docs/tensorflow.md.
"""

from __future__ import annotations

from typing import ClassVar

from smlaunch.errors import Problem
from smlaunch.protocol.launch_spec import LEADER, Joined, LaunchSpec, Ref, Service, Word
from smlaunch.protocol.ports import HOSTS, MORE_HOSTS, SERVICES
from smlaunch.strategies.base import Setting, Strategy

MULTI_WORKER = "multi-worker"
PARAMETER_SERVER = "parameter-server"
_TOPOLOGIES = (MULTI_WORKER, PARAMETER_SERVER)

_NO_ACCELERATOR = (("CUDA_VISIBLE_DEVICES", ""),)
"""A host's accelerators are its worker's: servers keep variables in memory, the chief computes nothing."""

_QUIET = (("TF_CPP_MIN_LOG_LEVEL", "1"),)
"""Warnings and errors alone: a server tells every session's options otherwise."""

_COLLECTIVES_GIVE_UP = 3600
"""Seconds of silence that count as a hang: workers wait for each other in every step."""


class TensorFlow(Strategy):
    name = "tensorflow"
    summary = "starts one process per host with TF_CONFIG, by which tf.distribute joins them"
    python_only = True
    rendezvous = False
    family = "tensorflow"
    frameworks = ("TensorFlow",)
    trainium = "no"
    one_per_host = True
    for_several_hosts = True
    libraries = ("tensorflow",)
    other_libraries = ("keras", "tf_keras")
    instead_of_ranks = "tf.distribute uses all accelerators of a host from one"
    options: ClassVar[dict[str, str]] = {
        "topology": "multi-worker (MultiWorkerMirroredStrategy, the default) or parameter-server"
    }

    def check(self, setting: Setting) -> list[Problem]:
        problems = []
        topology = setting.options.get("topology", MULTI_WORKER)
        if topology not in _TOPOLOGIES:
            told = f"one of {', '.join(_TOPOLOGIES)} is needed, not {topology!r}"
            problems.append(Problem("options.topology", told))
        return problems

    def unimported(self, setting: Setting) -> str:
        told = "does not import tensorflow: unless a module of its own does, every host trains alone"
        return "" if setting.alone else f"{told}, and nothing reads TF_CONFIG"

    def launch_spec(self, setting: Setting) -> LaunchSpec:
        spec = super().launch_spec(setting)
        if _by_servers(setting):
            return spec._replace(ranks=spec.ranks._replace(on=LEADER))
        return spec if setting.hang is not None else spec._replace(hang_seconds=_COLLECTIVES_GIVE_UP)

    def services(self, setting: Setting) -> tuple[Service, ...]:
        if not _by_servers(setting):
            return ()
        command = self.command(setting)
        return tuple(
            Service(
                f"tf-{role}",
                command,
                (("TF_CONFIG", _task(role)), *_QUIET, *(_NO_ACCELERATOR if role == "ps" else ())),
                ready=Joined((Ref("host", suffix=":"), Ref("own_port", offset=first))),
            )
            for role, first in (("ps", MORE_HOSTS), ("worker", HOSTS))
        )

    def variables(self, setting: Setting) -> tuple[tuple[str, Word], ...]:
        if _by_servers(setting):
            return (("TF_CONFIG", _task("chief")), *_NO_ACCELERATOR)
        workers = _each("worker", HOSTS)
        return (("TF_CONFIG", Joined(('{"cluster": {', *workers, "}, ", *_own("worker"), "}"))),)


def _by_servers(setting: Setting) -> bool:
    return setting.options.get("topology") == PARAMETER_SERVER


def _task(role: str) -> Joined:
    chief = ('"chief": ["', Ref("leader", suffix=":"), Ref("port", offset=SERVICES), '"], ')
    servers = (*_each("worker", HOSTS), ", ", *_each("ps", MORE_HOSTS))
    return Joined(('{"cluster": {', *chief, *servers, "}, ", *_own(role), "}"))


def _each(role: str, first: int) -> tuple[str | Ref, ...]:
    return (f'"{role}": [', Ref("each_endpoint", prefix='"', suffix='"', offset=first), "]")


def _own(role: str) -> tuple[str | Ref, ...]:
    index = "0" if role == "chief" else Ref("host_rank")
    return (f'"task": {{"type": "{role}", "index": ', index, "}")
