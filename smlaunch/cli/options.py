"""The options that describe a job, shared by ``run`` and ``plan``, and how they are laid over a job file.

Values are handed to ``Job`` as they were typed where they cannot be read, so that it reports every mistake of
the command line and of the file together, each by the job's own field name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from smlaunch.errors import JobError, Problem
from smlaunch.masking import masked_word

if TYPE_CHECKING:
    from smlaunch.job import Job

Function = TypeVar("Function", bound=Callable[..., Any])

SCRIPT_ARGUMENTS = "smlaunch.script-arguments"


class Grouped(click.Option):
    """An option that knows under which heading of the help it stands."""

    def __init__(self, *names: Any, group: str = "Options", **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group = group


class GroupedCommand(click.Command):
    """Help with the options under headings, all in one column."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                groups.setdefault(getattr(parameter, "group", _LAST), []).append(record)
        groups[_LAST] = groups.pop(_LAST)
        column = max(len(names) for records in groups.values() for names, _ in records)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl([(names.ljust(column), text) for names, text in records], col_max=column)


class JobCommand(GroupedCommand):
    """A command about a job to be: words after ``--`` are the script's and are never looked at."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            ctx.meta[SCRIPT_ARGUMENTS] = args[cut + 1 :]
            args = args[:cut]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = f" Did you mean {error.possibilities[0]}?" if error.possibilities else ""
            text = f"there is no option {error.option_name}.{hint} Arguments for the script go after a --"
            raise click.UsageError(text, ctx) from None

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- SCRIPT ARGUMENTS]"]


_LAST = "Options"


def option(group: str, *names: str, **settings: Any) -> Callable[[Function], Function]:
    return click.option(*names, cls=Grouped, group=group, **settings)


def executor_option(group: str, text: str) -> Callable[[Function], Function]:
    names = ("processes", "containers")
    return option(group, "--executor", type=click.Choice(names), help=f"{text} Default: processes.")


def _stacked(decorators: Iterable[Callable[[Any], Any]]) -> Callable[[Function], Function]:
    def apply(function: Function) -> Function:
        for decorator in reversed(list(decorators)):
            function = decorator(function)
        return function

    return apply


def strategies_from(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell's completion."""
    from smlaunch.strategy_names import known

    return [name for name in known() if name.startswith(incomplete)]


