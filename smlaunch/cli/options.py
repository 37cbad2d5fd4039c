"""Options that describe a job, shared by ``run``, ``plan`` and ``export``; they override a job file.

A value that cannot be parsed goes to ``Job`` as it was typed, so that ``Job`` reports all mistakes of the
command line and of the file together, each by the job's own field name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from smlaunch.cli.executor_option import executor_option
from smlaunch.errors import JobError, Problem
from smlaunch.secrets.masking import mask_argument

if TYPE_CHECKING:
    from smlaunch.job.model import Job

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])

SCRIPT_ARGUMENTS = "smlaunch.script-arguments"


class GroupedOption(click.Option):
    """An option with its heading in the help text."""

    def __init__(self, *names: Any, heading: str = "Options", **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.heading = heading


class GroupedCommand(click.Command):
    """A command whose help lists its options under headings, aligned in one column, and that suggests another
    option for an unknown one."""

    takes_script_arguments = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Overrides a method of click."""
        arguments = list(args)  # click empties its list
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from smlaunch.cli.suggestions import describe_unknown_option

            known_options = [name for parameter in self.get_params(ctx) for name in parameter.opts]
            message = describe_unknown_option(
                error.option_name,
                arguments,
                [name for name in known_options if name.startswith("-")],
                ctx.command_path,
                self.takes_script_arguments,
            )
            raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options to the help text, in sections by their headings. Overrides a method of click."""
        # By heading: the option's names and its help text, as click formats them.
        records_by_heading: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            help_record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if help_record is not None:
                heading = getattr(parameter, "heading", _DEFAULT_HEADING)
                records_by_heading.setdefault(heading, []).append(help_record)
        # Options without a heading, such as --help, come last.
        records_by_heading[_DEFAULT_HEADING] = records_by_heading.pop(_DEFAULT_HEADING)
        column_width = max(
            len(option_names) for records in records_by_heading.values() for option_names, _ in records
        )
        for heading, records in records_by_heading.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(option_names.ljust(column_width), help_text) for option_names, help_text in records],
                    col_max=column_width,
                )


class JobCommand(GroupedCommand):
    """A command that describes a job. Arguments after ``--`` belong to the script and are not parsed."""

    takes_script_arguments = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options; arguments after ``--`` are stored in the context, for the user's script.
        Overrides a method of click."""
        if "--" in args:
            separator = args.index("--")
            ctx.meta[SCRIPT_ARGUMENTS] = args[separator + 1 :]
            args = args[:separator]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENTS|COMMAND]"]


_DEFAULT_HEADING = "Options"


def grouped_option(
    heading: str, *names: str, **settings: Any
) -> Callable[[CommandFunction], CommandFunction]:
    return click.option(*names, cls=GroupedOption, heading=heading, **settings)


def _combine_decorators(
    decorators: Iterable[Callable[[Any], Any]],
) -> Callable[[CommandFunction], CommandFunction]:
    def apply(function: CommandFunction) -> CommandFunction:
        for decorator in reversed(list(decorators)):
            function = decorator(function)
        return function

    return apply


def complete_strategies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of strategies for shell completion."""
    from smlaunch.catalog.strategies import known_strategies

    return [name for name in known_strategies() if name.startswith(incomplete)]


def _complete_algorithms(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from smlaunch.catalog.algorithms import known_algorithms

    return [name for name in known_algorithms() if name.startswith(incomplete)]


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of the newest runs for shell completion, of the target that the command line names so far."""
    from smlaunch.cli.completion_values import run_names

    return [name for name in run_names(ctx.params) if name.startswith(incomplete)]


