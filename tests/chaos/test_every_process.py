"""Every process of a running job, its client and its endpoint is killed in turn, in random order and at
random moments: nothing survives that should not, and nothing hangs. At all levels.

A seed that failed is run again by SMLAUNCH_CHAOS_SEED=N.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from smlaunch.local.executors.isolation_levels import ISOLATION_LEVELS
from tests.e2e.command import SMLAUNCH
from tests.local.client import EndpointClient
from tests.local.endpoint_harness import EndpointHarness, endpoint_harness
from tests.local.executors.conftest import eventually

PATIENCE = 60.0
"""For a slow machine; what is left after that hangs."""

# Two ranks on each of two hosts; each has a child in a session of its own, and one that left its parent.
TRAIN = """\
import os, subprocess, sys, time
subprocess.Popen(["setsid", "sleep", "1001"])
if os.fork() == 0:
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "1002"])
    os._exit(0)
os.wait()
print("ready", os.environ["RANK"], flush=True)
time.sleep(1000)
"""
SHAPE = ("--strategy", "ddp", "--hosts", "2", "--processes-per-host", "2", "--local")
PROCESSES = 17
"""The client, and on each of two hosts: supervisor, runtime, two ranks, four daemons."""


class Round:
    """A job, run by the command line on a background endpoint or on one embedded in the command."""

    def __init__(self, harness: EndpointHarness, embedded: bool) -> None:
        self._harness = harness
        self._embedded = embedded
        source = harness.home.parent / "train.py"
        source.write_text(TRAIN)
        command = [SMLAUNCH, "run", str(source), *SHAPE]
        if embedded:
            command += ["--isolation", harness.level]
        else:
            harness.start("background")
        self.client = subprocess.Popen(
            harness.command(*command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=harness.environment(),
        )

    def wait_until_ready(self) -> None:
        assert self.client.stdout is not None
        output = b""
        deadline = time.monotonic() + PATIENCE
        while output.count(b"ready") < 4:
            seconds_left = deadline - time.monotonic()
            assert select.select([self.client.stdout], [], [], max(0.0, seconds_left))[0], output
            part = os.read(self.client.stdout.fileno(), 1 << 16)
            assert part, output
            output += part
        self._harness.collect_owners()

    def victims(self) -> dict[str, int]:
        """Returns the pid of every process that can be killed, by its role."""
        counts: Counter[str] = Counter()
        pids = {"client": self.client.pid}
        if not self._embedded:
            pids["endpoint"] = self._harness.info.pid
        for process in self._harness.processes():
            role = {"first": "runtime", "below": "rank"}.get(process.role, process.role)
            if role == "rank" and _is_daemon(process.pid):
                role = "daemon"
            name = f"{role} on {process.host_name}"
            counts[name] += 1
            pids[f"{name}, {counts[name]}"] = process.pid
        return pids


def _is_daemon(pid: int) -> bool:
    try:
        return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def one_round(level: str, embedded: bool, rng: random.Random, victim: str | None = None) -> list[str]:
    """Kills one of the processes, any or the one named; returns the names of all there were. What is left
    afterwards is looked for by ``grounds``."""
    with endpoint_harness(level) as harness:
        chaos_round = Round(harness, embedded)
        try:
            chaos_round.wait_until_ready()
            expected_count = PROCESSES if embedded else PROCESSES + 1
            assert eventually(lambda: len(chaos_round.victims()) == expected_count), chaos_round.victims()
            victims = chaos_round.victims()
            name = victim or rng.choice(sorted(victims))
            os.kill(victims[name], signal.SIGKILL)
            harness.killed = name == "endpoint" or (name == "client" and embedded)
            if name == "client" and not embedded:
                _another_client_stops_the_job(harness)
            elif name.startswith("daemon"):
                # Nobody needs it: the job goes on.
                assert chaos_round.client.poll() is None
                chaos_round.client.send_signal(signal.SIGINT)
                if not embedded:
                    chaos_round.client.communicate(timeout=PATIENCE)
                    _another_client_stops_the_job(harness)
            output, _ = chaos_round.client.communicate(timeout=PATIENCE)
            text = output.decode(errors="replace")
            assert chaos_round.client.returncode == _expected(name, embedded), text
            assert "Traceback (most recent call last)" not in text
            assert eventually(harness.has_no_processes), harness.processes()
            return sorted(victims)
        finally:
            chaos_round.client.kill()
            chaos_round.client.communicate()


def _expected(victim: str, embedded: bool) -> int:
    """Returns the client's exit code; see the table in smlaunch/errors.py."""
    kind = victim.partition(" ")[0]
    codes = {"client": -signal.SIGKILL, "endpoint": 8, "supervisor": 4, "runtime": 1, "rank": 1}
    return codes.get(kind, 5 if embedded else 130)


def _another_client_stops_the_job(harness: EndpointHarness) -> None:
    client = EndpointClient(harness.info)
    (job,) = client.sagemaker.list_training_jobs()["TrainingJobSummaries"]
    assert job["TrainingJobStatus"] == "InProgress"
    client.sagemaker.stop_training_job(TrainingJobName=job["TrainingJobName"])
    assert client.wait(job["TrainingJobName"])["TrainingJobStatus"] == "Stopped"


def new_seed() -> int:
    return int(os.environ.get("SMLAUNCH_CHAOS_SEED", time.time_ns() % 1_000_000))


@pytest.mark.parametrize(("level", "embedded"), [("full", False), ("user", True), ("plain", False)])
def test_any_process_is_killed(level: str, embedded: bool) -> None:
    seed = new_seed()
    print("seed", seed)
    one_round(level, embedded, random.Random(seed))


@pytest.mark.chaos
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("embedded", [True, False], ids=["embedded", "background"])
@pytest.mark.parametrize("level", ISOLATION_LEVELS)
def test_every_process_is_killed_in_turn(level: str, embedded: bool) -> None:
    seed = new_seed()
    rng = random.Random(seed)
    began = time.monotonic()
    names = one_round(level, embedded, rng, "client")
    rng.shuffle(names)
    for name in names:
        if name != "client":
            print(f"seed {seed}: {level} {'embedded' if embedded else 'standing'}: {name}", flush=True)
            one_round(level, embedded, rng, name)
    print(f"{len(names)} processes killed in turn in {time.monotonic() - began:.0f} s", flush=True)


@pytest.mark.chaos
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("level", ISOLATION_LEVELS)
def test_kills_at_random_moments(level: str) -> None:
    """Kills one process, or several at once, before, while and after hosts start."""
    seed = new_seed()
    rng = random.Random(seed)
    for number in range(int(os.environ.get("SMLAUNCH_CHAOS_ROUNDS", "20"))):
        embedded = rng.random() < 0.5
        with endpoint_harness(level) as harness:
            chaos_round = Round(harness, embedded)
            try:
                time.sleep(rng.uniform(0.0, 6.0))
                harness.collect_owners()
                victims = chaos_round.victims()
                names = rng.sample(sorted(victims), rng.randint(1, min(3, len(victims))))
                print(f"seed {seed} round {number}: {level}, {names} of {len(victims)}", flush=True)
                for name in names:
                    try:
                        os.kill(victims[name], signal.SIGKILL)
                    except ProcessLookupError:
                        continue  # went with one before it
                time.sleep(rng.uniform(0.0, 1.0))
                harness.killed = True
                harness.supervisors_killed = any(name.startswith("supervisor") for name in names)
                if not embedded:
                    harness.kill()
                chaos_round.client.kill()
                chaos_round.client.communicate(timeout=PATIENCE)
            finally:
                chaos_round.client.kill()
                chaos_round.client.communicate()
