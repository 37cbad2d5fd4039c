"""Rules about the ranks that a script starts or joins, as it shows by its source.

A script whose hosts would train separately, or fail at the same port, is rejected with the one change that is
enough.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from smlaunch.contract.launch_spec import RUNTIME
from smlaunch.errors import Problem
from smlaunch.facts.launcher_lines import (
    THIS_MACHINE,
    explain_separate_hosts,
    launcher_of_command,
    replacement_of,
)
from smlaunch.facts.script_program import FixedValue, ProgramFacts, TrainerCall
from smlaunch.planner.plan_context import PlanContext, PlanWarning
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
    """Yield the problems, the first one about the script's arguments with all arguments that may stay."""
    found = list(problems)
    options = {problem.message.split()[0].rstrip(":") for problem in found if problem.path == "args"}
    for problem in found:
        if problem.path == "args" and options:
            remaining = arguments_without(context.job, _program(context), options)
            yield problem._replace(change=f"-- {shlex.join(remaining)}".rstrip())
            options = set()
        else:
            yield problem


def _problems_of_own_ranks(context: PlanContext) -> Problems:
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
    yield from _stated_for_one_host(context, NODE_RANK_OPTIONS, "every host would have the same number")
    count_options: tuple[str, ...] = NODE_COUNT_OPTIONS
    parser = program.parser
    knows_host = not {"NODE_RANK", "GROUP_RANK", "RANK", "SM_CURRENT_HOST", "SM_HOSTS"}.isdisjoint(
        program.variable_uses
    )
    if parser is not None:
        has_node_rank = parser.find_option(NODE_RANK_OPTIONS) is not None
        has_rank_and_url = (
            parser.find_option(RANK_OPTIONS) is not None and parser.find_option(URL_OPTIONS) is not None
        )
        if not has_node_rank and has_rank_and_url:
            yield from _stated_for_one_host(context, RANK_OPTIONS, "every host would have the same number")
            count_options = WORLD_SIZE_OPTIONS
        knows_host = knows_host or has_node_rank or has_rank_and_url
    yield from _wrong_host_count(context, count_options)
    yield from _addresses_of_this_machine(context)
    fixed = program.fixed_values.get("MASTER_ADDR")
    if fixed is not None or not knows_host:
        cause = (
            f"{fixed.place} sets {fixed.old_text}" if fixed is not None else "it takes no number of a host"
        )
        yield Problem(
            "compute.hosts",
            f"{start.place} starts the ranks of one host by {start.function}, and {cause}: "
            f"{context.hosts} hosts would train separately; use --hosts 1, or let smlaunch start the ranks: "
            "leave out "
            f"{start.function}, and take RANK, LOCAL_RANK and WORLD_SIZE from the environment",
            "--hosts 1",
        )


def _stated_for_one_host(context: PlanContext, options: tuple[str, ...], consequence: str) -> Problems:
    """Yield a problem if the job states an option that differs from host to host."""
    stated = _stated_option(context, options)
    if stated is not None:
        name, _ = stated
        yield Problem(
            _field_of_option(context, name),
            f"{name}: {consequence}; leave it out, smlaunch gives each its own",
        )


def _wrong_host_count(context: PlanContext, options: tuple[str, ...]) -> Problems:
    name, value = _stated_option(context, options) or ("", None)
    if value is not None and str(value) != str(context.hosts):
        yield Problem(
            _field_of_option(context, name),
            f"{name} {value}, and there are {context.hosts} hosts; leave it out, smlaunch states the number",
        )


def _addresses_of_this_machine(context: PlanContext) -> Problems:
    """Yield a problem for an address, stated by the job, at which each host finds only itself."""
    for options in (URL_OPTIONS, ADDRESS_OPTIONS):
        name, value = _stated_option(context, options) or ("", "")
        if any(host in str(value) for host in THIS_MACHINE):
            yield Problem(
                _field_of_option(context, name),
                f"{name} {value} is each host itself, so that {context.hosts} hosts would train separately; "
                "leave it out, smlaunch gives the address of the first host",
            )


