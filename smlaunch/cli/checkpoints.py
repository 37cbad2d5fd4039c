"""``smlaunch checkpoints ls | verify``: what a run has kept, and whether it could be loaded."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from threading import Lock
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.main import LazyGroup
from smlaunch.cli.options import GroupedCommand, json_option, option, place_options
from smlaunch.cli.owners import bucket_owner_option, name_owner
from smlaunch.errors import EXIT_TRAINING_FAILED, JobError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from smlaunch.runs.checkpoints import Checkpoints, Step
    from smlaunch.runs.target import Target

_HERE = "smlaunch.cli.checkpoints"

checkpoints = LazyGroup(
    {
        "ls": (_HERE, "ls", "List checkpoints, newest first."),
        "verify": (_HERE, "verify", "Download checkpoints and compare every part with its hash."),
    },
    name="checkpoints",
    help="""The checkpoints of a run, or those below an S3 address.

    A run goes on from the newest whole one. One that is not whole is never loaded: it is still on its way, or
    the job that wrote it was killed.""",
)


@click.command(cls=GroupedCommand, short_help="List checkpoints, newest first.")
@click.argument("where", metavar="RUN|S3URI")
@bucket_owner_option("S3URI; without it, you do")
@place_options
@json_option
def ls(where: str, as_json: bool, **options: Any) -> int:
    """List the checkpoints of a run or below an S3 address, newest first: which are whole, and how the last
    segment ended. Reads names, sizes and manifests; `verify` reads everything."""
    from smlaunch.cli.runs import aligned
    from smlaunch.place import open_place
    from smlaunch.planning.prose import size
    from smlaunch.runs.run import answers_of

    with open_place(options, leaves_no_trace=True) as place, answers_of(place.target):
        name_owner(place.target, where, options)
        found = _find(where, place.target)
        steps, outcome = found.steps(), found.outcome()
    if as_json:
        document = {
            "uri": found.uri,
            "checkpoints": [step.to_dict() for step in steps],
            "outcome": outcome._asdict() if outcome is not None else None,
        }
        click.echo(json.dumps(document, indent=2))
        return 0
    if outcome is not None:
        after = f" at step {outcome.step}" if outcome.step is not None else ""
        click.echo(f"{outcome.job or 'the last segment'}: {outcome.result}{after}", err=True)
    if not steps:
        click.echo(f"no checkpoints below {found.uri}", err=True)
        return 0
    table: list[tuple[str, ...]] = [("STEP", "RANKS", "SIZE", "SAMPLES", "JOB", "STATE")]
    for step in steps:
        made = step.manifest
        ranks, samples, job = (made.world_size, made.samples, made.job) if made else (None, None, None)
        words = (step.step, ranks, size(step.size), samples, job, _state(step))
        table.append(tuple("-" if word is None else str(word) for word in words))
    for line in aligned(table):
        click.echo(line)
    return 0


@click.command(cls=GroupedCommand, short_help="Download checkpoints and compare every part with its hash.")
@click.argument("where", metavar="RUN|S3URI")
@option("Which", "--step", type=click.IntRange(0), help="Only this one; default: all that are committed.")
@bucket_owner_option("S3URI; without it, you do")
@place_options
@json_option
def verify(where: str, step: int | None, as_json: bool, **options: Any) -> int:
    """Download checkpoints and compare every part with its hash. Exit code 1 when one that is committed could
    not be loaded; while a job runs, the newest may still be on its way."""
    from smlaunch.place import open_place
    from smlaunch.runs.run import answers_of

    with open_place(options, leaves_no_trace=True) as place, answers_of(place.target):
        name_owner(place.target, where, options)
        found = _find(where, place.target)
        wanted = _wanted(found, step)
        total = sum(one.size for one in wanted if one.whole)
        with _progress(total, as_json) as heard:
            checked = [one._replace(problems=found.verify(one, heard)) for one in wanted]
    bad = [one for one in checked if one.committed and not one.whole]
    if as_json:
        document = {"uri": found.uri, "checkpoints": [one.to_dict() for one in checked]}
        click.echo(json.dumps(document, indent=2))
        return EXIT_TRAINING_FAILED if bad else 0
    for one in checked:
        click.echo(f"step {one.step}: {_state(one, 'verified')}")
        for problem in one.problems[1:]:
            click.echo(f"  {problem}")
    if not checked:
        click.echo(f"no checkpoints below {found.uri}", err=True)
    return EXIT_TRAINING_FAILED if bad else 0


def _find(where: str, target: Target) -> Checkpoints:
    from smlaunch.runs.checkpoints import Checkpoints
    from smlaunch.runs.run import Run

    if "/" in where:
        return Checkpoints(where, target.storage)
    run = Run.attach(where, target)
    chain = run.chain
    uri = chain.workflow.checkpoints if chain is not None else run.describe().last.checkpoints
    if uri is None:
        raise JobError([Problem("checkpoints", f"{where} keeps none; give their S3 address if you know it")])
    return Checkpoints(uri, target.storage)


def _wanted(found: Checkpoints, step: int | None) -> Sequence[Step]:
    steps = found.steps()
    if step is None:
        return [one for one in steps if one.committed]
    chosen = [one for one in steps if one.step == step]
    if not chosen:
        there = ", ".join(str(one.step) for one in steps) or "none"
        raise JobError([Problem("--step", f"{step} is not below {found.uri}; there are: {there}")])
    return chosen


def _state(step: Step, good: str = "whole") -> str:
    if step.whole:
        return good
    more = f" (and {len(step.problems) - 1} more)" if len(step.problems) > 1 else ""
    return f"{step.problems[0]}{more}" if not step.committed else f"not whole: {step.problems[0]}{more}"


def _progress(total: int, as_json: bool) -> AbstractContextManager[Callable[[int], None]]:
    """A bar on stderr, for a person who waits."""
    if as_json or not total or not sys.stderr.isatty():
        return nullcontext(lambda count: None)
    return _Bar(total)


class _Bar:
    """``click``'s bar, told from several threads."""

    def __init__(self, total: int) -> None:
        self._bar = click.progressbar(length=total, label="verifying", file=sys.stderr)
        self._lock = Lock()

    def __enter__(self) -> Callable[[int], None]:
        self._bar.__enter__()
        return self._heard

    def __exit__(self, *raised: Any) -> None:
        self._bar.__exit__(*raised)

    def _heard(self, count: int) -> None:
        with self._lock:
            self._bar.update(count)
