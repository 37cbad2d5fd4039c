"""``smlaunch``: all commands, and how errors, interrupts and closed pipes end a command.

A command is imported when it is used: ``smlaunch --help`` loads click and this module only.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

from smlaunch import __version__
from smlaunch.cli.error_report import ErrorReport, requests_json
from smlaunch.cli.garbage_collection import defer_garbage_collection, skip_collection_at_exit
from smlaunch.cli.stdio import discard_stdout, open_closed_streams
from smlaunch.errors import (
    DISK_FULL,
    EXIT_BAD_JOB,
    EXIT_INTERRUPTED,
    EXIT_MACHINE,
    EXIT_SERVICE,
    Problem,
    SmlaunchError,
    is_disk_full,
)

_UNUSABLE_PATH_ERRNOS = frozenset(
    (
        *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
        *(errno.ENAMETOOLONG, errno.EEXIST, errno.EROFS),
    )
)
"""Errors that a path given by the user may cause."""

COMPLETION_VARIABLE = "_SMLAUNCH_COMPLETE"
"""Set by the completion script of the shell; click prints the completions and exits."""

_CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_EPILOG = """\b
Exit codes: 0 completed, 1 the training failed, 2 the job is invalid, 3 refused by the account,
4 no capacity or a service error, 5 stopped by a user, 6 cost or time limit reached,
8 error of this machine (full disk, damaged state, no endpoint), 130 interrupted while the run continues.

\b
Examples:
  smlaunch run train.py --local --hosts 2 --processes-per-host 2
  smlaunch plan job.yaml --region eu-west-1
  smlaunch run job.yaml --detach, then smlaunch logs RUN -f
"""


class LazyGroup(click.Group):
    """A group that imports its commands on use. ``commands``: name -> (module, attribute, short help)."""

    def __init__(self, commands: dict[str, tuple[str, str, str]], **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self._commands = commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._commands.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(entry[0]), entry[1])
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the help, and exit with 0, where no command is given. Overrides a method of click."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self._commands:
            from smlaunch.cli.suggestions import describe_unknown_command

            name, *rest = args
            message = describe_unknown_command(name, rest, self._commands, ctx.command_path)
            raise click.UsageError(message, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in self._commands.items()])


_COMMANDS = {
    "run": ("smlaunch.cli.run", "run", "Plan, launch and follow a training job."),
    "plan": ("smlaunch.cli.plan", "plan", "Show what would run, and why; change nothing."),
    "ls": ("smlaunch.cli.runs", "ls", "List runs, newest first."),
    "show": ("smlaunch.cli.runs", "show", "Show the state or the result of a run."),
    "logs": ("smlaunch.cli.runs", "logs", "Print a run's log."),
    "wait": ("smlaunch.cli.runs", "wait", "Wait for a run and exit with its exit code."),
    "stop": ("smlaunch.cli.runs", "stop", "Stop a run."),
    "shell": ("smlaunch.cli.shell", "shell", "Open a shell in a running local host."),
    "resume": ("smlaunch.cli.runs", "resume", "Continue a run of several segments."),
    "checkpoints": ("smlaunch.cli.checkpoints", "checkpoints", "List a run's checkpoints, or verify them."),
    "verify-resume": (
        "smlaunch.cli.verify_resume",
        "verify_resume",
        "Verify on this machine that a script resumes exactly.",
    ),
    "data": (
        "smlaunch.cli.data_group",
        "data",
        "List, split, pack and transfer data; advise on input modes.",
    ),
    "export": ("smlaunch.cli.export", "export", "Write a job for Step Functions, Airflow or Pipelines."),
    "init": ("smlaunch.cli.init", "init", "Write a first job for a strategy."),
    "schema": ("smlaunch.cli.schema", "schema", "Print the job file's JSON Schema."),
    "local": ("smlaunch.cli.local", "local", "The SageMaker endpoint on this machine."),
    "catalog": ("smlaunch.cli.catalog", "catalog", "Read a region's prices and an account's quotas."),
    "account": ("smlaunch.cli.account", "account", "Print what an account needs, or make it."),
    "smoke": ("smlaunch.cli.smoke", "smoke", "Run a job of five minutes that checks the service."),
    "doctor": ("smlaunch.cli.doctor", "doctor", "Check what works on this machine."),
    "completion": ("smlaunch.cli.completion", "completion", "Print the shell's completion script."),
}

cli = LazyGroup(
    _COMMANDS,
    name="smlaunch",
    help="Launch distributed training on Amazon SageMaker, and the same job on this machine.",
    epilog=_EPILOG,
    context_settings=_CONTEXT_SETTINGS,
)
cli = click.version_option(__version__, prog_name="smlaunch")(cli)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script. Always exits through ``sys.exit`` with an exit code of ``smlaunch.errors``.
    ``arguments``: of a program that calls this and goes on; the process's own by default."""
    ends_with_process = arguments is None
    if ends_with_process:
        defer_garbage_collection()
    open_closed_streams()
    code = run_command(list(sys.argv[1:] if arguments is None else arguments))
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
    if ends_with_process:
        skip_collection_at_exit()
    sys.exit(code)


def run_command(arguments: list[str]) -> int:
    """Run one command of the command line, print its errors, and return its exit code. An unusable path and a
    full disk are errors of the machine or of the user, any other exception that is not our own is a bug."""
    try:
        exit_code = cli.main(arguments, prog_name="smlaunch", standalone_mode=False)
    except SystemExit as exit_request:
        if COMPLETION_VARIABLE in os.environ:  # the shell asked for completions, which click has printed
            return int(exit_request.code or 0)
        # click exits with 1 when stdout is closed; here exit code 1 means that the training failed.
        discard_stdout()
        return 0
    except BrokenPipeError:  # the reader of stdout has what it wanted, such as `head`
        discard_stdout()
        return 0
    except (Exception, KeyboardInterrupt) as error:
        report = _report_of(error)
        try:
            report.show(requests_json(arguments))
        except OSError:  # stdout is a full disk, for example; stderr has the error
            discard_stdout()
        return report.exit_code
    return exit_code if isinstance(exit_code, int) else 0


def _report_of(error: BaseException) -> ErrorReport:
    """Return what the user sees of an error that ends a command."""
    if isinstance(error, SmlaunchError):
        return ErrorReport.of_error(error)
    if isinstance(error, click.ClickException):
        return ErrorReport.of_usage(error)
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return ErrorReport(EXIT_INTERRUPTED, "Interrupted", (Problem("", "interrupted"),))
    if is_disk_full(error):
        text = f"{DISK_FULL}: {error}; free disk space, then run the command again"
        return ErrorReport(EXIT_MACHINE, "MachineError", (Problem("", text),))
    if isinstance(error, FileNotFoundError) and not _has_working_directory():
        text = "the working directory has been removed; change to another one"
        return ErrorReport(EXIT_MACHINE, "MachineError", (Problem("", text),))
    if isinstance(error, OSError) and error.errno in _UNUSABLE_PATH_ERRNOS and error.filename is not None:
        text = f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}"
        return ErrorReport(EXIT_BAD_JOB, "JobError", (Problem("", text),))
    traceback.print_exception(error)
    text = "this is a bug in smlaunch; please report it with the lines above"
    return ErrorReport(EXIT_SERVICE, "Bug", (Problem("", text),))


def _has_working_directory() -> bool:
    try:
        os.getcwd()  # noqa: PTH109  the only question is whether there is one
    except FileNotFoundError:
        return False
    return True


if __name__ == "__main__":
    main()
