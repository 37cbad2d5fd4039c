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
from smlaunch.local.executors import container_engine
from smlaunch.local.executors.container_cli import ENDPOINT_ID_LABEL, Engine
from smlaunch.local.executors.container_engine import run_short_command
from tests.conftest import ROOT

BASE = "localhost/smlaunch-base:bookworm"
"""As tools/base_image.py names it."""


@functools.cache
def engine_or_reason() -> Engine | str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            engine_name = os.environ.get(container_engine.ENGINE_VARIABLE)
            engine = container_engine.choose_engine(Path(folder) / "engine.json", engine_name)
        except EndpointError as error:
            return str(error)
    if container_engine.find_image_id(engine, BASE) is None:
        return f"{BASE} is not there: python tools/base_image.py makes it"
    return engine


def engine_or_skip() -> Engine:
    engine = engine_or_reason()
    if isinstance(engine, str):
        pytest.skip(engine)
    return engine


def build_image(engine: Engine, folder: str, *options: str) -> str:
    """Returns the image of a folder of containers/, built on our base unless nothing has changed."""
    image = f"localhost/smlaunch-test-{folder}"
    arguments = ("build", "--quiet", f"--build-arg=BASE={BASE}", f"--tag={image}", *options)
    line = engine.command_line(*arguments, str(ROOT / "containers" / folder))
    result = subprocess.run(line, capture_output=True)  # the first time that takes its while
    assert result.returncode == 0, result.stderr.decode()
    return image


def list_remaining(engine: Engine, owner: str) -> list[str]:
    """Lists containers and networks of an endpoint."""
    label = f"--filter=label={ENDPOINT_ID_LABEL}={owner}"
    results = [
        run_short_command(engine.command_line("ps", "--all", "--format={{.Names}}", label)),
        run_short_command(engine.command_line("network", "ls", "--format={{.Name}}", label)),
    ]
    assert all(result.returncode == 0 for result in results), results
    return b" ".join(result.stdout for result in results).decode().split()
