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
from smlaunch.local.executors import container_commands
from smlaunch.local.executors.container_cli import Engine
from smlaunch.local.executors.container_commands import TIMED_OUT_CODE, last_error_line
from smlaunch.local.executors.executor_interface import CannotAllocate, ImageProblem
from smlaunch.local.executors.isolation_levels import machine_fingerprint
from smlaunch.local.state_dir import write_private_file

ENGINES: tuple[Literal["podman", "docker"], ...] = ("podman", "docker")
ENGINE_VARIABLE = "SMLAUNCH_CONTAINER_ENGINE"
OPTIONS_VARIABLE = "SMLAUNCH_CONTAINER_OPTIONS"
"""Defaults of the settings container_engine and container_options. The options are separated as in a
shell."""
_STOP_CHECK_SECONDS = 0.5
_CONNECT_SECONDS = 5
_MAX_OPEN_FILES, _MAX_PROCESSES = 65536, 20000


class EngineProbe(NamedTuple):
    """Whether an engine works."""

    name: str
    engine: Engine | None
    """None if it does not work."""
    problem: str = ""
    """The reason if it does not work."""


def probe_engines() -> Iterator[EngineProbe]:
    """Try each engine by running a container of a few kilobytes; takes about a second for one that works."""
    for kind in ENGINES:
        yield _probe_engine(kind)


def choose_engine(cache_file: Path, requested_engine: str | None = None) -> Engine:
    """Return the engine ``requested_engine`` (podman or docker, the names in ENGINES), or without one the
    first that can run a container on this machine, found by a trial container. Raises EndpointError with the
    reason why each cannot.

    The result is stored in ``cache_file`` and used while machine, user and privileges are the same."""
    cached_engine = load_cached_engine(cache_file)
    if cached_engine is not None and requested_engine in (None, cached_engine.kind):
        return cached_engine
    problems = []
    for kind in ENGINES if requested_engine is None else (requested_engine,):
        if kind not in ENGINES:
            raise EndpointError(f"container engine {kind!r} is unknown; there are {', '.join(ENGINES)}")
        probe_result = _probe_engine(kind)
        if probe_result.engine is not None:
            _save_engine(cache_file, probe_result.engine)
            return probe_result.engine
        problems.append(f"{kind}: {probe_result.problem}")
    raise EndpointError(
        f"no container engine works here ({'; '.join(problems)}); install podman, or take the executor "
        "`processes`, which needs none"
    )


def _save_engine(cache_file: Path, engine: Engine) -> None:
    """Store the engine that ``choose_engine`` has found, for ``load_cached_engine``."""
    document = {"fingerprint": machine_fingerprint(), "engine": asdict(engine)}
    write_private_file(cache_file, json.dumps(document).encode())


def load_cached_engine(cache_file: Path) -> Engine | None:
    """Return the engine that ``choose_engine`` stored earlier, if the machine has not restarted since, user
    and privileges are the same (the fingerprint) and the engine still answers; otherwise None."""
    try:
        document = json.loads(cache_file.read_text())
        if document["fingerprint"] != machine_fingerprint():
            return None
        engine_fields = document["engine"]
        for name in ("flags", "create_flags"):
            engine_fields[name] = tuple(engine_fields[name])  # JSON has lists only, Engine has tuples
        engine = Engine(**engine_fields)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing, or half written before a crash of the machine: probe again
    has_answered = _run_version_command(engine.kind, engine.program).returncode == 0
    return engine if has_answered else None


