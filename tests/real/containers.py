"""What the container tests need: an engine that works, Debian as a base image, and images built on it.

SMLAUNCH_CONTAINER_ENGINE says which engine all of them are to be run with; default: the first that works.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from smlaunch.errors import EndpointError
from smlaunch.local.executors import containers_engine
from smlaunch.local.executors.container_cli import OWNER_LABEL, Engine
from smlaunch.local.executors.containers_engine import run
from tests.conftest import ROOT

BASE = "localhost/smlaunch-base:bookworm"
"""As tools/base_image.py names it."""


@functools.cache
def engine_or_reason() -> Engine | str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            wanted = os.environ.get(containers_engine.ENGINE_VARIABLE)
            found = containers_engine.best(Path(folder) / "engine.json", wanted)
        except EndpointError as error:
            return str(error)
    if containers_engine.image_id(found, BASE) is None:
        return f"{BASE} is not there: python tools/base_image.py makes it"
    return found


def engine_or_skip() -> Engine:
    found = engine_or_reason()
    if isinstance(found, str):
        pytest.skip(found)
    return found


def built(engine: Engine, folder: str, *options: str) -> str:
    """The image of a folder of containers/, on our base; what has not changed is not built again."""
    image = f"localhost/smlaunch-test-{folder}"
    words = ("build", "--quiet", f"--build-arg=BASE={BASE}", f"--tag={image}", *options)
    line = engine.words(*words, str(ROOT / "containers" / folder))
    done = subprocess.run(line, capture_output=True)  # the first time that takes its while
    assert done.returncode == 0, done.stderr.decode()
    return image


def left_of(engine: Engine, owner: str) -> list[str]:
    """Containers and networks of an endpoint."""
    label = f"--filter=label={OWNER_LABEL}={owner}"
    listed = [
        run(engine.words("ps", "--all", "--format={{.Names}}", label)),
        run(engine.words("network", "ls", "--format={{.Name}}", label)),
    ]
    assert all(done.returncode == 0 for done in listed), listed
    return b" ".join(done.stdout for done in listed).decode().split()
