"""What ``smlaunch run`` prints of a plan before it launches it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smlaunch.cli.console import print_labeled, print_message

if TYPE_CHECKING:
    from smlaunch.planner.plan import RunPlan


def print_opening(plan: RunPlan, target_text: str, *, quiet: bool, verbose: bool) -> None:
    """Print to stderr what runs, where, and its limits, unless ``quiet``; then the plan's warnings, and
    where ``verbose`` its reasons before them. ``target_text``: the region, or this machine."""
    from smlaunch.render.run_opening import opening_lines

    if not quiet:
        what, *other_lines = opening_lines(plan, target_text)
        label = f"run {plan.run}"
        print_labeled(label, what.removeprefix(label), indent="  ", bold=True)
        for line in other_lines:
            print_message(line, indent="  ")
    if verbose:
        for reason in plan.reasons:
            print_message(f"  {reason.explanation}", dim=True)
    print_warnings(plan.warnings)


def print_warnings(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        print_labeled("warning: ", warning, indent="  ", fg="yellow", bold=True)
