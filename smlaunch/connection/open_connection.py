"""Opens the connection to a target: a region, or the endpoint on this machine.

A local endpoint runs in the background, or is started for one command. This is the only module that knows
both ``runs`` and ``local``; the command line and notebooks use it.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, NamedTuple

from smlaunch.connection.termination_signals import exit_on_termination
from smlaunch.errors import AccountError, EndpointError, JobError, Problem

if TYPE_CHECKING:
    from typing_extensions import Self

    from smlaunch.facts.discovered_facts import EndpointFacts
    from smlaunch.local.endpoint import Endpoint
    from smlaunch.local.endpoint_info import EndpointInfo
    from smlaunch.local.fault_injection import FaultPlan
    from smlaunch.runs.launch_target import EndpointAddress, Target

_COMMAND_GRACE_SECONDS = 1.0
"""How long the jobs of a command have to exit when it ends. A running one is closed only after a second
interrupt: it has had its SIGTERM."""

_PROGRAM_GRACE_SECONDS = 5.0
"""The same for the jobs of a program, to which its end is the first notice."""


class Connection(NamedTuple):
    """An open target."""

    target: Target
    has_embedded_endpoint: bool = False
    """The endpoint runs in this process, so that every run on it ends with this command."""
    state_dir: Path | None = None
    """The local endpoint's directory; None for a region."""

    @property
    def description(self) -> str:
        """The target in words, for the first line of a run."""
        if self.state_dir is None:
            return self.target.region_name
        return (
            "this machine"
            if self.has_embedded_endpoint
            else f"this machine (background endpoint at {self.target.url})"
        )

    @property
    def cli_flag(self) -> str:
        """The option with which a later command uses the same target, with a space in front."""
        return self.target.cli_flag


@contextmanager
def open_connection(
    options: dict[str, Any],
    *,
    read_only: bool = False,
    faults_file: str | None = None,
    close_grace_seconds: float = _COMMAND_GRACE_SECONDS,
) -> Iterator[Connection]:
    """Open the target that the command's options name: a region of AWS, or a local endpoint (a server that
    imitates SageMaker on this machine): the one in the background, or else one in this process, which starts
    with the first request to it and ends with the context. Raises JobError for options that do not fit
    together, and EndpointError for a machine that cannot have the endpoint.

    ``options`` are local, region, profile and, where the command has them, isolation and executor.
    ``faults_file`` lists faults to simulate, for an endpoint that is started here. ``read_only``: the command
    must not create the state directory, so that without one the endpoint has a temporary one.
    ``close_grace_seconds``: how long jobs have to exit when an endpoint that is started here is closed.
    """
    if not options["local"]:
        _reject_local_options(options, faults_file)
        yield Connection(region_of_command(options["region"], options["profile"], has_local_option=True))
        return
    if options["profile"]:
        raise JobError([Problem("--profile", "the local endpoint has credentials of its own; leave it out")])
    from smlaunch.local.state_dir import default_root

    state_root = default_root()  # the state directory: all files of local endpoints
    background_endpoint = find_background_endpoint(state_root)
    if background_endpoint is not None:
        check_host_options(options, background_endpoint)  # raises if its hosts are others
        if faults_file is not None:
            raise JobError([Problem("--faults", _BACKGROUND_ENDPOINT_FAULTS_MESSAGE)])
        yield _connect_to_background_endpoint(background_endpoint, state_root, options["region"])
        return
    if read_only and not state_root.exists():
        with (
            TemporaryDirectory(prefix="smlaunch-") as folder,
            _open_embedded_endpoint(Path(folder), options, faults_file, close_grace_seconds) as connection,
        ):
            yield connection
        return
    with _open_embedded_endpoint(state_root, options, faults_file, close_grace_seconds) as connection:
        yield connection


def region_of_command(region: str | None, profile: str | None, *, has_local_option: bool = False) -> Target:
    """Return the region of AWS that a command's options name. ``has_local_option``: --local is an advice to
    give. Raises as ``Target.region`` does, in the words of the command line."""
    from smlaunch.runs.launch_target import NO_REGION, Target

    try:
        return replace(Target.region(region, profile), has_local_alternative=has_local_option)
    except AccountError as error:
        if str(error) != NO_REGION:
            raise
        local_advice = "; to run on this machine without AWS, add --local" if has_local_option else ""
        raise AccountError(
            f"no AWS region is set: give --region, or set AWS_REGION, or run `aws configure`{local_advice}"
        ) from None


