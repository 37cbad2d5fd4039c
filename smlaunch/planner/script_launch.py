"""How a script that was written for another launcher starts unchanged: the ranks per host that it needs, and
the arguments that its launcher would pass. Pure.

Scripts get what torchrun, torch.distributed.launch, or a person on each host would give them: the address of
the first host, the number of the host or rank, Lightning's num_nodes. What the user states stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from smlaunch.api.request_builder import hyperparameter_text
from smlaunch.contract.launch_spec import RUNTIME, TORCHRUN, Arg, Concat, Ref, parts_of
from smlaunch.facts.script_arguments import ScriptArgument, parse_script_arguments
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


def reads_hosts(program: ProgramFacts) -> bool:
    """Whether the program reads the names of the other hosts from SageMaker's variables."""
    return not {"SM_HOSTS", "SM_RESOURCE_CONFIG", "SM_TRAINING_ENV"}.isdisjoint(program.variable_uses)


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
    """Return the job's arguments without these options and their values."""
    parser = program.parser
    names = set(options)
    for option in options:
        argument = None if parser is None else parser.find_option((option,))
        names |= set() if argument is None else set(argument.names)
    remaining: list[str] = []
    arguments = iter(map(str, job.args))
    for argument_text in arguments:
        if argument_text in names:
            next(arguments, None)  # its value
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
    """Return how many ranks smlaunch has to start on each host; None where any number will do."""
    start = program.rank_start
    if is_command(job):
        return None
    if start is not None and starts_own_ranks(job, program):
        sentence = f"{start.place} starts the ranks of its host by {start.function}: one process per host."
        return ProcessNeed(1, "processes.script-starts-ranks", sentence)
    if program.computes_rank_of_host:
        place = program.variable_uses[
            "SM_HOSTS" if "SM_HOSTS" in program.variable_uses else "SM_CURRENT_HOST"
        ].place
        sentence = f"The script's rank is the number of its host among SM_HOSTS ({place}): one rank per host."
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
        trainer = trainer._replace(devices=_count_of(option_value(job, program, trainer.devices_option)))
    if trainer.num_nodes_option is not None:
        num_nodes = _count_of(option_value(job, program, trainer.num_nodes_option))
        trainer = trainer._replace(num_nodes=num_nodes if isinstance(num_nodes, int) else None)
    return trainer


def option_value(job: Job, program: ProgramFacts, destination: str) -> Any:
    """The value of the script's option that gets this attribute: as the job states it, otherwise its
    default; None where that is computed."""
    argument = None if program.parser is None else program.parser.argument_of(destination)
    return stated_values(job, program).get(destination, None if argument is None else argument.default)


def _count_of(value: Any) -> int | str | None:
    """A number of devices or hosts as Lightning reads it: of ``"0,1"`` two."""
    if isinstance(value, str) and "," in value:
        return len([part for part in value.split(",") if part.strip()])
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
    ``has_accelerators``: False for hosts that certainly have none."""
    if is_command(job):
        return AddedArguments()
    parser = program.parser
    trailing: list[Arg] = []
    if program.has_lightning_cli:
        trailing = list(_lightning_cli_arguments(job, host_count, processes_per_host))
    if parser is None or launcher not in (RUNTIME, TORCHRUN):
        return AddedArguments(trailing=tuple(trailing), flags=_flags_among_hyperparameters(job, program))
    stated = stated_values(job, program)
    leading: list[Arg] = []

    def add(options: tuple[str, ...], value: Arg) -> bool:
        """Add one of the options, unless the job states it. Whether the script has it."""
        argument = parser.find_option(options)
        if argument is None or argument.is_flag:
            return False
        if argument.destination not in stated:
            leading.append(Concat((f"{option_name(argument, options)}=", *parts_of(value))))
        return True

    def add_for(destination: str | None, value: Arg, number: int | None = None) -> None:
        """Add the option that gets this attribute, unless its default is the number that it would get."""
        argument = None if destination is None else parser.argument_of(destination)
        if argument is None or argument.is_positional:
            return
        if number is None or _count_of(argument.default) != number:
            add((argument.long_name,), value)

    spawns = starts_own_ranks(job, program)
    has_one_rank = host_count == processes_per_host == 1
    if not spawns and launcher == RUNTIME:
        add(LOCAL_RANK_OPTIONS, Ref("local_rank"))
    if spawns or not has_one_rank:
        backend = parser.find_option(BACKEND_OPTIONS)
        if not has_accelerators and backend is not None and backend.default == "nccl":
            add(BACKEND_OPTIONS, "gloo")
        reads_rank = "RANK" in program.variable_uses
        url = parser.find_option(URL_OPTIONS)
        if url is not None:
            add(URL_OPTIONS, _URL_FROM_ENVIRONMENT)
        add(ADDRESS_OPTIONS, Ref("leader"))
        add(PORT_OPTIONS, Ref("port"))
        if spawns:
            has_node_rank = add(NODE_RANK_OPTIONS, Ref("host_rank"))
            add(NODE_COUNT_OPTIONS, Ref("hosts"))
            if not has_node_rank and not reads_rank and add(RANK_OPTIONS, Ref("host_rank")):
                add(WORLD_SIZE_OPTIONS, Ref("hosts"))
        elif launcher == RUNTIME and not reads_rank and url is not None and add(RANK_OPTIONS, Ref("rank")):
            add(WORLD_SIZE_OPTIONS, Ref("world_size"))
        elif launcher == RUNTIME:
            for name, use in unread_group_options(program).items():
                add_for(use.destination, Ref(name))
    for trainer in program.trainer_calls if not spawns else ():
        add_for(trainer.num_nodes_option, Ref("hosts"), host_count)
        if isinstance(job.compute.processes_per_host, int):  # otherwise the trainer's devices decide
            add_for(trainer.devices_option, Ref("per_host"), job.compute.processes_per_host)
    return AddedArguments(tuple(leading), tuple(trailing), _flags_among_hyperparameters(job, program))


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
    """Options of LightningCLI by which its Trainer counts the hosts and ranks that there are."""
    stated = stated_lightning_cli_values(job)
    arguments: list[Arg] = []
    if host_count > 1 and NUM_NODES_OPTION not in stated:
        arguments.append(Concat((f"{NUM_NODES_OPTION}=", Ref("hosts"))))
    if (
        isinstance(processes_per_host, int)
        and DEVICES_OPTION not in stated
        and host_count * processes_per_host > 1
    ):
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
