"""The option --executor. Executors are looked up when it is given, completed, or shown in a help text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])


class _ExecutorOption(click.Option):
    """Its help names all executors."""

    def __init__(self, *names: Any, heading: str, opening: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.heading = heading
        self._opening = opening

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from smlaunch.local.executors import DEFAULT_EXECUTOR, EXECUTORS

        self.metavar = f"[{'|'.join(EXECUTORS.names())}]"
        summaries = ", or ".join(executor.summary for executor in EXECUTORS.values())
        self.help = f"{self._opening} {summaries}. Default: {DEFAULT_EXECUTOR}."
        return super().get_help_record(ctx)


def executor_option(heading: str, opening: str) -> Callable[[CommandFunction], CommandFunction]:
    """Return the option. Its help is ``opening``, such as "Hosts are", and the executors' summaries."""
    return click.option(
        "--executor",
        cls=_ExecutorOption,
        heading=heading,
        opening=opening,
        callback=_check_executor,
        shell_complete=_complete_executors,
    )


def _check_executor(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    if name is None:
        return None
    from smlaunch.local.executors import EXECUTORS

    if name not in EXECUTORS:
        raise click.BadParameter(f"{name!r} is not one of {', '.join(map(repr, EXECUTORS.names()))}.")
    return name


def _complete_executors(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from smlaunch.local.executors import EXECUTORS

    return [name for name in EXECUTORS.names() if name.startswith(incomplete)]
