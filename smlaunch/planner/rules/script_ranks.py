"""Rules about the ranks that a script starts or joins, as it shows by its source.

A script whose hosts would train separately, or fail at the same port, is rejected with the one change that is
enough.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from smlaunch.contract.launch_spec import RUNTIME
from smlaunch.errors import Problem
from smlaunch.facts.launcher_lines import (
    THIS_MACHINE,
    explain_separate_hosts,
    launcher_of_command,
    replacement_of,
)
from smlaunch.facts.script_program import FixedValue, ProgramFacts, TrainerCall
from smlaunch.planner.plan_context import PlanContext, PlanWarning, has_split_input
from smlaunch.planner.rules.rule import Findings, Problems, rule
from smlaunch.planner.script_launch import (
    ADDRESS_OPTIONS,
    BACKEND_OPTIONS,
    DEVICES_OPTION,
    NODE_COUNT_OPTIONS,
    NODE_RANK_OPTIONS,
    NUM_NODES_OPTION,
    RANK_OPTIONS,
    URL_OPTIONS,
    WORLD_SIZE_OPTIONS,
    arguments_without,
    is_command,
    needed_processes,
    only_trainer,
    option_name,
    starts_own_ranks,
    stated_lightning_cli_values,
    stated_values,
    unread_group_options,
)
from smlaunch.strategies.base import find_imported_library

_MAX_LISTED_GPU_CALLS = 8
_TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"


def _program(context: PlanContext) -> ProgramFacts:
    return context.facts.script.program


@rule(
    "script.own-ranks",
    summary="ranks that the script starts itself, on several hosts of which it knows one, or several times",
    source=_TORCHRUN,
    quote="MASTER_ADDR - The FQDN of the host that is running worker with rank 0",
    fields=("entry", "source", "args", "hyperparameters", "compute", "strategy"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_ranks_of_one_host(context: PlanContext) -> Problems:
    """Two hosts that each start ranks 0 to N train twice, or fail at the same port."""
    yield from _with_one_change(context, _problems_of_own_ranks(context))


def _with_one_change(context: PlanContext, problems: Iterable[Problem]) -> Problems:
    """Yield the problems, the first one about the script's arguments with the change that is enough for all
    of these: the arguments that may stay. The message of such a problem begins with the option's name."""
    all_problems = list(problems)
    argument_problems = [problem for problem in all_problems if problem.path == "args"]
    wrong_options = {problem.message.split()[0].rstrip(":") for problem in argument_problems}
    for problem in all_problems:
        if argument_problems and problem is argument_problems[0]:
            remaining_arguments = arguments_without(context.job, _program(context), wrong_options)
            yield problem._replace(change=f"-- {shlex.join(remaining_arguments)}".rstrip())
        else:
            yield problem


def _problems_of_own_ranks(context: PlanContext) -> Problems:
    """Yield what is wrong with a job whose script starts the ranks of its host itself (``start``): several
    such processes on a host, or several hosts that do not find each other."""
    job, program = context.job, _program(context)
    start = program.rank_start
    if start is None or not starts_own_ranks(job, program) or is_command(job):
        return
    processes = job.compute.processes_per_host
    if isinstance(processes, int) and processes > 1:
        message = (
            f"{start.place} starts the ranks of its host by {start.function}: {processes} such processes "
            "would use the same port and train separately; leave it out"
        )
        yield Problem("compute.processes_per_host", message)
    if context.hosts == 1:
        return
    yield from _reject_one_value_for_all(context, NODE_RANK_OPTIONS, "every host would have the same number")
    has_node_rank = _has_option(program, NODE_RANK_OPTIONS)
    has_rank_and_url = _has_option(program, RANK_OPTIONS) and _has_option(program, URL_OPTIONS)
    host_count_options: tuple[str, ...] = NODE_COUNT_OPTIONS
    # Such a script, without an option for the host's number, takes rank and world size for those of hosts.
    if has_rank_and_url and not has_node_rank:
        yield from _reject_one_value_for_all(context, RANK_OPTIONS, "every host would have the same number")
        host_count_options = WORLD_SIZE_OPTIONS
    yield from _reject_other_number(context, host_count_options, context.hosts, "hosts")
    yield from _reject_addresses_of_this_machine(context)
    reads_host_variable = not _HOST_VARIABLES.isdisjoint(program.variable_uses)
    knows_host = reads_host_variable or has_node_rank or has_rank_and_url
    fixed_address = program.fixed_values.get("MASTER_ADDR")
    if fixed_address is not None:
        cause = f"{fixed_address.place} sets {fixed_address.old_text}"
    elif not knows_host:
        cause = "it takes no number of a host"
    else:
        return
    yield Problem(
        "compute.hosts",
        f"{start.place} starts the ranks of one host by {start.function}, and {cause}: "
        f"{context.hosts} hosts would train separately; use --hosts 1, or let smlaunch start the ranks: "
        f"leave out {start.function}, and take RANK, LOCAL_RANK and WORLD_SIZE from the environment",
        "--hosts 1",
    )


