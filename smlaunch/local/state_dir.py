"""The state directory: files that outlive an endpoint, and the locks by which several endpoints share them.

jobs.sqlite              every job that was ever created
pipelines.sqlite         pipelines, their executions and their steps
s3/<bucket>/<key>        the objects
logs/                    the log streams
metrics.sqlite           CloudWatch's numbers
*.sqlite.made            transaction count of the database beside it, to detect a lost one (database.py)
hosts/<owner>/<job>/     directory trees of running hosts, removed with the job
hosts/probe-*/           a host that tests an isolation level
unsaved/<prefix>/<host>/ files that a sync could not upload; the next job of the S3 prefix does (jobs/unsaved)
owners/<owner>.lock      locked by a running endpoint; its mailbox is <owner>.mail
endpoint.json            address of the background endpoint (0600)
endpoint.lock            locked by the background endpoint; holds its pid
endpoint.log             output of the background endpoint
moto.log                 output of moto's process
credentials.json         the access key that clients sign with (0600)

These files decide what the endpoint runs, and as which user: programs in s3/, an engine's path in
engine.json, the pid to signal in endpoint.json. So a directory that another user owns or may write is
rejected (path_ownership.py). All files are readable by their owner only, whatever the directory's own mode.
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
from smlaunch.local import liveness_fds, path_ownership
from smlaunch.local.ext4_topdir import mark_as_topdir
from smlaunch.local.state_errors import require_kind, unusable_file_error

PROBE_PREFIX = "probe-"
"""Name prefix of a folder in hosts/ that tests an isolation level. The folder is locked during the test."""


def default_root() -> Path:
    """Return $SMLAUNCH_HOME, by default ~/.smlaunch."""
    configured = os.environ.get("SMLAUNCH_HOME")
    return Path(configured) if configured else Path.home() / ".smlaunch"


class StateDir:
    """Paths of a state directory, which is created if it is missing.

    Raises EndpointError when it cannot be created, and when other users own it or may write it.
    ``owner_uid``: user that has to own it; None is this process's user.
    """

    def __init__(self, root: Path, owner_uid: int | None = None) -> None:
        self.root = root.absolute()
        self.objects_dir = self.root / "s3"
        self.logs_dir = self.root / "logs"
        self.hosts_dir = self.root / "hosts"
        self.owners_dir = self.root / "owners"
        self.unsaved_dir = self.root / "unsaved"
        self.jobs_database = self.root / "jobs.sqlite"
        self.pipelines_database = self.root / "pipelines.sqlite"
        self.metrics_database = self.root / "metrics.sqlite"
        self.address_file = self.root / "endpoint.json"
        self.endpoint_lock = self.root / "endpoint.lock"
        self.endpoint_log = self.root / "endpoint.log"
        self.moto_log = self.root / "moto.log"
        self.isolation_cache = self.root / "levels.json"
        self.engine_cache = self.root / "engine.json"
        self.credentials_file = self.root / "credentials.json"
        owner_uid = os.geteuid() if owner_uid is None else owner_uid
        try:
            is_open_to_others = (
                path_ownership.resolve_trusted(self.root, owner_uid, create=True).stat().st_mode & 0o011
            )
            folders = (self.objects_dir, self.logs_dir, self.hosts_dir, self.owners_dir, self.unsaved_dir)
            for path in self._entries():
                if path != self.address_file:  # daemon.py's error for it names the process to stop
                    _require_kind(path, path in folders)
            for folder in folders:
                folder.mkdir(mode=0o700, exist_ok=True)
            for path in self._entries():
                _make_private(path, owner_uid, bool(is_open_to_others))
            mark_as_topdir(self.hosts_dir)
        except path_ownership.UntrustedPath as error:
            raise EndpointError(
                f"the endpoint's state directory {self.root} is not safe to use: {error}; or set SMLAUNCH_"
                "HOME to a directory of your own, below folders that only you and root can write"
            ) from error
        except OSError as error:
            raise EndpointError(
                f"the endpoint's state directory {self.root} cannot be created: {error.strerror}; "
                "set SMLAUNCH_HOME to a directory you can write"
            ) from error

    def _entries(self) -> list[Path]:
        """List all paths that may exist directly in the directory, with SQLite's files beside a database."""
        paths = [path for path in vars(self).values() if path.parent == self.root]
        return paths + [
            path.with_name(path.name + suffix)
            for path in paths
            if path.suffix == ".sqlite"
            for suffix in ("-wal", "-shm")
        ]


def _require_kind(path: Path, directory: bool) -> None:
    """Raise StateDamaged unless the path is a directory, or a regular file."""
    if path.suffix.startswith(".sqlite"):
        return  # database.py checks these and names the lost data
    try:
        require_kind(path, path.stat(), directory)
    except FileNotFoundError:
        if directory and path.is_symlink():
            require_kind(path, path.lstat(), directory)