def _complete_from(source: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a completion from a function of cli/completion_values.py."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        from smlaunch.cli import completion_values

        return [value for value in getattr(completion_values, source)() if value.startswith(incomplete)]

    return complete


_JOB, _HOSTS, _DATA, _LIMITS, _TARGET = "Job", "Hosts", "Data", "Limits", "Target"

job_options = _combine_decorators(
    (
        click.argument("job_path", metavar="[SCRIPT|JOB.yaml]", type=click.Path(), required=False),
        grouped_option(
            _JOB,
            "-m",
            "module",
            metavar="MODULE",
            help="Instead of a script: a module such as package.module, run as by python -m in this folder.",
        ),
        grouped_option(
            _JOB,
            "--strategy",
            metavar="NAME",
            shell_complete=complete_strategies,
            help="How the program is distributed; default: detected. `smlaunch init` lists the strategies.",
        ),
        grouped_option(
            _JOB,
            "--option",
            "strategy_options",
            metavar="K=V",
            multiple=True,
            help="An option of the strategy; repeatable.",
        ),
        grouped_option(
            _JOB,
            "--algorithm",
            metavar="NAME",
            shell_complete=_complete_algorithms,
            help="A built-in algorithm instead of a script.",
        ),
        grouped_option(
            _JOB,
            "--launcher",
            metavar="NAME",
            help="What starts the ranks: runtime (smlaunch's own) or torchrun.",
        ),
        grouped_option(
            _JOB,
            "--source",
            metavar="DIR",
            help="Source folder to upload; default: that of the script, or this one for -m and a command.",
        ),
        grouped_option(
            _JOB,
            "--include-secrets",
            is_flag=True,
            default=None,
            help="Upload files that look like secrets too.",
        ),
        grouped_option(
            _JOB,
            "--requirements",
            metavar="FILE",
            help="pip requirements file, relative to the source folder; default: requirements.txt beside the "
            "script, if there is one; none installs nothing.",
        ),
        grouped_option(
            _JOB,
            "--allow",
            metavar="RULE",
            multiple=True,
            help="Launch although this rule reports an error, which becomes a warning; repeatable.",
        ),
        grouped_option(_JOB, "--hp", metavar="K=V", multiple=True, help="A hyperparameter; repeatable."),
        grouped_option(
            _JOB, "--env", metavar="K=V", multiple=True, help="An environment variable; repeatable."
        ),
        grouped_option(_JOB, "--image", metavar="URI", help="Container image; default: AWS's PyTorch image."),
        grouped_option(
            _JOB,
            "--deterministic",
            is_flag=True,
            default=None,
            help="Bitwise reproducible training with smlaunch.train.",
        ),
        grouped_option(
            _JOB,
            "--name",
            metavar="NAME",
            help="Run id; the same job under the same name attaches to the run.",
        ),
        grouped_option(_HOSTS, "--hosts", metavar="N", help="Number of hosts."),
        grouped_option(_HOSTS, "--processes-per-host", metavar="P", help="Ranks per host: a number or auto."),
        grouped_option(
            _HOSTS,
            "--instance-type",
            metavar="TYPE",
            shell_complete=_complete_from("instance_types"),
            help="Instance type, such as ml.g5.12xlarge.",
        ),
        grouped_option(
            _HOSTS,
            "--instance-preference",
            "instance_preferences",
            metavar="TYPE",
            shell_complete=_complete_from("instance_types"),
            multiple=True,
            help="Instead of --instance-type: the first type with capacity is used; repeatable, up to 5.",
        ),
        grouped_option(_HOSTS, "--spot", is_flag=True, default=None, help="Use managed spot capacity."),
        grouped_option(
            _HOSTS,
            "--on-demand-fallback",
            is_flag=True,
            default=None,
            help="Use on-demand capacity when there is no spot capacity.",
        ),
        grouped_option(
            _HOSTS,
            "--keep-alive",
            metavar="TIME",
            help="How long hosts are kept for the next job (warm pool).",
        ),
        grouped_option(
            _DATA,
            "--input",
            "inputs",
            metavar="NAME=URI",
            multiple=True,
            help="A channel: s3://... or a local path. May end in ,mode=File|FastFile|Pipe and "
            ",split=key|bytes; repeatable.",
        ),
        grouped_option(_DATA, "--checkpoints", metavar="S3URI", help="S3 prefix of the checkpoints."),
        grouped_option(
            _DATA,
            "--checkpoint-interval",
            metavar="TIME",
            help="Time between two checkpoints; default: from their cost.",
        ),
        grouped_option(_DATA, "--output", metavar="S3URI", help="S3 prefix of the model and other output."),
        grouped_option(_LIMITS, "--max-runtime", metavar="TIME", help="Total training time: 90m, 24h, 60d."),
        grouped_option(
            _LIMITS,
            "--segment",
            metavar="TIME",
            help="Length of one segment; a longer run is a chain of segments.",
        ),
        grouped_option(_LIMITS, "--attempts", metavar="N", help="Attempts per segment without progress."),
        grouped_option(
            _LIMITS, "--max-pending", metavar="TIME", help="Longest wait for capacity with accelerators."
        ),
        grouped_option(
            _LIMITS,
            "--max-wait",
            metavar="TIME",
            help="With --spot: limit of waiting and running time together.",
        ),
        grouped_option(
            _LIMITS,
            "--hang",
            metavar="TIME",
            help="Fail a job that is silent and idle for this long; prints the stack of every rank.",
        ),
        grouped_option(
            _LIMITS,
            "--max-cost",
            metavar="USD",
            help="Cost limit: a job that may exceed it is refused, a chain is ended.",
        ),
    )
)

connection_options = _combine_decorators(
    (
        grouped_option(
            _TARGET,
            "--local",
            is_flag=True,
            envvar="SMLAUNCH_LOCAL",
            help="Run on this machine, without AWS.",
        ),
        grouped_option(
            _TARGET,
            "--region",
            metavar="REGION",
            shell_complete=_complete_from("regions"),
            help="AWS region; default: from the AWS configuration.",
        ),
        grouped_option(
            _TARGET,
            "--profile",
            metavar="NAME",
            shell_complete=_complete_from("profiles"),
            help="AWS profile.",
        ),
    )
)

launch_options = _combine_decorators(
    (
        connection_options,
        grouped_option(
            _TARGET, "--role", metavar="ARN", help="Execution role; default: as the SageMaker SDK finds it."
        ),
        grouped_option(
            _TARGET,
            "--isolation",
            type=click.Choice(("full", "user", "plain")),
            help="With --local: isolation level of the hosts; default: the strongest that works.",
        ),
        executor_option(_TARGET, "With --local: hosts are"),
    )
)

quiet_option = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    help="No states and no progress: only the script's output, warnings, failures and results.",
)
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Print the plan's reasons too.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document to stdout.")


