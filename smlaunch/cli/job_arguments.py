"""The job that a command line describes: its options, over those of a job file.

A value that cannot be parsed goes to ``Job`` as it was typed, so that ``Job`` reports all mistakes of the
command line and of the file together, each by the job's own field name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from smlaunch.errors import JobError, Problem
from smlaunch.secrets.masking import MASK, mask_argument

if TYPE_CHECKING:
    from smlaunch.job.model import Job


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
            "volume_kms_key": options["volume_kms_key"],
            "training_plan": options["training_plan"],
            "price_per_hour": _to_number_if_numeric(options["price"]),
        },
        "output": {"uri": options["output"], "kms_key": options["kms_key"]},
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
        "secrets": _parse_pairs("--secret", options["secret"], problems),
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
        "role",
    )
    changes.update({key: options[key] for key in top_level_fields})
    changes["allow"] = list(options["allow"]) or None
    return _without_unset(changes)


def _without_unset(options: dict[str, Any]) -> dict[str, Any]:
    """Return nested options without those that are not given (None), and without mappings left empty."""
    given_options: dict[str, Any] = {}
    for key, value in options.items():
        given_value = _without_unset(value) if isinstance(value, dict) else value
        if given_value is not None and given_value != {}:
            given_options[key] = given_value
    return given_options


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


_RANDOM_WORD = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[!-~]{12,}")
"""A token or a password, whose name was forgotten."""


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
            may_be_secret = option_name == "--secret" or _RANDOM_WORD.fullmatch(argument)
            shown_argument = MASK if may_be_secret else mask_argument(argument)
            problems.append(Problem(option_name, f"{shown_argument!r} is not KEY=VALUE"))
        elif key in value_by_key:
            problems.append(Problem(option_name, f"{key!r} is given twice"))
        else:
            value_by_key[key] = value
    return value_by_key


_PLACE_BEGINNINGS = ("./", "../", "/", "~/", "s3://", "fsx://", "efs://")
"""Of the value of a second channel."""

_CHANNEL_KEYS = (
    *("mode", "split", "split_via", "content_type", "bucket_owner"),
    *("access", "shuffle_seed", "record_wrapper", "compression"),
)
"""Those whose values are one word."""


def _parse_inputs(input_arguments: Iterable[str], problems: list[Problem]) -> dict[str, Any]:
    """Parse input channels of the form ``train=s3://bucket/prefix/,mode=FastFile,split=key`` into the
    ``inputs`` of a job file. Appends a problem to ``problems`` for each invalid one."""
    channel_by_name: dict[str, Any] = {}
    for argument in input_arguments:
        channel_name, equals, uri_and_options = argument.partition("=")
        if not equals or not channel_name or not uri_and_options:
            name = channel_name if equals and channel_name else "train"
            uri = uri_and_options or ("s3://bucket/data/" if equals else argument)
            problems.append(Problem("--input", f"{argument!r} is not NAME=URI; write --input {name}={uri}"))
        elif channel_name in channel_by_name:
            first = channel_by_name[channel_name]["uri"]
            text = f"channel {channel_name!r} is given twice, with {first} and {uri_and_options}; rename one"
            problems.append(Problem("--input", text))
        else:
            channel_by_name[channel_name] = _parse_channel(channel_name, uri_and_options, problems)
    return channel_by_name


def _parse_channel(channel_name: str, uri_and_options: str, problems: list[Problem]) -> dict[str, Any]:
    """Parse ``s3://bucket/prefix/,mode=FastFile``, an address and the options of a channel, into the channel
    of a job file. Appends a problem to ``problems`` for each unknown option.

    A comma may also belong to the address, so that options are taken from the end: until a part without
    ``=``, or with an unknown key and a slash.
    """
    comma_parts = uri_and_options.split(",")
    channel_options: dict[str, Any] = {}
    while len(comma_parts) > 1:
        last_part = comma_parts[-1]
        key, equals, option_value = last_part.partition("=")
        if equals and key not in _CHANNEL_KEYS and option_value.startswith(_PLACE_BEGINNINGS):
            first_channel = f"{channel_name}={','.join(comma_parts[:-1])}"
            text = f"{last_part!r} is a channel of its own; give each its --input: --input {first_channel}"
            problems.append(Problem("--input", f"{text} --input {last_part}"))
            comma_parts.pop()
            continue
        if not equals or (key not in _CHANNEL_KEYS and "/" in last_part):
            break
        if key in channel_options:
            problems.append(Problem("--input", f"{channel_name}: {key!r} is given twice"))
        elif key in _CHANNEL_KEYS:
            is_number = key == "shuffle_seed"
            channel_options[key] = _to_number_if_numeric(option_value) if is_number else option_value
        else:
            from smlaunch.text.did_you_mean import did_you_mean

            hint = did_you_mean(key, _CHANNEL_KEYS)
            problems.append(Problem("--input", f"{channel_name}: {key!r} is unknown{hint}"))
        comma_parts.pop()
    return {"uri": ",".join(comma_parts), **channel_options}
