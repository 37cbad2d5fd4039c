"""Messages to the user: control characters escaped, secrets masked."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

import click

from smlaunch.secrets.masking import mask_text

if TYPE_CHECKING:
    from smlaunch.data.transfer_progress import TransferProgress
    from smlaunch.runs.plan_job import PreparedRun


_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def escape_controls(text: str) -> str:
    """Escape control characters (C0 and C1, except newline and tab), so that a terminal does not act on
    the text of a job."""
    return text.translate(_CONTROL)


def echo(text: str, *, err: bool = False, file: IO[str] | None = None, **style: Any) -> None:
    """Print a text with control characters escaped. ``style``: keywords of ``click.style``."""
    clean = escape_controls(text)
    click.echo(click.style(clean, **style) if style else clean, err=err, file=file)


def print_message(text: str, **style: Any) -> None:
    """Print a message to stderr, secrets masked."""
    echo(mask_text(text), err=True, **style)


def print_labeled(label: str, text: str, **style: Any) -> None:
    """Print a message to stderr after a styled label, secrets masked."""
    click.echo(click.style(label, **style) + escape_controls(mask_text(text)), err=True)


def print_plan_summary(prepared_run: PreparedRun) -> None:
    """Print the decisions of a plan (strategy: how processes are started; hosts; instance type) with their
    reasons, and its warnings, to stderr. A prepared run is a plan with the job's source."""
    plan = prepared_run.plan
    hosts_text = f"{plan.hosts} host" + ("s" if plan.hosts > 1 else "")
    processes_text = f" x {plan.processes_per_host} processes" if plan.processes_per_host != 1 else ""
    print_message(f"  {plan.strategy} on {hosts_text}{processes_text}, {plan.instance_type}")
    for reason in plan.reasons:
        print_message(f"  {reason.explanation}", dim=True)
    for warning in plan.warnings:
        print_labeled("  warning: ", warning, fg="yellow")


def upload_display() -> Callable[[TransferProgress], None]:
    """Return a callback that shows the progress of an upload. The display is imported on first use."""
    displays: list[Callable[[TransferProgress], None]] = []

    def show_progress(progress: TransferProgress) -> None:
        if not displays:
            from smlaunch.cli.transfer_display import TransferDisplay

            displays.append(TransferDisplay("uploading", "uploaded").show)
        displays[0](progress)

    return show_progress
