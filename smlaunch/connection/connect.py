"""Opens the connection to a target: a region, or the endpoint on this machine.

A local endpoint runs in the background, or is started for one command. This is the only module that knows
both ``runs`` and ``local``; the command line and notebooks use it.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from smlaunch.errors import EndpointError, JobError, Problem

if TYPE_CHECKING:
    from smlaunch.local.endpoint_info import EndpointInfo
    from smlaunch.local.faults import FaultPlan
    from smlaunch.planner.facts import EndpointFacts
    from smlaunch.runs.target import EndpointAddress, Target

_CLOSE_GRACE_SECONDS = 1.0
"""Seconds."""


@dataclass(frozen=True)
class Connection:
    """An open target."""

    target: Target
    is_embedded: bool = False
    """The endpoint runs in this process, so that every run on it ends with this command."""
    state_dir: Path | None = None
    """The local endpoint's directory; None for a region."""

    @property
    def description(self) -> str:
        """The target in words, for the first line of a run."""
        if self.state_dir is None:
            return self.target.region_name
        return (
            "this machine" if self.is_embedded else f"this machine (background endpoint at {self.target.url})"
        )

    @property
    def cli_flag(self) -> str:
        """The option with which a later command uses the same target, with a space in front."""
        return " --local" if self.state_dir is not None else ""

    def local_path(self, uri: str | None) -> Path | None:
        """Return the file behind an S3 address of the local endpoint."""
        if self.state_dir is None or not uri or not uri.startswith("s3://"):
            return None
        path = self.state_dir / "s3" / uri[len("s3://") :]
        return path if path.exists() else None


@contextmanager
def open_connection(
    options: dict[str, Any], *, read_only: bool = False, faults_file: str | None = None
) -> Iterator[Connection]:
    """Open the target that the command's options name.

    ``options`` are local, region, profile and, where the command has them, isolation and executor.
    ``faults_file`` is a fault plan for an endpoint that is started here. ``read_only``: the command must not
    write anything, so that an endpoint without a state directory is started in a temporary one.
    """
    if not options["local"]:
        for name in ("isolation", "executor"):
            if options.get(name):
                reason = "hosts of a region are machines; it goes with --local only"
                raise JobError([Problem(f"--{name}", reason)])
        if faults_file is not None:
            raise JobError(
                [Problem("--faults", "a region cannot simulate faults; it goes with --local only")]
            )
        from smlaunch.runs.target import Target

        yield Connection(Target.region(options["region"], options["profile"]))
        return
    if options["profile"]:
        raise JobError([Problem("--profile", "the local endpoint has credentials of its own; leave it out")])
    from smlaunch.local.state_dir import default_root

    state_root = default_root()
    endpoint = background_endpoint(state_root)
    if endpoint is not None:
        check_same_hosts(options, endpoint)
        if faults_file is not None:
            raise JobError([Problem("--faults", _FAULTS_OF_BACKGROUND_ENDPOINT)])
        target = endpoint_target(endpoint, options["region"])
        yield Connection(
            replace(target, locate_endpoint=_EndpointLocator(state_root, endpoint)), state_dir=state_root
        )
        return
    if read_only and not state_root.exists():
        with (
            TemporaryDirectory(prefix="smlaunch-") as folder,
            _open_embedded(Path(folder), options, faults_file) as connection,
        ):
            yield connection
        return
    with _open_embedded(state_root, options, faults_file) as connection:
        yield connection


_FAULTS_OF_BACKGROUND_ENDPOINT = (
    "the background endpoint has a fault plan of its own; `smlaunch local stop` first, or set the variable "
    "SMLAUNCH_FAULTS for `smlaunch local start`"
)


def local_target(*, isolation: str | None = None, executor: str | None = None) -> Target:
    """Return this machine as a target for ``plan`` and ``launch``, as ``--local`` does for a command.

    Uses the background endpoint, or starts one that lives as long as this process (a notebook's kernel, for
    example). ``isolation`` is full, user or plain; ``executor`` is processes or containers; None takes the
    best available.

    Raises JobError where the background endpoint has other hosts, and EndpointError where no endpoint can be
    started.
    """
    options = {"local": True, "region": None, "profile": None}
    hosts = {"isolation": isolation, "executor": executor}
    key = (isolation, executor)
    if key in _OPEN_CONNECTIONS:
        return _OPEN_CONNECTIONS[key].target
    connection = _EXIT_STACK.enter_context(open_connection({**options, **hosts}))
    if connection.is_embedded:  # a background endpoint may have stopped or restarted at the next call
        _OPEN_CONNECTIONS[key] = connection
    return connection.target


