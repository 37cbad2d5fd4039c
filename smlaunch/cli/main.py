"""``smlaunch``: the commands by name, and what every command does about errors, interrupts and closed pipes.

Commands are imported when they are used: ``smlaunch --help`` loads click and this file.
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
from smlaunch.cli.garbage import spare_start
from smlaunch.cli.pipes import forget_stdout
from smlaunch.errors import (
    DISK_FULL,
    EXIT_BAD_JOB,
    EXIT_INTERRUPTED,
    EXIT_MACHINE,
    EXIT_SERVICE,
    JobError,
    SmlaunchError,
    is_disk_full,
)

_OF_A_PATH = frozenset(
    (
        *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
        *(errno.ENAMETOOLONG, errno.EEXIST, errno.EROFS),
    )
)
"""What a path of the user's may be met with, wherever it is first used."""

COMPLETION_VARIABLE = "_SMLAUNCH_COMPLETE"
"""Set by the shell's completion script: click answers it and exits."""

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_EPILOG = """\b
Exit codes: 0 completed, 1 the training failed, 2 the job cannot work as written, 3 refused by the
account, 4 no capacity or a service fault, 5 stopped by a person, 6 cost or time cap reached,
8 this machine cannot (full disk, damaged state, no endpoint), 130 interrupted while the run goes on.

\b
Examples:
  smlaunch run train.py --local --hosts 2 --processes-per-host 2
  smlaunch plan job.yaml --region eu-west-1
  smlaunch run job.yaml --detach, then smlaunch logs RUN -f
"""


class LazyGroup(click.Group):
    """A group whose commands are imported on use. ``lazy``: name -> (module, attribute, one line of help)."""

    def __init__(self, lazy: dict[str, tuple[str, str, str]], **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = self._lazy.get(cmd_name)
        if found is None:
            return None
        command: click.Command = getattr(import_module(found[0]), found[1])
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self._lazy:
            from smlaunch.suggest import did_you_mean

            script = args[0].endswith((".py", ".sh", ".yaml", ".yml"))
            hint = f"; to run it: smlaunch run {args[0]}" if script else did_you_mean(args[0], self._lazy)
            raise click.UsageError(f"command {args[0]!r} is unknown{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in self._lazy.items()])


_COMMANDS = {
    "run": ("smlaunch.cli.run", "run", "Plan, launch and follow a training job."),
    "plan": ("smlaunch.cli.plan", "plan", "Decide and explain; changes nothing anywhere."),
    "ls": ("smlaunch.cli.runs", "ls", "List runs, newest first."),
    "show": ("smlaunch.cli.runs", "show", "Show where a run is, or how it ended."),
    "logs": ("smlaunch.cli.runs", "logs", "Print a run's log."),
    "wait": ("smlaunch.cli.runs", "wait", "Wait for a run and end with its exit code."),
    "stop": ("smlaunch.cli.runs", "stop", "Stop a run."),
    "resume": ("smlaunch.cli.runs", "resume", "Go on with a run of several segments."),
    "checkpoints": ("smlaunch.cli.checkpoints", "checkpoints", "List a run's checkpoints, or verify them."),
    "verify-resume": (
        "smlaunch.cli.verify_resume",
        "verify_resume",
        "Prove that a script resumes exactly, on this machine.",
    ),
    "data": ("smlaunch.cli.data", "data", "List data, split it by bytes, pack it, choose how it is read."),
    "export": ("smlaunch.cli.export", "export", "Write a job for Step Functions, Airflow or Pipelines."),
    "init": ("smlaunch.cli.init", "init", "Write a first job for a strategy."),
    "schema": ("smlaunch.cli.schema", "schema", "Print the job file's JSON Schema."),
    "local": ("smlaunch.cli.local", "local", "The SageMaker endpoint on this machine."),
    "doctor": ("smlaunch.cli.doctor", "doctor", "Say what works here, and why not what does not."),
    "completion": ("smlaunch.cli.completion", "completion", "Print the shell's completion script."),
}

cli = LazyGroup(
    _COMMANDS,
    name="smlaunch",
    help="Launch distributed training on Amazon SageMaker, and the very same job on this machine.",
    epilog=_EPILOG,
    context_settings=_SETTINGS,
)
cli = click.version_option(__version__, prog_name="smlaunch")(cli)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Always leaves by ``sys.exit`` with a code of the table in ``errors``."""
    spare_start()
    code = run_command(list(sys.argv[1:] if arguments is None else arguments))
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        forget_stdout()
    sys.exit(code)


def run_command(arguments: list[str]) -> int:
    """One command's exit code; everything a person needs to read has been printed."""
    try:
        answer = cli.main(arguments, prog_name="smlaunch", standalone_mode=False)
    except JobError as error:
        _report_problems(error)
        return error.exit_code
    except SmlaunchError as error:
        _complain(str(error))
        return error.exit_code
    except click.UsageError as error:
        _complain(error.format_message())
        if error.ctx is not None:
            click.echo(f"see: {error.ctx.command_path} --help", err=True)
        return EXIT_BAD_JOB
    except click.ClickException as error:
        _complain(error.format_message())
        return EXIT_BAD_JOB
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted")
        return EXIT_INTERRUPTED
    except SystemExit as leaving:
        if COMPLETION_VARIABLE in os.environ:
            return int(leaving.code or 0)
        # click itself exits with 1 when the reader of stdout has gone, which here means a failed training.
        forget_stdout()
        return 0
    except BrokenPipeError:
        forget_stdout()
        return 0
    except Exception as error:
        if is_disk_full(error):
            _complain(f"{DISK_FULL}: {error}; make room, then do it again")
            return EXIT_MACHINE
        if isinstance(error, OSError) and error.errno in _OF_A_PATH and error.filename is not None:
            _complain(f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}")
            return EXIT_BAD_JOB
        traceback.print_exc()
        _complain("this is a mistake in smlaunch itself; please report it with the lines above")
        return EXIT_SERVICE
    return answer if isinstance(answer, int) else 0


def _report_problems(error: JobError) -> None:
    problems = error.problems
    if len(problems) == 1:
        _complain(str(problems[0]))
        return
    _complain(f"{len(problems)} problems")
    from smlaunch.masking import mask_text

    for problem in problems:
        click.echo(f"  {mask_text(str(problem))}", err=True)


def _complain(message: str) -> None:
    from smlaunch.masking import mask_text

    click.echo(click.style("error: ", fg="red", bold=True) + mask_text(message), err=True)


if __name__ == "__main__":
    main()
