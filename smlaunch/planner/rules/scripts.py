"""Rules about what a script shows of itself: its arguments, channels, packages, ranks and saved files.

What is certain is a problem, what is probable a warning. A job's ``allow`` turns the problems of a rule that
may be wrong about a script into warnings.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from smlaunch.contract.launch_spec import Ref
from smlaunch.errors import Problem
from smlaunch.facts.discovered_facts import ignored_reason
from smlaunch.facts.interpreter_call import arguments_of_python_file, interpreter_call
from smlaunch.facts.script_arguments import ArgumentParserFacts, find_abbreviations, find_argument_mistakes
from smlaunch.facts.script_program import ProgramFacts, SavedFile, VariableUse, distribution_of
from smlaunch.job.model import DEFAULT_CHECKPOINT_PATH, Job
from smlaunch.planner.plan_context import Finding, PlanContext, PlanWarning
from smlaunch.planner.rules.rule import Findings, Problems, rule
from smlaunch.planner.script_launch import (
    added_arguments,
    all_imports_are_known,
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
    "script.syntax",
    summary="a script that this machine's Python rejects",
    source="https://docs.python.org/3/library/exceptions.html",
    quote="SyntaxError: raised when the parser encounters a syntax error",
    fields=_script_fields(),
    facts=("script",),
    may_be_allowed=True,
)
def reject_syntax_mistakes(context: PlanContext) -> Problems:
    """The hosts' Python may be a newer one, which accepts the script."""
    mistake = context.facts.script.syntax_mistake
    if mistake is not None:
        yield Problem(
            "entry", f"{mistake}; so says Python {sys.version_info[0]}.{sys.version_info[1]} of here"
        )


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
    """Yield a problem for each argument that the script's parser rejects, as the script then fails before it
    trains; a warning if the script may parse its command line otherwise."""
    job, parser = context.job, _program(context).parser
    if parser is None or job.options:
        return
    arguments = _arguments_of_script(context, parser)
    if arguments is None:
        return
    for abbreviation, option in find_abbreviations(parser, arguments):
        yield PlanWarning(
            f"{_field_of_option(job, abbreviation)}: the script has no argument {abbreviation} "
            f"({parser.place}); argparse takes it for {option}: write that."
        )
    for mistake in find_argument_mistakes(parser, arguments):
        field = _field_of_option(job, *mistake.names)
        if parser.is_certain:
            yield Problem(field, mistake.message)
        else:
            yield PlanWarning(f"{field}: {mistake.message}.")


def _field_of_option(job: Job, *options: str) -> str:
    """Return the field of the job that states one of the script's options."""
    names = [option.lstrip("-") for option in options]
    hyperparameters = [name for name in names if name in job.hyperparameters]
    if hyperparameters:
        return f"hyperparameters.{hyperparameters[0]}"
    return "entry.command" if is_command(job) and not job.args else "args"


def _arguments_of_script(context: PlanContext, parser: ArgumentParserFacts) -> list[str] | None:
    """Return the arguments that the script gets: those of the job, and those that smlaunch adds. None for a
    command that does not show the script's."""
    job, program = context.job, _program(context)
    if is_command(job):
        command_arguments = arguments_of_python_file(job.entry.command if job.entry is not None else ())
        return None if command_arguments is None else [*command_arguments, *script_arguments(job, {})]
    processes_per_host = job.compute.processes_per_host or 1
    added = added_arguments(
        job, program, context.hosts, processes_per_host, context.launcher, context.has_accelerators
    )
    return [
        *(text_of_arg(arg, _example_of_host_value) for arg in added.leading),
        *script_arguments(job, parser.flags()),
        *(text_of_arg(arg, _example_of_host_value) for arg in added.trailing),
    ]


