"""Jobs to export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smlaunch.facts.discovered_facts import ScriptFacts
from smlaunch.job.model import Job
from smlaunch.render.plan import Plan
from tests.planner import fixtures
from tests.planner.fixtures import make_plan

SCRIPT = ScriptFacts(imports=frozenset({"torch", "torch.distributed", "smlaunch.train"}))
LIMITS = {"max_runtime": "60h", "segment": "24h"}
CHAIN: Mapping[str, Any] = {"limits": LIMITS, "compute": {"instance_type": "ml.g5.xlarge"}}
SPOT: Mapping[str, Any] = {
    **CHAIN,
    "compute": {"instance_type": "ml.g5.xlarge", "spot": True, "on_demand_fallback": True},
}
DIFFERENT: Mapping[str, Any] = {
    **CHAIN,
    "segments": [{"until_step": 100}, {"hyperparameters": {"batch": 8}, "length": "12h"}],
}
DIRECT: Mapping[str, Any] = {**CHAIN, "checkpoints": {"uri": "s3://mine/ckpt/", "upload": "direct"}}
CAPPED: Mapping[str, Any] = {**CHAIN, "limits": {**LIMITS, "max_cost": 50}}
SINGLE: Mapping[str, Any] = {"compute": {"instance_type": "ml.g5.xlarge"}}
RETRIED: Mapping[str, Any] = {
    **SINGLE,
    "limits": {"attempts": 3},
    "checkpoints": {"uri": "s3://mine/ckpt/"},
}


PROCESSING: Mapping[str, Any] = {
    "strategy": "processing",
    "compute": {"instance_type": "ml.m5.xlarge"},
    "inputs": {"raw": "s3://mine/raw/"},
}


def plan_of(job: Mapping[str, Any], run: str = "digits") -> Plan:
    """Plan a job of ``train.py`` as the run ``run``."""
    mapping = {"entry": "src/train.py", **job}
    return make_plan(Job.from_mapping(mapping), fixtures.region(script=SCRIPT), run)
