"""Base class of strategies: data about how processes are started, checks, and the compilation to job.json.

A strategy is compiled into the runtime's few verbs on the client; inside the job its name is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

from smlaunch.api.job_kinds import TRAINING, JobKind
from smlaunch.catalog.instances import InstanceType
from smlaunch.contract.launch_spec import (
    ALL,
    RUNTIME,
    TORCHRUN,
    Arg,
    CheckpointSpec,
    LaunchSpec,
    RankSpec,
    Ref,
    ServiceSpec,
)
from smlaunch.contract.sagemaker_paths import SOURCE_ARCHIVE
from smlaunch.errors import Problem
from smlaunch.job.model import Channel, Entry
from smlaunch.text.did_you_mean import did_you_mean

TrainiumSupport = Literal["no", "may", "only"]


class LaunchContext(NamedTuple):
    """Decisions and facts that a strategy compiles into a launch specification."""

    entry_point: str
    """The path of the program's file inside the source archive, or the name of a program that is none; empty
    if the image contains its own program."""

    entry: Entry | None = None
    """A module or a command, which starts otherwise than a file; None, too, for a file at ``entry_point``."""

    args: tuple[str, ...] = ()
    leading_args: tuple[Arg, ...] = ()
    """Arguments that the script's own launcher would add, before ``args``."""

    trailing_args: tuple[Arg, ...] = ()
    """The same, after ``args`` and hyperparameters."""

    flags: tuple[tuple[str, str], ...] = ()
    """Hyperparameters that are flags of the script, each with the option that states the opposite."""

    host_count: int = 1
    processes_per_host: int | str = 1
    """A number, or ``auto``."""

    has_accelerators: bool = True
    """False for hosts that certainly have none."""

    environment_names: frozenset[str] = frozenset()
    """Names of the job's own variables, which take precedence over the strategy's."""

    requirements: str | None = None
    max_runtime_seconds: int | None = None
    hang_seconds: int | None = None
    """The job's limits.hang; None leaves it to the strategy."""

    launcher: str = RUNTIME
    imports: frozenset[str] = frozenset()
    """Dotted names that the script imports."""

    imports_are_known: bool = False
    """Nothing that the script imports may import a library of which ``imports`` does not know."""

    reads_resource_config: bool = False
    reads_own_host_name: bool = False
    """By SM_CURRENT_HOST."""

    run_id: str | None = None
    """For ranks that save ``checkpoints``."""

    checkpoints: CheckpointSpec | None = None
    margin_seconds: int | None = None
    """Time between the planned end and the job's limit."""

    deterministic: bool = False
    has_split_input: bool = False
    """Hosts get different shares of an input."""

    options: Mapping[str, Any] = MappingProxyType({})
    """The job's options for this strategy."""

    json_files: Mapping[str, str] = MappingProxyType({})
    """Content, by name, of the JSON files of the source that options, args or hyperparameters name."""

    algorithm: str | None = None
    instance_type: str = ""
    instance_spec: InstanceType | None = None
    """The catalog's entry for ``instance_type``, if any."""

    image: str = ""
    framework_version: str | None = None
    channels: Mapping[str, Channel] = MappingProxyType({})
    """The job's inputs by name."""

    request_channels: frozenset[str] = frozenset()
    """Names of inputs that only the job's ``request`` has, of which nothing else is known."""

    hyperparameters: Mapping[str, Any] = MappingProxyType({})
    is_spot: bool = False
    target: Literal["aws", "local"] = "aws"

    @property
    def starts_command(self) -> bool:
        """Whether the job states the whole command of a rank."""
        return self.entry is not None and bool(self.entry.command)

    @property
    def program_command(self) -> tuple[Arg, ...]:
        """Command that starts the user's program, without ``args`` and hyperparameters: the stated command,
        or the interpreter and the module or file, or the file itself."""
        if self.entry is not None and self.entry.command:
            return self.entry.command
        if self.entry is not None and self.entry.module is not None:
            return (Ref("python"), "-m", self.entry.module)
        script = Ref("source", suffix="/" + self.entry_point)
        if self.entry_point.endswith(".sh"):
            return ("bash", script)
        return (Ref("python"), script) if self.entry_point.endswith(".py") else (script,)

    @property
    def is_single_process(self) -> bool:
        """Whether the whole job is one process."""
        return self.host_count == self.processes_per_host == 1


