"""Options that describe a job, shared by ``run``, ``plan`` and ``export``; they override a job file.

A value that cannot be parsed goes to ``Job`` as it was typed, so that ``Job`` reports all mistakes of the
command line and of the file together, each by the job's own field name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from smlaunch.cli.executor_option import executor_option
from smlaunch.errors import JobError

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
        arguments = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if "unexpected extra argument" not in error.format_message():
                raise
            from smlaunch.cli.suggestions import describe_extra_argument

            raise click.UsageError(describe_extra_argument(arguments, ctx.command_path), ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and say of each problem of the job where its value comes from. Overrides a method
        of click."""
        try:
            return super().invoke(ctx)
        except JobError as error:
            from smlaunch.cli.problem_origins import add_origins

            raise add_origins(error, ctx) from error.__cause__

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


complete_strategies = _complete_from("strategies")

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
            shell_complete=_complete_from("algorithms"),
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
        grouped_option(
            _JOB,
            "--secret",
            metavar="NAME=secretsmanager:ID|ssm:NAME",
            multiple=True,
            help="An environment variable whose value the hosts read in AWS Secrets Manager or Parameter "
            "Store; repeatable.",
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
            _HOSTS,
            "--training-plan",
            metavar="ARN",
            help="Use the hosts that this training plan has reserved.",
        ),
        grouped_option(
            _HOSTS, "--volume-kms-key", metavar="KEY", help="KMS key that encrypts the hosts' volumes."
        ),
        grouped_option(
            _HOSTS,
            "--price",
            metavar="USD",
            help="What a host of the job's instance type costs an hour, where the plan does not know it.",
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
        grouped_option(_DATA, "--kms-key", metavar="KEY", help="KMS key that encrypts model and output."),
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
