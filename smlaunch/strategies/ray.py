"""ray: the job's hosts become a Ray cluster; the script is its driver, on the leader, and ends it.

Docs: docs/ray.md.
"""

from __future__ import annotations

from typing import ClassVar

from smlaunch.protocol.launch_spec import LEADER, OTHERS, Joined, Ref, Service, Word
from smlaunch.protocol.ports import HOSTS, MORE_HOSTS, SERVICES
from smlaunch.strategies.base import Setting, Strategy, program

_CLUSTER = Joined((Ref("leader_address", suffix=":"), Ref("port", offset=SERVICES)))
_NODE = Joined((Ref("address", suffix=":"), Ref("own_port", offset=HOSTS)))

_DRIVER = (Ref("python"), "-c", "from smlaunch.train.ray_driver import main; main()", Ref("hosts"))
"""Waits until every host is a node of the cluster, and becomes the script (train/ray_driver.py)."""

_ENVIRONMENT: tuple[tuple[str, Word], ...] = (
    # The job is over when the script is: nothing is moved to other nodes first, which takes up to 30 s.
    ("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
)


class Ray(Strategy):
    name = "ray"
    summary = "makes a Ray cluster of the job's hosts and runs the script as its driver, on the leader"
    rendezvous = False
    family = "pytorch"
    one_per_host = True
    for_several_hosts = True
    deals_out = True
    runs_on = LEADER
    python_only = True
    counts = ("cpus",)
    flags = ("dashboard",)
    libraries = ("ray",)
    instead_of_ranks = "Ray starts its own; options.cpus says for how many CPUs on each host"
    options: ClassVar[dict[str, str]] = {
        "cpus": "CPUs of each host that tasks may use; all by default",
        "dashboard": "true for Ray's dashboard on the leader; off by default, needs ray[default]",
    }

    def advice(self, setting: Setting) -> list[str]:
        of_aws = any(name in setting.image for name in ("/pytorch:", "/pytorch-training:"))
        if setting.target == "aws" and of_aws and setting.requirements is None:
            return ["AWS's PyTorch images bring no Ray: name ray in a requirements file, or another image"]
        return []

    def unimported(self, setting: Setting) -> str:
        return (
            "does not import ray: unless a module of its own does, it runs on the leader alone, and the "
            "cluster stays idle"
        )

    def command(self, setting: Setting) -> tuple[Word, ...]:
        return (*_DRIVER, *program(setting.entry), *setting.args, Ref("hyperparameters"))

    def services(self, setting: Setting) -> tuple[Service, ...]:
        start: tuple[Word, ...] = (
            *(Ref("python"), "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
            # By name, Ray would ask the machine for its address, of which a host may have several.
            Ref("address", prefix="--node-ip-address="),
            Ref("own_port", prefix="--node-manager-port=", offset=HOSTS),
            # Else every host takes the same, also where they share a network.
            Ref("own_port", prefix="--dashboard-agent-listen-port=", offset=MORE_HOSTS),
            *("--min-worker-port=0", "--max-worker-port=0"),
        )
        if "cpus" in setting.options:
            start = (*start, f"--num-cpus={setting.options['cpus']}")
        dashboard = "true" if setting.options.get("dashboard") else "false"
        head = (
            *(*start, "--head", Ref("port", prefix="--port=", offset=SERVICES)),
            f"--include-dashboard={dashboard}",
        )
        worker = (*start, Joined(("--address=", *_CLUSTER.words)))
        return (
            Service("ray-head", head, _ENVIRONMENT, LEADER, _CLUSTER),
            Service("ray-worker", worker, _ENVIRONMENT, OTHERS, _NODE),
        )

    def variables(self, setting: Setting) -> tuple[tuple[str, Word], ...]:
        return (("RAY_ADDRESS", _CLUSTER), ("RAY_USAGE_STATS_ENABLED", "0"))
