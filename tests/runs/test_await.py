"""``await run``: many runs at once, and what remains of it once nobody awaits the run any more."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from smlaunch import Run, Target, attach
from smlaunch.runs.awaited_run import THREAD_NAME, await_in_thread
from tests.runs.fakes import fake_target, job_description
from tests.runs.test_chain import RUN
from tests.runs.test_run_api import COMPLETED, JOB, RUNNING, control, driven_chain, with_fakes_of


@pytest.fixture
def target() -> Target:
    target = fake_target()
    polling = target.polling._replace(initial_seconds=0.01, max_seconds=0.01)
    return with_fakes_of(target, replace(target, polling=polling))


def waiting_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


def expect_no_thread() -> None:
    deadline = time.monotonic() + 20
    while waiting_threads():
        assert time.monotonic() < deadline, "a thread still waits for a run that nobody awaits"
        time.sleep(0.01)


def test_awaited_runs_are_followed_all_at_once_and_leave_the_pool_of_threads_free(target: Target) -> None:
    runs: list[Run] = []
    for number in range(4):
        control(target).descriptions_by_job[f"r{number}-s1-a1"] = [{**RUNNING, "TrainingJobName": JOB}]
        runs.append(attach(f"r{number}", target))

    async def end_the_last_run_first() -> list[str]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        awaited = [asyncio.ensure_future(run) for run in runs]
        await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.to_thread(lambda: None), 20)
        statuses = []
        for number, task in reversed(list(enumerate(awaited))):
            control(target).descriptions_by_job[f"r{number}-s1-a1"].append(COMPLETED)
            statuses.append((await asyncio.wait_for(task, 20)).status)
        return statuses

    assert asyncio.run(end_the_last_run_first()) == ["Completed"] * 4
    expect_no_thread()


async def time_out(run: Any) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(run, 0.05)


async def cancel(run: Any) -> None:
    task = asyncio.ensure_future(run)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def forget(run: Any) -> None:
    """Leaves the task to the end of the event loop, as Ctrl-C does."""
    asyncio.ensure_future(run)  # noqa: RUF006
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("leave", [time_out, cancel, forget])
def test_the_program_goes_on_and_the_chain_is_driven_no_further(target: Target, leave: Any) -> None:
    run = driven_chain(target)
    (first_job,) = (request["TrainingJobName"] for request in control(target).created)
    ended = control(target).descriptions_by_job[first_job].pop()
    control(target).descriptions_by_job[first_job] = [job_description(first_job, "InProgress", ["Training"])]

    async def leave_and_end_the_job() -> None:
        await leave(run)
        control(target).descriptions_by_job[first_job] = [ended]

    begin = time.monotonic()
    asyncio.run(leave_and_end_the_job())
    assert time.monotonic() - begin < 20, "asyncio.run waited for the run"
    assert all(thread.daemon for thread in waiting_threads()), "the interpreter's exit waits for it"
    expect_no_thread()
    assert [request["TrainingJobName"] for request in control(target).created] == [f"{RUN}-s1-a1"]


class _TellingSelector(selectors.DefaultSelector):
    """Says when the event loop is about to sleep for want of anything to do."""

    def __init__(self) -> None:
        super().__init__()
        self.is_about_to_sleep = threading.Event()

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout > 0:
            self.is_about_to_sleep.set()
        return super().select(timeout)


def test_a_task_that_a_signal_handler_cancels_ends_at_once() -> None:
    """As a notebook's kernel does when a cell is interrupted: its handler wakes no loop."""
    selector = _TellingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    was_abandoned: list[bool] = []

    class Awaited:
        def __await__(self) -> Any:
            selector.is_about_to_sleep.clear()
            return await_in_thread(lambda abandoned: was_abandoned.append(abandoned.wait(20)))

    async def wait() -> None:
        await Awaited()

    def interrupt() -> None:
        selector.is_about_to_sleep.wait()
        os.kill(os.getpid(), signal.SIGUSR2)

    task = loop.create_task(wait())
    previous_handler = signal.signal(signal.SIGUSR2, lambda *_: task.cancel())
    interrupter = threading.Thread(target=interrupt)
    try:
        loop.call_soon(interrupter.start)
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
        interrupter.join()
        expect_no_thread()
    finally:
        signal.signal(signal.SIGUSR2, previous_handler)
        loop.close()
    assert was_abandoned == [True]
