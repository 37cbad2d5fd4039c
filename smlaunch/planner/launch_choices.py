"""Choose what the job leaves open: strategy, instance type, ranks per host."""

from __future__ import annotations

from smlaunch.api.request import CREATE_PROCESSING_JOB
from smlaunch.catalog import instances
from smlaunch.catalog.instances import InstanceChoice, InstanceType
from smlaunch.contract.launch_spec import AUTO
from smlaunch.job.model import Job
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import Facts
from smlaunch.planner.strategy_detection import detect_strategy
from smlaunch.strategies import load_strategy
from smlaunch.strategies.base import Strategy
from smlaunch.text.did_you_mean import nearest_match

DEFAULT_INSTANCE_TYPE = "ml.m5.xlarge"
"""The SageMaker SDK's default too."""


def choose_strategy(job: Job, facts: Facts, diagnostics: Diagnostics) -> str:
    """Return the name of the strategy by which the program is distributed over hosts and ranks, and add the
    reason: the first rule that matches decides, and earlier rules are stronger evidence."""
    script = facts.script
    entry = facts.source.entry
    is_one_process = job.compute.processes_per_host in (None, 1)
    detected = detect_strategy(script.imports)
    detected_strategy = None if detected is None else load_strategy(detected.strategy)
    has_split_inputs = is_one_process and any(channel.split is not None for channel in job.inputs.values())

    def choose(name: str, rule: str, evidence: str) -> str:
        diagnostics.add_reason(f"strategy.{rule}", f"{evidence}: {name} {load_strategy(name).summary}.")
        return name

    if job.strategy is not None:
        return choose(job.strategy, "given", "The job says so")
    if job.algorithm is not None:
        return choose("builtin", "algorithm", f"The job names the built-in algorithm {job.algorithm}")
    if job.entry is None:
        return choose("custom", "own-image", "The image contains its own program")
    if entry.endswith(".sh"):
        return choose(
            "custom", "shell-script", f"{entry} is a shell script, which starts what it needs itself"
        )
    if not entry.endswith(".py"):
        return choose("custom", "program", f"{entry} is a program that cannot be analyzed")
    if job.workload.kind == "inference" and (
        detected_strategy is None or not detected_strategy.distributes_records
    ):
        return choose("share-nothing", "inference", "In batch inference records are independent")
    if job.workload.kind == "preparation" and (
        detected_strategy is None or detected_strategy.operation != CREATE_PROCESSING_JOB
    ):
        return choose("processing", "preparation", "The job prepares data and trains nothing")
    if script.reads_resource_config and is_one_process:
        return choose("custom", "reads-resourceconfig", f"{entry} reads resourceconfig.json")
    if detected is not None and (detected.joins_hosts or not has_split_inputs):
        return choose(detected.strategy, detected.rule, f"{entry} imports {detected.library}")
    if has_split_inputs:
        return choose(
            "share-nothing", "shards", "Hosts read their own shares of the data, and nothing joins ranks"
        )
    if job.compute.hosts == 1 and is_one_process:
        return choose("custom", "single-process", "One process on one host needs no rendezvous")
    return choose("ddp", "several-processes", "The job asks for several processes")


def choose_instance_type(job: Job, diagnostics: Diagnostics) -> InstanceChoice:
    """Return the instance type, the first of several preferences, with its row in the catalog."""
    preferences = job.compute.instance_preferences
    if preferences:
        diagnostics.add_reason(
            "instance-type.preferences",
            f"The service uses the first of {', '.join(preferences)} with free capacity; figures are for "
            f"{preferences[0]} unless stated otherwise.",
        )
        for preference in preferences:
            _warn_of_unknown(preference, diagnostics)
        return InstanceChoice(preferences[0], instances.find_instance_type(preferences[0]))
    name = job.compute.instance_type
    if name is None:
        default_type = instances.known_types()[DEFAULT_INSTANCE_TYPE]
        diagnostics.add_reason(
            "instance-type.default",
            f"The job names no instance type; {DEFAULT_INSTANCE_TYPE} ({default_type.describe()}) is what "
            "the SageMaker SDK takes too. A workload section lets the plan compare types (docs/planner.md).",
        )
        return InstanceChoice(DEFAULT_INSTANCE_TYPE, default_type)
    _warn_of_unknown(name, diagnostics)
    return InstanceChoice(name, instances.find_instance_type(name))


