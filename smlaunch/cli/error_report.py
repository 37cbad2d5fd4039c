"""How an error of a command is shown: on stderr, and with ``--json`` as a document on stdout too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from smlaunch.cli.json_output import print_json
from smlaunch.errors import EXIT_BAD_JOB, JobError, Problem, SmlaunchError
from smlaunch.secrets.masking import mask_text


class ErrorReport(NamedTuple):
    """An error that ends a command."""

    exit_code: int
    kind: str
    """Name of the exception that Python callers get for it (``smlaunch.errors``), ``UsageError`` for a
    command line that cannot be parsed, ``Interrupted``, or ``Bug``."""
    problems: tuple[Problem, ...]
    help_command: str = ""
    """Prints the usage of the command; empty unless the error is one of usage."""

    @classmethod
    def of_error(cls, error: SmlaunchError) -> ErrorReport:
        problems = error.problems if isinstance(error, JobError) else (Problem("", str(error)),)
        return cls(error.exit_code, type(error).__name__, problems)

    @classmethod
    def of_usage(cls, error: click.ClickException) -> ErrorReport:
        context = getattr(error, "ctx", None)
        help_command = "" if context is None else f"{context.command_path} --help"
        problem = Problem(_parameter_name(error), _usage_message(error))
        return cls(EXIT_BAD_JOB, "UsageError", (problem,), help_command)

    def show(self, as_json: bool) -> None:
        """Print the error to stderr, and with ``as_json`` to stdout as a document; secrets masked."""
        from smlaunch.cli.console import print_labeled, print_message

        is_usage_error = self.kind == "UsageError"
        texts = [problem.message if is_usage_error else str(problem) for problem in self.problems]
        if len(texts) == 1:
            print_labeled("error: ", texts[0], fg="red", bold=True)
            _print_change(self.problems[0])
        else:
            print_labeled("error: ", f"{len(texts)} problems", fg="red", bold=True)
            for problem, text in zip(self.problems, texts, strict=True):
                print_message(f"  {text}", indent="  ")
                _print_change(problem)
        if self.help_command:
            print_message(f"see: {self.help_command}")
        if as_json:
            print_json(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the document of ``--json``."""
        problems = [
            {"path": mask_text(problem.path), "message": mask_text(problem.message)}
            | ({"change": mask_text(problem.change)} if problem.change else {})
            for problem in self.problems
        ]
        error = {"exit_code": self.exit_code, "kind": self.kind, "problems": problems}
        return {"error": error}


def _print_change(problem: Problem) -> None:
    """Print the change that a problem states, on a line of its own that is not wrapped."""
    if problem.change:
        click.echo(f"    change: {mask_text(problem.change)}", err=True)


def requests_json(arguments: Sequence[str]) -> bool:
    """Return whether a command line requests a JSON document. It may be one that cannot be parsed. Arguments
    after ``--`` belong to the user's script."""
    own_arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own_arguments


def _usage_message(error: click.ClickException) -> str:
    if isinstance(error, click.MissingParameter) and _parameter_name(error) == "RUN":
        return "the name of the run is missing; `smlaunch ls` lists runs"
    return error.format_message()


def _parameter_name(error: click.ClickException) -> str:
    """Return the option or argument that a usage error is about, as the user types it; empty if none is."""
    if isinstance(error, (click.NoSuchOption, click.BadOptionUsage)):
        return error.option_name
    parameter = getattr(error, "param", None)
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return "" if parameter is None else str(parameter.human_readable_name)
