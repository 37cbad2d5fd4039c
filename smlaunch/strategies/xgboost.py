"""xgboost: one worker per host, which join through a tracker on the leader (XGBoost's own collective).

The script joins by the variables that XGBoost's launchers set:

    xgboost.collective.init(
        dmlc_tracker_uri=os.environ["DMLC_TRACKER_URI"],
        dmlc_tracker_port=int(os.environ["DMLC_TRACKER_PORT"]),
        dmlc_task_id=os.environ["DMLC_TASK_ID"],
    )

Docs: docs/xgboost.md.
"""

from __future__ import annotations

import re

from smlaunch.contract.launch_spec import LEADER, Arg, Concat, Ref, ServiceSpec
from smlaunch.contract.tcp_ports import FIRST_SERVICE_PORT
from smlaunch.errors import Problem
from smlaunch.strategies.base import LaunchContext, Strategy

_TRACKER_COMMAND: tuple[Arg, ...] = (
    *(Ref("python"), "-c", "from smlaunch.runtime.xgboost_tracker import main; main()"),
    *(Ref("world_size"), Ref("leader_address")),
    *(Ref("port", offset=FIRST_SERVICE_PORT), Ref("port", offset=FIRST_SERVICE_PORT + 1)),
)
_TRACKER_READY = Concat((Ref("leader_address", suffix=":"), Ref("port", offset=FIRST_SERVICE_PORT + 1)))

_FIRST_VERSION_WITH_TRACKER = (2, 1)
"""Earlier versions have another tracker class with other arguments; AWS's images go back to 1.7."""


class XGBoost(Strategy):
    name = "xgboost"
    summary = "starts one worker per host, which meet at XGBoost's tracker on the leader"
    python_only = True
    rendezvous = False
    # A worker waits for the others in every split.
    hang_seconds = 3600
    image_family = "xgboost"
    frameworks = ("XGBoost",)
    trainium_support = "no"
    one_process_by_default = True
    is_multi_host = True
    libraries = ("xgboost",)

    def find_problems(self, context: LaunchContext) -> list[Problem]:
        problems: list[Problem] = []
        version_match = re.match(r"(\d+)\.(\d+)", context.framework_version or "")
        if version_match is None or not _has_several_workers(context):
            return problems
        stated_version = int(version_match[1]), int(version_match[2])
        if stated_version < _FIRST_VERSION_WITH_TRACKER:
            message = f"XGBoost {context.framework_version} has no tracker for several workers; 2.1 has"
            problems.append(Problem("framework_version", f"{message}, or ask for one host"))
        return problems

    def find_warnings(self, context: LaunchContext) -> list[str]:
        if context.host_count == 1 or context.has_split_input or not context.channels:
            return []
        return [
            f"every one of {context.host_count} hosts gets all the data: each worker should train on its own "
            "rows, so split the input (split: key or bytes), or let the script take every n-th row"
        ]

    def unimported_consequence(self, context: LaunchContext) -> str:
        return (
            "" if context.is_single_process else "every worker trains separately, and the tracker is unused"
        )

    def services(self, context: LaunchContext) -> tuple[ServiceSpec, ...]:
        return (
            (ServiceSpec("xgboost-tracker", _TRACKER_COMMAND, runs_on=LEADER, ready_address=_TRACKER_READY),)
            if _has_several_workers(context)
            else ()
        )

    def variables(self, context: LaunchContext) -> tuple[tuple[str, Arg], ...]:
        if not _has_several_workers(context):
            return ()
        # Hosts of the local endpoint share one machine: if each used all cores, spinning threads would slow
        # down working ones, and seconds of training would take minutes.
        thread_variables = (("OMP_NUM_THREADS", "1"),) if context.target == "local" else ()
        return (
            *thread_variables,
            ("DMLC_NUM_WORKER", Ref("world_size")),
            ("DMLC_ROLE", "worker"),
            ("DMLC_TASK_ID", Ref("rank")),
            ("DMLC_TRACKER_PORT", Ref("port", offset=FIRST_SERVICE_PORT)),
            ("DMLC_TRACKER_URI", Ref("leader_address")),
        )


def _has_several_workers(context: LaunchContext) -> bool:
    return context.host_count > 1 or context.processes_per_host != 1
