"""The trigger that watches a deferred task's jobs. It only reads, and fires when the task has to act."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from smlaunch.airflow.connection_ref import ConnectionRef
from smlaunch.airflow.task_runs import format_event
from smlaunch.aws.interfaces import CallError, LogReader
from smlaunch.runs.attach_run import attach
from smlaunch.runs.job_poller import Event, JobPoller, PollWarning
from smlaunch.runs.launch_target import Target

Result = TypeVar("Result")

REGION_POLL_SECONDS = 30.0
ENDPOINT_POLL_SECONDS = 1.0
"""Seconds."""

MIN_DEFER_SECONDS = 10.0
"""Time before which the trigger does not fire. A worker's process lives on for 5 s after its task was
deferred (Airflow 3.3.2, LocalExecutor). A task that is queued again before its end is known counts as lost
and fails: "finished with state success, but the task instance's state attribute is queued"."""

_MAX_SLEEP_SECONDS = 3600.0


class SmlaunchTrigger(BaseTrigger):
    """Fires when one of ``jobs`` has ended, at ``wake_at`` (seconds since the epoch), or when the jobs cannot
    be described any more.

    It submits nothing, so that it may run twice, or be lost and run again. ``connection`` is a
    ``ConnectionRef.to_dict``. ``follow_logs`` logs the jobs' log lines; a restarted triggerer logs them from
    the beginning.
    """

    def __init__(
        self,
        run: str,
        jobs: list[str],
        wake_at: float | None,
        connection: dict[str, Any],
        follow_logs: bool = True,
        poll_interval: float | None = None,
    ) -> None:
        super().__init__()
        self.run_name = run
        self.jobs = jobs
        self.wake_at = wake_at
        self.connection = connection
        self.follow_logs = follow_logs
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {
            "run": self.run_name,
            "jobs": self.jobs,
            "wake_at": self.wake_at,
            "connection": self.connection,
            "follow_logs": self.follow_logs,
            "poll_interval": self.poll_interval,
        }
        return "smlaunch.airflow.triggers.SmlaunchTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        started_at = time.monotonic()
        reason = await self._wait_until_action_needed()
        await asyncio.sleep(max(0.0, started_at + MIN_DEFER_SECONDS - time.monotonic()))
        yield TriggerEvent({"run": self.run_name, "because": reason, "jobs": self.jobs})

    async def _wait_until_action_needed(self) -> str:
        """Poll the jobs and log their events until the operator has to act: one has ended, a job is due
        (``wake_at``, seconds since the epoch), or a request fails. Return the reason, a text for the log. A
        poller has the time of its next poll on the monotonic clock."""
        pollers = await _run_in_thread(self._open_job_pollers)
        while True:
            for poller in pollers:
                try:
                    events = await _run_in_thread(poller.poll)
                except CallError as error:
                    # The operator repeats the request, and fails the task if it must.
                    return str(error)
                for event in events:
                    self._log_event(event)
                if poller.is_finished:
                    return f"{poller.job} has ended"
            seconds_until_due = _MAX_SLEEP_SECONDS if self.wake_at is None else self.wake_at - time.time()
            if seconds_until_due <= 0:
                return "due"
            seconds_until_polls = [max(0.0, poller.next_poll_at - time.monotonic()) for poller in pollers]
            await asyncio.sleep(min([*seconds_until_polls, seconds_until_due]))

    def _log_event(self, event: Event) -> None:
        log = self.log.warning if isinstance(event, PollWarning) else self.log.info
        log("%s", format_event(event))

    async def on_kill(self) -> None:
        """Stop the run at a checkpoint when a person has marked the deferred task as failed or successful.

        A cleared task's next try attaches to the run, so that the run goes on. Airflow 3.3 and newer call
        this.
        """
        state = await _run_in_thread(self._airflow_task_state)
        if state in ("failed", "success"):
            self.log.info("the task is %s: stopping %s", state, self.run_name)
            await _run_in_thread(lambda: attach(self.run_name, self._open_target()).stop())

    def _open_target(self) -> Target:
        return ConnectionRef.from_dict(self.connection).open_target()

    def _open_job_pollers(self) -> list[JobPoller]:
        target = self._open_target()
        seconds = self.poll_interval or (
            REGION_POLL_SECONDS if target.kind == "aws" else ENDPOINT_POLL_SECONDS
        )
        polling = target.polling._replace(initial_seconds=seconds, max_seconds=seconds)
        logs = target.logs if self.follow_logs else _NoLogs()
        return [JobPoller(target.control_plane, logs, job, polling) for job in self.jobs]

    def _airflow_task_state(self) -> str | None:
        """Return the state that Airflow has for the trigger's task instance, such as ``running``; None if it
        is unknown."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        task_instance = self.task_instance
        if task_instance is None:
            return None
        states_by_run_id = RuntimeTaskInstance.get_task_states(
            dag_id=task_instance.dag_id,
            task_ids=[task_instance.task_id],
            run_ids=[task_instance.run_id],
            map_index=task_instance.map_index,
        )
        # Airflow adds the index of a mapped task instance to its key; other tasks have -1 or none.
        state_key = (
            task_instance.task_id
            if task_instance.map_index is None or task_instance.map_index < 0
            else f"{task_instance.task_id}_{task_instance.map_index}"
        )
        state = states_by_run_id.get(task_instance.run_id, {}).get(state_key)
        return None if state is None else str(getattr(state, "value", state))


class _NoLogs(LogReader):
    def list_streams(self, group: str, prefix: str) -> Sequence[str]:
        return ()

    def read_last_page(self, group: str, stream: str) -> Sequence[Any]:
        return ()

    def read_page(self, group: str, stream: str, token: str | None) -> tuple[Sequence[Any], str | None]:
        return (), token


async def _run_in_thread(action: Callable[[], Result]) -> Result:
    """Run the action in a thread, because a request must not block the other triggers of the event loop."""
    # When cancelled, asgiref raises an error of its own, without the message by which the triggerer
    # distinguishes a person's action from its own end; on_kill would not be called.
    task = asyncio.ensure_future(sync_to_async(action, thread_sensitive=False)())
    result: Result = await asyncio.shield(task)
    return result
