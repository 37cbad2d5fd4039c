"""ray: the job's hosts form a Ray cluster; the script is its driver, on the leader, and ends it.

Docs: docs/ray.md.
"""

from __future__ import annotations

from typing import ClassVar

from smlaunch.contract.launch_spec import LEADER, OTHERS, Arg, Concat, Ref, ServiceSpec
from smlaunch.contract.tcp_ports import FIRST_HOST_PORT, FIRST_SERVICE_PORT, SECOND_HOST_PORT
from smlaunch.strategies.base import LaunchContext, Strategy

_HEAD_ADDRESS = Concat((Ref("leader_address", suffix=":"), Ref("port", offset=FIRST_SERVICE_PORT)))
_WORKER_ADDRESS = Concat((Ref("address", suffix=":"), Ref("own_port", offset=FIRST_HOST_PORT)))

_DRIVER_COMMAND = (Ref("python"), "-c", "from smlaunch.runtime.ray_driver import main; main()", Ref("hosts"))
"""Waits until every host has joined the cluster, then runs the script (runtime/ray_driver.py)."""

_ENVIRONMENT: tuple[tuple[str, Arg], ...] = (
    # The job ends with the script: moving work to other nodes first would take up to 30 s.
    ("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
)


class Ray(Strategy):
    name = "ray"
    summary = "makes a Ray cluster of the job's hosts and runs the script as its driver, on the leader"
    rendezvous = False
    image_family = "pytorch"
    one_process_per_host = True
    is_multi_host = True
    distributes_records = True
    rank_hosts = LEADER
    python_only = True
    count_options = ("cpus",)
    boolean_options = ("dashboard",)
    libraries = ("ray",)
    more_ranks_hint = "Ray starts its own; options.cpus states the CPUs of each host"
    options: ClassVar[dict[str, str]] = {
        "cpus": "CPUs of each host that tasks may use; all by default",
        "dashboard": "true for Ray's dashboard on the leader; off by default, needs ray[default]",
    }

    def find_warnings(self, context: LaunchContext) -> list[str]:
        is_aws_image = any(name in context.image for name in ("/pytorch:", "/pytorch-training:"))
        if context.target == "aws" and is_aws_image and context.requirements is None:
            return [
                (
                    "AWS's PyTorch images do not contain Ray: add ray to a requirements file, or name "
                    "another image"
                )
            ]
        return []

    def unimported_consequence(self, context: LaunchContext) -> str:
        return "it runs only on the leader, and the cluster is idle"

    def command(self, context: LaunchContext) -> tuple[Arg, ...]:
        return (
            *_DRIVER_COMMAND,
            *context.program_command,
            *context.args,
            Ref("hyperparameters"),
        )

    def services(self, context: LaunchContext) -> tuple[ServiceSpec, ...]:
        start_command: tuple[Arg, ...] = (
            *(Ref("python"), "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
            # Without it Ray resolves the machine's address, of which a host may have several.
            Ref("address", prefix="--node-ip-address="),
            Ref("own_port", prefix="--node-manager-port=", offset=FIRST_HOST_PORT),
            # Without it all hosts use the same port, even if they share a network.
            Ref("own_port", prefix="--dashboard-agent-listen-port=", offset=SECOND_HOST_PORT),
            *("--min-worker-port=0", "--max-worker-port=0"),
        )
        if "cpus" in context.options:
            start_command = (*start_command, f"--num-cpus={context.options['cpus']}")
        dashboard = "true" if context.options.get("dashboard") else "false"
        head_command = (
            *(*start_command, "--head", Ref("port", prefix="--port=", offset=FIRST_SERVICE_PORT)),
            f"--include-dashboard={dashboard}",
        )
        worker_command = (*start_command, Concat(("--address=", *_HEAD_ADDRESS.parts)))
        return (
            ServiceSpec("ray-head", head_command, _ENVIRONMENT, LEADER, _HEAD_ADDRESS),
            ServiceSpec("ray-worker", worker_command, _ENVIRONMENT, OTHERS, _WORKER_ADDRESS),
        )

    def variables(self, context: LaunchContext) -> tuple[tuple[str, Arg], ...]:
        return (("RAY_ADDRESS", _HEAD_ADDRESS), ("RAY_USAGE_STATS_ENABLED", "0"))
