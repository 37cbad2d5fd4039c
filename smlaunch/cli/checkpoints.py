"""``smlaunch checkpoints ls | verify``: list the checkpoints of a run and verify their hashes."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from threading import Lock
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.bucket_owner import bucket_owner_option, set_bucket_owner
from smlaunch.cli.console import echo
from smlaunch.cli.main import LazyGroup
from smlaunch.cli.options import GroupedCommand, connection_options, grouped_option, json_option
from smlaunch.errors import EXIT_TRAINING_FAILED, JobError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from smlaunch.runs.checkpoints import CheckpointStep, RunCheckpoints
    from smlaunch.runs.target import Target

_MODULE = "smlaunch.cli.checkpoints"

checkpoints = LazyGroup(
    {
        "ls": (_MODULE, "ls", "List checkpoints, newest first."),
        "verify": (_MODULE, "verify", "Download checkpoints and compare every shard with its hash."),
    },
    name="checkpoints",
    help="""List and verify the checkpoints of a run, or those below an S3 address.

    A run continues from its newest complete checkpoint. An incomplete checkpoint is never loaded: it is still
    being uploaded, or the job that wrote it was killed.""",
)


@click.command(cls=GroupedCommand, short_help="List checkpoints, newest first.")
@click.argument("run_or_uri", metavar="RUN|S3URI")
@bucket_owner_option("S3URI; default: your account")
@connection_options
@json_option
def ls(run_or_uri: str, as_json: bool, **options: Any) -> int:
    """List the checkpoints of a run or below an S3 address, newest first: which are complete, and how the
    last segment ended. Reads names, sizes and manifests; `verify` reads all data."""
    from smlaunch.cli.runs import align_columns
    from smlaunch.connection.connect import open_connection
    from smlaunch.runs.run import translate_call_errors
    from smlaunch.text.format import format_size

    with open_connection(options, read_only=True) as connection, translate_call_errors(connection.target):
        set_bucket_owner(connection.target, run_or_uri, options)
        run_checkpoints = _find_checkpoints(run_or_uri, connection.target)
        steps, outcome = run_checkpoints.list_steps(), run_checkpoints.read_outcome()
    if as_json:
        document = {
            "uri": run_checkpoints.uri,
            "checkpoints": [step.to_dict() for step in steps],
            "outcome": outcome._asdict() if outcome is not None else None,
        }
        click.echo(json.dumps(document, indent=2))
        return 0
    if outcome is not None:
        step_text = f" at step {outcome.step}" if outcome.step is not None else ""
        echo(f"{outcome.job or 'the last segment'}: {outcome.result}{step_text}", err=True)
    if not steps:
        click.echo(f"no checkpoints below {run_checkpoints.uri}", err=True)
        return 0
    table: list[tuple[str, ...]] = [("STEP", "RANKS", "SIZE", "SAMPLES", "JOB", "STATE")]
    for step in steps:
        manifest = step.manifest
        ranks, samples, job = (
            (manifest.world_size, manifest.samples, manifest.job) if manifest else (None, None, None)
        )
        cells = (step.step, ranks, format_size(step.size_bytes), samples, job, _describe_state(step))
        table.append(tuple("-" if cell is None else str(cell) for cell in cells))
    for line in align_columns(table):
        echo(line)
    return 0


@click.command(cls=GroupedCommand, short_help="Download checkpoints and compare every shard with its hash.")
@click.argument("run_or_uri", metavar="RUN|S3URI")
@grouped_option(
    "Selection",
    "--step",
    type=click.IntRange(0),
    help="Step of one checkpoint; default: all committed checkpoints.",
)
@bucket_owner_option("S3URI; default: your account")
@connection_options
@json_option
def verify(run_or_uri: str, step: int | None, as_json: bool, **options: Any) -> int:
    """Download checkpoints and compare every shard with its hash. The exit code is 1 when a committed
    checkpoint cannot be loaded; while a job runs, the newest one may still be uploading."""
    from smlaunch.connection.connect import open_connection
    from smlaunch.runs.run import translate_call_errors

    with open_connection(options, read_only=True) as connection, translate_call_errors(connection.target):
        set_bucket_owner(connection.target, run_or_uri, options)
        run_checkpoints = _find_checkpoints(run_or_uri, connection.target)
        steps = _select_steps(run_checkpoints, step)
        total_bytes = sum(checkpoint.size_bytes for checkpoint in steps if checkpoint.is_complete)
        with _verify_progress(total_bytes, as_json) as on_progress:
            verified_steps = [
                checkpoint._replace(problems=run_checkpoints.verify_hashes(checkpoint, on_progress))
                for checkpoint in steps
            ]
    broken_steps = [
        checkpoint for checkpoint in verified_steps if checkpoint.is_committed and not checkpoint.is_complete
    ]
    if as_json:
        document = {
            "uri": run_checkpoints.uri,
            "checkpoints": [checkpoint.to_dict() for checkpoint in verified_steps],
        }
        click.echo(json.dumps(document, indent=2))
        return EXIT_TRAINING_FAILED if broken_steps else 0
    for checkpoint in verified_steps:
        echo(f"step {checkpoint.step}: {_describe_state(checkpoint, 'verified')}")
        for problem in checkpoint.problems[1:]:
            echo(f"  {problem}")
    if not verified_steps:
        click.echo(f"no checkpoints below {run_checkpoints.uri}", err=True)
    return EXIT_TRAINING_FAILED if broken_steps else 0


def _find_checkpoints(run_or_uri: str, target: Target) -> RunCheckpoints:
    """Return the checkpoints of a run, by its name, or below an S3 address. Raises JobError for a run without
    any."""
    from smlaunch.runs.checkpoints import RunCheckpoints
    from smlaunch.runs.run import Run

    if "/" in run_or_uri:
        return RunCheckpoints(run_or_uri, target.storage)
    run = Run.attach(run_or_uri, target)
    chain = run.chain_driver
    uri = chain.workflow.checkpoints if chain is not None else run.describe().last_job.checkpoints_uri
    if uri is None:
        raise JobError(
            [
                Problem(
                    "checkpoints",
                    f"{run_or_uri} saves no checkpoints; if there are any, give their S3 address",
                )
            ]
        )
    return RunCheckpoints(uri, target.storage)


def _select_steps(run_checkpoints: RunCheckpoints, step: int | None) -> Sequence[CheckpointStep]:
    steps = run_checkpoints.list_steps()
    if step is None:
        return [candidate for candidate in steps if candidate.is_committed]
    selected = [candidate for candidate in steps if candidate.step == step]
    if not selected:
        known_steps = ", ".join(str(candidate.step) for candidate in steps) or "none"
        raise JobError(
            [Problem("--step", f"{step} is not below {run_checkpoints.uri}; steps there: {known_steps}")]
        )
    return selected


def _describe_state(step: CheckpointStep, complete_text: str = "complete") -> str:
    """Return ``complete_text`` for a complete checkpoint, otherwise its first problem."""
    if step.is_complete:
        return complete_text
    more_text = f" (and {len(step.problems) - 1} more)" if len(step.problems) > 1 else ""
    return (
        f"{step.problems[0]}{more_text}"
        if not step.is_committed
        else f"incomplete: {step.problems[0]}{more_text}"
    )


def _verify_progress(total_bytes: int, as_json: bool) -> AbstractContextManager[Callable[[int], None]]:
    """Progress bar on stderr, where stderr is a terminal and there is something to download."""
    if as_json or not total_bytes or not sys.stderr.isatty():
        return nullcontext(lambda count: None)
    return _ProgressBar(total_bytes)


class _ProgressBar:
    """``click``'s progress bar, updated by several threads."""

    def __init__(self, total_bytes: int) -> None:
        self._bar = click.progressbar(length=total_bytes, label="verifying", file=sys.stderr)
        self._lock = Lock()

    def __enter__(self) -> Callable[[int], None]:
        self._bar.__enter__()
        return self._update

    def __exit__(self, *raised: Any) -> None:
        self._bar.__exit__(*raised)

    def _update(self, byte_count: int) -> None:
        with self._lock:
            self._bar.update(byte_count)
