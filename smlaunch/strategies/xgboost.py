"""xgboost: one worker per host, which meet at a tracker on the leader (XGBoost's own collective).

The script joins them by the variables that XGBoost's launchers have always set:

    xgboost.collective.init(
        dmlc_tracker_uri=os.environ["DMLC_TRACKER_URI"],
        dmlc_tracker_port=int(os.environ["DMLC_TRACKER_PORT"]),
        dmlc_task_id=os.environ["DMLC_TASK_ID"],
    )

Docs: docs/xgboost.md.
"""

from __future__ import annotations

import re

from smlaunch.errors import Problem
from smlaunch.protocol.launch_spec import LEADER, Joined, Ref, Service, Word
from smlaunch.protocol.ports import SERVICES
from smlaunch.strategies.base import Setting, Strategy

_TRACKER: tuple[Word, ...] = (
    *(Ref("python"), "-c", "from smlaunch.train.xgboost_tracker import main; main()"),
    *(Ref("world_size"), Ref("leader_address")),
    *(Ref("port", offset=SERVICES), Ref("port", offset=SERVICES + 1)),
)
_READY = Joined((Ref("leader_address", suffix=":"), Ref("port", offset=SERVICES + 1)))

_FIRST_WITH_TRACKER = (2, 1)
"""Before, the tracker was another class, with other words; AWS's images go back to 1.7."""


class XGBoost(Strategy):
    name = "xgboost"
    summary = "starts one worker per host, which meet at XGBoost's tracker on the leader"
    python_only = True
    rendezvous = False
    # A worker waits for the others in every split it looks for.
    hang = 3600
    family = "xgboost"
    frameworks = ("XGBoost",)
    trainium = "no"
    one_unless_asked = True
    for_several_hosts = True
    libraries = ("xgboost",)

    def check(self, setting: Setting) -> list[Problem]:
        problems = []
        found = re.match(r"(\d+)\.(\d+)", setting.framework_version or "")
        if _joined(setting) and found and (int(found[1]), int(found[2])) < _FIRST_WITH_TRACKER:
            told = f"XGBoost {setting.framework_version} has no tracker for several workers; 2.1 has"
            problems.append(Problem("framework_version", f"{told}, or ask for one host"))
        return problems

    def advice(self, setting: Setting) -> list[str]:
        if setting.hosts == 1 or setting.split or not setting.channels:
            return []
        return [
            f"every one of {setting.hosts} hosts is given all the data: workers train on their own rows "
            "together, so give each its part (split: key or bytes), or let the script take every n-th row"
        ]

    def unimported(self, setting: Setting) -> str:
        told = "does not import xgboost: unless a module of its own does, every worker trains alone"
        return "" if setting.alone else f"{told}, and nothing asks the tracker"

    def services(self, setting: Setting) -> tuple[Service, ...]:
        return (Service("xgboost-tracker", _TRACKER, on=LEADER, ready=_READY),) if _joined(setting) else ()

    def variables(self, setting: Setting) -> tuple[tuple[str, Word], ...]:
        if not _joined(setting):
            return ()
        # Hosts of the local endpoint share one machine: where each takes all cores, threads that wait by
        # spinning take them from those that work, and a training of seconds takes minutes.
        shared = (("OMP_NUM_THREADS", "1"),) if setting.target == "local" else ()
        return (
            *shared,
            ("DMLC_NUM_WORKER", Ref("world_size")),
            ("DMLC_ROLE", "worker"),
            ("DMLC_TASK_ID", Ref("rank")),
            ("DMLC_TRACKER_PORT", Ref("port", offset=SERVICES)),
            ("DMLC_TRACKER_URI", Ref("leader_address")),
        )


def _joined(setting: Setting) -> bool:
    return setting.hosts > 1 or setting.per_host != 1
