"""``smlaunch checkpoints ls | verify``: list the checkpoints of a run and verify their hashes."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from threading import Lock
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.bucket_owner import bucket_owner_option, set_bucket_owner
from smlaunch.cli.console import echo
from smlaunch.cli.json_output import print_json
from smlaunch.cli.main import LazyGroup
from smlaunch.cli.options import GroupedCommand, connection_options, grouped_option, json_option
from smlaunch.errors import EXIT_TRAINING_FAILED, JobError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from smlaunch.runs.launch_target import Target
    from smlaunch.runs.run_checkpoints import CheckpointStep, RunCheckpoints

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
    from smlaunch.cli.run_connection import open_connection_to_run
    from smlaunch.cli.runs import align_columns
    from smlaunch.runs.call_errors import translate_call_errors

    with (
        open_connection_to_run(run_or_uri, options, read_only=True) as connection,
        translate_call_errors(connection.target),
    ):
        set_bucket_owner(connection.target, run_or_uri, options)
        # The target is the region or the local endpoint; it has the storage that is read.
        run_checkpoints = _find_checkpoints(run_or_uri, connection.target)
        checkpoints, last_outcome = run_checkpoints.list_steps(), run_checkpoints.read_outcome()
    if as_json:
        document = {
            "uri": run_checkpoints.uri,
            "checkpoints": [checkpoint.to_dict() for checkpoint in checkpoints],
            "outcome": last_outcome._asdict() if last_outcome is not None else None,
        }
        print_json(document)
        return 0
    if last_outcome is not None:  # what the last segment wrote at its end
        step_text = f" at step {last_outcome.step}" if last_outcome.step is not None else ""
        echo(f"{last_outcome.job or 'the last segment'}: {last_outcome.result}{step_text}", err=True)
    if not checkpoints:
        click.echo(f"no checkpoints below {run_checkpoints.uri}", err=True)
        return 0
    column_names = ("STEP", "RANKS", "SIZE", "SAMPLES", "JOB", "STATE")
    for line in align_columns([column_names, *map(_checkpoint_row, checkpoints)]):
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
    from smlaunch.cli.run_connection import open_connection_to_run
    from smlaunch.runs.call_errors import translate_call_errors

    with (
        open_connection_to_run(run_or_uri, options, read_only=True) as connection,
        translate_call_errors(connection.target),
    ):
        set_bucket_owner(connection.target, run_or_uri, options)
        run_checkpoints = _find_checkpoints(run_or_uri, connection.target)
        selected_checkpoints = _select_steps(run_checkpoints, step)  # the committed ones, without --step
        total_bytes = sum(
            checkpoint.size_bytes for checkpoint in selected_checkpoints if checkpoint.is_complete
        )
        with _verify_progress_bar(total_bytes, as_json) as on_verified_bytes:
            verified_checkpoints = [
                checkpoint._replace(problems=run_checkpoints.verify_hashes(checkpoint, on_verified_bytes))
                for checkpoint in selected_checkpoints
            ]
    # One without a commit was never finished, so nothing is broken about it.
    broken_checkpoints = [
        checkpoint
        for checkpoint in verified_checkpoints
        if checkpoint.is_committed and not checkpoint.is_complete
    ]
    if as_json:
        document = {
            "uri": run_checkpoints.uri,
            "checkpoints": [checkpoint.to_dict() for checkpoint in verified_checkpoints],
        }
        print_json(document)
        return EXIT_TRAINING_FAILED if broken_checkpoints else 0
    for checkpoint in verified_checkpoints:
        echo(f"step {checkpoint.step}: {_describe_checkpoint_state(checkpoint, 'verified')}")
        for problem in checkpoint.problems[1:]:  # the state has the first one
            echo(f"  {problem}")
    if not verified_checkpoints:
        click.echo(f"no checkpoints below {run_checkpoints.uri}", err=True)
    return EXIT_TRAINING_FAILED if broken_checkpoints else 0


def _checkpoint_row(checkpoint: CheckpointStep) -> tuple[str, ...]:
    """Return the cells of a checkpoint in the table of ``smlaunch checkpoints ls``; ``-`` for what only its
    manifest says, if it has none (the manifest lists the files of a checkpoint; ``world_size``: the number of
    ranks)."""
    from smlaunch.text.format import format_size

    manifest = checkpoint.manifest
    cells = (
        checkpoint.step,
        manifest.world_size if manifest else None,
        format_size(checkpoint.size_bytes),
        manifest.samples if manifest else None,
        manifest.job if manifest else None,
        _describe_checkpoint_state(checkpoint),
    )
    return tuple("-" if cell is None else str(cell) for cell in cells)


def _find_checkpoints(run_or_uri: str, target: Target) -> RunCheckpoints:
    """Return the checkpoints of a run, given by its name, or below an S3 address. ``target``: the region or
    local endpoint. Raises JobError for a run that saves none."""
    from smlaunch.runs.attach_run import attach
    from smlaunch.runs.run_checkpoints import RunCheckpoints

    if "/" in run_or_uri:  # a run's name has none
        return RunCheckpoints(run_or_uri, target.storage)
    run = attach(run_or_uri, target)
    chain_drivers = run.chain_drivers  # submit the jobs of a chain or of shards; none for a run of one job
    checkpoints_uri = (
        chain_drivers[0].workflow.checkpoints
        if len(chain_drivers) == 1
        else run.describe().last_job.checkpoints_uri
    )
    if checkpoints_uri is None:
        raise JobError(
            [
                Problem(
                    "checkpoints",
                    f"{run_or_uri} saves no checkpoints; if there are any, give their S3 address",
                )
            ]
        )
    return RunCheckpoints(checkpoints_uri, target.storage)


def _select_steps(run_checkpoints: RunCheckpoints, step: int | None) -> Sequence[CheckpointStep]:
    """Return the checkpoint of this step; without a step, all committed ones. Raises JobError for a step
    without a checkpoint."""
    checkpoints = run_checkpoints.list_steps()
    if step is None:
        return [checkpoint for checkpoint in checkpoints if checkpoint.is_committed]
    selected = [checkpoint for checkpoint in checkpoints if checkpoint.step == step]
    if not selected:
        known_steps = ", ".join(str(checkpoint.step) for checkpoint in checkpoints) or "none"
        raise JobError(
            [Problem("--step", f"{step} is not below {run_checkpoints.uri}; steps there: {known_steps}")]
        )
    return selected


def _describe_checkpoint_state(checkpoint: CheckpointStep, text_if_complete: str = "complete") -> str:
    """Return ``text_if_complete`` for a complete checkpoint, otherwise its first problem and how many more it
    has. A checkpoint that was committed (finished by its writer) but lacks something is incomplete."""
    if checkpoint.is_complete:
        return text_if_complete
    further_count = len(checkpoint.problems) - 1
    further_text = f" (and {further_count} more)" if further_count else ""
    # The only problem of an uncommitted one says that itself.
    state_prefix = "incomplete: " if checkpoint.is_committed else ""
    return f"{state_prefix}{checkpoint.problems[0]}{further_text}"


def _verify_progress_bar(total_bytes: int, as_json: bool) -> AbstractContextManager[Callable[[int], None]]:
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