def _warn_of_unknown(name: str, diagnostics: Diagnostics) -> None:
    """Warn of an instance type that is missing in the catalog."""
    if instances.find_instance_type(name) is None:
        closest = nearest_match(name, instances.known_types())
        hint = f" (did you mean {closest}?)" if closest else ""
        diagnostics.add_warning(
            f"{name} is not in the catalog of {instances.catalog_month()}{hint}. It is sent as it is; "
            "nothing is assumed about its accelerators or price."
        )


def choose_processes(
    job: Job,
    strategy: Strategy,
    instance_choice: InstanceChoice,
    facts: Facts,
    diagnostics: Diagnostics,
) -> int | str:
    """Return the number of ranks per host, or ``auto`` if only the host can count its accelerators."""
    requested = job.compute.processes_per_host
    name, catalog_type = instance_choice
    if isinstance(requested, int):
        if facts.target == "aws" and catalog_type is not None:
            _check_process_count(requested, catalog_type, diagnostics)
        return requested
    if requested is None and job.entry is None:
        return 1
    if requested is None and (strategy.one_process_per_host or strategy.one_process_by_default):
        diagnostics.add_reason("processes.one-per-host", f"{strategy.name} starts one process per host.")
        return 1
    if facts.target == "local":
        return _local_processes(name, catalog_type, facts, diagnostics)
    accelerator_counts = {
        row and row.accelerators
        for row in map(instances.find_instance_type, job.compute.instance_preferences)
    }
    if len(accelerator_counts) > 1:
        message = "The preferences differ in their accelerators: each host counts its own."
        diagnostics.add_reason("processes.auto", message)
        return AUTO
    if catalog_type is None:
        diagnostics.add_reason(
            "processes.auto", f"The catalog does not know {name}: each host counts its own accelerators."
        )
        return AUTO
    if catalog_type.accelerators:
        ranks = strategy.ranks_per_host(catalog_type)
        message = "one rank for each" if ranks == catalog_type.accelerators else f"{ranks} ranks"
        diagnostics.add_reason(
            "processes.accelerators", f"{name} has {catalog_type.accelerators_text()}: {message}."
        )
        return ranks
    diagnostics.add_reason("processes.no-accelerator", f"{name} has no accelerator: one rank per host.")
    return 1


def _check_process_count(requested: int, catalog_type: InstanceType, diagnostics: Diagnostics) -> None:
    """Warn of a number of ranks that does not match the accelerators or vCPU."""
    ranks_text = f"{requested} rank{'' if requested == 1 else 's'} per host"
    if 0 < catalog_type.accelerators < requested:
        diagnostics.add_warning(
            f"{ranks_text} share the {catalog_type.accelerators_text()} of {catalog_type.name}."
        )
    elif requested < catalog_type.accelerators:
        diagnostics.add_warning(
            f"{ranks_text} may leave some of the {catalog_type.accelerators_text()} of {catalog_type.name} "
            "idle."
        )
    elif requested > catalog_type.vcpu:
        diagnostics.add_warning(f"{ranks_text} share the {catalog_type.vcpu} vCPU of {catalog_type.name}.")


def _local_processes(
    name: str, catalog_type: InstanceType | None, facts: Facts, diagnostics: Diagnostics
) -> int:
    """Ranks per host on this machine."""
    local_accelerators = facts.endpoint.accelerators_per_host or 0
    if local_accelerators:
        diagnostics.add_reason(
            "processes.local-accelerators",
            f"Hosts here have {local_accelerators} accelerators: one rank for each.",
        )
        return local_accelerators
    diagnostics.add_reason("processes.local", "Hosts here have no accelerator: one rank per host.")
    if catalog_type is not None and catalog_type.accelerators > 1:
        diagnostics.add_warning(
            f"A real {name} would run {catalog_type.accelerators} ranks per host; here it is 1. Use "
            f"--processes-per-host {catalog_type.accelerators} to run as many."
        )
    return 1
