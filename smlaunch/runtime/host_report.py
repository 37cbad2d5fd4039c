"""What this host leaves for those that read it later: lines in the log, the outcome of the segment beside its
checkpoints, and the failure file.
"""

import os
from functools import partial
from typing import TYPE_CHECKING, Optional

from smlaunch.contract.progress_line import PROGRESS_UNKNOWN
from smlaunch.contract.sagemaker_paths import Paths
from smlaunch.contract.segment import (
    FINISHED_LINE_PREFIX,
    REPORT_FINISHED_VARIABLE,
    REQUIRED_LINE_PREFIX,
    REQUIRED_METRICS_VARIABLE,
    Segment,
)
from smlaunch.runtime import oom_kills, secret_values, segment_outcome_files
from smlaunch.runtime.cluster import Cluster
from smlaunch.runtime.host_outcome import FinishedProcess, HostOutcome
from smlaunch.runtime.host_task import HostTask
from smlaunch.runtime.hyperparameters import read_hyperparameters
from smlaunch.runtime.step_tracker import StepTracker

if TYPE_CHECKING:
    from smlaunch.contract.segment_outcome import SegmentOutcome


def report_earlier_end(segment: Segment, finished_outcome: "SegmentOutcome", cluster: Cluster) -> None:
    """Report that the run has trained to its end in an earlier job: in the log, and on the leader in this
    attempt's outcome file too.
    """
    if cluster.current_host == cluster.leader:
        try:
            segment_outcome_files.write_finished_outcome(segment, finished_outcome)
        except OSError as error:
            log("error: {}: the outcome cannot be written: {}".format(segment.checkpoint_dir, error.strerror))
    print_required_metrics()
    print_finished_metric(1)
    log("warning: this job trained nothing: run {} had trained to its end before".format(segment.run))


def ended_as_planned(
    task: HostTask, host_outcome: HostOutcome, segment_outcome: "Optional[SegmentOutcome]"
) -> bool:
    """Return whether the ranks were only stopped at the planned end of the segment, so that the next one
    continues the training from a checkpoint. ``segment_outcome``: as ``write_segment_outcome`` returns it.
    """
    reached_planned_end = task.segment.checkpoint_dir is not None and host_outcome.is_planned_end(
        other_hosts_stopping=task.segment_deadline.has_passed and len(task.cluster.hosts) > 1
    )
    if not reached_planned_end or not _writes_outcome(task):
        return reached_planned_end
    # Exit code 0 without a readable outcome would look like the end of the run.
    if segment_outcome is None:
        return False
    return not task.is_leader or segment_outcome.result == "continue"


def _writes_outcome(task: HostTask) -> bool:
    """Return whether this host writes an outcome: the leader, and hosts whose ranks do not meet at a
    rendezvous, and so may end apart from each other.
    """
    return task.is_leader or (task.has_ranks and not task.spec.ranks.rendezvous)


def write_segment_outcome(
    task: HostTask, step_tracker: StepTracker, host_outcome: HostOutcome
) -> "Optional[SegmentOutcome]":
    """Write the outcome of the segment, where this host has to: whether the training has finished, or the
    next job is to continue it. Return it; None where nothing was written. A failure to write is only logged,
    since the client continues a run whose outcome is missing. ``host_outcome``: how this host's processes
    ended.
    """
    if not _writes_outcome(task):
        return None
    segment, ranks_succeeded = task.segment, host_outcome.exit_code == 0
    ranks_result = segment_outcome_files.RanksResult(
        all_succeeded=ranks_succeeded,
        got_stop_signal=host_outcome.stop_signal is not None,
        # Then the steps that one rank reports are those of all. Ranks meet at a rendezvous to train together.
        train_together=task.spec.ranks.rendezvous or len(host_outcome.processes) == 1,
        processes=host_outcome.processes,
        result_dirs=(task.paths.model, task.paths.output_data),
        # The stop file appears at the planned end, and asks the ranks to exit. These search the source for
        # what reads it, or the time of the planned end.
        script_may_read_stop_file=partial(may_read_stop_file, task),
        script_may_read_planned_end=partial(_may_read_planned_end, task),
    )
    # The leader's file is that of the job; hosts that train apart write one for each host too.
    writes_file_of_host = not task.is_leader or task.independent_ranks is not None
    try:
        outcome = segment_outcome_files.write_attempt_outcome(
            segment,
            task.segment_deadline,
            task.previous_outcome,
            step_tracker,
            ranks_result,
            host=task.cluster.current_host if writes_file_of_host else None,
            independent_ranks=task.independent_ranks,
            is_leader=task.is_leader,
        )
    except OSError as error:
        log("error: {}: the outcome cannot be written: {}".format(segment.checkpoint_dir, error.strerror))
        return None
    except ValueError as error:  # the ranks wrote it with another release of smlaunch.train
        log("error: {}".format(error))
        return None
    if outcome is not None and task.is_leader:
        _log_segment_outcome(task, step_tracker, outcome, ranks_succeeded)
    return outcome


