"""The drivers of a sharded run: each shard has its own, so that a failed shard is retried alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_driver import RunDriver, SleepFunction, resume_hint
from smlaunch.runs.run_outcome import RunOutcome
from smlaunch.runs.shard_group import ShardGroup


class ShardDrivers(RunDriver):
    """The chain drivers of all shards."""

    def __init__(self, shards: ShardGroup, target: Target) -> None:
        self._shards = shards
        self._target = target
        self.chain_drivers = [driver for shard in shards.runs for driver in shard.chain_drivers]

    def observe(self, *, reads_checkpoints: bool = False) -> None:
        """Do nothing: each shard's driver observes its jobs when the shard is described."""

    def add_result(self, outcome: RunOutcome) -> RunOutcome:
        is_driving = any(driver.is_driving for driver in self.chain_drivers)
        return replace(outcome, hint=resume_hint(outcome, self._target, is_driving=is_driving))

    def wait_for_next_jobs(self, sleep: SleepFunction, followed: Collection[str]) -> tuple[str, ...]:
        return self._shards.to_follow(followed)

    def resume(self) -> None:
        self._shards.resume()

    def stop(self, outcome: RunOutcome) -> None:
        # Request all stops first: an instance that one shard frees must not start another's next job.
        for driver in self.chain_drivers:
            driver.run_folder.set_stop_requested(self._target.storage, True)
        for shard in self._shards.runs:
            shard.stop()