_HOST_VARIABLES = frozenset(("NODE_RANK", "GROUP_RANK", "RANK", "SM_CURRENT_HOST", "SM_HOSTS"))
"""Variables by which a script may know the number of its host."""


def _has_option(program: ProgramFacts, names: tuple[str, ...]) -> bool:
    return program.parser is not None and program.parser.find_option(names) is not None


class _StatedOption(NamedTuple):
    """An option of the script for which the job states a value."""

    name: str
    value: Any
    field: str
    """The job's field that states it."""


def _stated_option(context: PlanContext, names: tuple[str, ...]) -> _StatedOption | None:
    """Return the script's option of one of these names, if the job states it."""
    program = _program(context)
    option = None if program.parser is None else program.parser.find_option(names)
    value_by_attribute = stated_values(context.job, program)
    if option is None or option.destination not in value_by_attribute:
        return None
    name = option_name(option, names)
    return _StatedOption(name, value_by_attribute[option.destination], _field_of_option(context, name))


def _field_of_option(context: PlanContext, name: str) -> str:
    key = name.lstrip("-")
    return f"hyperparameters.{key}" if key in context.job.hyperparameters else "args"


def _reject_one_value_for_all(context: PlanContext, names: tuple[str, ...], consequence: str) -> Problems:
    """Yield a problem if the job states an option of one of these names, whose value has to differ from host
    to host, or from rank to rank. ``consequence``: of one value for all, as a clause."""
    stated = _stated_option(context, names)
    if stated is not None:
        yield Problem(
            stated.field, f"{stated.name}: {consequence}; leave it out, smlaunch gives each its own"
        )


def _reject_other_number(context: PlanContext, names: tuple[str, ...], count: int, noun: str) -> Problems:
    """Yield a problem if the job states another number than ``count`` for the script's option of one of these
    names. ``noun``: what is counted, such as ``hosts``."""
    stated = _stated_option(context, names)
    if stated is not None and stated.value is not None and str(stated.value) != str(count):
        yield Problem(stated.field, _other_number_text(stated.name, stated.value, count, noun))


def _other_number_text(option: str, value: object, count: int, noun: str) -> str:
    return f"{option} {value}, and there are {count} {noun}; leave it out, smlaunch states the number"


def _reject_addresses_of_this_machine(context: PlanContext) -> Problems:
    """Yield a problem for an address, stated by the job, at which each host finds only itself."""
    for names in (URL_OPTIONS, ADDRESS_OPTIONS):
        stated = _stated_option(context, names)
        if stated is not None and any(host in str(stated.value) for host in THIS_MACHINE):
            yield Problem(
                stated.field,
                f"{stated.name} {stated.value} is each host itself, so that {context.hosts} hosts would "
                "train separately; leave it out, smlaunch gives the address of the first host",
            )


