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

from smlaunch.local.executors.levels import LEVELS
from tests.e2e.command import ENTRYPOINTS, SMLAUNCH, weights_hash
from tests.local.endpoint_harness import EndpointHarness, endpoint_harness
from tests.local.executors.conftest import eventually

pytest.importorskip("torch")

pytestmark = pytest.mark.torch

EVERY = 20
"""Training steps between two checkpoints."""

EPOCHS = 120
PATIENCE = 240.0

VICTIMS = ("rank", "rank", "runtime", "supervisor", "endpoint", "client")


class Shape(NamedTuple):
    hosts: int
    per_host: int
    workers: int


class Training:
    """One run, driven by as many clients and endpoints as it takes."""

    def __init__(self, place: EndpointHarness, name: str, shape: Shape) -> None:
        self._place = place
        self.name = name
        script = [
            "run",
            str(ENTRYPOINTS / "train_resumable.py"),
            *("--strategy", "ddp", "--local", "--name", name),
            *("--hosts", str(shape.hosts), "--processes-per-host", str(shape.per_host)),
            *("--max-runtime", "2h", "--segment", "1h", "--attempts", "1000"),
            *("--env", "OMP_NUM_THREADS=1"),
        ]
        arguments = ["--epochs", EPOCHS, "--every-steps", EVERY, "--workers", shape.workers]
        self._run = [SMLAUNCH, *script, "--", *map(str, arguments)]
        self._output = place.home.parent / f"{name}.log"
        self.client = self._start(self._run)

    def _start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._output.open("ab") as output:
            return subprocess.Popen(
                self._place.command(*words),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._place.environment(),
            )

    @property
    def said(self) -> str:
        return self._output.read_text(errors="replace")

    def go_on(self) -> None:
        self.client = self._start([SMLAUNCH, "resume", self.name, "--local"])

    def committed(self) -> int:
        """The newest step that S3 has a COMMIT of; 0 before the first."""
        found = self._place.home.glob(f"s3/*/smlaunch/{self.name}/checkpoints/smlaunch/step-*/COMMIT-*")
        return max((int(path.parent.name[5:]) for path in found), default=0)

    def wait_for_a_newer(self, than: int) -> bool:
        """False when the run has ended instead."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self.client.poll() is not None:
                return False
            if self.committed() > than:
                return True
            time.sleep(0.05)
        raise AssertionError(f"no checkpoint newer than step {than}:\n{self.said[-4000:]}")


def kill_something(place: EndpointHarness, training: Training, chance: random.Random) -> str:
    """Returns what it was. What ends with it is started again as a person would."""
    place.collect_owners()
    kind = chance.choice(VICTIMS)
    if kind == "endpoint":
        place.kill()
        training.client.wait(PATIENCE)
        place.start("background")
        training.go_on()
    elif kind == "client":
        training.client.send_signal(signal.SIGKILL)
        training.client.wait(PATIENCE)
        training.go_on()
    else:
        role = {"rank": "below", "runtime": "first"}.get(kind, kind)
        pids = [seen.pid for seen in place.processes() if seen.role == role]
        if not pids:
            return "nobody"
        try:
            os.kill(chance.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            return "nobody"
    return kind


def lost_steps(said: str) -> list[int]:
    """For every restart: how many steps that had been told of were trained again."""
    lost, told = [], 0
    for match in re.finditer(r"continues after step (\d+)|step=(\d+)|, step (\d+)/", said):
        if match.group(1):
            lost.append(max(0, told - int(match.group(1))))
            told = int(match.group(1))
        else:
            told = max(told, int(match.group(2) or match.group(3)))
    return lost


def train_under_fire(level: str, shape: Shape, kills: int, seed: int) -> Counter[str]:
    chance = random.Random(seed)
    fallen: Counter[str] = Counter()
    with endpoint_harness(level) as place:
        place.start("background")
        whole = Training(place, "whole", shape)
        assert whole.client.wait(PATIENCE) == 0, whole.said[-4000:]
        wanted = weights_hash(whole.said)
        rounds = 0
        while sum(fallen.values()) < kills:
            rounds += 1
            training = Training(place, f"fired-{rounds}", shape)
            before = 0
            while sum(fallen.values()) < kills and training.wait_for_a_newer(before):
                time.sleep(chance.uniform(0.0, 0.5))
                before = training.committed()
                kind = kill_something(place, training, chance)
                if kind != "nobody":
                    fallen[kind] += 1
                    print(f"seed {seed}: {level} {tuple(shape)}: {kind} after step {before}", flush=True)
            assert training.client.wait(PATIENCE) == 0, training.said[-4000:]
            shown = subprocess.run(
                place.command(SMLAUNCH, "logs", training.name, "--local"),
                env=place.environment(),
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            assert weights_hash(shown) == wanted, training.said[-4000:]
            assert eventually(place.has_no_processes) or place.processes(), "the background endpoint is left"
            lost = lost_steps(shown)
            print(json.dumps({"fired": rounds, "lost_steps": lost}), flush=True)
    return fallen


def seed_of_the_day() -> int:
    return int(os.environ.get("SMLAUNCH_CHAOS_SEED", time.time_ns() % 1_000_000))


@pytest.mark.real
@pytest.mark.timeout(400)
def test_three_ranks_on_one_host(capsys: pytest.CaptureFixture[str]) -> None:
    seed = seed_of_the_day()
    print("seed", seed, file=sys.stderr)
    assert sum(train_under_fire(LEVELS[0], Shape(1, 3, 0), kills=3, seed=seed).values()) == 3


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("shape", [Shape(1, 2, 2), Shape(1, 3, 0), Shape(2, 2, 0)], ids=str)
def test_many_kills(shape: Shape) -> None:
    kills = int(os.environ.get("SMLAUNCH_CHAOS_KILLS", "20"))
    fallen = train_under_fire(LEVELS[0], shape, kills, seed_of_the_day())
    print(fallen, flush=True)
    assert sum(fallen.values()) == kills


def test_lost_steps_are_counted() -> None:
    said = (
        "step=5 steps=9\nstep=6 steps=9\nsmlaunch.train: continues after step 4 (1 samples)\nstep=5 steps=9\n"
    )
    assert lost_steps(said) == [2]
