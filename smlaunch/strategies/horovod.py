"""horovod: its ranks by mpirun, or by the runtime itself where Horovod was built with gloo alone.

The variables are those that horovodrun sets (Horovod 0.28, horovod/runner/gloo_run.py). Docs: docs/mpi.md.
"""

from __future__ import annotations

from smlaunch.errors import Problem
from smlaunch.protocol.launch_spec import LEADER, RUNTIME, Joined, LaunchSpec, Ref, Service, Word
from smlaunch.protocol.ports import SERVICES
from smlaunch.strategies.base import Setting
from smlaunch.strategies.mpi import MPI, OPTION

CONTROLLERS = ("mpi", "gloo")

_STORE: tuple[Word, ...] = (
    *(Ref("python"), "-c", "from smlaunch.train.horovod_rendezvous import main; main()"),
    *(Ref("port", offset=SERVICES), Ref("world_size"), Ref("hosts")),
)
_READY = Joined((Ref("leader_address", suffix=":"), Ref("port", offset=SERVICES)))

_GLOO: tuple[tuple[str, Word], ...] = (
    ("HOROVOD_CONTROLLER", "gloo"),
    ("HOROVOD_CPU_OPERATIONS", "gloo"),
    ("HOROVOD_CROSS_RANK", Ref("host_rank")),
    ("HOROVOD_CROSS_SIZE", Ref("hosts")),
    ("HOROVOD_GLOO_RENDEZVOUS_ADDR", Ref("leader_address")),
    ("HOROVOD_GLOO_RENDEZVOUS_PORT", Ref("port", offset=SERVICES)),
    ("HOROVOD_HOSTNAME", Ref("host")),
    ("HOROVOD_LOCAL_RANK", Ref("local_rank")),
    ("HOROVOD_LOCAL_SIZE", Ref("per_host")),
    ("HOROVOD_RANK", Ref("rank")),
    ("HOROVOD_SIZE", Ref("world_size")),
)


class Horovod(MPI):
    name = "horovod"
    summary = "starts Horovod's ranks by the leader's mpirun, or, with controller: gloo, without an MPI"
    frameworks = ("PyTorch", "TensorFlow")
    trainium = "no"
    deals_out = False
    libraries = ("horovod",)
    python_only = True
    options = {  # noqa: RUF012
        "controller": "mpi (as AWS's images were built) or gloo (no MPI is needed)",
        **MPI.options,
    }

    def check(self, setting: Setting) -> list[Problem]:
        problems = super().check(setting)
        if _controller(setting) not in CONTROLLERS:
            told = f"one of {', '.join(CONTROLLERS)}, not {_controller(setting)!r}"
            problems.append(Problem("options.controller", told))
        if _controller(setting) == "gloo" and setting.options.get(OPTION):
            told = "with controller: gloo there is no mpirun; leave one of them out"
            problems.append(Problem(f"options.{OPTION}", told))
        return problems

    def advice(self, setting: Setting) -> list[str]:
        return [
            "Horovod's newest release, 0.28.1, compiles as C++14 and PyTorch of today asks for C++17, so it "
            "does not build unpatched: the image must bring it; strategy: ddp is PyTorch's own way"
        ]

    def unimported(self, setting: Setting) -> str:
        told = "does not import horovod: unless a module of its own does, every rank trains alone"
        return "" if setting.alone else f"{told} on the same data"

    def services(self, setting: Setting) -> tuple[Service, ...]:
        if _controller(setting) != "gloo":
            return ()
        return (Service("horovod-rendezvous", _STORE, on=LEADER, ready=_READY),)

    def variables(self, setting: Setting) -> tuple[tuple[str, Word], ...]:
        return _GLOO if _controller(setting) == "gloo" else ()

    def launch_spec(self, setting: Setting) -> LaunchSpec:
        spec = super().launch_spec(setting)
        if _controller(setting) == "gloo":
            return spec._replace(ranks=spec.ranks._replace(launcher=RUNTIME))
        return spec


def _controller(setting: Setting) -> str:
    return str(setting.options.get("controller", "mpi"))