def _stated_option(context: PlanContext, options: tuple[str, ...]) -> tuple[str, Any] | None:
    """Return name and value of the script's option among these, if the job states it."""
    program = _program(context)
    argument = None if program.parser is None else program.parser.find_option(options)
    values = stated_values(context.job, program)
    if argument is None or argument.destination not in values:
        return None
    return option_name(argument, options), values[argument.destination]


def _field_of_option(context: PlanContext, name: str) -> str:
    key = name.lstrip("-")
    return f"hyperparameters.{key}" if key in context.job.hyperparameters else "args"


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
    found: list[Problem] = []
    if context.hosts > 1 and not program.computes_rank_of_host:
        found += _addresses_of_this_machine(context)
    if may_have_several_ranks and context.launcher == RUNTIME:
        default_processes = None if context.has_accelerators else 1
        found += _stated_ranks(context, processes if isinstance(processes, int) else default_processes)
    yield from _with_one_change(context, found)
    for name, fixed in program.fixed_values.items():
        separates = context.hosts > 1 if name == "MASTER_ADDR" else may_have_several_ranks
        if name != "MASTER_PORT" and separates:
            yield _fixed_value_problem(name, fixed)


def _stated_ranks(context: PlanContext, processes: int | None) -> Problems:
    """Yield a problem for rank and world size of the process group, where the job states them and they are
    not those that there are. ``processes``: per host; None where it is not known."""
    options = unread_group_options(_program(context))
    if "rank" in options:
        names = _names_of(context, options["rank"].destination)
        yield from _stated_for_one_host(context, names, "every rank would have the same number")
    if "world_size" not in options or processes is None:
        return
    name, value = _stated_option(context, _names_of(context, options["world_size"].destination)) or ("", None)
    ranks = context.hosts * processes
    if value is not None and str(value) != str(ranks):
        yield Problem(
            _field_of_option(context, name),
            f"{name} {value}, and there are {ranks} ranks; leave it out, smlaunch states the number",
        )


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
    existing = {
        NUM_NODES_OPTION: (context.hosts, "hosts"),
        DEVICES_OPTION: (processes if isinstance(processes, int) else None, "ranks per host"),
    }
    for name, value in stated_lightning_cli_values(context.job).items():
        count, noun = existing[name]
        if value.isdigit() and count is not None and int(value) != count:
            yield Problem(
                _field_of_option(context, name),
                f"{name} {value}, and there are {count} {noun}; leave it out, smlaunch states the number",
            )


def _problems_of_trainer(context: PlanContext, trainer: TrainerCall) -> Problems:
    num_nodes = trainer.num_nodes or 1
    if trainer.num_nodes_option is not None:  # smlaunch states it where the job does not
        yield from _wrong_host_count(context, _names_of(context, trainer.num_nodes_option))
    elif num_nodes != context.hosts:
        stated = f"num_nodes={num_nodes}" if trainer.num_nodes is not None else "no num_nodes, which means 1"
        existing = "there is 1 host" if context.hosts == 1 else f"there are {context.hosts} hosts"
        new_text, option = f"num_nodes={context.hosts}", f"--hosts {num_nodes}"
        edit = trainer.num_nodes_edit
        yield Problem(
            "compute.hosts",
            f"{trainer.place}: {trainer.class_name} has {stated}, and {existing}; use {option}, or write "
            f"{new_text} there",
            # A number that the script states is what its author wants.
            option if trainer.num_nodes is not None or edit is None else edit.with_text(new_text),
        )
    yield from _other_devices(context, trainer)


def _names_of(context: PlanContext, destination: str) -> tuple[str, ...]:
    """The names of the script's option that gets this attribute."""
    parser = _program(context).parser
    argument = None if parser is None else parser.argument_of(destination)
    return () if argument is None else (argument.long_name,)


