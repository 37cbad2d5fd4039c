"""What a program knows of a run without a request: from what it has followed and described. Its card for a
notebook's cell is made of that."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from smlaunch.contract.progress_line import DATA_WAIT_METRIC
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.job_poller import Event, LogLine, StateChange
from smlaunch.runs.progress_estimate import ProgressEstimate, describe_progress
from smlaunch.runs.run_outcome import RunOutcome, summarize_run
from smlaunch.text.format import format_dollars, format_elapsed

if TYPE_CHECKING:
    from smlaunch.render.run_card import Curve, RunCard, State
    from smlaunch.runs.launch_target import Target
    from smlaunch.runs.metric_curve import MetricCurves

_MAX_SHOWN_JOBS = _MAX_SHOWN_MODELS = _MAX_SHOWN_WARNINGS = 3


class RunObservation:
    """The newest facts about a run. All are unknown before the first one was read."""

    def __init__(self) -> None:
        self.outcome: RunOutcome | None = None
        self._has_logs_of_outcome = False
        self._observed_at = 0.0
        self._last_change: StateChange | None = None
        self._progress: ProgressEstimate | None = None
        self._curves: MetricCurves | None = None
        self._followed_jobs: dict[str, bool] = {}
        """Whether each job was followed to its end, the run's name for shards, in the order of following."""

    def keep_outcome(self, outcome: RunOutcome, *, has_logs: bool) -> None:
        """Keep an outcome. ``has_logs``: it has the last metrics and a failure's traceback. One that has not
        replaces none that says the same with them."""
        known = self.outcome
        if known is not None and self._has_logs_of_outcome and not has_logs:
            is_same_end = known.exit_code is not None and known.exit_code == outcome.exit_code
            if is_same_end and len(known.jobs) == len(outcome.jobs):
                return
        self.outcome, self._has_logs_of_outcome = outcome, has_logs
        self._observed_at = time.time()

    def add_events(self, events: Sequence[Event], follower: JobFollower, *, follows_one_job: bool) -> None:
        """Add what a follower has read. ``follows_one_job``: metrics of several shards make no curve."""
        changes = [event for event in events if isinstance(event, StateChange)]
        if changes:
            self._last_change = changes[-1]
        self._progress = follower.progress.estimate(time.time()) or self._progress
        self._observed_at = time.time()
        self._followed_jobs[follower.job] = follower.is_finished
        if follows_one_job:
            if self._curves is None:
                from smlaunch.runs.metric_curve import MetricCurves

                self._curves = MetricCurves()
            self._curves.add_lines(event for event in events if isinstance(event, LogLine))
        else:
            self.outcome = None  # it is older than these events, and shards are described on request only

    def card(self, run: str, target: Target, jobs: Sequence[str], *, is_attached: bool) -> RunCard:
        """Return the card. Makes no request."""
        from smlaunch.render.run_card import RunCard

        outcome = self.outcome
        has_ended = outcome is not None and outcome.exit_code is not None
        where = "this machine" if target.kind == "local" else f"region {target.region_name}"
        rows = [*self._result_rows(target), ("where", where), ("jobs", _jobs_text(jobs))]
        if not self._observed_at:
            headline = "attached to it" if is_attached else "launched"
            return RunCard(run, headline, "running", rows, hint="run.wait() follows it")
        # Of a run that has ended elsewhere, what was read before is not how it ended.
        shows_followed = not has_ended or self._has_followed_to_end()
        progress = self._progress if shows_followed else None
        failure = None if outcome is None or not has_ended else outcome.last_job.failure
        read_at = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(self._observed_at))
        return RunCard(
            run=run,
            headline=self._headline(),
            state=self._state(),
            rows=[*self._cost_rows(target), *rows],
            progress=self._progress_text(progress),
            fraction_done=self._fraction_done(progress),
            metrics=self._metrics(progress),
            curve=self._curve() if shows_followed else None,
            traceback=failure.traceback if failure else "",
            hint=outcome.hint if outcome else "",
            note="" if has_ended else f"as read at {read_at}",
        )

    def _headline(self) -> str:
        if self.outcome is not None and self.outcome.jobs:
            return summarize_run(self.outcome)
        if self._last_change is None:
            return "submitted"
        message = f": {self._last_change.message}" if self._last_change.message else ""
        return f"in progress ({self._last_change.state}{message})"

    def _state(self) -> State:
        outcome = self.outcome
        if outcome is None or outcome.exit_code is None:
            return "running"
        states: dict[str, State] = {"Completed": "completed", "Stopped": "stopped"}
        return states.get(outcome.status, "failed")

    def _has_followed_to_end(self) -> bool:
        """Return whether the last job was followed to its end, and each one from the first followed job on:
        others may have driven the run meanwhile."""
        assert self.outcome is not None
        if self._followed_jobs.get(self.outcome.run):  # shards
            return True
        jobs = [job.name for job in self.outcome.jobs]
        while jobs and jobs[0] not in self._followed_jobs:
            jobs.pop(0)
        return bool(jobs) and all(self._followed_jobs.get(job) for job in jobs)

    def _progress_text(self, progress: ProgressEstimate | None) -> str:
        if progress is None:
            return ""
        progress = progress._replace(metrics={})  # they have rows of their own
        if self._state() != "running":  # then it has neither speed nor remaining time
            progress = progress._replace(steps_per_second=None, eta_seconds=None)
        # The last one of a script that counts from 0 is 97% of 30 steps, which nothing lacks.
        with_percent = not self._is_complete(progress)
        return ", ".join(describe_progress(progress, with_percent=with_percent))

    def _fraction_done(self, progress: ProgressEstimate | None) -> float | None:
        if progress is None:
            return None
        return 1.0 if self._is_complete(progress) else progress.fraction_done

    def _is_complete(self, progress: ProgressEstimate) -> bool:
        """Return whether the run has completed and its last step is the last one, counted from 0."""
        is_last = progress.step is not None and progress.step + 1 == progress.total_steps
        return is_last and self._state() == "completed"

    def _metrics(self, progress: ProgressEstimate | None) -> dict[str, float]:
        if self.outcome is not None and len(self.outcome.individual_outcomes) > 1:
            return {}  # each shard has its own
        metrics = (self.outcome.metrics if self.outcome else None) or (progress.metrics if progress else {})
        return {name: value for name, value in metrics.items() if name != DATA_WAIT_METRIC}

    def _curve(self) -> Curve | None:
        from smlaunch.render.run_card import Curve

        course = self._curves.main_course() if self._curves else None
        return None if course is None else Curve(*course)

    def _cost_rows(self, target: Target) -> list[tuple[str, str]]:
        if target.kind == "local":
            return [("cost", "nothing: it runs on this machine")]
        from smlaunch.runs.run_cost import estimate_dollars

        dollars = None if self.outcome is None else estimate_dollars(self.outcome, target)
        if self.outcome is None or dollars is None:
            return [("cost", "not known")]
        so_far = " so far" if self.outcome.exit_code is None else ""
        return [("cost", f"{format_dollars(dollars)}{so_far}, estimated from on-demand prices")]

    def _result_rows(self, target: Target) -> list[tuple[str, str]]:
        """Return how long the jobs have trained, where results are, and what the hosts have warned of."""
        if self.outcome is None or not self.outcome.jobs:
            return []
        known_seconds: list[float] = []
        for job in self.outcome.jobs:
            if job.training_seconds is not None:
                known_seconds.append(job.training_seconds)
            elif job.started is not None:  # its training goes on
                known_seconds.append((job.ended or self._observed_at) - job.started)
        rows: list[tuple[str, str]] = []
        if known_seconds:
            rows.append(("training time", format_elapsed(round(max(0.0, sum(known_seconds))))))
        if self.outcome.step is not None:
            rows.append(("checkpoint", f"of step {self.outcome.step}"))
        model_uris = [
            run_outcome.model_artifacts
            for run_outcome in self.outcome.individual_outcomes  # of each shard, or of the run itself
            if run_outcome.exit_code is not None
        ]
        rows += [
            ("model", str(target.local_path(uri) or uri)) for uri in model_uris[:_MAX_SHOWN_MODELS] if uri
        ]
        return rows + [("warning", warning) for warning in self.outcome.warnings[:_MAX_SHOWN_WARNINGS]]


def _jobs_text(jobs: Sequence[str]) -> str:
    if len(jobs) <= _MAX_SHOWN_JOBS:
        return ", ".join(jobs)
    return f"{len(jobs)}, the newest {jobs[-1]}"
