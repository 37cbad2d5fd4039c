"""Where checkpoints are kept, how they get there, and what ranks are told of it."""

from __future__ import annotations

from smlaunch.job import Checkpoints, Job, parse_duration
from smlaunch.planning.notes import Notes
from smlaunch.planning.resumable import uses_ours
from smlaunch.planning.segments import S3_RATE, Costs, Shape, span
from smlaunch.planning.storage import Layout
from smlaunch.planning.surroundings import Surroundings
from smlaunch.protocol.launch_spec import CheckpointSpec
from smlaunch.protocol.segment import DIRECT, SYNC

TOO_SLOW = 0.05
"""Of a segment: when bringing all kept checkpoints to a host takes longer, ranks fetch their own parts."""


def plan_checkpoints(
    job: Job, surroundings: Surroundings, layout: Layout, chain: bool, first: Shape, notes: Notes
) -> CheckpointSpec | None:
    """None for a run that keeps none: one job that asks for none."""
    stated = job.checkpoints
    if stated is None:
        if not chain:
            return None
        stated = Checkpoints()
    uri = stated.uri or layout.checkpoints
    if stated.uri is None:
        notes.because("checkpoints.default", f"The run's checkpoints get a prefix of their own, {uri}.")
    return CheckpointSpec(
        path=stated.local_path,
        uri=uri,
        carrier=_carrier(job, stated, surroundings, chain, first, notes),
        keep=stated.keep,
        interval_seconds=None if stated.interval is None else float(parse_duration(stated.interval)),
        failure_seconds=round(Costs.of(job, surroundings).mtbf, 1),
    )


def _carrier(
    job: Job, stated: Checkpoints, surroundings: Surroundings, chain: bool, first: Shape, notes: Notes
) -> str:
    if stated.carrier == DIRECT:
        if job.network_isolation:
            notes.refuse(
                "checkpoints.carrier",
                "direct goes from the hosts to S3, which network_isolation forbids; take sync",
            )
        if not uses_ours(surroundings.script) and surroundings.source.entry.endswith(".py"):
            notes.refuse(
                "checkpoints.carrier",
                f"it is smlaunch.train that moves parts directly, and {surroundings.source.entry} does not "
                "use it; take sync",
            )
        notes.because("carrier.given", f"{_DIRECT} The job says so.")
        return DIRECT
    state = Costs.of(job, surroundings).state_bytes
    if stated.carrier == SYNC or state is None:
        if stated.carrier is None and chain and surroundings.target == "aws":
            notes.because(
                "carrier.sync",
                "SageMaker's own sync keeps checkpoints in S3 and brings all of them to every host at each "
                "start; how long that takes is not known before there is one.",
            )
        return SYNC
    seconds = state * stated.keep / S3_RATE
    told = (
        f"All {stated.keep} kept checkpoints of {state / 1e9:.1f} GB would take {span(seconds)} to every host"
    )
    possible = uses_ours(surroundings.script) and not job.network_isolation
    if seconds <= TOO_SLOW * first.length:
        notes.because("carrier.sync", f"{told}: SageMaker's own sync is quick enough.")
        return SYNC
    if not possible:
        notes.warn(f"{told} at each start, and nothing but the sync is possible here.")
        return SYNC
    notes.because("carrier.direct", f"{told}, more than {TOO_SLOW:.0%} of a segment. {_DIRECT}")
    return DIRECT


_DIRECT = "Every rank moves its own parts to and from S3 (boto3 in the image, the role's permission)."
