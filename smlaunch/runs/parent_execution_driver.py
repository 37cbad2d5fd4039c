"""An orchestrator as the driver of a sharded run: one execution for each shard, and one that starts them
(export).

A shard that has not begun leaves no trace. Only the parent execution knows whether there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from smlaunch.chain.orchestrator_execution import describe_driver, stop_instruction
from smlaunch.errors import EXIT_COMPLETED
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_driver import RunDriver, SleepFunction
from smlaunch.runs.run_outcome import RunOutcome
from smlaunch.runs.shard_group import ShardGroup
from smlaunch.runs.sharded_outcome import ShardedRunOutcome
from smlaunch.runs.submit_job import stop_job


class ParentExecutionDriver(RunDriver):
    """The parent execution of a sharded run. ``report`` receives sentences for the user."""

    def __init__(self, shards: ShardGroup, target: Target, report: Callable[[str], None]) -> None:
        self._shards = shards
        self._target = target
        self._report = report

    def observe(self, *, reads_checkpoints: bool = False) -> None:
        """Add the shards that have begun meanwhile."""
        self._shards.find()

    def add_result(self, outcome: RunOutcome) -> RunOutcome:
        """Return the outcome of all shards so far, corrected by the state of the parent execution, which
        starts the shards: while it goes on, further shards may follow; its failure overrides the exit code of
        the shards."""
        assert isinstance(outcome, ShardedRunOutcome)
        # A shard's execution has the parent's name with the shard's number after it.
        shard = outcome.shard_outcomes[0]
        suffix, shard_execution = shard.run[len(outcome.run) :], shard.execution or ""
        execution = shard_execution.removesuffix(suffix) if shard_execution.endswith(suffix) else ""
        outcome = replace(outcome, execution=execution)
        if outcome.final_result is None:  # a shard goes on, and so does the run
            return outcome
        parent_execution = self._target.orchestrators.describe_execution(execution)
        if parent_execution is None:  # it cannot be read: the shards decide
            return outcome
        if not parent_execution.has_ended:
            return replace(outcome, final_result=None)  # None: the run goes on
        if parent_execution.exit_code in (None, EXIT_COMPLETED, outcome.exit_code):
            return outcome  # None: it failed for another reason than its shards
        final_result = replace(outcome.final_result, exit_code=parent_execution.exit_code)
        return replace(outcome, final_result=final_result)

    def wait_for_next_jobs(self, sleep: SleepFunction, followed: Collection[str]) -> tuple[str, ...]:
        """Return the shards that have begun, once there are new ones; none when the run has ended or
        ``sleep`` returned True."""
        while True:
            self.observe()
            names = self._shards.to_follow(followed)
            if names or self.add_result(self._shards.outcome()).exit_code is not None:
                return names
            if sleep(self._target.polling.max_seconds) is True:
                return ()

    def resume(self) -> None:
        self._shards.resume()

    def stop(self, outcome: RunOutcome) -> None:
        """Stop first the parent execution, which would start further shards and stops those that run, and
        then all jobs."""
        execution = outcome.execution or ""
        # False: it cannot be stopped from here.
        was_execution_stopped = self._target.orchestrators.stop_execution(execution)
        for job in outcome.jobs:
            if not job.is_finished:
                stop_job(job.name, self._target.control_plane)
        orchestrator = describe_driver(execution)
        if was_execution_stopped:
            self._report(f"stopped {orchestrator}")
        else:
            how_to_stop = stop_instruction(execution)
            self._report(f"{orchestrator} may start other shards; to prevent that: {how_to_stop}")