def read_job(job_path: str | None, options: dict[str, Any], script_arguments: list[str] | None) -> Job:
    """Return the job of a job file, script, module or command, with the command line's options applied.
    ``script_arguments``: those after ``--``; None without. They are the command of a job that names no
    program otherwise. Raises JobError with the problems of both the options and the job."""
    module = options["module"]
    names_program = any((job_path, module, options["algorithm"], options["image"]))
    if not names_program and not script_arguments:
        raise click.UsageError(
            "the script or job file is missing: `smlaunch run train.py`, or `smlaunch run job.yaml` (or "
            "-m MODULE, or a command after --, or --algorithm NAME, or --image URI with its own program)",
            click.get_current_context(),
        )
    if job_path is not None and module is not None:
        raise click.UsageError(
            f"{job_path} and -m {module} both name the program: leave one of them out",
            click.get_current_context(),
        )
    problems: list[Problem] = []  # of the options: added by the next call, raised with those of the job
    job_changes = _job_changes(options, problems)
    if module is not None:
        job_changes["entry"] = {"module": module}
    if names_program and script_arguments is not None:
        job_changes["args"] = script_arguments
    elif not names_program:
        job_changes["entry"] = {"command": script_arguments}
    from smlaunch.job.model import Job

    try:
        if job_path is not None and job_path.endswith((".yaml", ".yml")):
            job = Job.from_file(job_path, job_changes)
        else:
            # "entry": the script of a job.
            job = Job.from_mapping(job_changes if job_path is None else {"entry": job_path, **job_changes})
    except JobError as error:
        # A pipeline file (several jobs) has none of the keys of a job: say that instead.
        if job_path is not None and (pipeline_problem := _pipeline_file_problem(job_path)):
            raise JobError([pipeline_problem]) from None
        raise JobError([*problems, *error.problems], error.job_mapping) from None
    if problems:
        raise JobError(problems, job.to_mapping())
    return job


def _pipeline_file_problem(path: str) -> Problem | None:
    """Return the problem to report when the given job file is a pipeline file."""
    from smlaunch.export.pipeline_file import is_pipeline_file

    if not is_pipeline_file(path):
        return None
    text = (
        f"{path} is a pipeline file with several jobs: `smlaunch export pipeline {path}`; or give a job file"
    )
    return Problem("", text)


