"""Which container engine works on this machine, found by running a container, and how images come to it.

The engine's own settings are respected where they work. Where they do not (rlimits that may not be raised,
cgroups that its runtime refuses), the next of a few known remedies is tried, as words on its command line.
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
from smlaunch.local.executors.levels import fingerprint
from smlaunch.local.state_dir import write_private_file

ENGINES: tuple[Literal["podman", "docker"], ...] = ("podman", "docker")
ENGINE_VARIABLE = "SMLAUNCH_CONTAINER_ENGINE"
OPTIONS_VARIABLE = "SMLAUNCH_CONTAINER_OPTIONS"
"""What the settings container_engine and container_options are when nobody set them. The options are words as
a shell would part them."""
_CHECK_SECONDS = 0.5
_REACH_SECONDS = 5
_MOST_FILES, _MOST_PROCESSES = 65536, 20000


class Found(NamedTuple):
    """``engine`` is None when it does not work, for the reason ``why_not``."""

    name: str
    engine: Engine | None
    why_not: str = ""


def engines() -> Iterator[Found]:
    """Tries each engine by running a container of a few kilobytes; about a second for one that works."""
    for kind in ENGINES:
        yield _try(kind)


def best(cache: Path, wanted: str | None = None) -> Engine:
    """The first engine that works, or ``wanted``. Raises EndpointError with what is wrong with each.

    What was found is kept in ``cache`` for as long as machine, user and rights are the same.
    """
    known = remembered(cache)
    if known is not None and wanted in (None, known.kind):
        return known
    reasons = []
    for kind in ENGINES if wanted is None else (wanted,):
        if kind not in ENGINES:
            raise EndpointError(f"container engine {kind!r} is unknown; there are {', '.join(ENGINES)}")
        found = _try(kind)
        if found.engine is not None:
            document = {"fingerprint": fingerprint(), "engine": asdict(found.engine)}
            write_private_file(cache, json.dumps(document).encode())
            return found.engine
        reasons.append(f"{kind}: {found.why_not}")
    raise EndpointError(
        f"no container engine works here ({'; '.join(reasons)}); install podman, or take the executor "
        "`processes`, which needs none"
    )


def remembered(cache: Path) -> Engine | None:
    """What ``best`` has found here, as long as that still holds."""
    try:
        document = json.loads(cache.read_text())
        if document["fingerprint"] != fingerprint():
            return None
        found = document["engine"]
        engine = Engine(
            **{**found, "flags": tuple(found["flags"]), "create_flags": tuple(found["create_flags"])}
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there yet, or half written by a machine that went down: found anew
    return engine if _version(engine.kind, engine.program).returncode == 0 else None


def options_from(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Raises EndpointError for quotes that do not close."""
    try:
        return tuple(shlex.split(variables.get(OPTIONS_VARIABLE, "")))
    except ValueError as error:
        raise EndpointError(f"{OPTIONS_VARIABLE} cannot be read as words: {error}") from None


def image_id(engine: Engine, image: str) -> str | None:
    """None when the engine has no such image. Raises CannotAllocate when it does not say."""
    done = run(engine.words("image", "inspect", "--format", "{{.Id}}", image))
    if done.returncode == UNANSWERED:
        raise CannotAllocate(error_output(done))
    return done.stdout.decode().strip() if done.returncode == 0 else None


def helper_image(engine: Engine) -> str:
    """An image of this machine's own chown and nothing else; made where it is not there yet."""
    image = "localhost/smlaunch-chown:1"
    if image_id(engine, image) is None:
        run(engine.words("import", "-", image), _tiny_image("/bin/chown"))
    return image


def bring(engine: Engine, image: str, check: Callable[[], None]) -> str:
    """The image's id, pulled where it is not here yet. ``check`` raises to give up meanwhile. Raises
    ImageProblem, and CannotAllocate when the engine does not answer."""
    if not image or image.startswith("-") or any(character.isspace() for character in image):
        raise ImageProblem(f"{image!r} is no image's name")
    found = image_id(engine, image)
    if found is None:
        _pull(engine, image, check)
        found = image_id(engine, image)
    if found is None:
        raise ImageProblem(f"image {image} was pulled, and {engine.kind} does not know it by that name")
    return found