def _example_of_host_value(ref: Ref) -> str:
    """Return a text in place of a value that only the host knows; a parser takes it for a number too."""
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
    """Yield a problem for each hyperparameter that is a flag of the script, and neither true nor false."""
    parser = _program(context).parser
    if parser is None:
        return
    for name in parser.flags():
        value = context.job.hyperparameters.get(name)
        if value is not None and str(value).lower() not in ("true", "false"):
            option = parser.find_option((f"--{name}", f"-{name}"))
            place_text = f" ({option.place})" if option is not None else ""
            message = (
                f"--{name} takes no value{place_text}; write {name}=true, or leave it out, not {value!r}"
            )
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
    """Yield a problem for a script with a relative import, unless it is run as a module of its package."""
    entry, relative_import = context.job.entry, _program(context).relative_import
    if entry is None or relative_import is None or entry.module is not None:
        return
    if entry.command:
        python_call = interpreter_call(entry.command)
        if python_call is None or python_call.module is not None:
            return  # another program may run the file as a module
    clause = (
        f"{relative_import.place}: a file that runs as a script is in no package, so "
        f"{relative_import.statement!r} fails"
    )
    module, folder = relative_import.module, relative_import.folder
    if not module:
        yield Problem("entry", f"{clause}; write {relative_import.absolute_statement!r}")
    else:
        source_option = f" --source {shlex.quote(folder)}" if folder else ""
        yield Problem("entry", f"{clause}; run it as a module: smlaunch run -m {module}{source_option}")


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
    file, remedy = command.similar_file, ""
    if file is not None and PurePosixPath(file).name == command.name:
        remedy = f"; it is a file of the source: write {_command_of_file(file)}"
    elif file is not None:
        remedy = f", did you mean {_command_of_file(file)}?"
    if command.is_certain:
        yield Problem("entry", f"there is no program {command.name!r} on the PATH of the hosts{remedy}")
    else:
        yield PlanWarning(f"entry: {command.name!r} is a program of the image, if it has one{remedy}")


def _command_of_file(file: str) -> str:
    """Return the command that starts a file of the source, such as ``python train.py``."""
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
    """Yield a problem for each channel that the script reads (by its variable, SM_CHANNEL_TRAIN for an input
    train) and that is no input of the job; and a warning for each input that the script does not read, if it
    has all that it reads."""
    job, program = context.job, _program(context)
    # By the channel's name in upper case, as in its variable.
    use_by_channel = {
        variable[len(_CHANNEL_VARIABLE) :]: use
        for variable, use in program.variable_uses.items()
        if variable.startswith(_CHANNEL_VARIABLE) and variable not in job.environment
    }
    given_channels = {name.upper() for name in job.inputs}
    unread_inputs = [name for name in job.inputs if name.upper() not in use_by_channel]
    missing_channels = [channel for channel in use_by_channel if channel not in given_channels]
    for channel in missing_channels:
        yield from _report_missing_channel(context, channel.lower(), use_by_channel[channel], unread_inputs)
    may_read_other_channels = not program.was_read or program.reads_any_channel
    if missing_channels or may_read_other_channels:
        return
    for name in unread_inputs:
        if not _is_named_by_arguments(context, name):
            source_path = context.facts.source.input_paths.get(name)
            note = "" if source_path is None else f" ({source_path} is not sent with the source)"
            yield PlanWarning(
                f"inputs.{name}: nothing in {context.facts.source.entry} reads "
                f"{_CHANNEL_VARIABLE}{name.upper()} or names {_folder_of(context, name)}, where the data "
                f"is{note}."
            )


def _report_missing_channel(
    context: PlanContext, channel: str, use: VariableUse, unread_inputs: Sequence[str]
) -> Iterator[Finding]:
    """Yield a problem if the script cannot do without the channel; otherwise a warning if an input that
    nothing reads may be meant. ``use``: where the script reads the channel's variable."""
    clause = f"{use.place} reads {_CHANNEL_VARIABLE}{channel.upper()}, and no input is called {channel}"
    only_unread_input = unread_inputs[0] if len(unread_inputs) == 1 else None
    meant_input = nearest_match(channel, unread_inputs) or only_unread_input
    if meant_input is None:
        if use.is_required:
            yield Problem("inputs", f"{clause}; give it: --input {channel}=URI")
        return
    unread_clause = "which nothing reads" if _program(context).was_read else "if nothing else reads it"
    uri = context.job.inputs[meant_input].uri
    remedy = f"call {meant_input!r}, {unread_clause}, so: --input {channel}={uri}"
    if use.is_required:
        yield Problem("inputs", f"{clause}; {remedy}")
    else:
        yield PlanWarning(f"inputs: {clause}; {remedy}.")


def _is_named_by_arguments(context: PlanContext, channel: str) -> bool:
    """Whether the job's arguments or variables give the script the channel's folder."""
    job = context.job
    values = (*job.args, *job.hyperparameters.values(), *job.environment.values())
    texts = (_folder_of(context, channel), f"{_CHANNEL_VARIABLE}{channel.upper()}")
    return any(text in str(value) for value in values for text in texts)


def _folder_of(context: PlanContext, channel: str) -> str:
    """Return the folder of a channel on the hosts of this kind of job."""
    return context.job_kind.paths.channel_dir(channel)


# ---- metrics ----------------------------------------------------------------------------------------------