def _algorithms_from(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from smlaunch.catalog.algorithms import known_algorithms

    return [name for name in known_algorithms() if name.startswith(incomplete)]


_JOB, _HOSTS, _DATA, _LIMITS, _WHERE = "The job", "Hosts", "Data", "Limits", "Where"

job_options = _stacked(
    (
        click.argument("what", metavar="[SCRIPT|JOB.yaml]", type=click.Path(), required=False),
        option(
            _JOB,
            "--strategy",
            metavar="NAME",
            shell_complete=strategies_from,
            help="How to run it; default: chosen. `smlaunch init` lists them.",
        ),
        option(
            _JOB,
            "--option",
            "strategy_options",
            metavar="K=V",
            multiple=True,
            help="What the strategy can be told; repeatable.",
        ),
        option(
            _JOB,
            "--algorithm",
            metavar="NAME",
            shell_complete=_algorithms_from,
            help="A built-in algorithm, instead of a script.",
        ),
        option(_JOB, "--launcher", metavar="NAME", help="Who starts ranks: runtime (ours) or torchrun."),
        option(_JOB, "--source", metavar="DIR", help="What is sent; default: the script's folder."),
        option(
            _JOB,
            "--include-secrets",
            is_flag=True,
            default=None,
            help="Send also files that look like secrets.",
        ),
        option(_JOB, "--requirements", metavar="FILE", help="pip requirements, relative to the source."),
        option(_JOB, "--hp", metavar="K=V", multiple=True, help="A hyperparameter, as text; repeatable."),
        option(_JOB, "--env", metavar="K=V", multiple=True, help="An environment variable; repeatable."),
        option(_JOB, "--image", metavar="URI", help="Container image; default: AWS's PyTorch image."),
        option(
            _JOB,
            "--deterministic",
            is_flag=True,
            default=None,
            help="Ask smlaunch.train for the same bits every time.",
        ),
        option(_JOB, "--name", metavar="NAME", help="The run's id; the same job and name attach to the run."),
        option(_HOSTS, "--hosts", metavar="N", help="How many machines."),
        option(_HOSTS, "--processes-per-host", metavar="P", help="Ranks on each; a number or auto."),
        option(_HOSTS, "--instance-type", metavar="TYPE", help="Such as ml.g5.12xlarge."),
        option(
            _HOSTS,
            "--instance-preference",
            "instance_preferences",
            metavar="TYPE",
            multiple=True,
            help="In place of a type: the first that there is capacity for; repeatable, up to 5.",
        ),
        option(_HOSTS, "--spot", is_flag=True, default=None, help="Managed spot capacity."),
        option(
            _HOSTS,
            "--on-demand-fallback",
            is_flag=True,
            default=None,
            help="On demand, where spot capacity does not come.",
        ),
        option(
            _HOSTS, "--keep-alive", metavar="TIME", help="Hosts wait so long for a next job: a warm pool."
        ),
        option(
            _DATA,
            "--input",
            "inputs",
            metavar="NAME=URI",
            multiple=True,
            help="A channel: s3://... or a local path. May end in ,mode=File|FastFile|Pipe and "
            ",split=key|bytes; repeatable.",
        ),
        option(_DATA, "--checkpoints", metavar="S3URI", help="Where checkpoints are kept."),
        option(_DATA, "--checkpoint-interval", metavar="TIME", help="Between two; default: by their cost."),
        option(_DATA, "--output", metavar="S3URI", help="Where model and output are written."),
        option(_LIMITS, "--max-runtime", metavar="TIME", help="Training time in all: 90m, 24h, 60d."),
        option(_LIMITS, "--segment", metavar="TIME", help="Of one job; a longer run is a chain of them."),
        option(_LIMITS, "--attempts", metavar="N", help="Jobs tried per segment without progress."),
        option(_LIMITS, "--max-pending", metavar="TIME", help="Waiting for capacity with accelerators."),
        option(_LIMITS, "--max-wait", metavar="TIME", help="With --spot: running and waiting together."),
        option(
            _LIMITS, "--hang", metavar="TIME", help="Fail, with every rank's stack, when silent and idle."
        ),
        option(_LIMITS, "--max-cost", metavar="USD", help="Refuse one job, or end a chain, that costs more."),
    )
)

place_options = _stacked(
    (
        option(
            _WHERE, "--local", is_flag=True, envvar="SMLAUNCH_LOCAL", help="On this machine, without AWS."
        ),
        option(_WHERE, "--region", metavar="REGION", help="AWS region; default: the usual AWS settings."),
        option(_WHERE, "--profile", metavar="NAME", help="AWS profile."),
    )
)

launch_place_options = _stacked(
    (
        place_options,
        option(_WHERE, "--role", metavar="ARN", help="Execution role; default: found as the SDK does."),
        option(
            _WHERE,
            "--isolation",
            type=click.Choice(("full", "user", "plain")),
            help="With --local: how hosts are kept apart; default: the best there is.",
        ),
        executor_option(_WHERE, "With --local: what hosts are; containers run the job's real image."),
    )
)

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")


def read_job(what: str | None, options: dict[str, Any], script_arguments: list[str] | None) -> Job:
    """The job of the file or script with the options laid over it. Raises JobError with every mistake."""
    if what is None and not options["algorithm"] and not options["image"]:
        raise click.UsageError(
            "Missing argument 'SCRIPT|JOB.yaml' (or --algorithm NAME, or --image URI with its own program)",
            click.get_current_context(),
        )
    problems: list[Problem] = []
    changes = _changes(options, problems)
    if script_arguments is not None:
        changes["args"] = script_arguments
    with _without_pydantic_plugins():
        from smlaunch.job import Job

    try:
        if what is not None and what.endswith((".yaml", ".yml")):
            job = Job.from_file(what, changes)
        else:
            job = Job.from_mapping(changes if what is None else {"entry": what, **changes})
    except JobError as error:
        if what is not None and (other := _of_a_pipeline(what)):
            raise JobError([other]) from None
        raise JobError([*problems, *error.problems], error.mapping) from None
    if problems:
        raise JobError(problems, job.to_mapping())
    return job


def _of_a_pipeline(file: str) -> Problem | None:
    """What to do with a file that is none of a job."""
    from smlaunch.export.pipeline_file import is_pipeline

    if not is_pipeline(file):
        return None
    text = (
        f"{file} is a pipeline's file, of several jobs: `smlaunch export pipeline {file}`; or name one job's"
    )
    return Problem("", text)


@contextmanager
def _without_pydantic_plugins() -> Iterator[None]:
    """Looking for some reads the metadata of all installed distributions: 20 ms and more, for nothing."""
    name = "PYDANTIC_DISABLE_PLUGINS"
    before = os.environ.get(name)
    os.environ[name] = "__all__"
    try:
        yield
    finally:
        # Hosts of an embedded endpoint inherit this process's variables.
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _changes(options: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """What was given on the command line, in the job file's shape."""
    changes: dict[str, Any] = {
        "compute": {
            "hosts": _number(options["hosts"]),
            "processes_per_host": _number(options["processes_per_host"]),
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
            "attempts": _number(options["attempts"]),
            "max_wait": options["max_wait"],
            "max_pending": options["max_pending"],
            "hang": options["hang"],
            "max_cost": _number(options["max_cost"]),
        },
        "hyperparameters": _pairs("--hp", options["hp"], problems),
        "options": _values("--option", options["strategy_options"], problems),
        "environment": _pairs("--env", options["env"], problems),
        "inputs": _inputs(options["inputs"], problems),
    }
    plain = (
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
    changes.update({key: options[key] for key in plain})
    return _given(changes)


def _given(value: dict[str, Any]) -> dict[str, Any]:
    cleaned = {key: _given(item) if isinstance(item, dict) else item for key, item in value.items()}
    return {key: item for key, item in cleaned.items() if item is not None and item != {}}


def _number(text: str | None) -> int | float | str | None:
    """A number where it is one; the job complains about the rest under the field's name."""
    for kind in (int, float):
        try:
            return kind(text) if text is not None else None
        except ValueError:
            continue
    return text


def _values(name: str, given: Iterable[str], problems: list[Problem]) -> dict[str, Any]:
    """As YAML reads a value: numbers, true and false, lists in brackets; the rest is text."""
    pairs = _pairs(name, given, problems)
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


def _pairs(name: str, values: Iterable[str], problems: list[Problem]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            problems.append(Problem(name, f"{masked_word(value)!r} is not KEY=VALUE"))
        elif key in pairs:
            problems.append(Problem(name, f"{key!r} is given twice"))
        else:
            pairs[key] = text
    return pairs


_CHANNEL_KEYS = ("mode", "split", "carry", "content_type", "bucket_owner")


def _inputs(values: Iterable[str], problems: list[Problem]) -> dict[str, Any]:
    """``train=s3://b/p/,mode=FastFile,split=key``. A comma that no key follows belongs to the address."""
    channels: dict[str, Any] = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if not equals or not name or not rest:
            problems.append(Problem("--input", f"{value!r} is not NAME=URI, such as train=s3://bucket/data/"))
            continue
        if name in channels:
            problems.append(Problem("--input", f"channel {name!r} is given twice"))
            continue
        words = rest.split(",")
        channel: dict[str, str] = {}
        while len(words) > 1:
            key, equals, text = words[-1].partition("=")
            if not equals or (key not in _CHANNEL_KEYS and "/" in words[-1]):
                break
            if key not in _CHANNEL_KEYS:
                from smlaunch.suggest import did_you_mean

                hint = did_you_mean(key, _CHANNEL_KEYS)
                problems.append(Problem("--input", f"{name}: {key!r} is unknown{hint}"))
            else:
                channel[key] = text
            words.pop()
        channels[name] = {"uri": ",".join(words), **channel}
    return channels
