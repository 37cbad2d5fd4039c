"""Chooses what the job leaves open: strategy, instance type, ranks per host."""

from __future__ import annotations

from smlaunch.catalog import instances
from smlaunch.catalog.instances import InstanceType
from smlaunch.job import Job
from smlaunch.planning.libraries import spoken_for
from smlaunch.planning.notes import Notes
from smlaunch.planning.surroundings import Surroundings
from smlaunch.protocol.launch_spec import AUTO
from smlaunch.request import PROCESSING
from smlaunch.strategies import load
from smlaunch.strategies.base import Strategy
from smlaunch.suggest import nearest

DEFAULT_INSTANCE_TYPE = "ml.m5.xlarge"
"""The SageMaker SDK's default too."""


def choose_strategy(job: Job, surroundings: Surroundings, notes: Notes) -> str:
    """The first rule that holds; the order says which evidence weighs more."""
    script = surroundings.script
    entry = surroundings.source.entry
    wants_one = job.compute.processes_per_host in (None, 1)
    spoken = spoken_for(script.imports)
    guessed = None if spoken is None else load(spoken.strategy)
    parts = wants_one and any(channel.split is not None for channel in job.inputs.values())

    def chosen(name: str, rule: str, evidence: str) -> str:
        notes.because(f"strategy.{rule}", f"{evidence}: {name} {load(name).summary}.")
        return name

    if job.strategy is not None:
        return chosen(job.strategy, "given", "The job says so")
    if job.algorithm is not None:
        return chosen("builtin", "algorithm", f"The job names the built-in algorithm {job.algorithm}")
    if job.entry is None:
        return chosen("custom", "own-image", "The image brings its own program")
    if entry.endswith(".sh"):
        return chosen(
            "custom", "shell-script", f"{entry} is a shell script, which starts what it needs itself"
        )
    if not entry.endswith(".py"):
        return chosen("custom", "program", f"{entry} is a program that nobody can see into")
    if job.workload.kind == "inference" and (guessed is None or not guessed.deals_out):
        return chosen("share-nothing", "inference", "In batch inference no record needs another")
    if job.workload.kind == "preparation" and (guessed is None or guessed.operation != PROCESSING):
        return chosen("processing", "preparation", "Data are prepared and nothing is trained")
    if script.reads_resource_config and wants_one:
        return chosen("custom", "reads-resourceconfig", f"{entry} reads resourceconfig.json")
    if spoken is not None and (spoken.joins_hosts or not parts):
        return chosen(spoken.strategy, spoken.rule, f"{entry} imports {spoken.library}")
    if parts:
        return chosen("share-nothing", "parts", "Hosts read parts of their own, and nothing joins ranks")
    if job.compute.hosts == 1 and wants_one:
        return chosen("custom", "single-process", "One host and one process have nobody to find")
    return chosen("ddp", "several-processes", "Several processes are asked for")


def choose_instance_type(job: Job, notes: Notes) -> tuple[str, InstanceType | None]:
    """The type's name, and what the catalog knows of it; of several preferences the first."""
    preferences = job.compute.instance_preferences
    if preferences:
        notes.because(
            "instance-type.preferences",
            f"The service takes the first of {', '.join(preferences)} that it has capacity for; figures are "
            f"of {preferences[0]} where it is not said otherwise.",
        )
        for preference in preferences:
            _warn_of_unknown(preference, notes)
        return preferences[0], instances.find(preferences[0])
    name = job.compute.instance_type
    if name is None:
        default = instances.known_types()[DEFAULT_INSTANCE_TYPE]
        notes.because(
            "instance-type.default",
            f"The job names no instance type; {DEFAULT_INSTANCE_TYPE} ({default.describe()}) is what the "
            "SageMaker SDK takes too. A workload section lets the plan compare types (docs/planner.md).",
        )
        return DEFAULT_INSTANCE_TYPE, default
    _warn_of_unknown(name, notes)
    return name, instances.find(name)


def _warn_of_unknown(name: str, notes: Notes) -> None:
    if instances.find(name) is None:
        match = nearest(name, instances.known_types())
        hint = f" (did you mean {match}?)" if match else ""
        notes.warn(
            f"{name} is not in the catalog of {instances.as_of()}{hint}. It is sent as it is; nothing is "
            "assumed about its accelerators or price."
        )


def choose_processes(
    job: Job,
    strategy: Strategy,
    instance: tuple[str, InstanceType | None],
    surroundings: Surroundings,
    notes: Notes,
) -> int | str:
    """Ranks per host: a number, or ``auto`` where only the host can count its accelerators."""
    asked = job.compute.processes_per_host
    name, known = instance
    if isinstance(asked, int):
        if surroundings.target == "aws" and known is not None:
            _advise_processes(asked, known, notes)
        return asked
    if asked is None and job.entry is None:
        return 1
    if asked is None and (strategy.one_per_host or strategy.one_unless_asked):
        notes.because("processes.one-per-host", f"{strategy.name} starts one process per host.")
        return 1
    if surroundings.target == "local":
        return _local_processes(name, known, surroundings, notes)
    counts = {row and row.accelerators for row in map(instances.find, job.compute.instance_preferences)}
    if len(counts) > 1:
        told = "The preferences differ in their accelerators: each host counts its own."
        notes.because("processes.auto", told)
        return AUTO
    if known is None:
        notes.because(
            "processes.auto", f"The catalog does not know {name}: each host counts its own accelerators."
        )
        return AUTO
    if known.accelerators:
        ranks = strategy.ranks_per_host(known)
        told = "one rank for each" if ranks == known.accelerators else f"{ranks} ranks"
        notes.because("processes.accelerators", f"{name} has {known.accelerators_text()}: {told}.")
        return ranks
    notes.because("processes.no-accelerator", f"{name} has no accelerator: one rank per host.")
    return 1


def _advise_processes(asked: int, known: InstanceType, notes: Notes) -> None:
    ranks = f"{asked} rank{'' if asked == 1 else 's'} per host"
    if 0 < known.accelerators < asked:
        notes.warn(f"{ranks} share the {known.accelerators_text()} of {known.name}.")
    elif asked < known.accelerators:
        notes.warn(f"{ranks} may leave some of the {known.accelerators_text()} of {known.name} idle.")
    elif asked > known.vcpu:
        notes.warn(f"{ranks} share the {known.vcpu} vCPU of {known.name}.")


def _local_processes(name: str, known: InstanceType | None, surroundings: Surroundings, notes: Notes) -> int:
    here = surroundings.endpoint.accelerators_per_host or 0
    if here:
        notes.because(
            "processes.local-accelerators", f"Hosts here have {here} accelerators: one rank for each."
        )
        return here
    notes.because("processes.local", "Hosts here have no accelerator: one rank per host.")
    if known is not None and known.accelerators > 1:
        notes.warn(
            f"A real {name} would run {known.accelerators} ranks per host; here it is 1. "
            f"Say --processes-per-host {known.accelerators} to run as many."
        )
    return 1
