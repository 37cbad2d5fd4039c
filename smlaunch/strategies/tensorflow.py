"""tensorflow: processes find each other by TF_CONFIG, as tf.distribute reads it.

    multi-worker       MultiWorkerMirroredStrategy: one worker per host; the first one is the chief
    parameter-server   ParameterServerStrategy: the script is the chief, on the leader; in addition the same
                       script runs as a worker and as a parameter server on every host, which end with it

Docs: docs/tensorflow.md.
"""

from __future__ import annotations

from typing import ClassVar

from smlaunch.contract.launch_spec import LEADER, Arg, Concat, LaunchSpec, Ref, ServiceSpec
from smlaunch.contract.tcp_ports import FIRST_HOST_PORT, FIRST_SERVICE_PORT, SECOND_HOST_PORT
from smlaunch.errors import Problem
from smlaunch.strategies.base import LaunchContext, Strategy

MULTI_WORKER = "multi-worker"
PARAMETER_SERVER = "parameter-server"
_TOPOLOGIES = (MULTI_WORKER, PARAMETER_SERVER)

_NO_ACCELERATOR = (("CUDA_VISIBLE_DEVICES", ""),)
"""A host's accelerators belong to its worker: servers keep variables in memory, the chief computes
nothing."""

_LOG_LEVEL = (("TF_CPP_MIN_LOG_LEVEL", "1"),)
"""Only warnings and errors: a server logs every session's options otherwise."""

_COLLECTIVES_HANG_SECONDS = 3600
"""Seconds of silence that count as a hang: workers wait for each other in every step."""


class TensorFlow(Strategy):
    name = "tensorflow"
    summary = "starts one process per host with TF_CONFIG, by which tf.distribute joins them"
    python_only = True
    rendezvous = False
    image_family = "tensorflow"
    frameworks = ("TensorFlow",)
    trainium_support = "no"
    one_process_per_host = True
    is_multi_host = True
    libraries = ("tensorflow",)
    other_libraries = ("keras", "tf_keras")
    more_ranks_hint = "tf.distribute uses all accelerators of a host from one"
    options: ClassVar[dict[str, str]] = {
        "topology": "multi-worker (MultiWorkerMirroredStrategy, the default) or parameter-server"
    }

    def find_problems(self, context: LaunchContext) -> list[Problem]:
        problems = []
        topology = context.options.get("topology", MULTI_WORKER)
        if topology not in _TOPOLOGIES:
            message = f"one of {', '.join(_TOPOLOGIES)} is needed, not {topology!r}"
            problems.append(Problem("options.topology", message))
        return problems

    def unimported_consequence(self, context: LaunchContext) -> str:
        return (
            "" if context.is_single_process else "every host trains separately, and nothing reads TF_CONFIG"
        )

    def launch_spec(self, context: LaunchContext) -> LaunchSpec:
        spec = super().launch_spec(context)
        if _uses_parameter_servers(context):
            return spec._replace(ranks=spec.ranks._replace(runs_on=LEADER))
        is_hang_limit_stated = context.hang_seconds is not None
        return spec if is_hang_limit_stated else spec._replace(hang_seconds=_COLLECTIVES_HANG_SECONDS)

    def services(self, context: LaunchContext) -> tuple[ServiceSpec, ...]:
        if not _uses_parameter_servers(context):
            return ()
        return (
            self._service("ps", SECOND_HOST_PORT, context, _NO_ACCELERATOR),  # a parameter server
            self._service("worker", FIRST_HOST_PORT, context),
        )

    def _service(
        self, role: str, first_port: int, context: LaunchContext, variables: tuple[tuple[str, Arg], ...] = ()
    ) -> ServiceSpec:
        """Return the script as a worker or parameter server of every host, beside the ranks."""
        return ServiceSpec(
            f"tf-{role}",
            self.command(context),
            (("TF_CONFIG", _tf_config(role)), *_LOG_LEVEL, *variables),
            ready_address=Concat((Ref("host", suffix=":"), Ref("own_port", offset=first_port))),
        )

    def variables(self, context: LaunchContext) -> tuple[tuple[str, Arg], ...]:
        if _uses_parameter_servers(context):
            return (("TF_CONFIG", _tf_config("chief")), *_NO_ACCELERATOR)
        workers = _endpoints_json("worker", FIRST_HOST_PORT)
        return (("TF_CONFIG", Concat(('{"cluster": {', *workers, "}, ", *_task_json("worker"), "}"))),)


def _uses_parameter_servers(context: LaunchContext) -> bool:
    return context.options.get("topology") == PARAMETER_SERVER


def _tf_config(role: str) -> Concat:
    """TF_CONFIG of a process with parameter servers."""
    chief = ('"chief": ["', Ref("leader", suffix=":"), Ref("port", offset=FIRST_SERVICE_PORT), '"], ')
    servers = (*_endpoints_json("worker", FIRST_HOST_PORT), ", ", *_endpoints_json("ps", SECOND_HOST_PORT))
    return Concat(('{"cluster": {', *chief, *servers, "}, ", *_task_json(role), "}"))


def _endpoints_json(role: str, first_port: int) -> tuple[str | Ref, ...]:
    return (f'"{role}": [', Ref("each_endpoint", prefix='"', suffix='"', offset=first_port), "]")


def _task_json(role: str) -> tuple[str | Ref, ...]:
    index = "0" if role == "chief" else Ref("host_rank")
    return (f'"task": {{"type": "{role}", "index": ', index, "}")
