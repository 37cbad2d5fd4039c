"""Sentences for people, on stderr."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from smlaunch.masking import mask_text

if TYPE_CHECKING:
    from smlaunch.data.tally import Tally
    from smlaunch.runs.api import Prepared


def tell(text: str) -> None:
    click.echo(mask_text(text), err=True)


def introduce(prepared: Prepared) -> None:
    """The plan in a few lines, before anything is sent: what was decided and why, and what to mind."""
    plan = prepared.plan
    hosts = f"{plan.hosts} host" + ("s" if plan.hosts > 1 else "")
    each = f" x {plan.processes_per_host} processes" if plan.processes_per_host != 1 else ""
    tell(f"  {plan.strategy} on {hosts}{each}, {plan.instance_type}")
    for reason in plan.reasons:
        tell(click.style(f"  {reason.because}", dim=True))
    for warning in plan.warnings:
        tell(click.style("  warning: ", fg="yellow") + warning)


def uploading() -> Callable[[Tally], None]:
    """Shows how far an upload of data is. Nothing is loaded for it before there is one."""
    shown: list[Callable[[Tally], None]] = []

    def watch(tally: Tally) -> None:
        if not shown:
            from smlaunch.cli.moving import Moving

            shown.append(Moving("uploading", "uploaded").show)
        shown[0](tally)

    return watch