def _job_changes(options: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return the options of the command line as a mapping with the structure of a job file."""
    changes: dict[str, Any] = {
        "compute": {
            "hosts": _to_number_if_numeric(options["hosts"]),
            "processes_per_host": _to_number_if_numeric(options["processes_per_host"]),
            "instance_type": options["instance_type"],
            "spot": options["spot"],
            "on_demand_fallback": options["on_demand_fallback"],
            "instance_preferences": options["instance_preferences"] or None,
            "keep_alive": options["keep_alive"],
        },
        "checkpoints": {"uri": options["checkpoints"], "interval": options["checkpoint_interval"]},
        "limits": {
            "max_runtime": options["max_runtime"],
            "segment": options["segment"],
            "attempts": _to_number_if_numeric(options["attempts"]),
            "max_wait": options["max_wait"],
            "max_pending": options["max_pending"],
            "hang": options["hang"],
            "max_cost": _to_number_if_numeric(options["max_cost"]),
        },
        "hyperparameters": _parse_pairs("--hp", options["hp"], problems),
        "options": _parse_yaml_values("--option", options["strategy_options"], problems),
        "environment": _parse_pairs("--env", options["env"], problems),
        "inputs": _parse_inputs(options["inputs"], problems),
    }
    top_level_fields = (
        "strategy",
        "algorithm",
        "launcher",
        "source",
        "include_secrets",
        "requirements",
        "image",
        "name",
        "deterministic",
        "output",
        "role",
    )
    changes.update({key: options[key] for key in top_level_fields})
    changes["allow"] = list(options["allow"]) or None
    return _without_unset(changes)


def _without_unset(value: dict[str, Any]) -> dict[str, Any]:
    cleaned = {key: _without_unset(item) if isinstance(item, dict) else item for key, item in value.items()}
    return {key: item for key, item in cleaned.items() if item is not None and item != {}}


def _to_number_if_numeric(text: str | None) -> int | float | str | None:
    """Return a number where the text is one; None for None. Any other text stays, so that ``Job`` reports it
    under the field's name."""
    if text is None or "_" in text or not text.isascii():  # Python's own spellings: 1_000 and other digits
        return text
    for number_type in (int, float):
        with suppress(ValueError):
            return number_type(text)
    return text


def _parse_yaml_values(
    option_name: str, key_value_arguments: Iterable[str], problems: list[Problem]
) -> dict[str, Any]:
    """Return the KEY=VALUE arguments of a repeated option as a mapping; each value is YAML: a number, true or
    false, a list, or text. Appends a problem to ``problems`` for each argument without a key, or with one
    that is given twice."""
    text_by_key = _parse_pairs(option_name, key_value_arguments, problems)
    if not text_by_key:
        return {}
    import yaml

    value_by_key: dict[str, Any] = {}
    for key, text in text_by_key.items():
        try:
            value_by_key[key] = yaml.safe_load(text)
        except yaml.YAMLError:  # then it is text, such as one with a colon
            value_by_key[key] = text
    return value_by_key


def _parse_pairs(
    option_name: str, key_value_arguments: Iterable[str], problems: list[Problem]
) -> dict[str, str]:
    """Return the KEY=VALUE arguments of a repeated option as a mapping of texts. Appends a problem to
    ``problems`` for each argument of another form (any secret in it masked), and for a key that is given
    twice."""
    value_by_key: dict[str, str] = {}
    for argument in key_value_arguments:
        key, separator, value = argument.partition("=")
        if not separator or not key:
            problems.append(Problem(option_name, f"{mask_argument(argument)!r} is not KEY=VALUE"))
        elif key in value_by_key:
            problems.append(Problem(option_name, f"{key!r} is given twice"))
        else:
            value_by_key[key] = value
    return value_by_key


_CHANNEL_KEYS = ("mode", "split", "split_via", "content_type", "bucket_owner")


def _parse_inputs(input_arguments: Iterable[str], problems: list[Problem]) -> dict[str, Any]:
    """Parse input channels of the form ``train=s3://bucket/prefix/,mode=FastFile,split=key`` into the
    ``inputs`` of a job file. Appends a problem to ``problems`` for each invalid one."""
    channel_by_name: dict[str, Any] = {}
    for argument in input_arguments:
        channel_name, equals, uri_and_options = argument.partition("=")
        if not equals or not channel_name or not uri_and_options:
            problems.append(
                Problem("--input", f"{argument!r} is not NAME=URI, such as train=s3://bucket/data/")
            )
        elif channel_name in channel_by_name:
            problems.append(Problem("--input", f"channel {channel_name!r} is given twice"))
        else:
            channel_by_name[channel_name] = _parse_channel(channel_name, uri_and_options, problems)
    return channel_by_name


def _parse_channel(channel_name: str, uri_and_options: str, problems: list[Problem]) -> dict[str, str]:
    """Parse ``s3://bucket/prefix/,mode=FastFile``, an address and the options of a channel, into the channel
    of a job file. Appends a problem to ``problems`` for each unknown option.

    A comma may also belong to the address, so that options are taken from the end: until a part without
    ``=``, or with an unknown key and a slash.
    """
    comma_parts = uri_and_options.split(",")
    channel_options: dict[str, str] = {}
    while len(comma_parts) > 1:
        key, equals, option_value = comma_parts[-1].partition("=")
        if not equals or (key not in _CHANNEL_KEYS and "/" in comma_parts[-1]):
            break
        if key in _CHANNEL_KEYS:
            channel_options[key] = option_value
        else:
            from smlaunch.text.did_you_mean import did_you_mean

            hint = did_you_mean(key, _CHANNEL_KEYS)
            problems.append(Problem("--input", f"{channel_name}: {key!r} is unknown{hint}"))
        comma_parts.pop()
    return {"uri": ",".join(comma_parts), **channel_options}
