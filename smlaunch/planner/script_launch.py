"""How a script that was written for another launcher starts unchanged: the ranks per host that it needs, and
the arguments that its launcher would pass. Pure.

Scripts get what torchrun, torch.distributed.launch, or a person on each host would give them: the address of
the first host, the number of the host or rank, Lightning's num_nodes. What the user states stays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, NamedTuple

from smlaunch.api.hyperparameter_text import hyperparameter_text
from smlaunch.contract.launch_spec import RUNTIME, TORCHRUN, Arg, Concat, Ref, parts_of
from smlaunch.facts.discovered_facts import ScriptFacts
from smlaunch.facts.script_arguments import ArgumentParserFacts, ScriptArgument, parse_script_arguments
from smlaunch.facts.script_program import OptionUse, ProgramFacts, TrainerCall
from smlaunch.job.model import Job
from smlaunch.runtime.hyperparameters import decode_hyperparameters

LOCAL_RANK_OPTIONS = ("--local_rank", "--local-rank")
ADDRESS_OPTIONS = ("--master_addr", "--master-addr", "--master_address", "--master-address")
PORT_OPTIONS = ("--master_port", "--master-port")
URL_OPTIONS = ("--dist-url", "--dist_url", "--init-method", "--init_method")
NODE_RANK_OPTIONS = ("--node_rank", "--node-rank", "--nr", "--machine_rank", "--machine-rank")
NODE_COUNT_OPTIONS = (
    *("--nodes", "--nnodes", "--num_nodes", "--num-nodes"),
    *("--num_machines", "--num-machines", "--n_nodes"),
)
BACKEND_OPTIONS = ("--dist-backend", "--dist_backend", "--backend")
RANK_OPTIONS = ("--rank",)
WORLD_SIZE_OPTIONS = ("--world-size", "--world_size")

NUM_NODES_OPTION, DEVICES_OPTION = "--trainer.num_nodes", "--trainer.devices"
_URL_FROM_ENVIRONMENT = "env://"


class ProcessNeed(NamedTuple):
    """The number of ranks per host that a script is written for."""

    processes: int
    rule: str
    explanation: str


class AddedArguments(NamedTuple):
    """Arguments of the script that smlaunch adds, and how it passes hyperparameters."""

    leading: tuple[Arg, ...] = ()
    """Before the job's own."""

    trailing: tuple[Arg, ...] = ()
    """After the job's own."""

    flags: tuple[tuple[str, str], ...] = ()
    """Hyperparameters that are flags of the script, each with the option that states the opposite."""

    def text(self) -> str:
        """The arguments for people; what only a host knows in angle brackets."""
        texts = (text_of_arg(arg, lambda ref: f"<{ref.name}>") for arg in (*self.leading, *self.trailing))
        return " ".join(texts)


def text_of_arg(arg: Arg, text_of_ref: Callable[[Ref], str]) -> str:
    """An argument as one text. ``text_of_ref``: what stands for a value that only the host knows."""
    return "".join(text_of_ref(part) if isinstance(part, Ref) else part for part in parts_of(arg))


_VARIABLES_OF_ALL_HOSTS = frozenset(("SM_HOSTS", "SM_RESOURCE_CONFIG", "SM_TRAINING_ENV"))


def reads_hosts(script: ScriptFacts) -> bool:
    """Whether the script reads the names of all hosts, from resourceconfig.json or SageMaker's variables."""
    return script.reads_resource_config or not _VARIABLES_OF_ALL_HOSTS.isdisjoint(
        script.program.variable_uses
    )


def reads_own_host_name(program: ProgramFacts) -> bool:
    """Whether the program reads the name of the host that it is on from SageMaker's variable."""
    return "SM_CURRENT_HOST" in program.variable_uses


_VARIABLES_OF_RANKS = frozenset(("RANK", "LOCAL_RANK", "SMLAUNCH_PROCESS"))
_VARIABLES_OF_ONE_HOST = frozenset(("SM_CURRENT_HOST", "SMLAUNCH_HOST_RANK", "HOSTNAME", "RANK"))
_CALLS_FOR_NAME_OF_HOST = frozenset(("gethostname", "getfqdn", "node"))


def may_name_own_files(script: ScriptFacts, of_what: Literal["host", "rank"]) -> bool:
    """Whether the program reads something that is another on each host, or for each rank, by which it may
    name its files."""
    program = script.program
    if of_what == "rank":
        return not _VARIABLES_OF_RANKS.isdisjoint(program.variable_uses)
    return (
        reads_hosts(script)
        or not _VARIABLES_OF_ONE_HOST.isdisjoint(program.variable_uses)
        or not _CALLS_FOR_NAME_OF_HOST.isdisjoint(program.calls)
    )


