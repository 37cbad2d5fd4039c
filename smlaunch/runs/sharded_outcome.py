"""Outcome of a sharded run: of several runs that each train on a shard of the data. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smlaunch.chain.next_action import FinishRun
from smlaunch.contract.run_names import JobName
from smlaunch.runs.run_outcome import JobOutcome, RunOutcome, summarize_run


@dataclass(frozen=True, repr=False)
class ShardedRunOutcome(RunOutcome):
    """Outcome of a sharded run. ``jobs`` holds the jobs of all shards."""

    shard_outcomes: tuple[RunOutcome, ...] = ()

    @classmethod
    def from_shards(cls, run: str, shard_outcomes: Sequence[RunOutcome]) -> ShardedRunOutcome:
        """Return the outcome of all shards. One that has no job yet gets a placeholder for it."""
        shard_outcomes = tuple(map(_add_placeholder_job, shard_outcomes))
        jobs = tuple(job for shard in shard_outcomes for job in shard.jobs)
        final_result = _result_of_all_shards(shard_outcomes)
        return cls(run, jobs, is_chain=True, final_result=final_result, shard_outcomes=shard_outcomes)

    @property
    def last_job(self) -> JobOutcome:
        """The last job of the shard that decided how the run ended, else of the newest shard."""
        return _shard_that_decides_result(self.shard_outcomes).last_job

    def describe_end(self, result: FinishRun) -> str:
        """Return one line for the user about how the run ended, which names the shard that decided it."""
        return result.summary

    @property
    def individual_outcomes(self) -> tuple[RunOutcome, ...]:
        return self.shard_outcomes

    @property
    def model_artifacts(self) -> str | None:
        """None: each shard has its own model."""
        return None

    @property
    def metrics(self) -> Mapping[str, float]:
        """The newest metrics of each shard, such as ``loss of digits-p2``."""
        return {
            f"{name} of {shard.run}": value
            for shard in self.shard_outcomes
            for name, value in shard.metrics.items()
        }

    def to_dict(self) -> dict[str, Any]:
        rows = [
            {
                "run": shard.run,
                "status": shard.status,
                "exit_code": shard.exit_code,
                "because": summarize_run(shard),
                "model_artifacts": shard.model_artifacts,
                "output": shard.last_job.output_uri,
                "step": shard.step,
            }
            for shard in self.shard_outcomes
        ]
        return {**super().to_dict(), "shards": rows}


def _shard_that_decides_result(shards: Sequence[RunOutcome]) -> RunOutcome:
    """Return the first shard that did not complete; else the last unfinished shard, or the last one."""
    failed = next((shard for shard in shards if shard.exit_code), None)
    unfinished = [shard for shard in shards if shard.exit_code is None]
    return failed or (unfinished or list(shards))[-1]


def _result_of_all_shards(shards: Sequence[RunOutcome]) -> FinishRun | None:
    """Return the run's final result; None while a shard goes on."""
    if any(shard.exit_code is None for shard in shards):
        return None
    completed = sum(shard.exit_code == 0 for shard in shards)
    if completed == len(shards):
        return FinishRun(0, "Completed", f"completed in all {completed} shards")
    deciding = _shard_that_decides_result(shards)
    completed_text = f"{completed} of {len(shards)} shards have completed"
    sentence = f"{deciding.run}: {summarize_run(deciding)}; {completed_text}"
    return FinishRun(deciding.exit_code or 0, deciding.status, sentence)


def _add_placeholder_job(outcome: RunOutcome) -> RunOutcome:
    """Return a shard's outcome, with a placeholder for its first job if the shard has no job yet: callers
    expect at least one. A shard, a run on a part of the data, may end before its first job: when it is
    stopped while it waits for a free instance."""
    if outcome.jobs:
        return outcome
    result = outcome.final_result
    placeholder_job = JobOutcome(
        name=str(JobName(outcome.run, segment=1, attempt=1)),
        arn="",
        status="InProgress" if result is None else result.status,
        secondary_status="NotBegun",
        exit_code=None if result is None else result.exit_code,
        failure_reason="",
        model_artifacts=None,
        output_uri=None,
        checkpoints_uri=None,
        metrics={},
        created=None,
        started=None,
        ended=None,
        training_seconds=None,
        billable_seconds=None,
        failure=None,
    )
    return RunOutcome(outcome.run, (placeholder_job,), is_chain=True, final_result=result)