@rule(
    "metrics.java",
    phase="advise",
    summary="metrics with a form of regular expressions that only Python has",
    source="https://docs.oracle.com/javase/8/docs/api/java/util/regex/Pattern.html",
    quote="(?<name>X)\tX, as a named-capturing group",
    fields=("metrics",),
)
def warn_of_python_patterns(context: PlanContext) -> Findings:
    for index, metric in enumerate(context.job.metrics):
        if context.facts.target == "aws" and "(?P" in metric.regex:
            yield PlanWarning(
                f"{context.job.written_path(f'metrics[{index}].regex')}: the service reads Java's regular "
                "expressions, in which a named group is (?<name>...), and not (?P<name>...)."
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
    """Yield a problem for each import of a file that is not sent, or of a module that its package lacks; and
    one for all packages that have to be installed."""
    packages_to_install = []
    for missing in context.facts.script.missing_packages:
        unsent_file = missing.file_not_sent
        if unsent_file is not None:
            reason = context.facts.source.why_not_sent(unsent_file) or ignored_reason(unsent_file)
            message = f"{missing.place} imports {missing.name}, and {unsent_file} is not sent: it {reason}"
            yield Problem("source", message)
        elif missing.package is not None:
            message = f"{missing.place} imports {missing.name}, which the package {missing.package!r} lacks"
            yield Problem("entry", message)
        else:
            packages_to_install.append(missing)
    if not packages_to_install:
        return
    imports_text = ", ".join(f"{missing.name} ({missing.place})" for missing in packages_to_install)
    # Names on PyPI, such as scikit-learn for the import sklearn.
    distributions = list(dict.fromkeys(distribution_of(missing.name) for missing in packages_to_install))
    lines_text = "that line" if len(distributions) == 1 else "these lines"
    yield Problem(
        "entry",
        f"the hosts' Python lacks what the script imports: {imports_text}; pip install "
        f"{' '.join(distributions)}, or name a requirements file with {lines_text} (--requirements FILE)",
    )


# ---- libraries --------------------------------------------------------------------------------------------


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
        and all_imports_are_known(context.job, context.facts.script)
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
    """Yield a warning if the script saves files outside of /opt/ml, at paths that are literals or defaults of
    its options."""
    program = _program(context)
    stated_attributes = stated_values(context.job, program).keys()
    lost_files = [
        saved_file
        for saved_file in program.saved_files
        if not saved_file.path.startswith("/opt/ml/")
        and "://" not in saved_file.path
        # The job states another path.
        and _attribute_of_option(saved_file.option) not in stated_attributes
    ]
    checkpoints = [file for file in lost_files if _is_checkpoint(file.path)]
    results = [file for file in lost_files if file not in checkpoints]
    if results:
        yield PlanWarning(_lost_files_text(results, _result_remedy(results[0])))
    if checkpoints:
        yield PlanWarning(_lost_files_text(checkpoints, _checkpoint_remedy(context.job)))


def _is_checkpoint(path: str) -> bool:
    """Whether a path's own name, or that of its folder, says so: ``checkpoints/last.pt``."""
    return any(word in name.lower() for name in path.split("/")[-2:] for word in ("checkpoint", "ckpt"))


def _lost_files_text(files: Sequence[SavedFile], remedy: str) -> str:
    places = [f"{file.place} to {file.path!r}" for file in files[1:_MAX_NAMED_FILES]]
    unnamed_count = len(files) - 1 - len(places)
    others_text = ", ".join(["", *places]) + (f" and {unnamed_count} more" if unnamed_count > 0 else "")
    return f"{files[0].place} saves to {files[0].path!r}{others_text}, which is lost with the host: {remedy}."


def _result_remedy(file: SavedFile) -> str:
    if file.option is None:
        return (
            'write it to the folder os.environ["SM_MODEL_DIR"], /opt/ml/model, which is uploaded at the end'
        )
    model_path = f"/opt/ml/model{_suffix_of_file(file.path)}"
    return f"give the script {file.option} {model_path}, whose folder is uploaded at the end"


def _checkpoint_remedy(job: Job) -> str:
    """Name the folder that is uploaded while the job runs, and the option without which none is."""
    if job.checkpoints is not None:
        return f"write it to {job.checkpoints.local_path}, which is uploaded while the job runs"
    return (
        f"write it to {DEFAULT_CHECKPOINT_PATH}, which is uploaded while the job runs if the job has "
        "--checkpoints s3://BUCKET/PREFIX"
    )


_MAX_NAMED_FILES = 4


def _attribute_of_option(option: str | None) -> str | None:
    """Return the attribute that gets an option's value by default: ``save_dir`` for ``--save-dir``."""
    return None if option is None else option.lstrip("-").replace("-", "_")


def _suffix_of_file(path: str) -> str:
    """Return ``/model.pt`` for a path to such a file; an empty text for a folder."""
    name = path.rstrip("/").rpartition("/")[2]
    return f"/{name}" if "." in name.strip(".") else ""