def options_from_environment(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options in OPTIONS_VARIABLE. Raises EndpointError for an unclosed quote."""
    try:
        return tuple(shlex.split(variables.get(OPTIONS_VARIABLE, "")))
    except ValueError as error:
        raise EndpointError(f"{OPTIONS_VARIABLE} cannot be read as words: {error}") from None


def find_image_id(engine: Engine, image: str) -> str | None:
    """Return an image's id; None if the engine does not have the image. Raises CannotAllocate if the engine
    does not answer."""
    completed = run_short_command(engine.command_line("image", "inspect", "--format", "{{.Id}}", image))
    if completed.returncode == TIMED_OUT_CODE:
        raise CannotAllocate(last_error_line(completed))
    return completed.stdout.decode().strip() if completed.returncode == 0 else None


def helper_image(engine: Engine) -> str:
    """Return the name of an image that contains only this machine's chown, after creating it if it is
    missing."""
    image = "localhost/smlaunch-chown:1"
    if find_image_id(engine, image) is None:
        run_short_command(engine.command_line("import", "-", image), _create_image_archive("/bin/chown"))
    return image


def ensure_image(engine: Engine, image: str, raise_if_stopping: Callable[[], None]) -> str:
    """Return the image's id; pull the image if the engine does not have it. ``raise_if_stopping`` is called
    meanwhile, and ends the pull by raising if the job is to stop. Raises ImageProblem for an image that
    cannot be used, and CannotAllocate if the engine does not answer."""
    # A name that begins with a dash would be an option of the engine's commands.
    if not image or image.startswith("-") or any(character.isspace() for character in image):
        raise ImageProblem(f"{image!r} is no image's name")
    found_image_id = find_image_id(engine, image)
    if found_image_id is None:
        _pull_image(engine, image, raise_if_stopping)
        found_image_id = find_image_id(engine, image)
    if found_image_id is None:
        raise ImageProblem(f"image {image} was pulled, and {engine.kind} does not know it by that name")
    return found_image_id


def run_short_command(command: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a short command of an engine (container_commands.py), with this process's environment."""
    return container_commands.run_with_timeout(command, container_commands.TIMEOUT_SECONDS, stdin)


def registry_of_image(image: str) -> str | None:
    """Return ``host`` or ``host:port`` of an image's registry; None for a name without a registry, which
    only an engine's settings could complete (the reference grammar of the distribution project: the first
    part has a dot or a colon, or is localhost)."""
    first_part, slash, _ = image.partition("/")
    if slash and ("." in first_part or ":" in first_part or first_part == "localhost"):
        return first_part
    return None


def _pull_image(engine: Engine, image: str, raise_if_stopping: Callable[[], None]) -> None:
    """Pull an image by the engine, after a check that its registry can be reached: engines themselves would
    try for a minute. ``raise_if_stopping`` is called meanwhile, and ends the pull by raising. Raises
    ImageProblem with the cause and the next step."""
    advice = (
        f"have it here under this name: `{engine.kind} pull`, `{engine.kind} load`, or `{engine.kind} build "
        f"--tag {image} ...`"
    )
    registry = registry_of_image(image)
    if registry is None:
        raise ImageProblem(f"image {image} is not on this machine, and its name has no registry; {advice}")
    connection_problem = _find_connection_problem(registry)  # empty if it can be reached
    if connection_problem:
        raise ImageProblem(
            f"image {image} is not on this machine, and its registry {registry} cannot be reached "
            f"({connection_problem}); {advice}"
        )
    pull_command = engine.command_line("pull", "--quiet", image)
    exit_code, error_output = _run_until_stopped(pull_command, raise_if_stopping)
    if exit_code != 0:
        error_lines = error_output.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
        cause = error_lines[-1].removeprefix("Error: ")
        raise ImageProblem(f"image {image} cannot be pulled: {cause}; {advice}")


def _run_until_stopped(command: Sequence[str], raise_if_stopping: Callable[[], None]) -> tuple[int, bytes]:
    """Run a command and return its exit code and its stderr. ``raise_if_stopping`` is called twice a second;
    if it raises, the command is killed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            while True:
                try:
                    _, error_output = process.communicate(timeout=_STOP_CHECK_SECONDS)
                    return process.returncode, error_output
                except subprocess.TimeoutExpired:
                    raise_if_stopping()
        except BaseException:
            process.kill()
            raise


def _find_connection_problem(registry: str) -> str:
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
    """Return whether containers can run on this machine with podman or docker: the engine with the flags that
    it needs, or the reason why they cannot (``problem``)."""
    if sys.platform != "linux":
        return EngineProbe(kind, engine=None, problem="containers have been tried on Linux only")
    program = shutil.which(kind)
    if program is None:
        return EngineProbe(kind, engine=None, problem="not installed")
    try:
        version_result = _run_version_command(kind, program)
        if version_result.returncode != 0:  # Docker's daemon does not run, for example
            return EngineProbe(kind, engine=None, problem=last_error_line(version_result))
        default_engine = Engine(kind, program, version=version_result.stdout.decode().strip())
        return _run_probe_container(default_engine)
    except OSError as error:
        return EngineProbe(kind, engine=None, problem=f"{program}: {error.strerror or error}")


def _run_version_command(kind: str, program: str) -> subprocess.CompletedProcess[bytes]:
    """Run the version command. It fails if Docker's daemon does not run; podman has no daemon."""
    version_field = "Server" if kind == "docker" else "Client"
    return run_short_command([program, "version", "--format", "{{." + version_field + ".Version}}"])


def _run_probe_container(default_engine: Engine) -> EngineProbe:
    """Run `true` in a container of a tiny image, first by the engine without flags (``default_engine``), then
    with one set of flags after the other. Return the engine with the first set that works, or without one the
    error of the engine without flags."""
    probe_image = f"localhost/smlaunch-probe:{secrets.token_hex(4)}"
    probe_program = "/bin/true"
    # The image has only this machine's `true` and its libraries: no registry is needed.
    import_result = run_short_command(
        default_engine.command_line("import", "-", probe_image),
        stdin=_create_image_archive(probe_program),  # a tar file, for the `-` of `import`
    )
    if import_result.returncode != 0:
        problem = f"an image cannot be stored: {last_error_line(import_result)}"
        return EngineProbe(default_engine.kind, engine=None, problem=problem)
    first_error = ""
    try:
        for engine in _iterate_engines_with_flags(default_engine):
            run_flags = ("--rm", "--pull=never", "--network=none", *engine.create_flags)
            run_result = run_short_command(engine.command_line("run", *run_flags, probe_image, probe_program))
            if run_result.returncode == 0:
                return EngineProbe(default_engine.kind, engine)
            first_error = first_error or last_error_line(run_result)
        return EngineProbe(
            default_engine.kind, engine=None, problem=f"a container cannot be started: {first_error}"
        )
    finally:
        run_short_command(default_engine.command_line("rmi", "--force", probe_image))


def _iterate_engines_with_flags(default_engine: Engine) -> Iterator[Engine]:
    """Yield the engine without flags; then with lower limits, for a machine where the engine may not set its
    usual ones; then with another runtime, for a machine whose cgroups the default one refuses. ``flags`` are
    for every command of the engine, ``create_flags`` for `create` and `run`."""
    yield default_engine
    # A limit may not be above the hard limit of this process.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    max_open_files = min(hard_limit, _MAX_OPEN_FILES)
    limit_flags = (
        f"--ulimit=nofile={max_open_files}:{max_open_files}",
        f"--ulimit=nproc={_MAX_PROCESSES}:{_MAX_PROCESSES}",
    )
    yield replace(default_engine, create_flags=limit_flags)
    if default_engine.kind == "podman":
        for runtime in ("runc", "crun"):
            if shutil.which(runtime):
                runtime_flags = (f"--runtime={runtime}", "--cgroup-manager=cgroupfs")
                yield replace(default_engine, flags=runtime_flags, create_flags=limit_flags)


def _create_image_archive(program: str) -> bytes:
    """Return an image, as a tar archive, that has only this machine's program of the path ``program`` and the
    libraries that it needs; without these if the program does not use glibc or musl."""
    program_on_machine = shutil.which(Path(program).name) or program
    ldd_output = run_short_command(["ldd", program_on_machine]).stdout.decode()
    libraries = sorted({word for word in ldd_output.split() if word.startswith("/")})
    source_by_path = {program: program_on_machine, **{library: library for library in libraries}}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path_in_image, source in source_by_path.items():
            archive.add(os.path.realpath(source), path_in_image.lstrip("/"))
    return content.getvalue()
