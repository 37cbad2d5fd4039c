"""What watches a deferred task's jobs: it only looks, and hands back when there is something to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from smlaunch.airflow.driving import sentence
from smlaunch.airflow.reach import Reach
from smlaunch.ports import CallError, LogReader
from smlaunch.runs.follow import Follower, Trouble
from smlaunch.runs.run import Run
from smlaunch.runs.target import Target

Result = TypeVar("Result")

POLL_REGION = 30.0
POLL_ENDPOINT = 1.0
"""Seconds."""

EARLIEST = 10.0
"""Seconds before which the trigger does not fire. A worker's process lives on for 5 s after its task was
deferred (Airflow 3.3.2, LocalExecutor). A task that is queued again before its end is known is taken for one
that was lost, and fails: "finished with state success, but the task instance's state attribute is queued"."""

_TICK = 3600.0


class SmlaunchTrigger(BaseTrigger):
    """Fires when one of ``jobs`` has ended, at ``wake_at`` (seconds since the epoch), or when they cannot be
    asked about any more. It submits nothing, so that it may run twice, or be lost and run again.

    ``reach``: see ``Reach.to_dict``. ``follow_logs``: tell the jobs' log lines. A triggerer that is started
    again tells them from the beginning.
    """

    def __init__(
        self,
        run: str,
        jobs: list[str],
        wake_at: float | None,
        reach: dict[str, Any],
        follow_logs: bool = True,
        poll_interval: float | None = None,
    ) -> None:
        super().__init__()
        self.run_name = run
        self.jobs = jobs
        self.wake_at = wake_at
        self.reach = reach
        self.follow_logs = follow_logs
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {
            "run": self.run_name,
            "jobs": self.jobs,
            "wake_at": self.wake_at,
            "reach": self.reach,
            "follow_logs": self.follow_logs,
            "poll_interval": self.poll_interval,
        }
        return "smlaunch.airflow.triggers.SmlaunchTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        began = time.monotonic()
        because = await self._seen()
        await asyncio.sleep(max(0.0, began + EARLIEST - time.monotonic()))
        yield TriggerEvent({"run": self.run_name, "because": because, "jobs": self.jobs})

    async def _seen(self) -> str:
        """Why there is something to do, as soon as there is."""
        followers = await _aside(self._followers)
        while True:
            for follower in followers:
                try:
                    events = await _aside(follower.poll)
                except CallError as error:
                    # The operator asks again, and fails the task in its own words if it must.
                    return str(error)
                for event in events:
                    tell = self.log.warning if isinstance(event, Trouble) else self.log.info
                    tell("%s", sentence(event))
                if follower.finished:
                    return f"{follower.job} has ended"
            left = None if self.wake_at is None else self.wake_at - time.time()
            if left is not None and left <= 0:
                return "due"
            pauses = [max(0.0, follower.due - time.monotonic()) for follower in followers]
            await asyncio.sleep(min([*pauses, _TICK if left is None else left]))

    async def on_kill(self) -> None:
        """A person has marked the deferred task as failed or as successful: the run is stopped at a
        checkpoint. A cleared task's next try attaches to the run, so that it is left alone. Airflow 3.3 and
        newer call this."""
        state = await _aside(self._state_of_task)
        if state in ("failed", "success"):
            self.log.info("the task is %s: stopping %s", state, self.run_name)
            await _aside(lambda: Run.attach(self.run_name, self._target()).stop())

    def _target(self) -> Target:
        return Reach.from_dict(self.reach).target()

    def _followers(self) -> list[Follower]:
        target = self._target()
        seconds = self.poll_interval or (POLL_REGION if target.kind == "aws" else POLL_ENDPOINT)
        cadence = replace(target.cadence, first=seconds, longest=seconds)
        logs = target.logs if self.follow_logs else _NoLogs()
        return [Follower(target.control, logs, job, cadence) for job in self.jobs]

    def _state_of_task(self) -> str | None:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        ti = self.task_instance
        if ti is None:
            return None
        states = RuntimeTaskInstance.get_task_states(
            dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
        )
        name = ti.task_id if ti.map_index is None or ti.map_index < 0 else f"{ti.task_id}_{ti.map_index}"
        found = states.get(ti.run_id, {}).get(name)
        return None if found is None else str(getattr(found, "value", found))


class _NoLogs(LogReader):
    def streams(self, group: str, prefix: str) -> Sequence[str]:
        return ()

    def tail(self, group: str, stream: str) -> Sequence[Any]:
        return ()

    def read(self, group: str, stream: str, token: str | None) -> tuple[Sequence[Any], str | None]:
        return (), token


async def _aside(action: Callable[[], Result]) -> Result:
    """In a thread: what asks the network must not hold up the other triggers of the event loop."""
    # Cancelled in the middle, asgiref raises an error of its own, without the message by which the triggerer
    # tells a person's doing from its own end; on_kill would not be called.
    asked = asyncio.ensure_future(sync_to_async(action, thread_sensitive=False)())
    result: Result = await asyncio.shield(asked)
    return result
