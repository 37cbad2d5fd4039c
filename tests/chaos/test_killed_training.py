"""A real DDP training on real hosts of the endpoint, while ranks, hosts, supervisors, the endpoint and the
client are killed at random moments: it ends with the weights of the one that was left alone.

A seed that failed is run again by SMLAUNCH_CHAOS_SEED=N; SMLAUNCH_CHAOS_KILLS says how many kills.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from smlaunch.local.executors.isolation_levels import ISOLATION_LEVELS
from tests.e2e.command import ENTRYPOINTS, SMLAUNCH, weights_hash
from tests.local.endpoint_harness import EndpointHarness, endpoint_harness
from tests.local.executors.conftest import eventually

pytest.importorskip("torch")

pytestmark = pytest.mark.torch

EVERY_STEPS = 20
"""Training steps between two checkpoints."""

EPOCHS = 120
PATIENCE = 240.0

VICTIMS = ("rank", "rank", "runtime", "supervisor", "endpoint", "client")


class Shape(NamedTuple):
    hosts: int
    per_host: int
    workers: int


class Training:
    """One run, driven by as many clients and endpoints as necessary."""

    def __init__(self, harness: EndpointHarness, name: str, shape: Shape) -> None:
        self._harness = harness
        self.name = name
        script = [
            "run",
            str(ENTRYPOINTS / "train_resumable.py"),
            *("--strategy", "ddp", "--local", "--name", name),
            *("--hosts", str(shape.hosts), "--processes-per-host", str(shape.per_host)),
            *("--max-runtime", "2h", "--segment", "1h", "--attempts", "1000"),
            *("--env", "OMP_NUM_THREADS=1"),
        ]
        arguments = ["--epochs", EPOCHS, "--every-steps", EVERY_STEPS, "--workers", shape.workers]
        self._run = [SMLAUNCH, *script, "--", *map(str, arguments)]
        self._output = harness.home.parent / f"{name}.log"
        self.client = self._start(self._run)

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._output.open("ab") as output:
            return subprocess.Popen(
                self._harness.command(*arguments),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._harness.environment(),
            )

    @property
    def log_text(self) -> str:
        return self._output.read_text(errors="replace")

    def go_on(self) -> None:
        self.client = self._start([SMLAUNCH, "resume", self.name, "--local"])

    def committed(self) -> int:
        """Returns the newest step that S3 has a COMMIT of; 0 before the first."""
        commits = self._harness.home.glob(f"s3/*/smlaunch/{self.name}/checkpoints/smlaunch/step-*/COMMIT-*")
        return max((int(path.parent.name[5:]) for path in commits), default=0)

    def wait_for_a_newer(self, step: int) -> bool:
        """Returns False if the run has ended instead."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self.client.poll() is not None:
                return False
            if self.committed() > step:
                return True
            time.sleep(0.05)
        raise AssertionError(f"no checkpoint newer than step {step}:\n{self.log_text[-4000:]}")


def kill_something(harness: EndpointHarness, training: Training, rng: random.Random) -> str:
    """Kills a process and returns its role. What ends with it is started again as a user would."""
    harness.collect_owners()
    kind = rng.choice(VICTIMS)
    if kind == "endpoint":
        harness.kill()
        training.client.wait(PATIENCE)
        harness.start("background")
        training.go_on()
    elif kind == "client":
        training.client.send_signal(signal.SIGKILL)
        training.client.wait(PATIENCE)
        training.go_on()
    else:
        role = {"rank": "below", "runtime": "first"}.get(kind, kind)
        pids = [process.pid for process in harness.processes() if process.role == role]
        if not pids:
            return "nobody"
        try:
            os.kill(rng.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            return "nobody"
    return kind


def lost_steps(output: str) -> list[int]:
    """Returns for every restart how many reported steps were trained again."""
    steps_by_restart, reported_step = [], 0
    for match in re.finditer(r"continues after step (\d+)|step=(\d+)|, step (\d+)/", output):
        if match.group(1):
            steps_by_restart.append(max(0, reported_step - int(match.group(1))))
            reported_step = int(match.group(1))
        else:
            reported_step = max(reported_step, int(match.group(2) or match.group(3)))
    return steps_by_restart


def train_under_fire(level: str, shape: Shape, kills: int, seed: int) -> Counter[str]:
    rng = random.Random(seed)
    kill_counts: Counter[str] = Counter()
    with endpoint_harness(level) as harness:
        harness.start("background")
        uncut = Training(harness, "whole", shape)
        assert uncut.client.wait(PATIENCE) == 0, uncut.log_text[-4000:]
        expected_hash = weights_hash(uncut.log_text)
        rounds = 0
        while sum(kill_counts.values()) < kills:
            rounds += 1
            training = Training(harness, f"fired-{rounds}", shape)
            newest_step = 0
            while sum(kill_counts.values()) < kills and training.wait_for_a_newer(newest_step):
                time.sleep(rng.uniform(0.0, 0.5))
                newest_step = training.committed()
                kind = kill_something(harness, training, rng)
                if kind != "nobody":
                    kill_counts[kind] += 1
                    print(f"seed {seed}: {level} {tuple(shape)}: {kind} after step {newest_step}", flush=True)
            assert training.client.wait(PATIENCE) == 0, training.log_text[-4000:]
            log = subprocess.run(
                harness.command(SMLAUNCH, "logs", training.name, "--local"),
                env=harness.environment(),
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            assert weights_hash(log) == expected_hash, training.log_text[-4000:]
            assert eventually(harness.has_no_processes) or harness.processes(), (
                "the background endpoint is left"
            )
            steps_lost = lost_steps(log)
            print(json.dumps({"fired": rounds, "lost_steps": steps_lost}), flush=True)
    return kill_counts


def seed_of_the_day() -> int:
    return int(os.environ.get("SMLAUNCH_CHAOS_SEED", time.time_ns() % 1_000_000))


@pytest.mark.real
@pytest.mark.timeout(400)
def test_three_ranks_on_one_host(capsys: pytest.CaptureFixture[str]) -> None:
    seed = seed_of_the_day()
    print("seed", seed, file=sys.stderr)
    assert sum(train_under_fire(ISOLATION_LEVELS[0], Shape(1, 3, 0), kills=3, seed=seed).values()) == 3


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("shape", [Shape(1, 2, 2), Shape(1, 3, 0), Shape(2, 2, 0)], ids=str)
def test_many_kills(shape: Shape) -> None:
    kills = int(os.environ.get("SMLAUNCH_CHAOS_KILLS", "20"))
    kill_counts = train_under_fire(ISOLATION_LEVELS[0], shape, kills, seed_of_the_day())
    print(kill_counts, flush=True)
    assert sum(kill_counts.values()) == kills


def test_lost_steps_are_counted() -> None:
    output = (
        "step=5 steps=9\nstep=6 steps=9\nsmlaunch.train: continues after step 4 (1 samples)\nstep=5 steps=9\n"
    )
    assert lost_steps(output) == [2]
