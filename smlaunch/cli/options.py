"""Options that describe a job, shared by ``run``, ``plan`` and ``export``; they override a job file.

A value that cannot be parsed goes to ``Job`` as it was typed, so that ``Job`` reports all mistakes of the
command line and of the file together, each by the job's own field name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

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
    """A command whose help lists its options under headings, aligned in one column."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options to the help text, in sections by their headings."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            help_record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if help_record is not None:
                groups.setdefault(getattr(parameter, "heading", _DEFAULT_HEADING), []).append(help_record)
        groups[_DEFAULT_HEADING] = groups.pop(_DEFAULT_HEADING)
        column_width = max(len(option_names) for records in groups.values() for option_names, _ in records)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(option_names.ljust(column_width), text) for option_names, text in records],
                    col_max=column_width,
                )


class JobCommand(GroupedCommand):
    """A command that describes a job. Arguments after ``--`` belong to the script and are not parsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options; arguments after ``--`` are stored in the context, for the script."""
        if "--" in args:
            separator = args.index("--")
            ctx.meta[SCRIPT_ARGUMENTS] = args[separator + 1 :]
            args = args[:separator]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = f" Did you mean {error.possibilities[0]}?" if error.possibilities else ""
            text = f"there is no option {error.option_name}.{hint} Arguments for the script go after a --"
            raise click.UsageError(text, ctx) from None

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- SCRIPT ARGUMENTS]"]


_DEFAULT_HEADING = "Options"


def grouped_option(
    heading: str, *names: str, **settings: Any
) -> Callable[[CommandFunction], CommandFunction]:
    return click.option(*names, cls=GroupedOption, heading=heading, **settings)


def executor_option(heading: str, help_text: str) -> Callable[[CommandFunction], CommandFunction]:
    names = ("processes", "containers")
    return grouped_option(
        heading, "--executor", type=click.Choice(names), help=f"{help_text} Default: processes."
    )


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
    from smlaunch.strategies.registry import known_strategies

    return [name for name in known_strategies() if name.startswith(incomplete)]


