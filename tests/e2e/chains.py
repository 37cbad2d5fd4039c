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
from smlaunch.contract.outcome import CONTINUE, FINISHED
from smlaunch.contract.segment import Segment
from smlaunch.train.tree_format import encode
from smlaunch.train.checkpoint_store import CheckpointStore

STEPS, PER_SEGMENT = {STEPS}, {PER_SEGMENT}
"""

SCRIPT += """\
EVERY = int(os.environ.get("TEST_EVERY", "5"))
PAUSE = float(os.environ.get("TEST_PAUSE", "0"))
segment = Segment.from_environment(os.environ)
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append("SIGTERM"))
names = {"job": segment.job, "writer": segment.writer}
store = CheckpointStore(segment.checkpoint_dir, 0, 1, keep=segment.keep_steps, **names)
step, weights, begun = 0, "", 0
whole = store.newest_intact()
if whole is not None:
    state = store.open_shard(whole).read_tree()
    step, weights, begun = state["step"], state["weights"], state["step"]
print("begins at step", step, flush=True)


def save():
    encoded = encode({"step": step, "weights": weights})
    store.commit(step, [store.write_shard(step, encoded.chunks())])


saved = step
while step < STEPS and step - begun < PER_SEGMENT:
    if told or os.path.exists(segment.stop_file):
        break
    step += 1
    weights = hashlib.sha256((weights + str(step)).encode()).hexdigest()
    print("smlaunch: progress step=%d steps=%d" % (step, STEPS), flush=True)
    time.sleep(PAUSE)
    if step % EVERY == 0:
        save()
        saved = step
if saved != step:
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


def words(script: Path, name: str, *more: str) -> list[str]:
    """The command that drives the chain."""
    limits = ("--max-runtime", "10m", "--segment", "60s")
    return ["run", str(script), "--local", "--name", name, *limits, *more]


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [SMLAUNCH, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL, to the command alone: what it has started on a background endpoint is not its child."""
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


class Killed(NamedTuple):
    """What came of a chain whose clients were killed."""

    kills: int
    shown: dict[str, Any]
    log: str


def drive_and_kill(
    home: Path, script: Path, name: str, chance: random.Random, kills: int, *more: str
) -> Killed:
    """Starts clients on the endpoint at ``home`` and kills them after some line of what they print, or a
    moment later, ``kills`` of them or until the run is over; then lets one drive it to its end. Every other
    one is told only the run's name."""
    killed = 0
    for number in range(2 * kills):
        known = number % 2 and list(home.glob(f"s3/*/smlaunch/{name}/workflow.json"))
        client = start(*(["resume", name, "--local"] if known else words(script, name, *more)))
        _read_lines(client, chance.randint(0, 30), chance.uniform(0.0, 0.8))
        time.sleep(chance.choice((0.0, chance.uniform(0.0, 0.05))))
        if client.poll() is None:
            kill(client)
            killed += 1
        else:
            client.communicate()
            if client.returncode == 0:
                break
        if killed == kills:
            break
    done = smlaunch(*words(script, name, *more))
    assert done.code == 0, done.text
    shown = smlaunch("show", name, "--local", "--json").json()
    return Killed(killed, shown, smlaunch("logs", name, "--local").out)


def _read_lines(client: subprocess.Popen[str], lines: int, moment: float) -> None:
    assert client.stdout is not None
    if lines == 0:
        time.sleep(moment)
    for number, _ in enumerate(client.stdout, start=1):
        if number >= lines:
            return


def check_once(came: Killed, name: str) -> None:
    """One job per segment, each begun once and where the one before it had left; the true weights."""
    assert [job["name"] for job in came.shown["jobs"]] == [f"{name}-s{n}-a1" for n in range(1, SEGMENTS + 1)]
    begun = [line.rpartition(" ")[2] for line in came.log.splitlines() if "begins at step" in line]
    assert begun == [str(PER_SEGMENT * number) for number in range(SEGMENTS)], came.log
    assert f"weights {TRUE_WEIGHTS}" in came.log
    assert (came.shown["status"], came.shown["exit_code"]) == ("Completed", 0)


def killed_in_all(home: Path, script: Path, *, seed: int, kills: int, pause: str) -> int:
    """Chain after chain until so many clients have been killed; each must come out as if none had been.
    ``pause``: seconds that a step takes."""
    chance = random.Random(seed)
    killed = number = 0
    while killed < kills and number < 3 * kills:
        name = f"killed-{number}"
        came = drive_and_kill(
            home, script, name, chance, min(8, kills - killed), "--env", f"TEST_PAUSE={pause}"
        )
        check_once(came, name)
        killed += came.kills
        number += 1
    return killed