def is_command(job: Job) -> bool:
    """Whether the job's program is a command of the user's, such as a launcher, which passes the script its
    arguments and starts its ranks."""
    return job.entry is not None and bool(job.entry.command)


def script_arguments(job: Job, flags: Mapping[str, str]) -> list[str]:
    """Return the arguments that the script gets by the job's ``args`` and hyperparameters, as the runtime
    passes them. ``flags``: those that take no value."""
    encoded = {key: hyperparameter_text(value) for key, value in job.hyperparameters.items()}
    return [*map(str, job.args), *decode_hyperparameters(encoded)._replace(flags=flags).to_args()]


def stated_values(job: Job, program: ProgramFacts) -> dict[str, Any]:
    """Return the values that the job states for the script's options, by the attribute's name."""
    if program.parser is None:
        return {}
    return parse_script_arguments(program.parser, script_arguments(job, program.parser.flags()))


def arguments_without(job: Job, program: ProgramFacts, options: Collection[str]) -> list[str]:
    """Return the job's arguments without these options and their values. ``options``: names, such as
    ``--local_rank``; the other names that the script gives them are left out too."""
    names = set(options)
    for option in options:
        argument = None if program.parser is None else program.parser.find_option((option,))
        if argument is not None:
            names.update(argument.names)
    remaining: list[str] = []
    arguments = iter(map(str, job.args))
    for argument_text in arguments:
        if argument_text in names:
            next(arguments, None)  # its value, the next argument
        elif argument_text.partition("=")[0] not in names:
            remaining.append(argument_text)
    return remaining


def starts_own_ranks(job: Job, program: ProgramFacts) -> bool:
    """Whether the script starts the ranks of its host itself, with the arguments that the job states."""
    start = program.rank_start
    if start is None:
        return False
    return start.flag is None or program.parser is None or bool(stated_values(job, program).get(start.flag))


def needed_processes(job: Job, program: ProgramFacts) -> ProcessNeed | None:
    """Return how many processes smlaunch has to start on each host for the script, by its source, and why;
    None where any number will do."""
    if is_command(job):
        return None
    rank_start = program.rank_start
    if rank_start is not None and starts_own_ranks(job, program):
        sentence = (
            f"{rank_start.place} starts the ranks of its host by {rank_start.function}: one process per host."
        )
        return ProcessNeed(1, "processes.script-starts-ranks", sentence)
    if program.computes_rank_of_host:
        variable_uses = program.variable_uses
        variable_use = variable_uses.get("SM_HOSTS") or variable_uses["SM_CURRENT_HOST"]
        sentence = (
            f"The script's rank is the number of its host among SM_HOSTS ({variable_use.place}): one rank "
            "per host."
        )
        return ProcessNeed(1, "processes.rank-of-host", sentence)
    trainer = only_trainer(job, program)
    if trainer is not None and isinstance(trainer.devices, int) and trainer.devices > 0:
        sentence = (
            f"{trainer.place} has {trainer.class_name}(devices={trainer.devices}): as many ranks per host."
        )
        return ProcessNeed(trainer.devices, "processes.lightning-devices", sentence)
    return None


def only_trainer(job: Job, program: ProgramFacts) -> TrainerCall | None:
    """The only Lightning Trainer of the program, if literals or options of the script show its devices and
    hosts: with the values of options that the job states, otherwise with their defaults."""
    trainers = program.trainer_calls
    if len(trainers) != 1 or not trainers[0].is_known:
        return None
    trainer = trainers[0]
    if trainer.devices_option is not None:
        devices = _parse_device_count(option_value(job, program, trainer.devices_option))
        trainer = trainer._replace(devices=devices)
    if trainer.num_nodes_option is not None:
        num_nodes = _parse_device_count(option_value(job, program, trainer.num_nodes_option))
        trainer = trainer._replace(num_nodes=num_nodes if isinstance(num_nodes, int) else None)
    return trainer


def option_value(job: Job, program: ProgramFacts, destination: str) -> Any:
    """The value of the script's option that gets this attribute: as the job states it, otherwise its
    default; None where that is computed."""
    argument = None if program.parser is None else program.parser.argument_of(destination)
    return stated_values(job, program).get(destination, None if argument is None else argument.default)


