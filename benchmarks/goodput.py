"""A real chain on this machine under SIGKILLs, against a simulation that replays the very same failures.

Time is scaled down: steps that sleep stand for steps that compute, seconds for hours. What a step, a start, a
restart, the gap between two segments and the end cost on average is the run's own, since a machine that
others use too has other figures a minute later; jobs, planned ends, lost work and the whole are the
simulation's. Goal: within 3 %.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean

from smlaunch.chain.chain_simulation import ChainModel, simulate_run
from smlaunch.connection.open_connection import target_of_endpoint
from smlaunch.contract.progress_line import parse_line
from smlaunch.job.model import Job
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_settings import Settings
from smlaunch.runs.job_poller import Event, LogLine, StateChange
from smlaunch.runs.launch_plan import launch
from smlaunch.runs.launch_target import Target
from smlaunch.runs.plan_job import prepare
from smlaunch.verify.rank_killer import kill_rank

GOAL = 0.03
STEPS, STEP_SECONDS, SAVE_EVERY = 1400, 0.05, 10
SEGMENT = "20s"
FAILURES = 3

SCRIPT = f"""
import time
from smlaunch.train import Checkpointer

class State:
    value = 0
    def state_dict(self): return {{"value": self.value}}
    def load_state_dict(self, state): self.value = state["value"]

state = State()
with Checkpointer(every_steps={SAVE_EVERY}, state=state) as run:
    for number in run.batches(range({STEPS}), steps={STEPS}):
        time.sleep({STEP_SECONDS})
        state.value += number
        run.step()
"""


@dataclass
class Measured:
    """Seconds since the launch. ``steps``: (job, step, when it was done); ``kills``: when they were made."""

    stop_after: float
    steps: list[tuple[str, int, float]] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    makespan: float = 0.0

    def stretches(self) -> list[list[tuple[str, int, float]]]:
        """The steps of each job, oldest first."""
        jobs = list(dict.fromkeys(job for job, _, _ in self.steps))
        return [[row for row in self.steps if row[0] == name] for name in jobs]

    def step_seconds(self) -> float:
        """With what saves hold up."""
        return fmean(
            (rows[-1][2] - rows[0][2]) / (len(rows) - 1) for rows in self.stretches() if len(rows) > 20
        )


def run(target: Target, folder: Path, name: str, kills: list[float]) -> Measured:
    """One chain; ``kills``: seconds since its launch."""
    limits = {"max_runtime": "20m", "segment": SEGMENT, "attempts": 3 * FAILURES}
    prepared = prepare(Job.from_mapping({"entry": str(folder / "train.py"), "limits": limits}), target, name)
    stop_after = prepared.plan.segments[0].stop_after
    if stop_after is None:
        sys.exit("the plan has no planned end")
    measured = Measured(stop_after)
    began, epoch = time.monotonic(), time.time()
    running = launch(prepared, target)
    over = threading.Event()

    def kill() -> None:
        for at in kills:
            while not over.wait(max(0.0, began + at - time.monotonic())):
                # Between two jobs nobody is there to be killed; then the next moment with somebody it is.
                if kill_rank(newest[0], 0):
                    measured.kills.append(time.monotonic() - began)
                    break
                over.wait(0.02)

    newest = [running.jobs[-1]]

    def hear(event: Event) -> None:
        if isinstance(event, (StateChange, LogLine)):
            newest[0] = event.job
        if isinstance(event, LogLine) and (line := parse_line(event.text)) is not None:
            measured.steps.append((event.job, int(line.values["step"]), event.at / 1000 - epoch))

    killer = threading.Thread(target=kill)
    killer.start()
    running.wait(hear)
    measured.makespan = time.monotonic() - began
    over.set()
    killer.join()
    return measured


def figures(measured: Measured) -> tuple[float, float, float, float]:
    """What a start, a restart, a gap between two segments and the end cost, as this run had them."""
    stretches, step = measured.stretches(), measured.step_seconds()
    start = stretches[0][0][2] - step
    restarts, gaps = [], []
    for before, after in pairwise(stretches):
        begins = after[0][2] - step
        killed = [at for at in measured.kills if before[-1][2] - 1 <= at <= begins]
        if killed:
            restarts.append(begins - killed[0])
        else:
            gaps.append(max(0.0, begins - before[-1][2] - start))
    end = measured.makespan - stretches[-1][-1][2]
    return start, fmean(restarts), fmean(gaps or [0.0]), end


def main() -> None:
    print(f"{STEPS} steps of {STEP_SECONDS} s, a save every {SAVE_EVERY}, segments of {SEGMENT}")
    with tempfile.TemporaryDirectory(prefix="smlaunch-goodput-", dir="/var/tmp") as name:
        folder = Path(name)
        (folder / "source").mkdir()
        (folder / "source" / "train.py").write_text(SCRIPT)
        settings = Settings(close_grace_seconds=1.0, checkpoint_sync_seconds=0.2)
        with Endpoint(folder / "home", settings=settings) as info:
            target = target_of_endpoint(info)
            real = run(target, folder / "source", "goodput", _kills(2))
    start, restart, gap, end = figures(real)
    step = real.step_seconds()
    print(f"measured: start {start:.2f} s, restart {restart:.2f} s, gap {gap:.2f} s, end {end:.2f} s")
    chain = ChainModel(
        work=STEPS * step,
        segment=real.stop_after,
        start=start,
        interval=SAVE_EVERY * step,
        stall=0.0,
        restart=restart,
        mtbf=20.0,
        gap=gap,
    )
    foretold = simulate_run(chain, real.kills)
    makespan = foretold.makespan + end
    ratio = real.makespan / makespan
    goodput = STEPS * STEP_SECONDS / real.makespan
    print(f"planned end after {real.stop_after:.0f} s, steps of {step:.4f} s")
    print(f"killed after {', '.join(f'{at:.1f}' for at in real.kills)} s")
    print(f"real      {real.makespan:7.2f} s, {len(real.stretches())} jobs, goodput {goodput:.3f}")
    print(f"simulated {makespan:7.2f} s, {foretold.segments + foretold.failures} jobs")
    met = abs(ratio - 1) <= GOAL
    print(f"ratio {ratio:.4f} (goal: within {GOAL:.0%}: {'met' if met else 'MISSED'})")
    sys.exit(0 if met else 1)


def _kills(seed: int) -> list[float]:
    """Somewhere in each third of the time, so that no two meet in one start."""
    chance = Random(seed)
    third = STEPS * STEP_SECONDS / FAILURES
    return [(number + chance.uniform(0.25, 0.9)) * third for number in range(FAILURES)]


if __name__ == "__main__":
    main()
