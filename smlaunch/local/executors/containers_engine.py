"""Finds the container engine that works on this machine, by running a container, and pulls images.

The engine's own settings are used if they work. Otherwise (resource limits that may not be raised, cgroups
that its runtime refuses), a few known remedies are tried, as flags on its command line.
"""

from __future__ import annotations

import io
import json
import os
import resource
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.request import getproxies

from smlaunch.errors import EndpointError
from smlaunch.local.executors import containers_commands
from smlaunch.local.executors.base import CannotAllocate, ImageProblem
from smlaunch.local.executors.container_cli import Engine
from smlaunch.local.executors.containers_commands import UNANSWERED, error_output
from smlaunch.local.executors.levels import machine_fingerprint
from smlaunch.local.state_dir import write_private_file

ENGINES: tuple[Literal["podman", "docker"], ...] = ("podman", "docker")
ENGINE_VARIABLE = "SMLAUNCH_CONTAINER_ENGINE"
OPTIONS_VARIABLE = "SMLAUNCH_CONTAINER_OPTIONS"
"""Defaults of the settings container_engine and container_options. The options are separated as in a
shell."""
_CHECK_SECONDS = 0.5
_CONNECT_SECONDS = 5
_MAX_FILES, _MAX_PROCESSES = 65536, 20000


class EngineProbe(NamedTuple):
    """Whether an engine works."""

    name: str
    engine: Engine | None
    """None if it does not work."""
    why_not: str = ""
    """The reason if it does not work."""


def probe_engines() -> Iterator[EngineProbe]:
    """Try each engine by running a container of a few kilobytes; takes about a second for one that works."""
    for kind in ENGINES:
        yield _probe_engine(kind)


def choose_engine(cache: Path, requested_engine: str | None = None) -> Engine:
    """Return ``requested_engine``, or the first engine that works. Raises EndpointError with the problem of
    each.

    The result is stored in the file ``cache`` and used while machine, user and privileges are the same.
    """
    cached = cached_engine(cache)
    if cached is not None and requested_engine in (None, cached.kind):
        return cached
    reasons = []
    for kind in ENGINES if requested_engine is None else (requested_engine,):
        if kind not in ENGINES:
            raise EndpointError(f"container engine {kind!r} is unknown; there are {', '.join(ENGINES)}")
        probe_result = _probe_engine(kind)
        if probe_result.engine is not None:
            document = {"fingerprint": machine_fingerprint(), "engine": asdict(probe_result.engine)}
            write_private_file(cache, json.dumps(document).encode())
            return probe_result.engine
        reasons.append(f"{kind}: {probe_result.why_not}")
    raise EndpointError(
        f"no container engine works here ({'; '.join(reasons)}); install podman, or take the executor "
        "`processes`, which needs none"
    )


