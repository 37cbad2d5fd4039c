"""A training that is over in a moment and is a chain all the same: for tests of what drives it.

Fifty steps, of which a job trains ten and then leaves as at its planned end. The weights are a hash of all
steps before, so that a step that was lost, doubled or taken out of order is seen in the end.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.command import SMLAUNCH, smlaunch

STEPS, PER_SEGMENT = 50, 10
SEGMENTS = STEPS // PER_SEGMENT

SCRIPT = f"""\
import hashlib, os, signal, sys, time
from smlaunch.contract.segment_outcome import CONTINUE, FINISHED
from smlaunch.contract.segment import Segment
from smlaunch.train.tree_format import encode_tree
from smlaunch.train.checkpoint_store import CheckpointStore

STEPS, PER_SEGMENT = {STEPS}, {PER_SEGMENT}
"""

SCRIPT += """\
EVERY = int(os.environ.get("TEST_EVERY", "5"))
PAUSE = float(os.environ.get("TEST_PAUSE", "0"))
segment = Segment.from_environment(os.environ)
received_signals = []
signal.signal(signal.SIGTERM, lambda *_: received_signals.append("SIGTERM"))
names = {"job": segment.job, "writer": segment.writer}
store = CheckpointStore(segment.checkpoint_dir, 0, 1, keep_last=segment.keep_steps, **names)
step, weights, first_step = 0, "", 0
newest = store.newest_intact_manifest()
if newest is not None:
    state = store.open_shard(newest).read_tree()
    step, weights, first_step = state["step"], state["weights"], state["step"]
print("begins at step", step, flush=True)


def save():
    encoded = encode_tree({"step": step, "weights": weights})
    store.commit(step, [store.write_shard(step, encoded.chunks())])


saved_step = step
while step < STEPS and step - first_step < PER_SEGMENT:
    if received_signals or os.path.exists(segment.stop_file):
        break
    step += 1
    weights = hashlib.sha256((weights + str(step)).encode()).hexdigest()
    print("smlaunch: progress step=%d steps=%d" % (step, STEPS), flush=True)
    time.sleep(PAUSE)
    if step % EVERY == 0:
        save()
        saved_step = step
if saved_step != step:
    save()
finished = step == STEPS
store.write_outcome(FINISHED if finished else CONTINUE, step)
if finished:
    print("weights", weights, flush=True)
    model = os.environ["SM_MODEL_DIR"]
    with open(os.path.join(model, "weights"), "w") as file:
        file.write(weights)
"""


def true_weights() -> str:
    weights = ""
    for step in range(1, STEPS + 1):
        weights = hashlib.sha256((weights + str(step)).encode()).hexdigest()
    return weights


TRUE_WEIGHTS = true_weights()


def write_script(folder: Path) -> Path:
    path = folder / "train.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPT)
    return path


def drive_command(script: Path, name: str, *options: str) -> list[str]:
    """Returns the command that drives the chain."""
    limits = ("--max-runtime", "10m", "--segment", "60s")
    return ["run", str(script), "--local", "--name", name, *limits, *options]


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [SMLAUNCH, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    """Sends SIGKILL to the command alone: what runs on a background endpoint is not its child."""
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


class Killed(NamedTuple):
    """The result of a chain whose clients were killed."""

    kills: int
    details: dict[str, Any]
    log: str


def drive_and_kill(
    home: Path, script: Path, name: str, rng: random.Random, kills: int, *options: str
) -> Killed:
    """Starts clients on the endpoint at ``home`` and kills them after some line of what they print, or a
    moment later, ``kills`` of them or until the run is over; then lets one drive it to its end. Every other
    one is told only the run's name."""
    kill_count = 0
    for number in range(2 * kills):
        is_resumed = number % 2 and list(home.glob(f"s3/*/smlaunch/{name}/workflow.json"))
        client = start(
            *(["resume", name, "--local"] if is_resumed else drive_command(script, name, *options))
        )
        _read_lines(client, rng.randint(0, 30), rng.uniform(0.0, 0.8))
        time.sleep(rng.choice((0.0, rng.uniform(0.0, 0.05))))
        if client.poll() is None:
            kill(client)
            kill_count += 1
        else:
            client.communicate()
            if client.returncode == 0:
                break
        if kill_count == kills:
            break
    result = smlaunch(*drive_command(script, name, *options))
    assert result.code == 0, result.text
    details = smlaunch("show", name, "--local", "--json").json()
    return Killed(kill_count, details, smlaunch("logs", name, "--local").out)


def _read_lines(client: subprocess.Popen[str], lines: int, moment: float) -> None:
    assert client.stdout is not None
    if lines == 0:
        time.sleep(moment)
    for number, _ in enumerate(client.stdout, start=1):
        if number >= lines:
            return


def check_once(outcome: Killed, name: str) -> None:
    """Checks that every segment has one job, which began where the one before it ended, and that the weights
    are right."""
    assert [job["name"] for job in outcome.details["jobs"]] == [
        f"{name}-s{n}-a1" for n in range(1, SEGMENTS + 1)
    ]
    first_steps = [line.rpartition(" ")[2] for line in outcome.log.splitlines() if "begins at step" in line]
    assert first_steps == [str(PER_SEGMENT * number) for number in range(SEGMENTS)], outcome.log
    assert f"weights {TRUE_WEIGHTS}" in outcome.log
    assert (outcome.details["status"], outcome.details["exit_code"]) == ("Completed", 0)


def kill_clients(home: Path, script: Path, *, seed: int, kills: int, pause: str) -> int:
    """Runs chain after chain until ``kills`` clients have been killed, and checks each chain. ``pause``:
    seconds of a step. Returns the number of kills."""
    rng = random.Random(seed)
    kill_count = number = 0
    while kill_count < kills and number < 3 * kills:
        name = f"killed-{number}"
        outcome = drive_and_kill(
            home, script, name, rng, min(8, kills - kill_count), "--env", f"TEST_PAUSE={pause}"
        )
        check_once(outcome, name)
        kill_count += outcome.kills
        number += 1
    return kill_count
