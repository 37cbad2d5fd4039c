"""What every strategy is: data about how processes are started, a check, and a compiler to job.json.

A strategy compiles into the runtime's few verbs on the client; inside the job nobody knows its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from smlaunch.catalog.instances import InstanceType
from smlaunch.errors import Problem
from smlaunch.job import Channel
from smlaunch.protocol.launch_spec import (
    ALL,
    RUNTIME,
    TORCHRUN,
    CheckpointSpec,
    LaunchSpec,
    Ranks,
    Ref,
    Service,
    Word,
)
from smlaunch.protocol.paths import SOURCE_ARCHIVE
from smlaunch.suggest import did_you_mean

OnTrainium = Literal["no", "may", "only"]


@dataclass(frozen=True)
class Setting:
    """What is decided already, and what the script shows.

    ``entry``: the script's path inside the source archive, empty where the image brings its own program.
    ``per_host``: ranks, a number or ``auto``. ``options``: the job's, for this strategy. ``instance_type`` is
    a name, ``instance`` what the catalog knows of it. ``channels``: the job's inputs by name. ``files``: JSON
    files of the source that options, args or hyperparameters name, by that name.
    ``environment``: the job's own variables, which win over a strategy's. ``imports``: dotted names.
    ``max_runtime``, ``margin`` (between a planned end and that) and ``hang`` in seconds; ``hang`` None leaves
    it to the strategy. ``run``: its id, for ranks that keep ``checkpoints``. ``split``: hosts get different
    parts of an input.
    """

    entry: str
    args: tuple[str, ...] = ()
    hosts: int = 1
    per_host: int | str = 1
    environment: frozenset[str] = frozenset()
    requirements: str | None = None
    max_runtime: int | None = None
    hang: int | None = None
    launcher: str = RUNTIME
    imports: frozenset[str] = field(default_factory=frozenset)
    reads_resource_config: bool = False
    run: str | None = None
    checkpoints: CheckpointSpec | None = None
    margin: int | None = None
    deterministic: bool = False
    split: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    algorithm: str | None = None
    instance_type: str = ""
    instance: InstanceType | None = None
    image: str = ""
    framework_version: str | None = None
    channels: Mapping[str, Channel] = field(default_factory=dict)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    spot: bool = False
    target: Literal["aws", "local"] = "aws"

    @property
    def alone(self) -> bool:
        """One process in all."""
        return self.hosts == self.per_host == 1


class Strategy:
    """A subclass states the data and, where something can be wrong, overrides ``check`` and ``advice``; where
    more is started than ranks, ``services`` and ``variables``."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """What happens, as the end of a sentence: "ddp starts ..."."""

    rendezvous: ClassVar[bool]
    """Ranks get RANK, WORLD_SIZE, MASTER_ADDR and the rest as torchrun sets them."""

    operation: ClassVar[str] = "CreateTrainingJob"
    """What the service is asked for."""

    hang: ClassVar[int | None] = None
    """Seconds without output and CPU use that count as a hang where the job does not say; None: none do."""

    family: ClassVar[str | None] = "pytorch"
    """Of images (``catalog.images``) that bring what this needs; None: the job has to name an image."""

    frameworks: ClassVar[tuple[str, ...] | None] = None
    """One of them has to be in an image of AWS's: PyTorch, TensorFlow, XGBoost, scikit-learn or Spark; None:
    it goes with all of them."""

    trainium: ClassVar[OnTrainium] = "may"
    """Whether it works on hosts with NeuronCores, or on them alone."""

    image_version: ClassVar[str | None] = None
    """Of the family, where the newest image does not do."""

    libraries: ClassVar[tuple[str, ...]] = ()
    """A script that imports one of them is made for this strategy."""

    other_libraries: ClassVar[tuple[str, ...]] = ()
    """Those do as well, though a script that imports one may be made for something else."""

    never_with: ClassVar[tuple[str, ...]] = ()
    """Unless it imports one of these too."""

    options: ClassVar[Mapping[str, str]] = {}
    """What the job's ``options`` may hold, each with a line that says what it does."""

    flags: ClassVar[tuple[str, ...]] = ()
    """Of the options, those that are true or false."""

    counts: ClassVar[tuple[str, ...]] = ()
    """Of the options, those that are whole numbers from 1."""

    python_only: ClassVar[bool] = False
    """It starts Python scripts and nothing else."""

    one_per_host: ClassVar[bool] = False
    """One plain process on each host, which starts what else it needs itself."""

    one_unless_asked: ClassVar[bool] = False
    """One process on each host where the job does not ask for more, whatever accelerators there are."""

    joins_hosts: ClassVar[bool] = True
    """The processes of all hosts work together, so that they have to be one job."""

    for_several_hosts: ClassVar[bool] = False
    """Its scripts are written for several hosts, whatever reading them shows."""

    deals_out: ClassVar[bool] = False
    """Its scripts deal out records among their hosts themselves, so that it serves batch inference too."""

    by_parts: ClassVar[bool] = False
    """Each host works on its own part of a split input alone: the more hosts, the faster."""

    for_tables: ClassVar[bool] = False
    """Its work is tables, which it deals out: a plan that chooses machines takes no accelerators, and a host
    for every 100 GB."""

    sized_by_data: ClassVar[bool] = False
    """Machines are chosen by the sizes of its inputs, where the job says nothing of its work."""

    holds_data: ClassVar[bool] = False
    """It reads all of its data into memory, whatever a script imports."""

    for_algorithms: ClassVar[bool] = False
    """It runs the built-in algorithm that the job names, whose image brings the program."""

    joined_by_script: ClassVar[bool] = False
    """Its scripts join their ranks themselves, by torch.distributed; the plan says what they lack for it."""

    launcher: ClassVar[str | None] = None
    """Who starts the ranks, where it is not the job's choice."""

    runs_on: ClassVar[str] = ALL
    """Which hosts have ranks: ALL, or the LEADER alone."""

    needs_script: ClassVar[bool] = True
    """Whether there must be an entry; else the image or the algorithm may bring the program."""

    instead_of_ranks: ClassVar[str] = "let the script start its own"
    """The way out where one_per_host and the job asks for more."""

    own_checkpoints: ClassVar[str | None] = None
    """What a chain of segments is worth where the script does not use smlaunch.train, as a sentence; None: it
    depends on the script alone."""

    def check_all(self, setting: Setting) -> list[Problem]:
        """``check``, and what holds for every strategy."""
        problems = []
        if setting.algorithm is not None and not self.for_algorithms:
            told = f"a built-in algorithm runs by builtin, not by {self.name}; leave it out"
            return [Problem("strategy", told)]
        if self.needs_script and not setting.entry:
            problems.append(Problem("entry", f"{self.name} starts a script of yours; name one"))
        if self.python_only and setting.entry and not setting.entry.endswith(".py"):
            told = f"{self.name} starts Python scripts; {setting.entry} needs strategy: custom, or a .py"
            problems.append(Problem("strategy", f"{told} around it"))
        if self.one_per_host and setting.per_host != 1:
            told = f"{self.name} starts one process per host, not {setting.per_host}"
            problems.append(Problem("compute.processes_per_host", f"{told}; {self.instead_of_ranks}"))
        if setting.launcher == TORCHRUN and not self.rendezvous:
            told = (
                f"torchrun joins ranks, and {self.name} has none to join; use strategy: ddp, or leave it out"
            )
            problems.append(Problem("launcher", told))
        if setting.launcher == TORCHRUN and self.launcher not in (None, TORCHRUN):
            problems.append(Problem("launcher", f"{self.name} brings its own; leave it out"))
        for option in setting.options:
            if option not in self.options:
                known = did_you_mean(option, self.options) if self.options else "; it has none"
                problems.append(Problem(f"options.{option}", f"{self.name} does not know it{known}"))
        problems += self._check_kinds(setting)
        return [*problems, *self.check(setting)]

    def _check_kinds(self, setting: Setting) -> Iterator[Problem]:
        for name, value in setting.options.items():
            if name in self.flags and not isinstance(value, bool):
                yield Problem(f"options.{name}", f"true or false is needed, not {value!r}")
            if name in self.counts and not (type(value) is int and value >= 1):
                yield Problem(f"options.{name}", f"a whole number from 1 is needed, not {value!r}")

    def check(self, setting: Setting) -> list[Problem]:
        """What makes this strategy impossible here, by the job's own field names."""
        return []

    def advice(self, setting: Setting) -> list[str]:
        """What will work, but probably not as meant."""
        return []

    def advice_all(self, setting: Setting) -> list[str]:
        """``advice``, and what holds for every strategy."""
        told = self.advice(setting)
        looked_for = (*self.libraries, *self.other_libraries)
        if self.libraries and setting.entry.endswith(".py") and imported(setting.imports, looked_for) is None:
            means = self.unimported(setting)
            return [*told, f"{setting.entry} {means}"] if means else told
        return told

    def unimported(self, setting: Setting) -> str:
        """What it means that the script imports none of ``libraries`` and ``other_libraries``: a sentence
        without its subject; empty where it means nothing."""
        told = f"does not import {self.libraries[0]}: unless a module of its own does"
        return f"{told}, {self.name} starts what it does not use"

    def family_on(self, accelerated: bool) -> str | None:
        """``family``, where it is not the same with and without accelerators."""
        return self.family

    def ranks_per_host(self, instance: InstanceType) -> int:
        """How many ranks a host of that type has where the job does not say: one for each accelerator."""
        return instance.accelerators

    def longest_wait(self, setting: Setting) -> int | None:
        """Seconds that a spot job may take with its wait for capacity; None: the service's own limit."""
        return None

    def command(self, setting: Setting) -> tuple[Word, ...]:
        """The words of each rank's command: interpreter, script, arguments, then hyperparameters."""
        return (*program(setting.entry), *setting.args, Ref("hyperparameters"))

    def services(self, setting: Setting) -> tuple[Service, ...]:
        """What runs beside the ranks, in the order of its start."""
        return ()

    def variables(self, setting: Setting) -> tuple[tuple[str, Word], ...]:
        """Of every rank's environment; the job's own variables win."""
        return ()

    def hyperparameters(self, setting: Setting) -> Mapping[str, Any]:
        """What the request's hyperparameters hold beside the job's own."""
        return {}

    def launcher_options(self, setting: Setting) -> tuple[Word, ...]:
        """Words for who starts the ranks."""
        return ()

    def launch_spec(self, setting: Setting) -> LaunchSpec:
        environment = [pair for pair in self.variables(setting) if pair[0] not in setting.environment]
        if "PYTHONUNBUFFERED" not in setting.environment:
            # Output goes into a pipe, where Python would hold back what a script prints until 8 KiB are full.
            environment.append(("PYTHONUNBUFFERED", "1"))
        command = self.command(setting)
        ranks = Ranks(
            command,
            tuple(environment),
            setting.per_host,
            self.rendezvous,
            self.launcher or setting.launcher,
            self.runs_on,
            self.launcher_options(setting),
        )
        return LaunchSpec(
            ranks=ranks,
            source=SOURCE_ARCHIVE,
            requirements=setting.requirements,
            max_runtime_seconds=setting.max_runtime,
            hang_seconds=self.hang if setting.hang is None else setting.hang,
            run=setting.run,
            checkpoints=setting.checkpoints,
            margin_seconds=setting.margin,
            deterministic=setting.deterministic,
            services=self.services(setting),
        )


def imported(imports: frozenset[str], libraries: tuple[str, ...]) -> str | None:
    """The first of ``libraries`` that one of ``imports`` is, or lies in."""
    for library in libraries:
        if any(name == library or name.startswith(library + ".") for name in imports):
            return library
    return None


def program(entry: str) -> tuple[Word, ...]:
    """What starts a file of the source: its interpreter, or itself."""
    script = Ref("source", suffix="/" + entry)
    if entry.endswith(".sh"):
        return ("bash", script)
    return (Ref("python"), script) if entry.endswith(".py") else (script,)