_EXIT_STACK = ExitStack()
_OPEN_CONNECTIONS: dict[tuple[str | None, str | None], Connection] = {}
"""The endpoints that run in this process, by isolation and executor."""
atexit.register(_EXIT_STACK.close)


@contextmanager
def _open_embedded(root: Path, options: dict[str, Any], faults: str | None) -> Iterator[Connection]:
    from smlaunch.local.endpoint import Endpoint
    from smlaunch.local.settings import Settings

    # Closed with a running job only after a second interrupt: the job has had its SIGTERM.
    settings = Settings(close_grace_seconds=_CLOSE_GRACE_SECONDS, faults=_read_fault_plan(faults))
    executor = options.get("executor") or "processes"
    with Endpoint(root, isolation=options.get("isolation"), executor=executor, settings=settings) as info:
        yield Connection(endpoint_target(info, options["region"]), is_embedded=True, state_dir=root)


def _read_fault_plan(path: str | None) -> FaultPlan | None:
    """Return the failures that the local endpoint is to inject, from a file; None without a path. Raises
    JobError."""
    if path is None:
        return None
    from smlaunch.local.faults import parse_fault_plan

    try:
        return parse_fault_plan(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, UnicodeError) as error:
        raise JobError([Problem("--faults", f"{path} cannot be read: {error}")]) from None
    except EndpointError as error:
        raise JobError([Problem("--faults", str(error))]) from None


def background_endpoint(root: Path) -> EndpointInfo | None:
    """Return the endpoint that ``smlaunch local start`` started, if it runs."""
    from smlaunch.local import daemon

    # Its file may have been removed, and an existing file may belong to an endpoint that has ended.
    may_run = os.path.exists(root / "endpoint.json") or daemon.is_running(root)  # noqa: PTH110  Path.exists raises
    return daemon.status(root) if may_run else None


class _EndpointLocator:
    """Finds the background endpoint's current address. A notebook outlives it, and it may restart on another
    port."""

    def __init__(self, root: Path, info: EndpointInfo) -> None:
        self._file = root / "endpoint.json"
        self._info = info
        self._stamp: tuple[int, int] | None = None

    def __call__(self) -> EndpointAddress:
        from smlaunch.local.endpoint_info import EndpointInfo
        from smlaunch.runs.target import EndpointAddress

        try:
            status = self._file.stat()
            if self._stamp != (status.st_ino, status.st_mtime_ns):
                self._info = EndpointInfo.from_json(self._file.read_bytes())
                self._stamp = (status.st_ino, status.st_mtime_ns)
        except (OSError, ValueError, TypeError):
            pass  # it has ended or is just starting: a request to the old address fails
        return EndpointAddress(self._info.url, self._info.access_key, self._info.secret_key)


def endpoint_target(info: EndpointInfo, region: str | None = None) -> Target:
    from smlaunch.runs.target import Target

    return Target.endpoint(
        info.url,
        region or info.region,
        info.access_key,
        info.secret_key,
        account=info.account,
        role=info.role_arn,
        bucket=info.bucket,
        facts=endpoint_facts(info),
    )


def endpoint_facts(info: EndpointInfo) -> EndpointFacts:
    """Return what the plan must know about this endpoint."""
    from smlaunch.local import support
    from smlaunch.local.executors.level_notes import notes_about_level
    from smlaunch.planner.facts import EndpointFacts

    runs_images = info.executor == "containers"
    without_effect, refused = support.recorded_and_rejected(runs_images)
    return EndpointFacts(
        isolation=info.isolation,
        runs_images=runs_images,
        same_python=info.pid == os.getpid() and not runs_images,
        warnings=tuple(notes_about_level(info.isolation)),
        recorded_members=without_effect,
        rejected_members=refused,
    )


def check_same_hosts(options: dict[str, Any], endpoint: EndpointInfo) -> None:
    """Raise JobError when ``isolation`` or ``executor`` request other hosts than the endpoint has."""
    problems = []
    isolation, executor = options.get("isolation"), options.get("executor")
    remedy = "leave the option out, or `smlaunch local stop` first"
    if executor not in (None, endpoint.executor):
        problems.append(
            Problem("--executor", f"the background endpoint's hosts are {endpoint.executor}; {remedy}")
        )
    if isolation not in (None, endpoint.isolation):
        problems.append(
            Problem(
                "--isolation",
                f"the background endpoint isolates its hosts by {endpoint.isolation!r}; {remedy}",
            )
        )
    if problems:
        raise JobError(problems)