def _connect_to_background_endpoint(
    endpoint: EndpointInfo, state_root: Path, region: str | None
) -> Connection:
    """Return the connection to the endpoint that `smlaunch local start` started; it finds the endpoint's new
    address after a restart."""
    target = target_of_endpoint(endpoint, region, _EndpointLocator(state_root, endpoint), state_root)
    return Connection(target, state_dir=state_root)


def _reject_local_options(options: dict[str, Any], faults_file: str | None) -> None:
    """Raise JobError if the options of a command for a region name what only a local endpoint has: how its
    hosts are made, and the file of faults that it simulates."""
    for option_name in ("isolation", "executor"):
        if options.get(option_name):
            reason = "hosts of a region are machines; it goes with --local only"
            raise JobError([Problem(f"--{option_name}", reason)])
    if faults_file is not None:
        raise JobError([Problem("--faults", "a region cannot simulate faults; it goes with --local only")])


_BACKGROUND_ENDPOINT_FAULTS_MESSAGE = (
    "the background endpoint has a fault plan of its own; `smlaunch local stop` first, or set the variable "
    "SMLAUNCH_FAULTS for `smlaunch local start`"
)


def local_target(*, isolation: str | None = None, executor: str | None = None) -> Target:
    """Return this machine as a target for ``plan`` and ``launch``, as ``--local`` does for a command.

    Uses the background endpoint, or starts one that lives as long as this process (a notebook's kernel, for
    example). At its end, also by Ctrl-C, SIGTERM or SIGHUP, the jobs are stopped and their checkpoints
    stored; the program's own handlers of signals stay.

    ``isolation`` is full, user or plain; ``executor`` is processes, containers or one that was added; None
    takes the best available.

    Raises JobError where the background endpoint has other hosts, and EndpointError where no endpoint can be
    started.
    """
    options = {"local": True, "region": None, "profile": None}
    hosts = {"isolation": isolation, "executor": executor}
    key = (isolation, executor)
    with _OPENING_LOCK:  # several threads may ask at once
        if key in _OPEN_CONNECTIONS:
            return _OPEN_CONNECTIONS[key].target
        connection = _EXIT_STACK.enter_context(
            open_connection({**options, **hosts}, close_grace_seconds=_PROGRAM_GRACE_SECONDS)
        )
        if connection.has_embedded_endpoint:
            # Not kept otherwise: a background endpoint may have stopped or restarted at the next call.
            _OPEN_CONNECTIONS[key] = connection
            _EXIT_STACK.enter_context(exit_on_termination())
    return connection.target


_EXIT_STACK = ExitStack()
_OPEN_CONNECTIONS: dict[tuple[str | None, str | None], Connection] = {}
"""The endpoints that run in this process, by isolation and executor."""
atexit.register(_EXIT_STACK.close)

_OPENING_LOCK = RLock()
# Held during a fork: no other thread's hold is copied into the new process, where nobody would release it.
os.register_at_fork(
    before=_OPENING_LOCK.acquire,
    after_in_parent=_OPENING_LOCK.release,
    after_in_child=_OPENING_LOCK.release,
)


@contextmanager
def _open_embedded_endpoint(
    root: Path, options: dict[str, Any], faults: str | None, close_grace_seconds: float
) -> Iterator[Connection]:
    from smlaunch.local.endpoint import Endpoint
    from smlaunch.local.endpoint_settings import Settings
    from smlaunch.local.executors import DEFAULT_EXECUTOR

    settings = Settings(close_grace_seconds=close_grace_seconds, faults=_read_fault_plan(faults))
    executor = options.get("executor") or DEFAULT_EXECUTOR
    endpoint = Endpoint(root, isolation=options.get("isolation"), executor=executor, settings=settings)
    with _EndpointOnDemand(endpoint) as locate_endpoint:
        target = target_of_endpoint(endpoint.preview(), options["region"], locate_endpoint, root)
        yield Connection(target, has_embedded_endpoint=True, state_dir=root)