def _other_devices(context: PlanContext, trainer: TrainerCall) -> Problems:
    """Yield a problem if the job states other ranks per host than the trainer has devices."""
    processes = context.job.compute.processes_per_host
    if not isinstance(processes, int):
        return
    names = () if trainer.devices_option is None else _names_of(context, trainer.devices_option)
    name, value = _stated_option(context, names) or ("", None)
    if trainer.devices_option is not None and value is None:
        return  # smlaunch states it
    if isinstance(trainer.devices, int) and trainer.devices != -1:
        devices, stated = trainer.devices, f"devices={trainer.devices}"
    elif trainer.devices in (None, "auto", -1, "-1") and not context.has_accelerators:
        devices, stated = 1, "the default devices, which is 1 without accelerators"
    else:
        return
    if devices == processes:
        return
    if value is not None:
        yield Problem(
            _field_of_option(context, name),
            f"{name} {value}, and there are {processes} ranks per host; leave it out, smlaunch states the "
            "number",
        )
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
    summary="the backend NCCL, which needs GPUs, on hosts without any",
    source="https://docs.pytorch.org/docs/stable/distributed.html",
    quote="Use the NCCL backend for distributed GPU training, the Gloo backend for CPU",
    fields=("entry", "source", "args", "hyperparameters", "compute", "strategy"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_nccl_without_accelerators(context: PlanContext) -> Problems:
    """Yield a problem for NCCL as the script fixes it for several ranks, or as the job states it."""
    job, program = context.job, _program(context)
    if context.has_accelerators or not context.strategy.rendezvous or is_command(job):
        return
    processes = job.compute.processes_per_host
    has_several_ranks = context.hosts > 1 or (isinstance(processes, int) and processes > 1)
    fixed = program.nccl_backend
    if fixed is not None and (has_several_ranks or program.rank_start is not None):
        yield Problem(
            "entry",
            f"{fixed.place}: the backend nccl needs GPUs, and the hosts have none; write {fixed.new_text}, "
            'or choose it: "nccl" if torch.cuda.is_available() else "gloo"',
            ""
            if fixed.edit is None
            else fixed.edit.with_text('"nccl" if torch.cuda.is_available() else "gloo"'),
        )
    name, value = _stated_option(context, BACKEND_OPTIONS) or ("", None)
    if value == "nccl":
        yield Problem(
            _field_of_option(context, name),
            f"{name} nccl needs GPUs, and the hosts have none; the backend for CPUs is gloo",
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
    program = _program(context)
    calls = _JOINING_CALLS.get(context.strategy.name)
    has_split_input = any(channel.split is not None for channel in context.job.inputs.values())
    if context.hosts == 1 or calls is None or not program.was_read or has_split_input:
        return
    joins_hosts = (
        not program.calls.isdisjoint(calls)
        or any(call.endswith(("Trainer", "Strategy")) for call in program.calls)  # of a class of its own
        or find_imported_library(program.imports, _JOINING_LIBRARIES) is not None
    )
    if not joins_hosts and not is_command(context.job):
        yield PlanWarning(
            f"{context.facts.source.entry} calls nothing that joins hosts ({', '.join(calls[:2])} ...): "
            f"{context.hosts} hosts do the same work {context.hosts} times, each for itself."
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
    job, script = context.job, context.facts.script
    # Torchrun takes options from variables that begin so.
    has_other_options = any(name.startswith("PET_") for name in job.environment)
    if context.hosts == 1 or job.entry is None or script.reads_resource_config or has_other_options:
        return
    command_line = launcher_of_command(job.entry.command) if job.entry.command else None
    for line in (*script.launcher_lines, *(() if command_line is None else (command_line,))):
        what = explain_separate_hosts(line, context.hosts, context.has_accelerators)
        if what is None:
            continue
        replacement = replacement_of(line)
        starter = "the command" if line.place is None else str(line.place)
        yield Problem(
            "compute.hosts",
            f"{starter} starts {what}: {context.hosts} hosts would "
            "train separately, or meet at the same port; "
            + (
                "use one host, or let smlaunch start the script that the launcher starts, with its arguments "
                "after --"
                if replacement is None
                else "let smlaunch start the script in place of the command, or use --hosts 1"
            ),
            replacement or "--hosts 1",
        )
        return