def _complete_algorithms(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from smlaunch.catalog.algorithms import known_algorithms

    return [name for name in known_algorithms() if name.startswith(incomplete)]


_JOB, _HOSTS, _DATA, _LIMITS, _TARGET = "Job", "Hosts", "Data", "Limits", "Target"

job_options = _combine_decorators(
    (
        click.argument("job_path", metavar="[SCRIPT|JOB.yaml]", type=click.Path(), required=False),
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
            help="Source folder to upload; default: the folder of the script.",
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
            help="pip requirements file, relative to the source folder.",
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
            _HOSTS, "--instance-type", metavar="TYPE", help="Instance type, such as ml.g5.12xlarge."
        ),
        grouped_option(
            _HOSTS,
            "--instance-preference",
            "instance_preferences",
            metavar="TYPE",
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
            _TARGET, "--region", metavar="REGION", help="AWS region; default: from the AWS configuration."
        ),
        grouped_option(_TARGET, "--profile", metavar="NAME", help="AWS profile."),
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
        executor_option(_TARGET, "With --local: hosts are processes, or containers of the job's image."),
    )
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document to stdout.")


def read_job(job_path: str | None, options: dict[str, Any], script_arguments: list[str] | None) -> Job:
    """Return the job of a job file or script, changed by the options. Raises JobError with all problems."""
    if job_path is None and not options["algorithm"] and not options["image"]:
        raise click.UsageError(
            "Missing argument 'SCRIPT|JOB.yaml' (or --algorithm NAME, or --image URI with its own program)",
            click.get_current_context(),
        )
    problems: list[Problem] = []
    changes = _job_changes(options, problems)
    if script_arguments is not None:
        changes["args"] = script_arguments
    with _pydantic_plugins_disabled():
        from smlaunch.job.model import Job

    try:
        if job_path is not None and job_path.endswith((".yaml", ".yml")):
            job = Job.from_file(job_path, changes)
        else:
            job = Job.from_mapping(changes if job_path is None else {"entry": job_path, **changes})
    except JobError as error:
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


@contextmanager
def _pydantic_plugins_disabled() -> Iterator[None]:
    """pydantic reads the metadata of all installed distributions to find plugins: 20 ms or more."""
    variable = "PYDANTIC_DISABLE_PLUGINS"
    previous = os.environ.get(variable)
    os.environ[variable] = "__all__"
    try:
        yield
    finally:
        # Hosts of an embedded endpoint inherit this process's variables.
        if previous is None:
            del os.environ[variable]
        else:
            os.environ[variable] = previous


def _job_changes(options: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return the options of the command line as a mapping with the structure of a job file."""
    changes: dict[str, Any] = {
        "compute": {
            "hosts": _parse_number(options["hosts"]),
            "processes_per_host": _parse_number(options["processes_per_host"]),
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
            "attempts": _parse_number(options["attempts"]),
            "max_wait": options["max_wait"],
            "max_pending": options["max_pending"],
            "hang": options["hang"],
            "max_cost": _parse_number(options["max_cost"]),
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
    return _without_unset(changes)


def _without_unset(value: dict[str, Any]) -> dict[str, Any]:
    cleaned = {key: _without_unset(item) if isinstance(item, dict) else item for key, item in value.items()}
    return {key: item for key, item in cleaned.items() if item is not None and item != {}}


def _parse_number(text: str | None) -> int | float | str | None:
    """Return a number where the text is one. ``Job`` reports any other text under the field's name."""
    for kind in (int, float):
        try:
            return kind(text) if text is not None else None
        except ValueError:
            continue
    return text


def _parse_yaml_values(option_name: str, arguments: Iterable[str], problems: list[Problem]) -> dict[str, Any]:
    """Parse KEY=VALUE arguments whose values are YAML: numbers, true and false, lists, or text."""
    pairs = _parse_pairs(option_name, arguments, problems)
    if not pairs:
        return {}
    import yaml

    values: dict[str, Any] = {}
    for key, text in pairs.items():
        try:
            values[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            values[key] = text
    return values


def _parse_pairs(option_name: str, values: Iterable[str], problems: list[Problem]) -> dict[str, str]:
    """Return the values of a repeated KEY=VALUE option as a mapping. Adds a problem for each invalid one."""
    pairs: dict[str, str] = {}
    for value in values:
        key, separator, pair_value = value.partition("=")
        if not separator or not key:
            problems.append(Problem(option_name, f"{mask_argument(value)!r} is not KEY=VALUE"))
        elif key in pairs:
            problems.append(Problem(option_name, f"{key!r} is given twice"))
        else:
            pairs[key] = pair_value
    return pairs


_CHANNEL_KEYS = ("mode", "split", "split_via", "content_type", "bucket_owner")


def _parse_inputs(values: Iterable[str], problems: list[Problem]) -> dict[str, Any]:
    """Parse channels such as ``train=s3://b/p/,mode=FastFile,split=key``.

    A comma that is not followed by a known key belongs to the address.
    """
    channels: dict[str, Any] = {}
    for value in values:
        name, equals, value_text = value.partition("=")
        if not equals or not name or not value_text:
            problems.append(Problem("--input", f"{value!r} is not NAME=URI, such as train=s3://bucket/data/"))
            continue
        if name in channels:
            problems.append(Problem("--input", f"channel {name!r} is given twice"))
            continue
        parts = value_text.split(",")
        channel: dict[str, str] = {}
        while len(parts) > 1:
            key, equals, text = parts[-1].partition("=")
            if not equals or (key not in _CHANNEL_KEYS and "/" in parts[-1]):
                break
            if key not in _CHANNEL_KEYS:
                from smlaunch.text.did_you_mean import did_you_mean

                hint = did_you_mean(key, _CHANNEL_KEYS)
                problems.append(Problem("--input", f"{name}: {key!r} is unknown{hint}"))
            else:
                channel[key] = text
            parts.pop()
        channels[name] = {"uri": ",".join(parts), **channel}
    return channels