class _EndpointOnDemand:
    """Starts an endpoint in this process with the first request to it: a plan often needs none."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = Lock()  # several threads may make the first request
        self._info: EndpointInfo | None = None

    def __call__(self) -> EndpointAddress:
        from smlaunch.runs.launch_target import EndpointAddress

        with self._lock:
            if self._info is None:
                self._info = self._endpoint.start()
        return EndpointAddress(self._info.url, self._info.access_key, self._info.secret_key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._info is not None:
            self._endpoint.close()


def _read_fault_plan(path: str | None) -> FaultPlan | None:
    """Return the faults that a local endpoint is to simulate, from the file ``path``; None without one.
    Raises JobError if the file cannot be read or is invalid."""
    if path is None:
        return None
    from smlaunch.local.fault_injection import parse_fault_plan

    try:
        return parse_fault_plan(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, UnicodeError) as error:
        raise JobError([Problem("--faults", f"{path} cannot be read: {error}")]) from None
    except EndpointError as error:  # of parse_fault_plan: the file's content is invalid
        raise JobError([Problem("--faults", str(error))]) from None


def find_background_endpoint(root: Path) -> EndpointInfo | None:
    """Return the endpoint that ``smlaunch local start`` started, if it runs."""
    from smlaunch.local import background_endpoint

    # Its file may have been removed, and an existing file may belong to an endpoint that has ended.
    may_run = os.path.exists(root / "endpoint.json") or background_endpoint.is_endpoint_running(root)  # noqa: PTH110  Path.exists raises
    return background_endpoint.running_endpoint(root) if may_run else None


class _EndpointLocator:
    """Finds the background endpoint's current address. A notebook outlives it, and it may restart on another
    port."""

    def __init__(self, root: Path, info: EndpointInfo) -> None:
        self._file = root / "endpoint.json"
        self._info = info
        self._stamp: tuple[int, int] | None = None

    def __call__(self) -> EndpointAddress:
        from smlaunch.local.endpoint_info import EndpointInfo
        from smlaunch.runs.launch_target import EndpointAddress

        try:
            status = self._file.stat()
            if self._stamp != (status.st_ino, status.st_mtime_ns):
                self._info = EndpointInfo.from_json(self._file.read_bytes())
                self._stamp = (status.st_ino, status.st_mtime_ns)
        except (OSError, ValueError, TypeError):
            pass  # it has ended or is just starting: a request to the old address fails
        return EndpointAddress(self._info.url, self._info.access_key, self._info.secret_key)


def target_of_endpoint(
    info: EndpointInfo,
    region: str | None = None,
    locate_endpoint: Callable[[], EndpointAddress] | None = None,
    state_dir: Path | None = None,
) -> Target:
    """Return an endpoint as a target. ``locate_endpoint``: returns its current address, unless it stays where
    ``info`` says. ``state_dir``: the endpoint's, where its files are to be found by path."""
    from smlaunch.runs.launch_target import EndpointAddress, Target

    address = EndpointAddress(info.url, info.access_key, info.secret_key)
    return Target.located_endpoint(
        locate_endpoint or (lambda: address),
        region or info.region,
        account=info.account,
        role=info.role_arn,
        bucket=info.bucket,
        facts=describe_endpoint_facts(info),
        state_dir=state_dir,
    )


def count_cpus() -> int | None:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def describe_endpoint_facts(info: EndpointInfo) -> EndpointFacts:
    """Return what the plan must know about this endpoint. Raises EndpointError if its executor comes from a
    package that is not installed here."""
    from smlaunch.facts.discovered_facts import EndpointFacts
    from smlaunch.local import api_support
    from smlaunch.local.executors import load_executor

    executor = load_executor(info.executor)
    recorded_members, rejected_members = api_support.notes_of_recorded_and_rejected_fields(
        executor.runs_images
    )
    return EndpointFacts(
        hosts=executor.describe_isolation(info.isolation),
        max_hosts=executor.max_hosts,
        cpus=count_cpus() if executor.uses_endpoint_python or executor.runs_images else None,
        runs_images=executor.runs_images,
        same_python=info.pid == os.getpid() and executor.uses_endpoint_python,
        warnings=tuple(executor.warnings(info.isolation)),
        recorded_members=recorded_members,
        rejected_members=rejected_members,
    )


def check_host_options(options: dict[str, Any], endpoint: EndpointInfo) -> None:
    """Raise JobError when the options request other hosts than the background endpoint, which runs already,
    has: ``executor`` is the name of one, ``isolation`` how far processes are separated; None takes what
    there is."""
    problems: list[Problem] = []
    isolation, executor = options.get("isolation"), options.get("executor")
    advice = "leave the option out, or `smlaunch local stop` first"
    if executor not in (None, endpoint.executor):
        problems.append(
            Problem("--executor", f"the background endpoint's hosts are {endpoint.executor}; {advice}")
        )
    if isolation not in (None, endpoint.isolation):
        problems.append(
            Problem(
                "--isolation",
                f"the background endpoint isolates its hosts by {endpoint.isolation!r}; {advice}",
            )
        )
    if problems:
        raise JobError(problems)