def run(words: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """A short command of an engine's (containers_commands). The environment is this process's, as if a person
    had typed it."""
    return containers_commands.run(words, containers_commands.PATIENCE_SECONDS, stdin)


def registry_of(image: str) -> str | None:
    """``host`` or ``host:port``; None for a name without one, which only an engine's settings could complete
    (the reference grammar of the distribution project: a first part with a dot or a colon, or localhost)."""
    first, slash, _ = image.partition("/")
    return first if slash and (any(mark in first for mark in ".:") or first == "localhost") else None


def _pull(engine: Engine, image: str, check: Callable[[], None]) -> None:
    next_step = (
        f"have it here under this name: `{engine.kind} pull`, `{engine.kind} load`, or `{engine.kind} build "
        f"--tag {image} ...`"
    )
    registry = registry_of(image)
    if registry is None:
        raise ImageProblem(f"image {image} is not on this machine, and its name has no registry; {next_step}")
    unreachable = _unreachable(registry)
    if unreachable:
        raise ImageProblem(
            f"image {image} is not on this machine, and its registry {registry} cannot be reached "
            f"({unreachable}); {next_step}"
        )
    with subprocess.Popen(
        engine.words("pull", "--quiet", image), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as pulling:
        try:
            while True:
                try:
                    _, complaint = pulling.communicate(timeout=_CHECK_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    check()
        except BaseException:
            pulling.kill()
            raise
    if pulling.returncode:
        lines = complaint.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
        raise ImageProblem(
            f"image {image} cannot be pulled: {lines[-1].removeprefix('Error: ')}; {next_step}"
        )


def _unreachable(registry: str) -> str:
    """Why a registry cannot be; empty when it can, or when a proxy is in between: then only a pull tells.
    Engines themselves would try for a minute."""
    if getproxies().get("https"):
        return ""
    host, _, port = registry.partition(":")
    try:
        socket.create_connection((host, int(port or 443)), timeout=_REACH_SECONDS).close()
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _try(kind: Literal["podman", "docker"]) -> Found:
    if sys.platform != "linux":
        return Found(kind, None, "containers have been tried on Linux only")
    program = shutil.which(kind)
    if program is None:
        return Found(kind, None, "not installed")
    try:
        version_result = _version(kind, program)
        if version_result.returncode:
            return Found(kind, None, error_output(version_result))
        plain = Engine(kind, program, version_result.stdout.decode().strip())
        return _with_remedy(plain)
    except OSError as error:
        return Found(kind, None, f"{program}: {error.strerror or error}")


def _version(kind: str, program: str) -> subprocess.CompletedProcess[bytes]:
    """Fails where docker's daemon is not there; podman has none."""
    side = "Server" if kind == "docker" else "Client"
    return run([program, "version", "--format", "{{." + side + ".Version}}"])


def _with_remedy(plain: Engine) -> Found:
    """The engine with the first remedy that makes a container run."""
    image = f"localhost/smlaunch-probe:{secrets.token_hex(4)}"
    command = "/bin/true"
    imported = run(plain.words("import", "-", image), _tiny_image(command))
    if imported.returncode:
        return Found(plain.kind, None, f"an image cannot be stored: {error_output(imported)}")
    try:
        complaint = ""
        for engine in _remedies(plain):
            words = ("run", "--rm", "--pull=never", "--network=none", *engine.create_flags, image, command)
            tried = run(engine.words(*words))
            if tried.returncode == 0:
                return Found(plain.kind, engine)
            complaint = complaint or error_output(tried)  # with the engine's own settings
        return Found(plain.kind, None, f"a container cannot be started: {complaint}")
    finally:
        run(plain.words("rmi", "--force", image))


def _remedies(plain: Engine) -> Iterator[Engine]:
    """The engine as it is set up; with limits that need no right to raise any; with the other runtime too,
    for a machine whose cgroups the first one refuses."""
    yield plain
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], _MOST_FILES)
    limits = (f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={_MOST_PROCESSES}:{_MOST_PROCESSES}")
    yield replace(plain, create_flags=limits)
    if plain.kind == "podman":
        for runtime in ("runc", "crun"):
            if shutil.which(runtime):
                flags = (f"--runtime={runtime}", "--cgroup-manager=cgroupfs")
                yield replace(plain, flags=flags, create_flags=limits)


def _tiny_image(program: str) -> bytes:
    """This machine's own program of that name, at that path, with the libraries it needs, as an archive: no
    registry is asked for it. Empty but for that where it is not a program of glibc's or musl's."""
    found = shutil.which(Path(program).name) or program
    listed = run(["ldd", found]).stdout.decode()
    libraries = {word for word in listed.split() if word.startswith("/")}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path, name in ((found, program), *((library, library) for library in sorted(libraries))):
            archive.add(os.path.realpath(path), name.lstrip("/"))
    return content.getvalue()