def _log_segment_outcome(
    task: HostTask, step_tracker: StepTracker, outcome: "SegmentOutcome", ranks_succeeded: bool
) -> None:
    """Log whether the training has finished or continues, and where nothing is known of its progress."""
    reported_no_step = step_tracker.highest_step is None and outcome.step is None
    if task.segment_deadline.planned_end_at is not None and reported_no_step:
        log(PROGRESS_UNKNOWN)  # a warning: whether the chain makes progress cannot be told
    if not ranks_succeeded:
        return
    # What ranks of other hosts have come to in this segment is not known here.
    scope_note = "" if task.independent_ranks is None else " (as far as this host knows)"
    segment = task.segment
    log("segment {} of run {}: {}{}".format(segment.segment, segment.run, outcome.result, scope_note))
    if outcome.result == "finished":
        print_finished_metric(1)  # for an orchestrator that sees only the metrics in the log


def may_read_stop_file(task: HostTask) -> bool:
    """Return whether the program may read the stop file. True for a program of the image, which cannot be
    searched.
    """
    if task.spec.source is None:
        return True
    from smlaunch.runtime import stop_file_scan

    ranks = task.spec.ranks
    args = [*ranks.argv, *(arg for _, arg in ranks.env)]
    texts = [value for name, value in os.environ.items() if not name.startswith("SMLAUNCH_")]
    texts += [arg for arg in args if isinstance(arg, str)]
    texts.append(str(read_hyperparameters(task.paths.hyperparameters)))
    return stop_file_scan.may_read_stop_file(task.paths.code, texts)


def _may_read_planned_end(task: HostTask) -> bool:
    """Return whether the program may read when the planned end is. False for a program of the image."""
    if task.spec.source is None:
        return False
    from smlaunch.runtime import stop_file_scan

    return stop_file_scan.may_read_planned_end(task.paths.code)


def print_required_metrics() -> None:
    for value in os.environ.get(REQUIRED_METRICS_VARIABLE, "").split():
        log(REQUIRED_LINE_PREFIX + value)


def print_finished_metric(finished: int) -> None:
    if os.environ.get(REPORT_FINISHED_VARIABLE):
        log(FINISHED_LINE_PREFIX + str(finished))


def report_failure(paths: Paths, host: str, outcome: HostOutcome, oom_kills_before: int) -> Optional[str]:
    """Log the failure and write the failure file. Returns the text."""
    if outcome.exit_code == 0:
        return None
    from smlaunch.runtime import failure_file

    # Masked before the text is cut to its length, which may leave a part of a value.
    masked_outcome = outcome._replace(
        processes=tuple(map(_with_masked_output, outcome.processes)),
        failed_service=outcome.failed_service and _with_masked_output(outcome.failed_service),
    )
    text = failure_file.describe_failure(host, masked_outcome, oom_kills.count_oom_kills() > oom_kills_before)
    if text is not None:
        text = secret_values.mask_fetched_values(text)
        log(text.partition("\n")[0])
        _write_failure(paths, text, outcome.failed_at)
    return text


def _with_masked_output(process: FinishedProcess) -> FinishedProcess:
    return process._replace(output_tail=secret_values.mask_fetched_values(process.output_tail))


def report_setup_error(paths: Paths, host: Optional[str], problem: str) -> None:
    from smlaunch.contract.failure_reason import format_failure

    log("error: " + problem)
    _write_failure(paths, format_failure(host or "this host", None, None, problem))


def _write_failure(paths: Paths, text: str, failed_at: Optional[float] = None) -> None:
    from smlaunch.runtime import failure_file

    try:
        failure_file.write_failure_file(paths, text, failed_at)
    except OSError as error:  # for example a full disk; the exit code still reports the failure
        from smlaunch.contract.failure_reason import format_unwritten_failure

        log(format_unwritten_failure(error.strerror or str(error), text))


def log(text: str) -> None:
    """Print a line on stderr. That nobody reads it must not change the exit code."""
    try:
        os.write(2, "smlaunch: {}\n".format(text).encode("utf-8", "replace"))
    except OSError:
        return
