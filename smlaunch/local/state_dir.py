"""Where an endpoint keeps what outlives it, and how several endpoints share that place.

jobs.sqlite              every job that was ever created
pipelines.sqlite         pipelines, their executions and their steps
s3/<bucket>/<key>        the objects
logs/                    the log streams
metrics.sqlite           CloudWatch's numbers
*.sqlite.made            that the database beside it was made: one that is gone is missed (database.py)
hosts/<owner>/<job>/     the trees of running hosts; gone when the job is
hosts/probe-*/           a host that only tries out an isolation level
unsaved/<prefix>/<host>/ files that a sync could not store; the next job of the S3 prefix does (jobs/unsaved)
owners/<owner>.lock      held by a living endpoint, and its mailbox beside it
endpoint.json            where the standing endpoint listens (0600)
moto.log                 what moto's process prints, where one was needed
credentials.json         the key that clients sign with (0600)

What stands here decides what the endpoint runs, and as whom: programs in s3/, an engine's path in
engine.json, a process to end in endpoint.json. A directory that another user owns or may write is refused
(trust.py). Everything in it is readable by its owner only, also where the directory itself has another mode.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from smlaunch.errors import EndpointError
from smlaunch.local import lifelines, trust
from smlaunch.local.damage import unusable
from smlaunch.local.spreading import spread

PROBE = "probe-"
"""How a folder of hosts begins that only tries out a level; it is locked as long as that takes."""


def default_root() -> Path:
    """$SMLAUNCH_HOME, else ~/.smlaunch."""
    named = os.environ.get("SMLAUNCH_HOME")
    return Path(named) if named else Path.home() / ".smlaunch"


class StateDir:
    """Makes the directory where it is not there. Raises EndpointError when that cannot be done, and for one
    that others own or may write. ``user``: whose it is; None for this process's."""

    def __init__(self, root: Path, user: int | None = None) -> None:
        self.root = root.absolute()
        self.objects = self.root / "s3"
        self.logs = self.root / "logs"
        self.hosts = self.root / "hosts"
        self.owners = self.root / "owners"
        self.unsaved = self.root / "unsaved"
        self.database = self.root / "jobs.sqlite"
        self.pipelines = self.root / "pipelines.sqlite"
        self.metrics = self.root / "metrics.sqlite"
        self.address = self.root / "endpoint.json"
        self.standing_lock = self.root / "standing.lock"
        self.standing_log = self.root / "standing.log"
        self.moto_log = self.root / "moto.log"
        self.levels = self.root / "levels.json"
        self.engine = self.root / "engine.json"
        self.credentials = self.root / "credentials.json"
        user = os.geteuid() if user is None else user
        try:
            open_to_others = trust.walk(self.root, user, make=True).stat().st_mode & 0o011
            for folder in (self.objects, self.logs, self.hosts, self.owners, self.unsaved):
                folder.mkdir(mode=0o700, exist_ok=True)
            for path in self._entries():
                _make_private(path, user, bool(open_to_others))
            spread(self.hosts)
        except trust.Untrusted as error:
            raise EndpointError(
                f"the endpoint's state directory {self.root} is not safe to use: {error}; or set SMLAUNCH_"
                "HOME to a directory of your own, below folders that only you and root can write"
            ) from error
        except OSError as error:
            raise EndpointError(
                f"the endpoint's state directory {self.root} cannot be made: {error.strerror}; "
                "set SMLAUNCH_HOME to a directory you can write"
            ) from error

    def _entries(self) -> list[Path]:
        """All there may be directly in the directory; of a database, also SQLite's files beside it."""
        own = [path for path in vars(self).values() if path.parent == self.root]
        return own + [
            path.with_name(path.name + end)
            for path in own
            if path.suffix == ".sqlite"
            for end in ("-wal", "-shm")
        ]


def _make_private(path: Path, user: int, open_to_others: bool) -> None:
    """``open_to_others``: whether they could reach it, so that its content may be theirs."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        path = trust.walk(path, user)  # put elsewhere by its owner: on a larger disk, say
        status = path.stat()
    if open_to_others or status.st_uid != user:
        trust.require(path, status, user, sticky=False)
    if status.st_mode & 0o077 and status.st_uid == user:
        path.chmod(stat.S_IMODE(status.st_mode) & ~0o077)


def publish(path: Path, data: bytes, replace: bool = True) -> None:
    """Writes a private file that a reader sees whole or not at all. ``replace=False`` keeps what is there."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)  # a name that is on the disk before its bytes is an empty file after a power cut
    if replace:
        try:
            partial.replace(path)
        except IsADirectoryError:
            partial.unlink()
            raise unusable(path, "is a directory", "nothing") from None
        return
    try:
        path.hardlink_to(partial)  # unlike a rename it fails when another process was faster
    except FileExistsError:
        return
    finally:
        partial.unlink()


class Owner:
    """One endpoint process among those that share a state directory.

    Its lock file is locked as long as the process lives, however it ends. Its mailbox is a named pipe
    (a path of any length will do, unlike a socket's) on which others pass on what concerns its jobs.
    """

    def __init__(self, state: StateDir) -> None:
        self.id = secrets.token_hex(6)
        self._state = state
        # Locked under another name first: a lock file that can be had is that of a dead endpoint.
        hidden = state.owners / f".{self.id}.new"
        self._lock = lifelines.hold(_locked(hidden))
        self._mailbox = state.owners / f"{self.id}.mail"
        os.mkfifo(self._mailbox, 0o600)
        # Read and write, so that the last writer's leaving is not an end of file.
        self.inbox = lifelines.hold(os.open(self._mailbox, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        hidden.replace(state.owners / f"{self.id}.lock")

    @property
    def hosts(self) -> Path:
        return self._state.hosts / self.id

    def close(self) -> None:
        with suppress(OSError):
            self.hosts.rmdir()  # empty by now, or never made
        (self._state.owners / f"{self.id}.lock").unlink(missing_ok=True)
        self._mailbox.unlink(missing_ok=True)
        lifelines.close(self.inbox)
        lifelines.close(self._lock)


def _locked(path: Path) -> int:
    """Makes and locks ``path``. Until it is locked another endpoint may take it for a dead one's."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            return descriptor
        os.close(descriptor)


def send(state: StateDir, owner: str, message: str) -> bool:
    """Puts one line into another endpoint's mailbox. False when nobody is there to read it."""
    try:
        descriptor = os.open(state.owners / f"{owner}.mail", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False  # no such mailbox, or no reader: that endpoint is gone
    try:
        os.write(descriptor, message.encode() + b"\n")
    finally:
        os.close(descriptor)
    return True


def dead_owners(state: StateDir) -> Iterator[str]:
    """Endpoints that ended without saying so. Each is given to one caller only and forgotten afterwards."""
    # One that died before it was ready, as .ID.new, had no jobs yet.
    for path in sorted((*state.owners.glob("*.lock"), *state.owners.glob(".*.new"))):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if not path.exists():
                continue  # another endpoint was faster
            owner = path.stem.removeprefix(".")
            yield owner
            (state.owners / f"{owner}.mail").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def nobodys_hosts(state: StateDir) -> Iterator[Path]:
    """Folders of hosts whose endpoint is gone, however it went."""
    # In this order: an endpoint has its lock before it makes a folder, and loses it after.
    folders = [folder for folder in state.hosts.iterdir() if not folder.name.startswith(PROBE)]
    living = {path.stem.removeprefix(".") for path in state.owners.iterdir() if path.suffix != ".mail"}
    yield from (folder for folder in folders if folder.name not in living)
    for folder in state.hosts.glob(f"{PROBE}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # just done with
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)