class Strategy:
    """A subclass states the data and, where something can be wrong, overrides ``find_problems`` and
    ``find_warnings``; if it starts more than ranks, ``services`` and ``variables``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """What it does, as the end of a sentence: "ddp starts ..."."""

    rendezvous: ClassVar[bool]
    """Whether ranks get RANK, WORLD_SIZE, MASTER_ADDR and the rest as torchrun sets them."""

    has_independent_ranks: ClassVar[bool] = False
    """Ranks train apart from each other: the run has finished when each has, in whichever segment."""

    job_kind: ClassVar[JobKind] = TRAINING

    hang_seconds: ClassVar[int | None] = None
    """Time without output and CPU use that counts as a hang, unless the job states one; None: never."""

    image_family: ClassVar[str | None] = "pytorch"
    """Family of images (``catalog.images``) that contain what the strategy needs; None: the job must name
    an image."""

    frameworks: ClassVar[tuple[str, ...] | None] = None
    """An AWS image must contain one of these: PyTorch, TensorFlow, XGBoost, scikit-learn or Spark; None:
    any image is suitable."""

    trainium_support: ClassVar[TrainiumSupport] = "may"
    """Whether it works on hosts with NeuronCores, or only there."""

    image_version: ClassVar[str | None] = None
    """Version of the family, if the newest image is not suitable."""

    libraries: ClassVar[tuple[str, ...]] = ()
    """A script that imports one of these is written for the strategy."""

    other_libraries: ClassVar[tuple[str, ...]] = ()
    """Libraries that work with the strategy, but do not indicate it."""

    unimported_fact: ClassVar[str] = ""
    """What is said of a script that imports none of them, without its subject; empty for "does not import"
    the first of them."""

    excluded_libraries: ClassVar[tuple[str, ...]] = ()
    """A script that imports one of these is not written for the strategy, whatever else it imports."""

    needs_library: ClassVar[bool] = False
    """Its image, hosts and processes are of no use without ``libraries``: a script that certainly imports
    none of them is rejected."""

    options: ClassVar[Mapping[str, str]] = {}
    """Keys of the job's ``options``, each with a line of help."""

    boolean_options: ClassVar[tuple[str, ...]] = ()
    """Options that are true or false."""

    count_options: ClassVar[tuple[str, ...]] = ()
    """Options that are whole numbers from 1."""

    python_only: ClassVar[bool] = False
    """Starts only Python scripts and modules, unless the job states a command."""

    one_process_per_host: ClassVar[bool] = False
    """Starts one plain process on each host, which starts others itself if needed."""

    one_process_by_default: ClassVar[bool] = False
    """Starts one process on each host unless the job asks for more, whatever accelerators there are."""

    has_rank_per_core: ClassVar[bool] = False
    """Without accelerators every processor core gets a rank: its programs usually have one thread."""

    joins_hosts: ClassVar[bool] = True
    """The processes of all hosts work together, so that they must be one job."""

    is_multi_host: ClassVar[bool] = False
    """Scripts are written for several hosts, whatever their analysis shows."""

    distributes_records: ClassVar[bool] = False
    """Scripts distribute records among hosts themselves, so that the strategy suits batch inference too."""

    works_on_shards: ClassVar[bool] = False
    """Each host works independently on its share of a split input: speed is proportional to hosts."""

    is_for_tables: ClassVar[bool] = False
    """Processes tables: a plan that chooses machines takes no accelerators, and one host per 100 GB."""

    sized_by_data: ClassVar[bool] = False
    """Machines are chosen by the size of the inputs if the job states no workload."""

    loads_all_data: ClassVar[bool] = False
    """Loads all data into memory, whatever the script imports."""

    runs_algorithms: ClassVar[bool] = False
    """Runs the built-in algorithm that the job names, whose image contains the program."""

    script_joins_ranks: ClassVar[bool] = False
    """Scripts join their ranks themselves, by torch.distributed; the plan reports what they lack for it."""

    launcher: ClassVar[str | None] = None
    """What starts the ranks, if the job cannot choose it."""

    rank_hosts: ClassVar[str] = ALL
    """Hosts with ranks: ALL, or only the LEADER."""

    needs_script: ClassVar[bool] = True
    """Whether the job must have an entry; otherwise the image or the algorithm may contain the program."""

    more_ranks_hint: ClassVar[str] = "let the script start its own"
    """What to do instead, for a job that asks for more than one_process_per_host."""

    checkpoint_note: ClassVar[str | None] = None
    """What a chain of segments restores if the script does not use smlaunch.train, as a sentence; None: it
    depends on the script."""

    def find_all_problems(self, context: LaunchContext) -> list[Problem]:
        """Return what is wrong with a job for this strategy, a way to start its processes: by what its class
        attributes say of every such job, then by its own ``find_problems``. Each problem names the field of
        the job file that it concerns. ``context``: what the job file says of the launch.
        """
        problems: list[Problem] = []
        if context.algorithm is not None and not self.runs_algorithms:
            message = f"a built-in algorithm needs strategy: builtin, not {self.name}; leave it out"
            return [Problem("strategy", message)]
        if self.needs_script and not context.entry_point:
            problems.append(Problem("entry", f"{self.name} starts a script; name one"))
        is_python = context.entry_point.endswith(".py") or context.starts_command
        if self.python_only and context.entry_point and not is_python:
            message = (
                f"{self.name} starts Python scripts; {context.entry_point} needs strategy: custom, or a .py"
            )
            problems.append(Problem("strategy", f"{message} around it"))
        if self.one_process_per_host and context.processes_per_host != 1:
            message = f"{self.name} starts one process per host, not {context.processes_per_host}"
            problems.append(Problem("compute.processes_per_host", f"{message}; {self.more_ranks_hint}"))
        problems += self._find_launcher_problems(context)
        problems += self._find_unknown_options(context)
        problems += self._find_option_type_problems(context)
        return [*problems, *self.find_problems(context)]

    def _find_launcher_problems(self, context: LaunchContext) -> Iterator[Problem]:
        """Yield a problem if the job asks for torchrun, which this strategy cannot use: its processes do not
        join as ranks, or another program starts them.
        """
        if context.launcher == TORCHRUN and not self.rendezvous:
            message = (
                f"torchrun joins ranks, and {self.name} has none to join; use strategy: ddp, or leave it out"
            )
            yield Problem("launcher", message)
        if context.launcher == TORCHRUN and self.launcher not in (None, TORCHRUN):
            yield Problem("launcher", f"{self.name} starts its own ranks; leave it out")

    def _find_unknown_options(self, context: LaunchContext) -> Iterator[Problem]:
        """Yield a problem for each of the job's options that this strategy does not have."""
        for option in context.options:
            if option not in self.options:
                # The closest name that exists, if one is close
                suggestion = did_you_mean(option, self.options) if self.options else "; it has none"
                yield Problem(f"options.{option}", f"{self.name} has no such option{suggestion}")

    def _find_option_type_problems(self, context: LaunchContext) -> Iterator[Problem]:
        """Yield a problem for each of the job's options whose value has the wrong type for this strategy."""
        for name, value in context.options.items():
            if name in self.boolean_options and not isinstance(value, bool):
                yield Problem(f"options.{name}", f"true or false is needed, not {value!r}")
            # type() and not isinstance: true is an int too
            if name in self.count_options and not (type(value) is int and value >= 1):
                yield Problem(f"options.{name}", f"a whole number from 1 is needed, not {value!r}")

    def find_problems(self, context: LaunchContext) -> list[Problem]:
        """Problems that make this strategy impossible, by the job's fields."""
        return []

    def find_warnings(self, context: LaunchContext) -> list[str]:
        """Warnings about what works, but probably not as intended."""
        return []

    def find_all_warnings(self, context: LaunchContext) -> list[str]:
        """Warnings of this strategy (``find_warnings``) and of every strategy."""
        warnings = self.find_warnings(context)
        usable_libraries = (*self.libraries, *self.other_libraries)
        imports_no_library = find_imported_library(context.imports, usable_libraries) is None
        if self.libraries and context.entry_point.endswith(".py") and imports_no_library:
            consequence = self.unimported_consequence(context)
            if not consequence:
                return warnings
            fact = f"{context.entry_point} {self.unimported_fact or f'does not import {self.libraries[0]}'}"
            if not context.imports_are_known:
                return [*warnings, f"{fact}: unless one of its modules does, {consequence}"]
            advice = "; take --hosts 1, or another strategy" if context.host_count > 1 else ""
            return [*warnings, f"{fact}, so that {consequence}{advice}"]
        return warnings

    def unimported_consequence(self, context: LaunchContext) -> str:
        """Return what follows if the script imports none of ``libraries`` and ``other_libraries``, a clause;
        empty if nothing does."""
        return f"{self.name} starts processes that it does not use"

    def image_family_for(self, has_accelerators: bool) -> str | None:
        """``image_family``, for hosts with or without accelerators."""
        return self.image_family

    def ranks_per_host(self, instance: InstanceType, threads_per_rank: int = 1) -> int:
        """Ranks per host unless the job states them: one per accelerator; without accelerators one, or one
        per processor core, fewer for ranks of several threads (``threads_per_rank``)."""
        if self.has_rank_per_core and not instance.accelerators:
            return max(1, instance.cores // threads_per_rank)
        return max(1, instance.accelerators)

    def max_wait_seconds(self, context: LaunchContext) -> int | None:
        """Limit for the duration of a spot job including its wait for capacity; None: the service's own
        limit."""
        return None

    def command(self, context: LaunchContext) -> tuple[Arg, ...]:
        """Command of each rank: interpreter, script, arguments, hyperparameters."""
        return (
            *context.program_command,
            *context.leading_args,
            *context.args,
            Ref("hyperparameters"),
            *context.trailing_args,
        )

    def services(self, context: LaunchContext) -> tuple[ServiceSpec, ...]:
        """Programs that run beside the ranks, in the order of their start."""
        return ()

    def variables(self, context: LaunchContext) -> tuple[tuple[str, Arg], ...]:
        """Environment variables of every rank; the job's own take precedence."""
        return ()

    def find_reasons(self, context: LaunchContext) -> list[tuple[str, str]]:
        """What the plan says of the strategy's variables: a rule and a sentence for each."""
        return []

    def hyperparameters(self, context: LaunchContext) -> Mapping[str, Any]:
        """Hyperparameters that the request contains in addition to the job's."""
        return {}

    def launcher_options(self, context: LaunchContext) -> tuple[Arg, ...]:
        """Arguments of the launcher."""
        return ()

    def launch_spec(self, context: LaunchContext) -> LaunchSpec:
        """Compile the launch specification."""
        environment = [pair for pair in self.variables(context) if pair[0] not in context.environment_names]
        if "PYTHONUNBUFFERED" not in context.environment_names:
            # Output goes to a pipe, for which Python buffers 8 KiB.
            environment.append(("PYTHONUNBUFFERED", "1"))
        command = self.command(context)
        ranks = RankSpec(
            command,
            tuple(environment),
            context.processes_per_host,
            self.rendezvous,
            self.launcher or context.launcher,
            self.rank_hosts,
            self.launcher_options(context),
            self.has_independent_ranks,
            context.flags,
        )
        return LaunchSpec(
            ranks=ranks,
            source=SOURCE_ARCHIVE,
            requirements=context.requirements,
            max_runtime_seconds=context.max_runtime_seconds,
            hang_seconds=self.hang_seconds if context.hang_seconds is None else context.hang_seconds,
            run=context.run_id,
            checkpoints=context.checkpoints,
            margin_seconds=context.margin_seconds,
            deterministic=context.deterministic,
            services=self.services(context),
        )


def find_imported_library(imports: frozenset[str], libraries: tuple[str, ...]) -> str | None:
    """The first of ``libraries`` that equals or contains one of ``imports``."""
    for library in libraries:
        if any(name == library or name.startswith(library + ".") for name in imports):
            return library
    return None
