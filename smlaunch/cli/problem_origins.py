"""Where the value with a problem comes from: the option, or the line of the job file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from smlaunch.errors import JobError, Problem

_OPTION_BY_FIELD = {
    "hyperparameters": "--hp",
    "environment": "--env",
    "secrets": "--secret",
    "options": "--option",
    "inputs": "--input",
    "checkpoints.uri": "--checkpoints",
    "output.uri": "--output",
    "checkpoints.interval": "--checkpoint-interval",
    "compute.instance_preferences": "--instance-preference",
    "compute.price_per_hour": "--price",
}
"""Of fields that are not called like their options."""


def add_origins(error: JobError, ctx: click.Context) -> JobError:
    """Return the error with the origin of each value behind its problem, as far as that is known. ``ctx``: of
    a command that describes a job."""
    job_path = str(ctx.params.get("job_path") or "")
    line_by_field = _lines_of_fields(job_path) if job_path.endswith((".yaml", ".yml")) else {}
    # In the order of the job file; fields of options, and others without a line, come first.
    in_order = sorted(error.problems, key=lambda problem: line_by_field.get(problem.path, 0))
    problems = [_with_origin(problem, _given_options(ctx), line_by_field, job_path) for problem in in_order]
    return JobError(problems, error.job_mapping)


def _with_origin(
    problem: Problem, given_options: frozenset[str], line_by_field: Mapping[str, int], job_path: str
) -> Problem:
    field = problem.path
    option = _option_of(field)
    if option in given_options:
        origin = option
    elif field in line_by_field:
        origin = f"{job_path}, line {line_by_field[field]}"
    else:
        return problem
    if origin in problem.message:
        return problem
    return problem._replace(message=f"{problem.message} (from {origin})")


def _option_of(field: str) -> str:
    """Return the option that sets a field of the job."""
    first_name = field.partition(".")[0]
    option = _OPTION_BY_FIELD.get(field) or _OPTION_BY_FIELD.get(first_name)
    return option or "--" + field.rpartition(".")[2].replace("_", "-")


def _given_options(ctx: click.Context) -> frozenset[str]:
    """Return the options that the command line has, by their long names."""
    from click.core import ParameterSource

    return frozenset(
        max(parameter.opts, key=len)
        for parameter in ctx.command.params
        if isinstance(parameter, click.Option)
        and parameter.name is not None
        and ctx.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    )


def _lines_of_fields(path: str) -> dict[str, int]:
    """Return the line of each key of a job file, by its dotted path; empty for a file that cannot be read."""
    import yaml

    try:
        with open(path, "rb") as file:  # noqa: PTH123
            root = yaml.compose(file, Loader=yaml.SafeLoader)
    except (OSError, yaml.YAMLError, UnicodeError, RecursionError):
        return {}
    line_by_field: dict[str, int] = {}
    pending: list[tuple[str, Any]] = [("", root)]
    visited_nodes: set[int] = set()
    while pending:
        prefix, node = pending.pop()
        if not isinstance(node, yaml.MappingNode) or id(node) in visited_nodes:  # an alias may contain itself
            continue
        visited_nodes.add(id(node))
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                field = f"{prefix}{key_node.value}"
                line_by_field.setdefault(field, key_node.start_mark.line + 1)
                pending.append((f"{field}.", value_node))
    return line_by_field