def _parse_device_count(value: Any) -> int | str | None:
    """Return the number of devices or hosts that Lightning takes from an argument: 2 for ``2``, ``[0, 1]``
    and ``"0,1"``; a text such as ``auto`` as it is; None for anything else."""
    if isinstance(value, str) and "," in value:
        return len([device for device in value.split(",") if device.strip()])
    if isinstance(value, (list, tuple)):
        return len(value)
    try:
        return int(value)
    except (TypeError, ValueError):
        return value if isinstance(value, str) else None


def added_arguments(
    job: Job,
    program: ProgramFacts,
    host_count: int,
    processes_per_host: int | str,
    launcher: str,
    has_accelerators: bool = True,
) -> AddedArguments:
    """Return the arguments that the script needs to join its ranks, and that the job does not state.
    ``launcher``: what starts the ranks, smlaunch's runtime or torchrun. ``has_accelerators``: False for hosts
    that certainly have none."""
    if is_command(job):
        return AddedArguments()
    trailing: list[Arg] = []
    if program.has_lightning_cli:
        trailing = _lightning_cli_arguments(job, host_count, processes_per_host)
    flags = _flags_among_hyperparameters(job, program)
    if program.parser is None or launcher not in (RUNTIME, TORCHRUN):
        return AddedArguments(trailing=tuple(trailing), flags=flags)
    options = _ScriptOptions(program.parser, stated_values(job, program))
    spawns_ranks = starts_own_ranks(job, program)
    has_one_rank = host_count == processes_per_host == 1
    if launcher == RUNTIME and not spawns_ranks:
        options.set_value(LOCAL_RANK_OPTIONS, Ref("local_rank"))
    if spawns_ranks or not has_one_rank:
        if not has_accelerators:
            options.replace_default(BACKEND_OPTIONS, "nccl", "gloo")
        options.set_value(URL_OPTIONS, _URL_FROM_ENVIRONMENT)
        options.set_value(ADDRESS_OPTIONS, Ref("leader"))
        options.set_value(PORT_OPTIONS, Ref("port"))
        if spawns_ranks:
            _set_options_of_spawning_script(options, program)
        elif launcher == RUNTIME:
            _set_rank_options(options, program)
    if not spawns_ranks:
        _set_trainer_options(options, job, program, host_count)
    return AddedArguments(tuple(options.arguments), tuple(trailing), flags)


class _ScriptOptions:
    """The options of a script's parser, and the arguments that set those that the job does not state."""

    def __init__(self, parser: ArgumentParserFacts, value_by_attribute: Mapping[str, Any]) -> None:
        """``value_by_attribute``: values that the job states, by the attributes that get them."""
        self._parser = parser
        self._value_by_attribute = value_by_attribute
        self.arguments: list[Arg] = []

    def has(self, names: tuple[str, ...]) -> bool:
        """Whether the script has an option of one of these names."""
        return self._parser.find_option(names) is not None

    def set_value(self, names: tuple[str, ...], value: Arg) -> bool:
        """Set the script's option of one of these names, unless the job states it. Return whether the script
        has such an option, with a value."""
        option = self._parser.find_option(names)
        if option is None or option.is_flag:
            return False
        if option.destination not in self._value_by_attribute:
            self.arguments.append(Concat((f"{option_name(option, names)}=", *parts_of(value))))
        return True

    def replace_default(self, names: tuple[str, ...], default: str, value: Arg) -> None:
        """Set an option that has this default."""
        option = self._parser.find_option(names)
        if option is not None and option.default == default:
            self.set_value(names, value)

    def set_attribute(self, attribute: str | None, value: Arg, known_count: int | None = None) -> None:
        """Set the option whose value gets this attribute, if there is one. ``known_count``: number that
        ``value`` has on the hosts, if it is known: an option with this default is left alone."""
        option = None if attribute is None else self._parser.argument_of(attribute)
        if option is None or option.is_positional:
            return
        if known_count is None or _parse_device_count(option.default) != known_count:
            self.set_value((option.long_name,), value)


def _set_options_of_spawning_script(options: _ScriptOptions, program: ProgramFacts) -> None:
    """Set the number of the host and of all hosts, for a script that starts the ranks of its host itself. If
    it has no options for them, its rank and world size may mean hosts."""
    has_node_rank = options.set_value(NODE_RANK_OPTIONS, Ref("host_rank"))
    options.set_value(NODE_COUNT_OPTIONS, Ref("hosts"))
    reads_rank_variable = "RANK" in program.variable_uses
    if not has_node_rank and not reads_rank_variable and options.set_value(RANK_OPTIONS, Ref("host_rank")):
        options.set_value(WORLD_SIZE_OPTIONS, Ref("hosts"))