def cached_engine(cache: Path) -> Engine | None:
    """Return the engine that ``choose_engine`` found earlier, if it is still valid; otherwise None."""
    try:
        document = json.loads(cache.read_text())
        if document["fingerprint"] != machine_fingerprint():
            return None
        document_engine = document["engine"]
        engine = Engine(
            **{
                **document_engine,
                "flags": tuple(document_engine["flags"]),
                "create_flags": tuple(document_engine["create_flags"]),
            }
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing, or half written before a crash of the machine: probe again
    return engine if _version(engine.kind, engine.program).returncode == 0 else None


def options_from_environment(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options in OPTIONS_VARIABLE. Raises EndpointError for an unclosed quote."""
    try:
        return tuple(shlex.split(variables.get(OPTIONS_VARIABLE, "")))
    except ValueError as error:
        raise EndpointError(f"{OPTIONS_VARIABLE} cannot be read as words: {error}") from None


def image_id(engine: Engine, image: str) -> str | None:
    """Return an image's id; None if the engine does not have the image. Raises CannotAllocate if the engine
    does not answer."""
    completed = run(engine.command("image", "inspect", "--format", "{{.Id}}", image))
    if completed.returncode == UNANSWERED:
        raise CannotAllocate(error_output(completed))
    return completed.stdout.decode().strip() if completed.returncode == 0 else None


def helper_image(engine: Engine) -> str:
    """Return the name of an image that contains only this machine's chown, after creating it if it is
    missing."""
    image = "localhost/smlaunch-chown:1"
    if image_id(engine, image) is None:
        run(engine.command("import", "-", image), _image_with_program("/bin/chown"))
    return image


def ensure_image(engine: Engine, image: str, raise_if_stopping: Callable[[], None]) -> str:
    """Return the image's id; pull the image if it is missing. ``raise_if_stopping`` is called meanwhile.
    Raises ImageProblem, and CannotAllocate if the engine does not answer."""
    if not image or image.startswith("-") or any(character.isspace() for character in image):
        raise ImageProblem(f"{image!r} is no image's name")
    image_digest = image_id(engine, image)
    if image_digest is None:
        _pull(engine, image, raise_if_stopping)
        image_digest = image_id(engine, image)
    if image_digest is None:
        raise ImageProblem(f"image {image} was pulled, and {engine.kind} does not know it by that name")
    return image_digest


def run(command: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a short command of an engine (containers_commands.py), with this process's environment."""
    return containers_commands.run(command, containers_commands.TIMEOUT_SECONDS, stdin)


def registry_of(image: str) -> str | None:
    """Return ``host`` or ``host:port`` of an image's registry; None for a name without a registry, which
    only an engine's settings could complete (the reference grammar of the distribution project: the first
    part has a dot or a colon, or is localhost)."""
    first_part, slash, _ = image.partition("/")
    return (
        first_part
        if slash and (any(character in first_part for character in ".:") or first_part == "localhost")
        else None
    )


def _pull(engine: Engine, image: str, raise_if_stopping: Callable[[], None]) -> None:
    """Pull an image. Raises ImageProblem."""
    next_step = (
        f"have it here under this name: `{engine.kind} pull`, `{engine.kind} load`, or `{engine.kind} build "
        f"--tag {image} ...`"
    )
    registry = registry_of(image)
    if registry is None:
        raise ImageProblem(f"image {image} is not on this machine, and its name has no registry; {next_step}")
    connection_problem = _connection_problem(registry)
    if connection_problem:
        raise ImageProblem(
            f"image {image} is not on this machine, and its registry {registry} cannot be reached "
            f"({connection_problem}); {next_step}"
        )
    with subprocess.Popen(
        engine.command("pull", "--quiet", image), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as pull_process:
        try:
            while True:
                try:
                    _, error_message = pull_process.communicate(timeout=_CHECK_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    raise_if_stopping()
        except BaseException:
            pull_process.kill()
            raise
    if pull_process.returncode:
        lines = error_message.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
        raise ImageProblem(
            f"image {image} cannot be pulled: {lines[-1].removeprefix('Error: ')}; {next_step}"
        )


def _connection_problem(registry: str) -> str:
    """Return why a registry cannot be reached; empty if it can, or if a proxy is used, since then only a
    pull can tell. Engines themselves would try for a minute."""
    if getproxies().get("https"):
        return ""
    host, _, port = registry.partition(":")
    try:
        socket.create_connection((host, int(port or 443)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _probe_engine(kind: Literal["podman", "docker"]) -> EngineProbe:
    """Return whether containers can run with podman or docker, with the engine and what it needs if so, or
    the reason why they cannot."""
    if sys.platform != "linux":
        return EngineProbe(kind, None, "containers have been tried on Linux only")
    program = shutil.which(kind)
    if program is None:
        return EngineProbe(kind, None, "not installed")
    try:
        version_result = _version(kind, program)
        if version_result.returncode:
            return EngineProbe(kind, None, error_output(version_result))
        default_engine = Engine(kind, program, version_result.stdout.decode().strip())
        return _try_remedies(default_engine)
    except OSError as error:
        return EngineProbe(kind, None, f"{program}: {error.strerror or error}")


def _version(kind: str, program: str) -> subprocess.CompletedProcess[bytes]:
    """Run the version command. It fails if Docker's daemon does not run; podman has no daemon."""
    version_field = "Server" if kind == "docker" else "Client"
    return run([program, "version", "--format", "{{." + version_field + ".Version}}"])


def _try_remedies(default_engine: Engine) -> EngineProbe:
    """Find the first remedy with which a container runs."""
    image = f"localhost/smlaunch-probe:{secrets.token_hex(4)}"
    probe_program = "/bin/true"
    imported = run(default_engine.command("import", "-", image), _image_with_program(probe_program))
    if imported.returncode:
        return EngineProbe(default_engine.kind, None, f"an image cannot be stored: {error_output(imported)}")
    try:
        error_message = ""
        for engine in _remedies(default_engine):
            command = (
                "run",
                "--rm",
                "--pull=never",
                "--network=none",
                *engine.create_flags,
                image,
                probe_program,
            )
            completed = run(engine.command(*command))
            if completed.returncode == 0:
                return EngineProbe(default_engine.kind, engine)
            error_message = error_message or error_output(
                completed
            )  # the first one, from the engine's own settings
        return EngineProbe(default_engine.kind, None, f"a container cannot be started: {error_message}")
    finally:
        run(default_engine.command("rmi", "--force", image))


def _remedies(default_engine: Engine) -> Iterator[Engine]:
    """Yield the engine with its own settings; then with limits that need no privilege; then with another
    runtime, for a machine whose cgroups the default one refuses."""
    yield default_engine
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], _MAX_FILES)
    limits = (f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={_MAX_PROCESSES}:{_MAX_PROCESSES}")
    yield replace(default_engine, create_flags=limits)
    if default_engine.kind == "podman":
        for runtime in ("runc", "crun"):
            if shutil.which(runtime):
                flags = (f"--runtime={runtime}", "--cgroup-manager=cgroupfs")
                yield replace(default_engine, flags=flags, create_flags=limits)


def _image_with_program(program: str) -> bytes:
    """Return an image archive with this machine's program of that name and the libraries it needs, so that
    no registry is needed. Without its libraries if the program does not use glibc or musl."""
    program_path = shutil.which(Path(program).name) or program
    ldd_output = run(["ldd", program_path]).stdout.decode()
    libraries = {word for word in ldd_output.split() if word.startswith("/")}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path, name in ((program_path, program), *((library, library) for library in sorted(libraries))):
            archive.add(os.path.realpath(path), name.lstrip("/"))
    return content.getvalue()
