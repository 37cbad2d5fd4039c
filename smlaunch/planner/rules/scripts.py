"""Rules about what a script shows of itself: its arguments, channels, packages, ranks and saved files.

What is certain is a problem, what is probable a warning. A job's ``allow`` turns the problems of a rule that
may be wrong about a script into warnings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from smlaunch.contract.launch_spec import Arg, Concat, Ref
from smlaunch.errors import Problem
from smlaunch.facts.script_arguments import find_argument_mistakes
from smlaunch.facts.script_program import (
    FixedValue,
    ProgramFacts,
    TrainerCall,
    distribution_of,
)
from smlaunch.planner.plan_context import Finding, PlanContext, PlanWarning
from smlaunch.planner.rules.rule import Findings, Problems, rule
from smlaunch.planner.script_launch import (
    ADDRESS_OPTIONS,
    NODE_COUNT_OPTIONS,
    NODE_RANK_OPTIONS,
    RANK_OPTIONS,
    URL_OPTIONS,
    WORLD_SIZE_OPTIONS,
    added_arguments,
    is_command,
    needed_processes,
    only_trainer,
    script_arguments,
    starts_own_ranks,
    stated_values,
)
from smlaunch.text.did_you_mean import did_you_mean, nearest_match

_CHANNEL_VARIABLE = "SM_CHANNEL_"
_THIS_MACHINE = ("localhost", "127.0.0.1", "0.0.0.0")  # noqa: S104  in texts of scripts
_ARGPARSE = "https://docs.python.org/3/library/argparse.html"
_TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
_CHANNELS = (
    "https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html"
)


def _program(context: PlanContext) -> ProgramFacts:
    return context.facts.script.program


def _script_fields(*fields: str) -> tuple[str, ...]:
    return ("entry", "source", *fields)


@rule(
    "script.arguments",
    summary="arguments that the script's argparse parser rejects",
    source=_ARGPARSE,
    quote="it exits and prints the error along with a usage message",
    fields=_script_fields("args", "hyperparameters", "options", "compute", "strategy"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_invalid_script_arguments(context: PlanContext) -> Iterator[Finding]:
    """A script that certainly parses its command line so fails before it trains."""
    job, parser = context.job, _program(context).parser
    if parser is None or job.options or is_command(job):
        return
    flags = parser.flags()
    count = job.compute.processes_per_host or 1
    added = added_arguments(job, _program(context), context.hosts, count, context.launcher)
    argv = [
        *map(_example_of, added.leading),
        *script_arguments(job, flags),
        *map(_example_of, added.trailing),
    ]
    for mistake in find_argument_mistakes(parser, argv):
        keys = [name.lstrip("-") for name in mistake.names]
        path = next((f"hyperparameters.{key}" for key in keys if key in job.hyperparameters), "args")
        if parser.is_certain:
            yield Problem(path, mistake.message)
        else:
            yield PlanWarning(f"{path}: {mistake.message}.")


def _example_of(arg: Arg) -> str:
    """A possible text of an argument that only the host knows."""
    parts = arg.parts if isinstance(arg, Concat) else (arg,)
    return "".join("0" if isinstance(part, Ref) else part for part in parts)


@rule(
    "script.allow",
    summary="a name in `allow` that is no rule, or one that is never wrong about a script",
    source="docs/refusals.md",
    quote="rules that a job may allow",
    fields=("allow",),
)
def reject_unknown_allowed_rule(context: PlanContext) -> Problems:
    from smlaunch.planner.rules import rules_that_may_be_allowed

    names = rules_that_may_be_allowed() if context.job.allow else []
    for name in context.job.allow:
        if name not in names:
            yield Problem("allow", f"no such rule: {name!r}{did_you_mean(name, names)}")


@rule(
    "script.flag",
    summary="a value for a flag of the script, which takes none",
    source=_ARGPARSE,
    quote="'store_true' and 'store_false' - These are special cases of 'store_const'",
    fields=_script_fields("hyperparameters"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_value_of_flag(context: PlanContext) -> Problems:
    parser = _program(context).parser
    for name in parser.flags() if parser is not None else ():
        value = context.job.hyperparameters.get(name)
        if value is not None and str(value).lower() not in ("true", "false"):
            option = parser.find_option((f"--{name}", f"-{name}")) if parser is not None else None
            place = f" ({option.place})" if option is not None else ""
            message = f"--{name} takes no value{place}; write {name}=true, or leave it out, not {value!r}"
            yield Problem(f"hyperparameters.{name}", message)


# ---- channels ---------------------------------------------------------------------------------------------


@rule(
    "script.channels",
    summary="a channel that the script cannot do without and that is not given",
    source=_CHANNELS,
    quote="SM_CHANNEL_XXXX: the path of the directory with the data of the channel",
    fields=_script_fields("inputs", "environment"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_missing_channels(context: PlanContext) -> Iterator[Finding]:
    """Also warns of a given channel that a script that reads others does not read."""
    job, program = context.job, _program(context)
    read_channels = {
        name[len(_CHANNEL_VARIABLE) :]: use
        for name, use in program.variable_uses.items()
        if name.startswith(_CHANNEL_VARIABLE) and name not in job.environment
    }
    given_by_variable = {name.upper(): name for name in job.inputs}
    unread = [given for variable, given in given_by_variable.items() if variable not in read_channels]
    for variable, use in read_channels.items():
        if variable in given_by_variable:
            continue
        channel = variable.lower()
        similar = nearest_match(channel, unread) or (unread[0] if len(unread) == 1 else None)
        clause = f"{use.place} reads {_CHANNEL_VARIABLE}{variable}, and no input is called {channel}"
        if similar is not None:
            remedy = f"call {similar!r}, which nothing reads, so: --input {channel}={job.inputs[similar].uri}"
        else:
            remedy = f"give it: --input {channel}=URI"
        if use.is_required:
            yield Problem("inputs", f"{clause}; {remedy}")
        elif similar is not None:
            yield PlanWarning(f"inputs: {clause}; {remedy}.")
    if not program.was_read or program.reads_any_channel:
        return
    missing = [variable for variable in read_channels if variable not in given_by_variable]
    for name in unread:
        if not missing and not _is_named_by_arguments(context, name):
            variable = f"{_CHANNEL_VARIABLE}{name.upper()}"
            yield PlanWarning(
                f"inputs.{name}: nothing in {context.facts.source.entry} reads {variable} or names "
                f"/opt/ml/input/data/{name}, where the data is."
            )


def _is_named_by_arguments(context: PlanContext, channel: str) -> bool:
    """Whether the job's arguments or variables give the script the channel's folder."""
    job = context.job
    values = (*job.args, *job.hyperparameters.values(), *job.environment.values())
    texts = (f"/opt/ml/input/data/{channel}", f"{_CHANNEL_VARIABLE}{channel.upper()}")
    return any(text in str(value) for value in values for text in texts)


# ---- ranks ------------------------------------------------------------------------------------------------


@rule(
    "script.own-ranks",
    summary="ranks that the script starts itself, on several hosts of which it knows one, or several times",
    source=_TORCHRUN,
    quote="MASTER_ADDR - The FQDN of the host that is running worker with rank 0",
    fields=_script_fields("args", "hyperparameters", "compute", "strategy"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_ranks_of_one_host(context: PlanContext) -> Problems:
    """Two hosts that each start ranks 0 to N train twice, or fail at the same port."""
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
    parser = _program(context).parser
    argument = None if parser is None else parser.find_option(options)
    if argument is not None and argument.destination in stated_values(context.job, _program(context)):
        name = next(name for name in argument.names if name in options)
        yield Problem(
            _field_of_option(context, name),
            f"{name}: {consequence}; leave it out, smlaunch gives each host its own",
        )


def _wrong_host_count(context: PlanContext, options: tuple[str, ...]) -> Problems:
    parser = _program(context).parser
    argument = None if parser is None else parser.find_option(options)
    if argument is None:
        return
    value = stated_values(context.job, _program(context)).get(argument.destination)
    if value is not None and str(value) != str(context.hosts):
        name = next(name for name in argument.names if name in options)
        yield Problem(
            _field_of_option(context, name),
            f"{name} {value}, and there are {context.hosts} hosts; leave it out, smlaunch states the number",
        )


def _addresses_of_this_machine(context: PlanContext) -> Problems:
    """Yield a problem for an address, stated by the job, at which each host finds only itself."""
    parser = _program(context).parser
    stated = stated_values(context.job, _program(context))
    for options in (URL_OPTIONS, ADDRESS_OPTIONS):
        argument = None if parser is None else parser.find_option(options)
        if argument is None:
            continue
        value = str(stated.get(argument.destination, ""))
        if any(host in value for host in _THIS_MACHINE):
            name = next(name for name in argument.names if name in options)
            yield Problem(
                _field_of_option(context, name),
                f"{name} {value} is each host itself, so that {context.hosts} hosts would train separately; "
                "leave it out, smlaunch gives the address of the first host",
            )


def _field_of_option(context: PlanContext, name: str) -> str:
    key = name.lstrip("-")
    return f"hyperparameters.{key}" if key in context.job.hyperparameters else "args"


@rule(
    "script.launcher-values",
    summary="MASTER_ADDR, RANK or the like that the script sets itself, whatever the launcher says",
    source=_TORCHRUN,
    quote="WORLD_SIZE, RANK, MASTER_ADDR, MASTER_PORT are set by the launcher",
    fields=_script_fields("args", "hyperparameters", "compute", "strategy"),
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
    if context.hosts > 1 and not program.computes_rank_of_host:
        yield from _addresses_of_this_machine(context)
    for name, fixed in program.fixed_values.items():
        separates = context.hosts > 1 if name == "MASTER_ADDR" else may_have_several_ranks
        if name != "MASTER_PORT" and separates:
            yield _fixed_value_problem(name, fixed)


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
    fields=_script_fields("compute", "args", "strategy"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_other_hosts_than_lightning(context: PlanContext) -> Problems:
    """Lightning compares the product of both with WORLD_SIZE, and fails if they differ."""
    trainer = only_trainer(_program(context))
    if not context.strategy.rendezvous or trainer is None or is_command(context.job):
        return
    num_nodes = trainer.num_nodes or 1
    if num_nodes != context.hosts:
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


def _other_devices(context: PlanContext, trainer: TrainerCall) -> Problems:
    processes = context.job.compute.processes_per_host
    if (
        isinstance(processes, int)
        and isinstance(trainer.devices, int)
        and trainer.devices not in (-1, processes)
    ):
        option = f"--processes-per-host {trainer.devices}"
        yield Problem(
            "compute.processes_per_host",
            f"{trainer.place}: {trainer.class_name} has devices={trainer.devices}, and there are {processes} "
            f"ranks per host; use {option}, or write devices={processes} there",
            option,
        )


# ---- packages ---------------------------------------------------------------------------------------------


@rule(
    "script.packages",
    summary="packages that the script imports and the hosts' Python lacks, where that is this Python",
    source="https://docs.python.org/3/library/exceptions.html",
    quote="ModuleNotFoundError: raised by import when a module could not be located",
    fields=_script_fields("requirements", "environment"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_missing_packages(context: PlanContext) -> Problems:
    missing = context.facts.script.missing_packages
    if not missing:
        return
    imports = ", ".join(f"{package.name} ({package.place})" for package in missing)
    distributions = list(dict.fromkeys(distribution_of(package.name) for package in missing))
    install, lines = " ".join(distributions), "that line" if len(distributions) == 1 else "these lines"
    yield Problem(
        "entry",
        f"the hosts' Python lacks what the script imports: {imports}; pip install {install}, or name a "
        f"requirements file with {lines} (--requirements FILE)",
    )


# ---- saved files ------------------------------------------------------------------------------------------


@rule(
    "script.saved-files",
    phase="advise",
    summary="files that the script saves where they are lost with the host",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/model-train-storage.html",
    quote="/opt/ml/model ... Amazon SageMaker AI uploads the contents of this directory",
    fields=_script_fields("args", "hyperparameters", "checkpoints"),
    facts=("script",),
)
def warn_of_lost_files(context: PlanContext) -> Findings:
    stated = _stated_options(context)
    model_path_texts = ("/opt/ml/",)
    lost = [
        saved
        for saved in _program(context).saved_files
        if not saved.path.startswith(model_path_texts)
        and "://" not in saved.path
        and not (saved.option is not None and saved.option.lstrip("-").replace("-", "_") in stated)
    ]
    if not lost:
        return
    first = lost[0]
    others = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    remedy = 'write it to os.environ["SM_MODEL_DIR"]'
    if first.option is not None:
        remedy = f"give the script {first.option} /opt/ml/model{_slash_name(first.path)}"
    yield PlanWarning(
        f"{first.place} saves to {first.path!r}{others}, which is lost with the host: only /opt/ml/model is "
        f"uploaded at the end; {remedy}."
    )


def _slash_name(path: str) -> str:
    """``/model.pt`` of a path to a file; empty for a folder."""
    name = path.rstrip("/").rpartition("/")[2]
    return f"/{name}" if "." in name.strip(".") else ""


def _stated_options(context: PlanContext) -> Mapping[str, object]:
    """Values of the script's options that the job states, by attribute."""
    return stated_values(context.job, _program(context))