@rule(
    "script.launcher-values",
    summary="MASTER_ADDR, RANK or the like that the script sets itself, whatever the launcher says",
    source=_TORCHRUN,
    quote="WORLD_SIZE, RANK, MASTER_ADDR, MASTER_PORT are set by the launcher",
    fields=("entry", "source", "args", "hyperparameters", "compute", "strategy"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_values_of_launcher(context: PlanContext) -> Problems:
    """Yield a problem for each value that separates ranks which should train together."""
    job, program = context.job, _program(context)
    if not context.strategy.rendezvous or starts_own_ranks(job, program) or is_command(job):
        return
    need = needed_processes(job, program)
    processes = job.compute.processes_per_host or (None if need is None else need.processes)
    may_have_several_ranks = context.hosts > 1 or (isinstance(processes, int) and processes > 1)
    problems: list[Problem] = []
    if context.hosts > 1 and not program.computes_rank_of_host:
        problems += _reject_addresses_of_this_machine(context)
    if may_have_several_ranks and context.launcher == RUNTIME:
        default_processes = None if context.has_accelerators else 1
        known_processes = processes if isinstance(processes, int) else default_processes
        problems += _reject_stated_ranks(context, known_processes)
    yield from _with_one_change(context, problems)
    for variable, fixed_value in program.fixed_values.items():
        # One address is right for all ranks of one host.
        separates_ranks = context.hosts > 1 if variable == "MASTER_ADDR" else may_have_several_ranks
        if variable != "MASTER_PORT" and separates_ranks:
            yield _fixed_value_problem(variable, fixed_value)


def _reject_stated_ranks(context: PlanContext, processes_per_host: int | None) -> Problems:
    """Yield a problem for rank and world size of the process group, where the job states them and they are
    not those that there are. ``processes_per_host``: None if it is not known."""
    use_by_name = unread_group_options(_program(context))
    if "rank" in use_by_name:
        rank_options = _names_of(context, use_by_name["rank"].destination)
        yield from _reject_one_value_for_all(context, rank_options, "every rank would have the same number")
    if "world_size" in use_by_name and processes_per_host is not None:
        size_options = _names_of(context, use_by_name["world_size"].destination)
        yield from _reject_other_number(context, size_options, context.hosts * processes_per_host, "ranks")


def _fixed_value_problem(name: str, fixed: FixedValue) -> Problem:
    return Problem(
        "entry",
        f"{fixed.place}: {fixed.old_text} replaces the {name} that smlaunch gives each rank, so that they "
        f"would not train together; write {fixed.new_text}",
        "" if fixed.edit is None else fixed.edit.with_text(fixed.new_text),
    )


@rule(
    "script.lightning",
    summary="devices or num_nodes of Lightning's Trainer that differ from ranks and hosts",
    source="https://lightning.ai/docs/pytorch/stable/clouds/cluster_intermediate_2.html",
    quote="num_nodes: the number of nodes in the cluster",
    fields=("entry", "source", "compute", "args", "hyperparameters", "strategy"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_other_hosts_than_lightning(context: PlanContext) -> Problems:
    """Where both differ from the ranks that there are, Lightning fails, or each rank trains alone."""
    program = _program(context)
    trainer = only_trainer(context.job, program)
    if not context.strategy.rendezvous or is_command(context.job):
        return
    if trainer is not None:
        yield from _with_one_change(context, _problems_of_trainer(context, trainer))
    if program.has_lightning_cli:
        yield from _with_one_change(context, _problems_of_lightning_cli(context))


def _problems_of_lightning_cli(context: PlanContext) -> Problems:
    processes = context.job.compute.processes_per_host
    known_processes = processes if isinstance(processes, int) else None
    count_and_noun_by_option = {
        NUM_NODES_OPTION: (context.hosts, "hosts"),
        DEVICES_OPTION: (known_processes, "ranks per host"),
    }
    for option, value in stated_lightning_cli_values(context.job).items():
        count, noun = count_and_noun_by_option[option]
        if value.isdigit() and count is not None and int(value) != count:
            yield Problem(_field_of_option(context, option), _other_number_text(option, value, count, noun))


def _problems_of_trainer(context: PlanContext, trainer: TrainerCall) -> Problems:
    """Yield a problem if Lightning's Trainer, or the job for it, states other hosts or devices than there
    are."""
    num_nodes = trainer.num_nodes or 1
    if trainer.num_nodes_option is not None:  # smlaunch states it where the job does not
        host_count_options = _names_of(context, trainer.num_nodes_option)
        yield from _reject_other_number(context, host_count_options, context.hosts, "hosts")
    elif num_nodes != context.hosts:
        is_stated = trainer.num_nodes is not None
        stated_text = f"num_nodes={num_nodes}" if is_stated else "no num_nodes, which means 1"
        hosts_text = "there is 1 host" if context.hosts == 1 else f"there are {context.hosts} hosts"
        new_argument, hosts_option = f"num_nodes={context.hosts}", f"--hosts {num_nodes}"
        edit = trainer.num_nodes_edit
        # A number that the script states is what its author wants.
        change = hosts_option if is_stated or edit is None else edit.with_text(new_argument)
        yield Problem(
            "compute.hosts",
            f"{trainer.place}: {trainer.class_name} has {stated_text}, and {hosts_text}; use {hosts_option}, "
            f"or write {new_argument} there",
            change,
        )
    yield from _reject_other_devices(context, trainer)


def _names_of(context: PlanContext, destination: str) -> tuple[str, ...]:
    """The names of the script's option that gets this attribute."""
    parser = _program(context).parser
    argument = None if parser is None else parser.argument_of(destination)
    return () if argument is None else (argument.long_name,)


def _reject_other_devices(context: PlanContext, trainer: TrainerCall) -> Problems:
    """Yield a problem if the job states other ranks per host than the trainer has devices."""
    processes = context.job.compute.processes_per_host
    if not isinstance(processes, int):
        return
    names = () if trainer.devices_option is None else _names_of(context, trainer.devices_option)
    stated_devices = _stated_option(context, names)
    is_stated = stated_devices is not None and stated_devices.value is not None
    if trainer.devices_option is not None and not is_stated:
        return  # smlaunch states it
    if isinstance(trainer.devices, int) and trainer.devices != -1:
        devices, stated = trainer.devices, f"devices={trainer.devices}"
    elif trainer.devices in (None, "auto", -1, "-1") and not context.has_accelerators:
        devices, stated = 1, "the default devices, which is 1 without accelerators"
    else:
        return
    if devices == processes:
        return
    if stated_devices is not None and is_stated:
        name, value, field = stated_devices
        yield Problem(field, _other_number_text(name, value, processes, "ranks per host"))
        return
    option = f"--processes-per-host {devices}"
    edit = trainer.devices_edit
    yield Problem(
        "compute.processes_per_host",
        f"{trainer.place}: {trainer.class_name} has {stated}, and there are {processes} ranks per host; "
        f"use {option}, or write devices={processes} there",
        option if trainer.devices is not None or edit is None else edit.with_text(f"devices={processes}"),
    )


@rule(
    "script.backend",
    summary="the backend NCCL, and other code that needs GPUs, on hosts without any",
    source="https://docs.pytorch.org/docs/stable/distributed.html",
    quote="Use the NCCL backend for distributed GPU training, the Gloo backend for CPU",
    fields=("entry", "source", "args", "hyperparameters", "compute", "strategy"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_gpu_code_without_accelerators(context: PlanContext) -> Problems:
    """Yield a problem for the calls that need a GPU, and one for NCCL as the script fixes it for several
    ranks, or as the job states it."""
    job, program = context.job, _program(context)
    if context.has_accelerators or is_command(job):
        return
    if program.gpu_calls:
        calls = [f"{call.place} ({call.function})" for call in program.gpu_calls[:_MAX_LISTED_GPU_CALLS]]
        hidden_count = len(program.gpu_calls) - len(calls)
        more = f" and {hidden_count} more" if hidden_count else ""
        yield Problem(
            "entry",
            f"{', '.join(calls)}{more} need{'s' if len(calls) == 1 else ''} a GPU, and the hosts have none; "
            'use device = torch.device("cuda" if torch.cuda.is_available() else "cpu") there, as .to(device)'
            + (", or take an instance type with GPUs" if context.facts.target == "aws" else ""),
        )
    if not context.strategy.rendezvous:
        return
    processes = job.compute.processes_per_host
    has_several_ranks = context.hosts > 1 or (isinstance(processes, int) and processes > 1)
    fixed = program.nccl_backend
    if fixed is not None and (has_several_ranks or program.rank_start is not None):
        choice = '"nccl" if torch.cuda.is_available() else "gloo"'
        yield Problem(
            "entry",
            f"{fixed.place}: the backend nccl needs GPUs, and the hosts have none; write {fixed.new_text}, "
            f"or choose it: {choice}",
            "" if fixed.edit is None else fixed.edit.with_text(choice),
        )
    stated_backend = _stated_option(context, BACKEND_OPTIONS)
    if stated_backend is not None and stated_backend.value == "nccl":
        yield Problem(
            stated_backend.field,
            f"{stated_backend.name} nccl needs GPUs, and the hosts have none; the backend for CPUs is gloo",
        )


# ---- work that is not distributed -------------------------------------------------------------------------

_JOINING_CALLS: Mapping[str, tuple[str, ...]] = {
    "tensorflow": ("MultiWorkerMirroredStrategy", "ParameterServerStrategy", "TPUStrategy"),
    "xgboost": ("CommunicatorContext", "init", "RabitTracker"),
    "huggingface": (
        *(
            "Trainer",
            "Seq2SeqTrainer",
            "SFTTrainer",
            "DPOTrainer",
            "GRPOTrainer",
            "Accelerator",
            "PartialState",
        ),
        *("init_process_group", "init_distributed", "initialize", "Fabric", "init_device_mesh"),
    ),
}
"""Calls of which a script that joins its hosts has one, by the strategy."""


_JOINING_LIBRARIES = (
    *("torch.distributed", "smdistributed", "torch.sagemaker", "horovod", "deepspeed", "torch_xla"),
    *("lightning", "pytorch_lightning", "ray", "mpi4py"),
)
"""Libraries that join hosts by themselves, whatever the script calls."""


@rule(
    "script.same-work",
    phase="advise",
    summary="several hosts for a script that calls nothing to join them",
    source="docs/strategies.md",
    quote="unchanged scripts that join their ranks",
    fields=("entry", "source", "compute", "strategy", "inputs"),
    facts=("script",),
)
def warn_of_same_work(context: PlanContext) -> Findings:
    """Yield a warning if a script on several hosts neither calls nor imports what would join them, and no
    input is split among them."""
    program = _program(context)
    joining_calls = _JOINING_CALLS.get(context.strategy.name)
    if context.hosts == 1 or has_split_input(context.job) or is_command(context.job):
        return
    if joining_calls is None or not program.was_read:
        return
    calls_joining_function = not program.calls.isdisjoint(joining_calls)
    # Of a class of its own, which may be derived from a framework's.
    calls_own_class = any(call.endswith(("Trainer", "Strategy")) for call in program.calls)
    imports_joining_library = find_imported_library(program.imports, _JOINING_LIBRARIES) is not None
    if not (calls_joining_function or calls_own_class or imports_joining_library):
        yield PlanWarning(
            f"{context.facts.source.entry} calls nothing that joins hosts "
            f"({', '.join(joining_calls[:2])} ...): each of the {context.hosts} hosts does the whole work "
            "for itself."
        )


# ---- launchers of others ----------------------------------------------------------------------------------


@rule(
    "script.launcher",
    summary="another launcher that a command or shell script starts on several hosts without joining them",
    source=_TORCHRUN,
    quote="--nnodes: Number of nodes, or the range of nodes; default 1:1",
    fields=("entry", "environment", "compute"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_launcher_for_one_host(context: PlanContext) -> Problems:
    """Yield a problem for the first line of the job's command, or of its shell script, that starts another
    launcher such that the hosts would not join."""
    job, script = context.job, context.facts.script
    # Torchrun takes options from variables that begin so.
    has_other_options = any(name.startswith("PET_") for name in job.environment)
    if context.hosts == 1 or job.entry is None or script.reads_resource_config or has_other_options:
        return
    launcher_lines = list(script.launcher_lines)
    command_line = launcher_of_command(job.entry.command) if job.entry.command else None
    if command_line is not None:
        launcher_lines.append(command_line)
    for line in launcher_lines:
        launcher_text = explain_separate_hosts(line, context.hosts, context.has_accelerators)
        if launcher_text is None:
            continue  # it joins the hosts
        # The arguments of `smlaunch run` that start the script instead; None if they are not known.
        replacement = replacement_of(line)
        remedy = (
            "let smlaunch start the script in place of the command, or use --hosts 1"
            if replacement is not None
            else "use one host, or let smlaunch start the script that the launcher starts, with its "
            "arguments after --"
        )
        starter = "the command" if line.place is None else str(line.place)
        yield Problem(
            "compute.hosts",
            f"{starter} starts {launcher_text}: {context.hosts} hosts would train separately, or meet at the "
            f"same port; {remedy}",
            replacement or "--hosts 1",
        )
        return
