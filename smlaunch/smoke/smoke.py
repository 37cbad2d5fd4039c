"""The program of ``smlaunch smoke``, on a host: says what it finds, and waits to be stopped.

It travels by itself: standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from typing import Any, List

PREFIX = "smlaunch-smoke: "
BEFORE_STOP, AFTER_STOP = "before-stop.txt", "after-stop.txt"
"""Files in the folder of checkpoints."""


def say(name: str, **facts: Any) -> None:
    print(PREFIX + json.dumps({"event": name, **facts}), flush=True)


def store(folder: str, name: str, text: str) -> None:
    """Write a file that appears complete: the service may copy the folder at any moment."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    with open(path + ".part", "w") as file:
        file.write(text)
    os.replace(path + ".part", path)


def main(nonce: str, seconds: float) -> None:
    say("started", nonce=nonce, python=sys.version.split()[0], host=os.environ.get("SM_CURRENT_HOST"))
    folder = os.environ["SM_CHANNEL_PROBE"]
    names = sorted(os.listdir(folder))
    contents = [open(os.path.join(folder, name), "rb").read() for name in names]
    say("channel", names=names, sha256=[hashlib.sha256(content).hexdigest() for content in contents])
    checkpoints = os.environ["SMLAUNCH_CHECKPOINTS"]
    stops: List[float] = []
    signal.signal(signal.SIGTERM, lambda *_: stops.append(time.time()))
    store(checkpoints, BEFORE_STOP, nonce)
    store(os.environ["SM_MODEL_DIR"], "smoke.txt", nonce)
    say("waiting", seconds=seconds)
    end = time.time() + seconds
    while not stops and time.time() < end:
        time.sleep(0.05)
    if not stops:
        say("not-stopped")
        return
    say("stopped", at=stops[0])
    store(checkpoints, AFTER_STOP, nonce)
    say("saved", seconds=round(time.time() - stops[0], 3))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
