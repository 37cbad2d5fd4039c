"""Where work is done: a region, or the endpoint on this machine, standing or brought up for it.

The one module that knows both ``launch`` and ``local``; the command line and notebooks come through here.
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
    from smlaunch.planning.surroundings import EndpointFacts
    from smlaunch.runs.target import Standing, Target

_LAST_GRACE = 1.0
"""Seconds."""


@dataclass(frozen=True)
class Place:
    """``embedded``: the endpoint lives in this process, and every run on it ends with this command.

    ``state``: the local endpoint's directory; None for a region.
    """

    target: Target
    embedded: bool = False
    state: Path | None = None

    @property
    def words(self) -> str:
        """For the first line of a run."""
        if self.state is None:
            return self.target.region_name
        return "this machine" if self.embedded else f"this machine (standing endpoint at {self.target.url})"

    @property
    def flag(self) -> str:
        """What a later command needs to be told to look here too, with a space in front."""
        return " --local" if self.state is not None else ""

    def local_path(self, uri: str | None) -> Path | None:
        """The file behind an S3 address of the local endpoint."""
        if self.state is None or not uri or not uri.startswith("s3://"):
            return None
        path = self.state / "s3" / uri[len("s3://") :]
        return path if path.exists() else None


@contextmanager
def open_place(
    options: dict[str, Any], *, leaves_no_trace: bool = False, faults: str | None = None
) -> Iterator[Place]:
    """``options``: local, region, profile and, where the command has them, isolation and executor.
    ``faults``: a file that says what is to go wrong on an endpoint that is brought up here.

    ``leaves_no_trace``: the command must not write anything, so that an endpoint that has no state directory
    yet is brought up in a temporary one.
    """
    if not options["local"]:
        for name in ("isolation", "executor"):
            if options.get(name):
                reason = "hosts of a region are machines; it goes with --local only"
                raise JobError([Problem(f"--{name}", reason)])
        if faults is not None:
            raise JobError([Problem("--faults", "a region has its own; it goes with --local only")])
        from smlaunch.runs.target import Target

        yield Place(Target.region(options["region"], options["profile"]))
        return
    if options["profile"]:
        raise JobError([Problem("--profile", "the local endpoint has credentials of its own; leave it out")])
    from smlaunch.local.state_dir import default_root

    root = default_root()
    standing = standing_endpoint(root)
    if standing is not None:
        same_hosts(options, standing)
        if faults is not None:
            raise JobError([Problem("--faults", _STANDING_FAULTS)])
        target = target_of(standing, options["region"])
        yield Place(replace(target, stands=_Stands(root, standing)), state=root)
        return
    if leaves_no_trace and not root.exists():
        with (
            TemporaryDirectory(prefix="smlaunch-") as folder,
            _embedded(Path(folder), options, faults) as place,
        ):
            yield place
        return
    with _embedded(root, options, faults) as place:
        yield place


_STANDING_FAULTS = (
    "the standing endpoint has its own; `smlaunch local stop` first, or give it the file in the variable "
    "SMLAUNCH_FAULTS of `smlaunch local start`"
)


def local_target(*, isolation: str | None = None, executor: str | None = None) -> Target:
    """This machine, for ``plan`` and ``launch``: the standing endpoint, or one that lives as long as this
    process (a notebook's kernel, say). As ``--local`` does it for a command.

    ``isolation``: full, user or plain; ``executor``: processes or containers; None takes the best there is.
    Raises JobError where the standing endpoint has other hosts, EndpointError where none can be had.
    """
    options = {"local": True, "region": None, "profile": None}
    chosen = {"isolation": isolation, "executor": executor}
    key = (isolation, executor)
    if key in _OPEN:
        return _OPEN[key].target
    place = _STAYS.enter_context(open_place({**options, **chosen}))
    if place.embedded:  # a standing one may be gone, or be another, at the next call
        _OPEN[key] = place
    return place.target


_STAYS = ExitStack()
_OPEN: dict[tuple[str | None, str | None], Place] = {}
"""The endpoints that live in this process."""
atexit.register(_STAYS.close)


@contextmanager
def _embedded(root: Path, options: dict[str, Any], faults: str | None) -> Iterator[Place]:
    from smlaunch.local.endpoint import Endpoint
    from smlaunch.local.settings import Settings

    # Closed with a job on it only when the person has lost patience: it has had its SIGTERM.
    settings = Settings(close_grace_seconds=_LAST_GRACE, faults=_faults(faults))
    executor = options.get("executor") or "processes"
    with Endpoint(root, isolation=options.get("isolation"), executor=executor, settings=settings) as info:
        yield Place(target_of(info, options["region"]), embedded=True, state=root)


def _faults(path: str | None) -> FaultPlan | None:
    if path is None:
        return None
    from smlaunch.local.faults import read

    try:
        return read(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, UnicodeError) as error:
        raise JobError([Problem("--faults", f"{path} cannot be read: {error}")]) from None
    except EndpointError as error:
        raise JobError([Problem("--faults", str(error))]) from None


def standing_endpoint(root: Path) -> EndpointInfo | None:
    """The endpoint that ``smlaunch local start`` left standing, if there is one."""
    from smlaunch.local import standing

    # Its file may have been removed; and a file may be there, of an endpoint in another's directory.
    there = os.path.exists(root / "endpoint.json") or standing.is_held(root)  # noqa: PTH110  Path.exists raises
    return standing.status(root) if there else None


class _Stands:
    """Where the standing endpoint is: a notebook outlives it, and it may be started anew on another port."""

    def __init__(self, root: Path, info: EndpointInfo) -> None:
        self._file = root / "endpoint.json"
        self._info = info
        self._stamp: tuple[int, int] | None = None

    def __call__(self) -> Standing:
        from smlaunch.local.endpoint_info import EndpointInfo
        from smlaunch.runs.target import Standing

        try:
            found = self._file.stat()
            if self._stamp != (found.st_ino, found.st_mtime_ns):
                self._info = EndpointInfo.from_json(self._file.read_bytes())
                self._stamp = (found.st_ino, found.st_mtime_ns)
        except (OSError, ValueError, TypeError):
            pass  # it is gone, or just starting: who asks at the old address is told that nobody answers
        return Standing(self._info.url, self._info.access_key, self._info.secret_key)


def target_of(info: EndpointInfo, region: str | None = None) -> Target:
    from smlaunch.runs.target import Target

    return Target.endpoint(
        info.url,
        region or info.region,
        info.access_key,
        info.secret_key,
        account=info.account,
        role=info.role_arn,
        bucket=info.bucket,
        facts=facts_of(info),
    )


def facts_of(info: EndpointInfo) -> EndpointFacts:
    """What the plan must know about this endpoint."""
    from smlaunch.local import honesty
    from smlaunch.local.executors.level_notes import notes_on
    from smlaunch.planning.surroundings import EndpointFacts

    runs_images = info.executor == "containers"
    without_effect, refused = honesty.facts(runs_images)
    return EndpointFacts(
        isolation=info.isolation,
        runs_images=runs_images,
        same_python=info.pid == os.getpid() and not runs_images,
        notes=tuple(notes_on(info.isolation)),
        honesty=without_effect,
        refused=refused,
    )


def same_hosts(options: dict[str, Any], standing: EndpointInfo) -> None:
    """Raises JobError when ``isolation`` or ``executor`` ask for other hosts than the endpoint has."""
    problems = []
    isolation, executor = options.get("isolation"), options.get("executor")
    another = "leave the option out, or `smlaunch local stop` first"
    if executor not in (None, standing.executor):
        problems.append(
            Problem("--executor", f"the standing endpoint's hosts are {standing.executor}; {another}")
        )
    if isolation not in (None, standing.isolation):
        problems.append(
            Problem(
                "--isolation",
                f"the standing endpoint keeps its hosts apart by {standing.isolation!r}; {another}",
            )
        )
    if problems:
        raise JobError(problems)
