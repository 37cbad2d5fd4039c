"""A sharded run that an orchestrator drives: one execution for each shard, and one that starts them (export).

A shard that has not begun leaves no trace. Only the parent execution knows whether there are any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from smlaunch.aws.retry import call_with_retries
from smlaunch.contract.names import parse_job_name, parse_shard_number
from smlaunch.errors import EXIT_COMPLETED
from smlaunch.planner.external_execution import describe_driver, stop_instruction
from smlaunch.runs.chain_driver import SleepFunction
from smlaunch.runs.external_run import ExternalRun, attach_external_run
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.outcome import RunOutcome
from smlaunch.runs.run import translate_call_errors
from smlaunch.runs.sharded_run import ShardedRun, ShardedRunFollower, ShardedRunOutcome, prefix_messages
from smlaunch.runs.submit import stop_job
from smlaunch.runs.target import Target


class ExternalShardedRun(ShardedRun):
    """A sharded run found by its jobs. ``shard_runs`` grows while further shards begin."""

    def __init__(
        self, name: str, target: Target, jobs: Sequence[str], on_message: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(name, target, {}, attached=True)
        self._on_message = on_message
        self._add_shards(jobs)

    @property
    def execution(self) -> str:
        """The parent execution. A shard's execution has the same name with the shard's number after it."""
        shard = next(iter(self.shard_runs.values()))
        assert isinstance(shard, ExternalRun)
        shard_execution, suffix = shard.execution, shard.name[len(self.name) :]
        return shard_execution.removesuffix(suffix) if shard_execution.endswith(suffix) else ""

    @property
    def is_resumable(self) -> bool:
        return False

    def describe(self) -> RunOutcome:
        self._refresh_state()
        return self._apply_execution_result(super().describe())

    def refresh(self) -> RunOutcome:
        self._refresh_state()
        return self._apply_execution_result(super().refresh())

    def done(self) -> bool:
        return self.describe().exit_code is not None

    def follow(
        self, sleep: SleepFunction = time.sleep, *, from_first_job: bool = False
    ) -> Iterator[JobFollower]:
        """Yield a follower of several shards whenever the orchestrator has started new ones, until the run
        has ended. ``from_first_job``: follow each shard from its first job."""
        followed_shards: set[int] = set()
        while True:
            new_shards = {
                shard_number: shard
                for shard_number, shard in self.shard_runs.items()
                if shard_number not in followed_shards
            }
            if new_shards:
                followed_shards |= set(new_shards)
                follower = ShardedRunFollower(
                    ShardedRun(self.name, self.target, new_shards, attached=True), from_first_job
                )
                yield follower
                if not follower.is_finished:
                    return
            self._refresh_state()
            if set(self.shard_runs) > followed_shards:
                continue
            if self.done() or sleep(self.target.polling.max_seconds) is True:
                return

    def stop(self) -> RunOutcome:
        """Stop the parent execution, which would start further shards and stops those that run, and then all
        jobs."""
        outcome = self.describe()
        if outcome.exit_code is not None:
            return outcome
        execution_text, instruction = describe_driver(self.execution), stop_instruction(self.execution)
        with translate_call_errors(self.target):
            was_stopped = self.target.orchestrators.stop(self.execution)
            for job in outcome.jobs:
                if not job.is_finished:
                    stop_job(job.name, self.target.control)
        self._report(
            f"stopped {execution_text}"
            if was_stopped
            else f"{execution_text} may start other shards; to prevent that: {instruction}"
        )
        return self.describe()

    def _refresh_state(self) -> None:
        control = self.target.control
        with translate_call_errors(self.target):
            listed = call_with_retries(lambda: [summary.name for summary in control.list(f"{self.name}-p")])
        self._add_shards(listed)

    def _add_shards(self, jobs: Sequence[str]) -> None:
        """Add the shards that have begun since the last refresh."""
        jobs_by_shard: dict[int, list[str]] = {}
        for job in jobs:
            task = parse_job_name(job)
            shard_number = None if task is None else parse_shard_number(self.name, task.run)
            if shard_number is not None and shard_number not in self.shard_runs:
                jobs_by_shard.setdefault(shard_number, []).append(job)
        for shard_number in sorted(jobs_by_shard):
            report_for_shard = prefix_messages(shard_number, self._on_message)
            with translate_call_errors(self.target):
                shard = attach_external_run(
                    f"{self.name}-p{shard_number}", self.target, report_for_shard, jobs_by_shard[shard_number]
                )
            if shard is not None:
                self.shard_runs[shard_number] = shard

    def _apply_execution_result(self, outcome: RunOutcome) -> RunOutcome:
        """Return the outcome with the parent execution's result. While it goes on, it may start further
        shards."""
        assert isinstance(outcome, ShardedRunOutcome)
        outcome = replace(outcome, execution=self.execution)
        if outcome.final_result is None:
            return outcome
        with translate_call_errors(self.target):
            execution = self.target.orchestrators.describe(self.execution)
        if execution is not None and not execution.has_ended:
            return replace(outcome, final_result=None)
        if execution is not None and execution.exit_code not in (None, EXIT_COMPLETED, outcome.exit_code):
            final_result = replace(outcome.final_result, exit_code=execution.exit_code)
            return replace(outcome, final_result=final_result)
        return outcome

    def _report(self, text: str) -> None:
        if self._on_message is not None:
            self._on_message(text)
