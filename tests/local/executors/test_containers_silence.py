"""An engine that does not answer: scripts replace it and hang at one of its commands."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from smlaunch.errors import EndpointError
from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors import container_commands, container_network
from smlaunch.local.executors.container_cli import Engine
from smlaunch.local.executors.container_commands import TIMED_OUT_CODE
from smlaunch.local.executors.container_engine import find_image_id, load_cached_engine, run_short_command
from smlaunch.local.executors.container_executor import Containers
from smlaunch.local.executors.executor_base import EndpointContext
from smlaunch.local.executors.executor_interface import CannotAllocate, HostsRequest, Program
from smlaunch.local.executors.isolation_levels import machine_fingerprint
from smlaunch.local.state_dir import StateDir
from tests.local.executors.conftest import eventually

ENGINE_SCRIPT = """#!/bin/sh
echo "$*" >> {folder}/commands
case "$*" in
    {hangs}) {how} echo $$ >> {folder}/hanging; while :; do sleep 0.1; done ;;
    "image inspect"*) echo sha256:0123 ;;
    "network inspect"*) echo "10.89.0.0/24 " ;;
esac
"""


TIMEOUT_SECONDS = 1.0
"""Seconds in which a script answers, also on a busy machine."""


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_commands, "TIMEOUT_SECONDS", TIMEOUT_SECONDS)
    monkeypatch.setattr(container_commands, "_TERMINATION_SECONDS", 0.5)


def make_hanging_engine(folder: Path, *patterns: str, shell_prefix: str = "") -> Engine:
    """Write a podman that hangs at commands that begin with one of ``patterns``."""
    program = folder / "podman"
    program.write_text(
        ENGINE_SCRIPT.format(folder=folder, hangs="|".join(f'"{p}"*' for p in patterns), how=shell_prefix)
    )
    program.chmod(0o755)
    return Engine("podman", str(program), "0")


def containers_by(engine: Engine, folder: Path) -> Containers:
    """Return the executor of an endpoint that has found this engine."""
    executor = Containers(EndpointContext(StateDir(folder / "home"), Settings(container_shm_bytes=None)))
    executor.engine = engine
    return executor


def has_no_hanging_command(folder: Path) -> bool:
    return not any(Path("/proc", pid).exists() for pid in (folder / "hanging").read_text().split())


@pytest.mark.parametrize("shell_prefix", ("", "trap '' TERM;"))
def test_a_command_without_an_answer_is_ended_and_named(tmp_path: Path, shell_prefix: str) -> None:
    engine = make_hanging_engine(tmp_path, "--runtime=runc network rm", shell_prefix=shell_prefix)
    engine = replace(engine, flags=("--runtime=runc",))
    result = run_short_command(engine.command_line("network", "rm", "--force", "mine"))
    assert result.returncode == TIMED_OUT_CODE
    assert result.stderr.decode() == (
        "`podman network rm` has not answered for 1 s; see whether `podman ps` does, and restart the "
        "engine where not"
    )
    assert has_no_hanging_command(tmp_path)


def test_what_a_command_is_given_and_says_is_whole(tmp_path: Path) -> None:
    content = os.urandom(1 << 20)
    result = run_short_command(["sh", "-c", "sleep 0.1; cat; echo because >&2; exit 3"], content)
    assert (result.returncode, result.stdout, result.stderr) == (3, content, b"because\n")


def test_silence_is_no_missing_image_and_no_empty_machine(tmp_path: Path) -> None:
    with pytest.raises(CannotAllocate, match="`podman image inspect` has not answered"):
        find_image_id(make_hanging_engine(tmp_path, "image inspect"), "any")
    for silent in ("network create", "network inspect"):
        with pytest.raises(CannotAllocate, match=f"`podman {silent}` has not answered"):
            container_network.create_network(
                make_hanging_engine(tmp_path, silent), "n", "o", host_count=2, is_internal=False
            )
    executor = containers_by(make_hanging_engine(tmp_path, "ps"), tmp_path)
    with pytest.raises(EndpointError, match="cannot be removed: `podman ps` has not answered"):
        executor.remove_leftovers("another")
    assert has_no_hanging_command(tmp_path)


def test_an_engine_that_does_not_tell_its_version_is_not_remembered(tmp_path: Path) -> None:
    cache = tmp_path / "engine.json"
    for silent, is_remembered in (("image", True), ("version", False)):
        engine = make_hanging_engine(tmp_path, silent)
        cache.write_text(json.dumps({"fingerprint": machine_fingerprint(), "engine": asdict(engine)}))
        assert (load_cached_engine(cache) is not None) is is_remembered


@pytest.mark.parametrize(
    "silent",
    (("create", "unshare", "network rm"), ("start", "kill", "rm")),
    ids=lambda silent: "+".join(silent),
)
def test_a_host_is_given_back_whatever_the_engine_does(tmp_path: Path, silent: tuple[str, ...]) -> None:
    """A job that is stopped meanwhile ends, and nothing that waits for the engine is left."""
    engine = make_hanging_engine(tmp_path, *silent)
    request = HostsRequest(
        job_id="job",
        endpoint_id="o",
        folder=tmp_path / "hosts" / "job",
        host_names=["algo-1"],
        isolated_network=True,
        image="i",
    )
    allocation = containers_by(engine, tmp_path).allocate(request)
    (host,) = allocation.start([Program(("true",), {})])
    assert eventually((tmp_path / "hanging").exists)
    time.sleep(TIMEOUT_SECONDS + 0.2)  # longer than the timeout of short commands
    assert not has_no_hanging_command(tmp_path)
    host.terminate()
    allocation.release()
    assert has_no_hanging_command(tmp_path)
    commands = (tmp_path / "commands").read_text().splitlines()
    assert "rm --force --volumes --time=0 smlaunch-o-job-algo-1" in commands
    assert commands[-1] == "network rm smlaunch-o-job"
