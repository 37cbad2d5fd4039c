"""What the plan says of a script that several ranks are to run, as far as reading it shows. Pure."""

from __future__ import annotations

from smlaunch.catalog import instances
from smlaunch.job import Job
from smlaunch.planning.capabilities import capability
from smlaunch.planning.notes import Notes
from smlaunch.planning.surroundings import Surroundings
from smlaunch.strategies.base import Strategy


def tell_script(surroundings: Surroundings, strategy: Strategy, ranks: int | None, notes: Notes) -> None:
    """``ranks``: None where only the hosts know."""
    script, entry = surroundings.script, surroundings.source.entry
    if script.absent:
        notes.warn(
            f"{entry} imports {', '.join(script.absent)}, which the Python that hosts run on here does not "
            "have: install it there, or name it in a requirements file."
        )
    shows = (script.signs or {}).get("display")
    if shows is not None:
        notes.warn(
            f"{shows.file or entry}, line {shows.line}: nothing is shown on a host; write the figure to a "
            "file instead (savefig, imwrite)."
        )
    if not strategy.joined_by_script or ranks == 1:
        return
    can = capability(script, entry)
    # That no process group is there alone, the strategy says itself.
    if can.missing and (can.use == "several" or len(can.missing) > 1):
        how_many = "several ranks" if ranks is None else f"{ranks} ranks"
        notes.warn(f"For {how_many} {entry} lacks, as far as it shows: {'; '.join(can.missing)}.")


def tell_idle(
    job: Job, surroundings: Surroundings, strategy: Strategy, instance_type: str, notes: Notes
) -> None:
    """Where one process of the script's is all there is on a host with several accelerators."""
    known = instances.find(instance_type)
    chosen = surroundings.target == "aws" and job.compute.processes_per_host is None
    if not chosen or strategy.joins_hosts or known is None or known.accelerators < 2:
        return
    entry = surroundings.source.entry
    can = capability(surroundings.script, entry)
    if can.use != "one" or not can.accelerated or not can.seen:
        return
    notes.warn(
        f"{entry} uses one accelerator, as far as it shows, and {known.name} has "
        f"{known.accelerators_text()}, which all are paid for: take a smaller type, or use several, for "
        f"which it lacks: {'; '.join(can.missing)}."
    )
