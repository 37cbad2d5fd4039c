"""Rules about what a script shows of itself: its arguments, channels, packages, ranks and saved files.

What is certain is a problem, what is probable a warning. A job's ``allow`` turns the problems of a rule that
may be wrong about a script into warnings.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from smlaunch.contract.launch_spec import Ref
from smlaunch.errors import Problem
from smlaunch.facts.discovered_facts import ignored_reason
from smlaunch.facts.interpreter_call import arguments_of_python_file, interpreter_call
from smlaunch.facts.script_arguments import find_argument_mistakes
from smlaunch.facts.script_program import ProgramFacts, distribution_of
from smlaunch.planner.plan_context import Finding, PlanContext, PlanWarning
from smlaunch.planner.rules.rule import Findings, Problems, rule
from smlaunch.planner.script_launch import (
    added_arguments,
    is_command,
    script_arguments,
    stated_values,
    text_of_arg,
)
from smlaunch.strategies.base import find_imported_library
from smlaunch.text.did_you_mean import did_you_mean, nearest_match

_CHANNEL_VARIABLE = "SM_CHANNEL_"
_ARGPARSE = "https://docs.python.org/3/library/argparse.html"
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
    if parser is None or job.options:
        return
    stated_path = "args"
    if is_command(job):
        command_arguments = arguments_of_python_file(job.entry.command if job.entry is not None else ())
        if command_arguments is None:
            return
        stated_path = "args" if job.args else "entry.command"
        argv = [*command_arguments, *script_arguments(job, {})]
    else:
        count = job.compute.processes_per_host or 1
        added = added_arguments(
            job, _program(context), context.hosts, count, context.launcher, context.has_accelerators
        )
        argv = [
            *(text_of_arg(arg, _example_of) for arg in added.leading),
            *script_arguments(job, parser.flags()),
            *(text_of_arg(arg, _example_of) for arg in added.trailing),
        ]
    for mistake in find_argument_mistakes(parser, argv):
        keys = [name.lstrip("-") for name in mistake.names]
        path = next((f"hyperparameters.{key}" for key in keys if key in job.hyperparameters), stated_path)
        if parser.is_certain:
            yield Problem(path, mistake.message)
        else:
            yield PlanWarning(f"{path}: {mistake.message}.")


def _example_of(ref: Ref) -> str:
    """A text that a parser takes for any value that only the host knows, also for a number."""
    return "0"


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


# ---- the program itself ------------------------------------------------------------------------------------


@rule(
    "script.relative-import",
    summary="a relative import of a file that runs as a script and not as a module of its package",
    source="https://docs.python.org/3/reference/import.html#package-relative-imports",
    quote="relative imports are based on the name of the current module's package",
    fields=_script_fields(),
    facts=("script",),
    may_be_allowed=True,
)
def reject_relative_import_of_script(context: PlanContext) -> Problems:
    entry, found = context.job.entry, _program(context).relative_import
    if entry is None or found is None or entry.module is not None:
        return
    call = interpreter_call(entry.command) if entry.command else None
    if entry.command and (call is None or call.module is not None):
        return  # another program may run the file as a module
    clause = f"{found.place}: a file that runs as a script is in no package, so {found.statement!r} fails"
    if not found.module:
        yield Problem("entry", f"{clause}; write {found.absolute_statement!r}")
    else:
        source = f" --source {shlex.quote(found.folder)}" if found.folder else ""
        yield Problem("entry", f"{clause}; run it as a module: smlaunch run -m {found.module}{source}")


@rule(
    "script.command",
    summary="a command whose program the hosts lack, as far as that is known here",
    source="https://docs.python.org/3/library/os.html#os.execvpe",
    quote="use the PATH environment variable to locate the program file",
    fields=_script_fields("environment"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_unknown_command(context: PlanContext) -> Iterator[Finding]:
    command = context.facts.script.unknown_command
    if command is None:
        return
    file = command.similar_file
    if file is not None and PurePosixPath(file).name == command.name:
        remedy = f"; it is a file of the source: write {_started_as(file)}"
    else:
        remedy = f", did you mean {_started_as(file)}?" if file is not None else ""
    if command.is_certain:
        yield Problem("entry", f"there is no program {command.name!r} on the PATH of the hosts{remedy}")
    else:
        yield PlanWarning(f"entry: {command.name!r} is a program of the image, if it has one{remedy}")


def _started_as(file: str) -> str:
    """The words of a command that start a file of the source."""
    interpreter = {".py": "python ", ".sh": "bash "}.get(PurePosixPath(file).suffix, "./")
    return f"{interpreter}{shlex.quote(file)}"


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
            unread_clause = "which nothing reads" if program.was_read else "if nothing else reads it"
            remedy = f"call {similar!r}, {unread_clause}, so: --input {channel}={job.inputs[similar].uri}"
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
            source_path = context.facts.source.input_paths.get(name)
            elsewhere = "" if source_path is None else f" ({source_path} is not sent with the source)"
            yield PlanWarning(
                f"inputs.{name}: nothing in {context.facts.source.entry} reads {variable} or names "
                f"/opt/ml/input/data/{name}, where the data is{elsewhere}."
            )


def _is_named_by_arguments(context: PlanContext, channel: str) -> bool:
    """Whether the job's arguments or variables give the script the channel's folder."""
    job = context.job
    values = (*job.args, *job.hyperparameters.values(), *job.environment.values())
    texts = (f"/opt/ml/input/data/{channel}", f"{_CHANNEL_VARIABLE}{channel.upper()}")
    return any(text in str(value) for value in values for text in texts)


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
    missing = []
    for package in context.facts.script.missing_packages:
        file = package.file_not_sent
        if file is not None:
            reason = context.facts.source.why_not_sent(file) or ignored_reason(file)
            message = f"{package.place} imports {package.name}, and {file} is not sent: it {reason}"
            yield Problem("source", message)
        elif package.package is not None:
            message = f"{package.place} imports {package.name}, which the package {package.package!r} lacks"
            yield Problem("entry", message)
        else:
            missing.append(package)
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


# ---- libraries --------------------------------------------------------------------------------------------

_WELL_KNOWN_PACKAGES = frozenset(
    (
        *("torch", "torchvision", "torchaudio", "numpy", "scipy", "pandas", "sklearn", "matplotlib"),
        *("seaborn", "PIL", "cv2", "skimage", "tqdm", "yaml", "requests", "smlaunch"),
    )
)
"""Packages that import no library that a strategy needs."""

_CALLS_THAT_IMPORT_BY_NAME = frozenset(("exec", "__import__", "import_module", "run_path", "run_module"))


def _all_imports_are_known(context: PlanContext) -> bool:
    """Whether the program imports no package that may import others of which the plan does not know."""
    program = _program(context)
    packages = {name.partition(".")[0] for name in context.facts.script.imports | program.imports}
    return (
        program.was_read
        and not is_command(context.job)
        and packages <= _WELL_KNOWN_PACKAGES | sys.stdlib_module_names
        and program.calls.isdisjoint(_CALLS_THAT_IMPORT_BY_NAME)
    )


@rule(
    "script.strategy-library",
    summary="a strategy for a library that the script certainly does not import",
    source="docs/strategies.md",
    quote="The script imports a library that indicates a strategy",
    fields=_script_fields("strategy"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_script_without_the_library(context: PlanContext) -> Problems:
    strategy, imports = context.strategy, context.facts.script.imports | _program(context).imports
    if (
        strategy.needs_library
        and _all_imports_are_known(context)
        and find_imported_library(imports, strategy.libraries) is None
    ):
        yield Problem(
            "strategy",
            f"{context.facts.source.entry} imports no {' or '.join(strategy.libraries)}, so {strategy.name} "
            "would do nothing for it; import it and train with it (docs/strategies.md), or name the strategy "
            "that the script is written for",
        )


@rule(
    "script.requirements",
    summary="a requirements file that pip cannot read",
    source="https://pip.pypa.io/en/stable/reference/requirements-file-format/",
    quote="each line of the requirements file indicates something to be installed",
    fields=_script_fields("requirements", "network_isolation"),
    facts=("script",),
    may_be_allowed=True,
)
def reject_unreadable_requirements(context: PlanContext) -> Problems:
    mistake = context.facts.source.requirements_mistake
    if mistake is not None:
        yield Problem("requirements", mistake)


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