def _make_private(path: Path, uid: int, is_open_to_others: bool) -> None:
    """Remove other users' rights to a path of the state directory. ``is_open_to_others``: whether other users
    can reach the path, so that they may have written to it: then it must be trusted. Raises UntrustedPath."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        path = path_ownership.resolve_trusted(path, uid)  # the user's own link, to a larger disk for example
        status = path.stat()
    if is_open_to_others or status.st_uid != uid:
        path_ownership.require_trusted(path, status, uid, allow_sticky=False)
    if status.st_mode & 0o077 and status.st_uid == uid:
        path.chmod(stat.S_IMODE(status.st_mode) & ~0o077)


def write_private_file(path: Path, data: bytes, overwrite: bool = True) -> None:
    """Write a private file atomically: a reader sees all of it or nothing. With ``overwrite=False`` an
    existing file stays."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)  # before the rename: else a power cut may leave an empty file
    if overwrite:
        try:
            temporary.replace(path)
        except IsADirectoryError:
            temporary.unlink()
            raise unusable_file_error(path, "is a directory", "nothing") from None
        return
    try:
        path.hardlink_to(temporary)  # unlike a rename, fails when another process created the file first
    except FileExistsError:
        return
    finally:
        temporary.unlink()


class JobOwner:
    """This endpoint process as the owner of its jobs, among the endpoints that share a state directory.

    Its lock file is locked while the process lives, however it ends. Other endpoints write messages about its
    jobs to its mailbox, a named pipe (unlike a socket's, its path may have any length).
    """

    def __init__(self, state: StateDir) -> None:
        self.id = secrets.token_hex(6)
        self._state = state
        # Locked under a temporary name first: an unlocked lock file means a dead endpoint.
        temporary_lock = state.owners_dir / f".{self.id}.new"
        self._lock_fd = liveness_fds.close_after_fork(_create_locked(temporary_lock))
        self._mailbox_path = _mailbox_path(state, self.id)
        os.mkfifo(self._mailbox_path, 0o600)
        # Opened for reading and writing: otherwise the last writer's exit would be an end of file.
        self.inbox_fd = liveness_fds.close_after_fork(
            os.open(self._mailbox_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        )
        temporary_lock.replace(state.owners_dir / f"{self.id}.lock")

    @property
    def hosts_dir(self) -> Path:
        return self._state.hosts_dir / self.id

    def close(self) -> None:
        with suppress(OSError):
            self.hosts_dir.rmdir()  # empty by now, or never created
        (self._state.owners_dir / f"{self.id}.lock").unlink(missing_ok=True)
        self._mailbox_path.unlink(missing_ok=True)
        liveness_fds.close(self.inbox_fd)
        liveness_fds.close(self._lock_fd)


def _create_locked(path: Path) -> int:
    """Create and lock ``path``, and return its descriptor. Before it is locked, another endpoint may take it
    for a dead endpoint's and remove it: then try again."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            return descriptor
        os.close(descriptor)


def _mailbox_path(state: StateDir, endpoint_id: str) -> Path:
    """Return the named pipe from which an endpoint reads what others tell it about its jobs."""
    return state.owners_dir / f"{endpoint_id}.mail"


def send_to_endpoint(state: StateDir, endpoint_id: str, message: str) -> bool:
    """Write one line to another endpoint's mailbox. Returns False when that endpoint is gone."""
    try:
        descriptor = os.open(_mailbox_path(state, endpoint_id), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False  # no mailbox, or no reader
    try:
        os.write(descriptor, message.encode() + b"\n")
    finally:
        os.close(descriptor)
    return True


def dead_endpoint_ids(state: StateDir) -> Iterator[str]:
    """Yield the ids of endpoints that died without closing. Each id goes to one caller only, across
    processes. The dead endpoint's lock file and mailbox are removed when the caller asks for the next id."""
    # An endpoint that died before it was ready left .ID.new and had no jobs yet.
    for lock_path in sorted((*state.owners_dir.glob("*.lock"), *state.owners_dir.glob(".*.new"))):
        try:
            lock_fd = os.open(lock_path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # its endpoint lives
            if not lock_path.exists():
                continue  # another endpoint has removed it
            endpoint_id = lock_path.stem.removeprefix(".")
            yield endpoint_id
            _mailbox_path(state, endpoint_id).unlink(missing_ok=True)
            lock_path.unlink(missing_ok=True)
        finally:
            os.close(lock_fd)


def abandoned_host_folders(state: StateDir) -> Iterator[Path]:
    """Yield the folders that hold the files of hosts whose endpoint is gone, and the folders of abandoned
    probes."""
    # Folders before locks: an endpoint locks before it creates a folder, and unlocks after it removed it.
    folders = [folder for folder in state.hosts_dir.iterdir() if not folder.name.startswith(PROBE_PREFIX)]
    living_endpoint_ids = {
        path.stem.removeprefix(".") for path in state.owners_dir.iterdir() if path.suffix != ".mail"
    }
    yield from (folder for folder in folders if folder.name not in living_endpoint_ids)
    for folder in state.hosts_dir.glob(f"{PROBE_PREFIX}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # the test has just finished
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)
