"""What the plan reports about a script, by static analysis. Pure."""

from __future__ import annotations

from smlaunch.catalog import instances
from smlaunch.job.model import Job
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import Facts
from smlaunch.planner.script_capability import script_capability
from smlaunch.strategies.base import Strategy


def advise_script(facts: Facts, strategy: Strategy, ranks: int | None, diagnostics: Diagnostics) -> None:
    """Add warnings about the script. ``ranks``: None if only the hosts know."""
    script, entry = facts.script, facts.source.entry
    if script.missing_packages:
        diagnostics.add_warning(
            f"{entry} imports {', '.join(script.missing_packages)}, which the hosts' Python does not have: "
            "install it there, or name it in a requirements file."
        )
    display_call = (script.features or {}).get("display")
    if display_call is not None:
        diagnostics.add_warning(
            f"{display_call.file or entry}, line {display_call.line}: hosts have no display; write the "
            "figure to a file instead (savefig, imwrite)."
        )
    if not strategy.script_joins_ranks or ranks == 1:
        return
    capability = script_capability(script, entry)
    # If only the process group is missing, the strategy warns.
    if capability.missing_steps and (
        capability.accelerator_use == "several" or len(capability.missing_steps) > 1
    ):
        ranks_text = "several ranks" if ranks is None else f"{ranks} ranks"
        diagnostics.add_warning(
            f"For {ranks_text} {entry} lacks, by its source: {'; '.join(capability.missing_steps)}."
        )


def warn_of_idle_accelerators(
    job: Job, facts: Facts, strategy: Strategy, instance_type: str, diagnostics: Diagnostics
) -> None:
    """Warn if the script's single process leaves accelerators of the host idle."""
    catalog_type = instances.find_instance_type(instance_type)
    counts_accelerators = facts.target == "aws" and job.compute.processes_per_host is None
    if (
        not counts_accelerators
        or strategy.joins_hosts
        or catalog_type is None
        or catalog_type.accelerators < 2
    ):
        return
    entry = facts.source.entry
    capability = script_capability(facts.script, entry)
    if capability.accelerator_use != "one" or not capability.uses_accelerators or not capability.was_analyzed:
        return
    diagnostics.add_warning(
        f"{entry} uses one accelerator (by its source), and {catalog_type.name} has "
        f"{catalog_type.accelerators_text()}, all of which are billed: use a smaller type, or several "
        f"accelerators, for which it lacks: {'; '.join(capability.missing_steps)}."
    )
