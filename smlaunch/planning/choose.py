"""Chooses what the job leaves open: strategy, instance type, ranks per host, image."""

from __future__ import annotations

from smlaunch.catalog import images, instances
from smlaunch.catalog.images import Image
from smlaunch.catalog.instances import InstanceType
from smlaunch.job import Job
from smlaunch.planning.notes import Notes
from smlaunch.planning.surroundings import Surroundings
from smlaunch.protocol.launch_spec import AUTO
from smlaunch.strategies import load
from smlaunch.strategies.base import Strategy
from smlaunch.strategies.ddp import joins_ranks
from smlaunch.suggest import nearest

DEFAULT_INSTANCE_TYPE = "ml.m5.xlarge"
"""The SageMaker SDK's default too."""


def choose_strategy(job: Job, surroundings: Surroundings, notes: Notes) -> str:
    """The first rule that holds; the order says which evidence weighs more."""
    script = surroundings.script
    entry = surroundings.source.entry
    wants_one = job.compute.processes_per_host in (None, 1)
    library = joins_ranks(script.imports)

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
    if script.reads_resource_config and wants_one:
        return chosen("custom", "reads-resourceconfig", f"{entry} reads resourceconfig.json")
    if library is not None:
        return chosen("ddp", library.replace(".", "-"), f"{entry} imports {library}")
    if job.compute.hosts == 1 and wants_one:
        return chosen("custom", "single-process", "One host and one process have nobody to find")
    if wants_one and any(channel.split == "bytes" for channel in job.inputs.values()):
        return chosen("custom", "share-nothing", "Hosts read parts of their own, and nothing joins ranks")
    return chosen("ddp", "several-processes", "Several processes are asked for")


def choose_instance_type(job: Job, notes: Notes) -> tuple[str, InstanceType | None]:
    """The type's name, and what the catalog knows of it."""
    name = job.compute.instance_type
    if name is None:
        default = instances.known_types()[DEFAULT_INSTANCE_TYPE]
        notes.because(
            "instance-type.default",
            f"The job names no instance type; {DEFAULT_INSTANCE_TYPE} ({default.describe()}) is what the "
            "SageMaker SDK takes too.",
        )
        return DEFAULT_INSTANCE_TYPE, default
    known = instances.find(name)
    if known is None:
        match = nearest(name, instances.known_types())
        hint = f" (did you mean {match}?)" if match else ""
        notes.warn(
            f"{name} is not in the catalog of {instances.as_of()}{hint}. It is sent as it is; nothing is "
            "assumed about its accelerators or price."
        )
    return name, known


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
    if asked is None and strategy.one_per_host:
        notes.because("processes.one-per-host", f"{strategy.name} starts one process per host.")
        return 1
    if surroundings.target == "local":
        return _local_processes(name, known, surroundings, notes)
    if known is None:
        notes.because(
            "processes.auto", f"The catalog does not know {name}: each host counts its own accelerators."
        )
        return AUTO
    if known.accelerators:
        notes.because("processes.accelerators", f"{name} has {known.accelerators_text()}: one rank for each.")
        return known.accelerators
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


def choose_image(
    job: Job,
    strategy: Strategy,
    instance: tuple[str, InstanceType | None],
    surroundings: Surroundings,
    notes: Notes,
) -> str:
    """The image's URI; empty after a refusal."""
    is_run = surroundings.target == "aws" or surroundings.endpoint.runs_images
    # The endpoint's own table says that its images are not run better, where it does.
    is_told = "AlgorithmSpecification.TrainingImage" in surroundings.endpoint.honesty
    if job.image is None:
        image = _aws_image(job, strategy, instance, surroundings, notes)
        if image is None:
            return ""
        if is_run:
            _explain(job, image, notes)
        elif not is_told:
            notes.because("image.not-run", _NOT_RUN)
        return image.uri
    if job.framework_version is not None:
        notes.refuse(
            "framework_version", "it chooses AWS's image, and 'image' names another; keep one of them"
        )
    if job.entry is None:
        notes.because("image.own-program", "The image's own program runs; nothing of smlaunch's is put in.")
    elif is_run:
        notes.because(
            "image.given",
            "The job names its image; a python3 in it runs the runtime in place of its entry point.",
        )
    elif not is_told:
        notes.warn(f"image: {_NOT_RUN}")
    return job.image


_NOT_RUN = "The image is recorded, not run: ranks run on the Python that runs the endpoint."


def _aws_image(
    job: Job,
    strategy: Strategy,
    instance: tuple[str, InstanceType | None],
    surroundings: Surroundings,
    notes: Notes,
) -> Image | None:
    name, known = instance
    if strategy.family is None:
        notes.refuse("image", f"{strategy.name} has no image of AWS's to fall back on; name one")
        return None
    family = name.split(".")[1]
    if known.is_neuron if known is not None else family.startswith("trn"):
        notes.refuse("image", f"{name} needs a Neuron image, and none is in the catalog; name one")
        return None
    accelerated = known.accelerators > 0 if known is not None else family.startswith(("g", "p"))
    region, partition = surroundings.region, surroundings.partition
    if surroundings.target == "local" and not images.has_region(region):
        region, partition = "us-east-1", "aws"
    try:
        processor = "gpu" if accelerated else "cpu"
        return images.training_image(strategy.family, region, partition, processor, job.framework_version)
    except images.UnknownImage as error:
        at_fault = "framework_version" if job.framework_version and images.has_region(region) else "image"
        notes.refuse(at_fault, f"{error}; name an image, such as one of your own registry")
        return None


def _explain(job: Job, image: Image, notes: Notes) -> None:
    what = f"AWS's {image.processor.upper()} image of PyTorch {image.version}"
    brings = f"it brings {_python(image.python)}"
    if job.framework_version is None:
        notes.because(
            "image.default", f"{what}, the version patched longest (until {image.end_of_patch}); {brings}."
        )
    else:
        notes.because("image.framework-version", f"{what}, patched until {image.end_of_patch}; {brings}.")


def _python(tag: str) -> str:
    """``py312`` -> ``Python 3.12``."""
    return f"Python {tag[2]}.{tag[3:]}"
