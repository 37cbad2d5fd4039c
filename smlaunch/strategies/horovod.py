"""horovod: ranks started by mpirun, or by the runtime if Horovod was built with gloo only.

The variables are those of horovodrun (Horovod 0.28, horovod/runner/gloo_run.py). Docs: docs/mpi.md.
"""

from __future__ import annotations

from smlaunch.contract.launch_spec import LEADER, RUNTIME, Arg, Concat, LaunchSpec, Ref, ServiceSpec
from smlaunch.contract.tcp_ports import FIRST_SERVICE_PORT
from smlaunch.errors import Problem
from smlaunch.strategies.base import LaunchContext
from smlaunch.strategies.mpi import MPI, MPIRUN_OPTIONS

CONTROLLERS = ("mpi", "gloo")

_RENDEZVOUS_COMMAND: tuple[Arg, ...] = (
    *(Ref("python"), "-c", "from smlaunch.runtime.horovod_rendezvous import main; main()"),
    *(Ref("port", offset=FIRST_SERVICE_PORT), Ref("world_size"), Ref("hosts")),
)
_RENDEZVOUS_READY = Concat((Ref("leader_address", suffix=":"), Ref("port", offset=FIRST_SERVICE_PORT)))

_GLOO_VARIABLES: tuple[tuple[str, Arg], ...] = (
    ("HOROVOD_CONTROLLER", "gloo"),
    ("HOROVOD_CPU_OPERATIONS", "gloo"),
    ("HOROVOD_CROSS_RANK", Ref("host_rank")),
    ("HOROVOD_CROSS_SIZE", Ref("hosts")),
    ("HOROVOD_GLOO_RENDEZVOUS_ADDR", Ref("leader_address")),
    ("HOROVOD_GLOO_RENDEZVOUS_PORT", Ref("port", offset=FIRST_SERVICE_PORT)),
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
    trainium_support = "no"
    has_rank_per_core = False
    distributes_records = False
    libraries = ("horovod",)
    unimported_fact = "does not import horovod"
    needs_library = True
    python_only = True
    options = {  # noqa: RUF012
        "controller": "mpi (as AWS's images were built) or gloo (no MPI is needed)",
        **MPI.options,
    }

    def find_problems(self, context: LaunchContext) -> list[Problem]:
        problems = super().find_problems(context)
        if _controller(context) not in CONTROLLERS:
            message = f"one of {', '.join(CONTROLLERS)}, not {_controller(context)!r}"
            problems.append(Problem("options.controller", message))
        if _controller(context) == "gloo" and context.options.get(MPIRUN_OPTIONS):
            message = "with controller: gloo there is no mpirun; leave one of them out"
            problems.append(Problem(f"options.{MPIRUN_OPTIONS}", message))
        return problems

    def find_warnings(self, context: LaunchContext) -> list[str]:
        return [
            "Horovod's newest release, 0.28.1, compiles as C++14 and current PyTorch needs C++17, so it "
            "does not build unpatched: the image must contain it; strategy: ddp is PyTorch's own method"
        ]

    def unimported_consequence(self, context: LaunchContext) -> str:
        return "" if context.is_single_process else "every rank trains separately on the same data"

    def services(self, context: LaunchContext) -> tuple[ServiceSpec, ...]:
        if _controller(context) != "gloo":
            return ()
        return (
            ServiceSpec(
                "horovod-rendezvous", _RENDEZVOUS_COMMAND, runs_on=LEADER, ready_address=_RENDEZVOUS_READY
            ),
        )

    def variables(self, context: LaunchContext) -> tuple[tuple[str, Arg], ...]:
        return _GLOO_VARIABLES if _controller(context) == "gloo" else ()

    def launch_spec(self, context: LaunchContext) -> LaunchSpec:
        spec = super().launch_spec(context)
        if _controller(context) == "gloo":
            return spec._replace(ranks=spec.ranks._replace(launcher=RUNTIME))
        return spec


def _controller(context: LaunchContext) -> str:
    return str(context.options.get("controller", "mpi"))