def _set_rank_options(options: _ScriptOptions, program: ProgramFacts) -> None:
    """Set rank and world size, for a script whose ranks smlaunch's runtime starts."""
    reads_rank_variable = "RANK" in program.variable_uses
    joins_by_options = options.has(URL_OPTIONS) and not reads_rank_variable
    if joins_by_options and options.set_value(RANK_OPTIONS, Ref("rank")):
        options.set_value(WORLD_SIZE_OPTIONS, Ref("world_size"))
        return
    for ref_name, use in unread_group_options(program).items():
        options.set_attribute(use.destination, Ref(ref_name))


def _set_trainer_options(options: _ScriptOptions, job: Job, program: ProgramFacts, host_count: int) -> None:
    """Set the options from which Lightning's Trainers take their numbers of hosts and devices."""
    for trainer in program.trainer_calls:
        options.set_attribute(trainer.num_nodes_option, Ref("hosts"), known_count=host_count)
        processes_per_host = job.compute.processes_per_host
        if isinstance(processes_per_host, int):  # otherwise the trainer's devices decide
            options.set_attribute(trainer.devices_option, Ref("per_host"), known_count=processes_per_host)


def unread_group_options(program: ProgramFacts) -> dict[str, OptionUse]:
    """The options from which the script takes rank and world size of its process group, by ``rank`` and
    ``world_size``; without those that it may take from torchrun's variables instead."""
    return {
        name: use for name, use in program.group_options.items() if name.upper() not in program.variable_uses
    }


def _flags_among_hyperparameters(job: Job, program: ProgramFacts) -> tuple[tuple[str, str], ...]:
    flags = {} if program.parser is None else program.parser.flags()
    return tuple(sorted((name, flags[name]) for name in job.hyperparameters if name in flags))


def _lightning_cli_arguments(job: Job, host_count: int, processes_per_host: int | str) -> list[Arg]:
    """Return the options of LightningCLI by which its Trainer counts the hosts and ranks that there are,
    without those that the job states. ``processes_per_host``: a number, or ``auto``."""
    stated = stated_lightning_cli_values(job)
    arguments: list[Arg] = []
    if host_count > 1 and NUM_NODES_OPTION not in stated:
        arguments.append(Concat((f"{NUM_NODES_OPTION}=", Ref("hosts"))))
    has_several_ranks = isinstance(processes_per_host, int) and host_count * processes_per_host > 1
    if has_several_ranks and DEVICES_OPTION not in stated:
        arguments.append(Concat((f"{DEVICES_OPTION}=", Ref("per_host"))))
    return arguments


def stated_lightning_cli_values(job: Job) -> dict[str, str]:
    """Return what the job states of LightningCLI's numbers of hosts and ranks, by the option."""
    words = script_arguments(job, {})
    values: dict[str, str] = {}
    for word, next_word in zip(words, [*words[1:], ""], strict=True):
        name, has_value, value = word.partition("=")
        if name in (NUM_NODES_OPTION, DEVICES_OPTION):
            values[name] = value if has_value else next_word
    return values


def option_name(argument: ScriptArgument, options: tuple[str, ...]) -> str:
    """The name of an argument that is one of the options by which it was looked up."""
    return next(name for name in argument.names if name in options)


_WELL_KNOWN_PACKAGES = frozenset(
    (
        *("torch", "torchvision", "torchaudio", "numpy", "scipy", "pandas", "sklearn", "joblib"),
        *("matplotlib", "seaborn", "PIL", "cv2", "skimage", "tqdm", "yaml", "requests", "smlaunch"),
    )
)
"""Packages that import no library that a strategy needs."""

_CALLS_THAT_IMPORT_BY_NAME = frozenset(("exec", "__import__", "import_module", "run_path", "run_module"))


def all_imports_are_known(job: Job, script: ScriptFacts) -> bool:
    """Whether the program imports no package that may import others of which the plan does not know."""
    program = script.program
    packages = {name.partition(".")[0] for name in script.imports | program.imports}
    return (
        program.was_read
        and not is_command(job)
        and packages <= _WELL_KNOWN_PACKAGES | sys.stdlib_module_names
        and program.calls.isdisjoint(_CALLS_THAT_IMPORT_BY_NAME)
    )
