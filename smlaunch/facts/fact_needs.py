"""Which facts a plan needs. The planner says so; discovery reads no others, because each takes time."""

from __future__ import annotations

from typing import NamedTuple


class FactNeeds(NamedTuple):
    """What discovery has to read for one job."""

    instance_quotas: tuple[str, ...]
    """Names, in Service Quotas, of the quotas that may limit the job's hosts."""

    runtime_quota: str | None
    """Name of the quota of a job's duration, for a job that may be longer than every account allows."""

    checkpoints: bool
    """What is in the prefix of checkpoints that the job names, from which the run would continue."""

    sized_inputs: frozenset[str]
    """Names of the inputs on whose size the plan depends."""

    module_sources: bool
    """What the modules of the source import, and whether they name the checkpoint directory."""
