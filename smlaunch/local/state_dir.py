"""The state directory: files that outlive an endpoint, and the locks by which several endpoints share them.

jobs.sqlite              every job that was ever created
pipelines.sqlite         pipelines, their executions and their steps
s3/<bucket>/<key>        the objects
logs/                    the log streams
metrics.sqlite           CloudWatch's numbers
*.sqlite.made            transaction count of the database beside it, to detect a lost one
hosts/<owner>/<job>/     directory trees of running hosts, removed with the job; <owner> is locked as its file
hosts/probe-*/           a host that tests an isolation level
unsaved/<prefix>/<host>/ files that a sync could not upload; the next job of the S3 prefix does
(failed_uploads) owners/<owner>.lock      locked by a running endpoint; its mailbox is <owner>.mail
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
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from smlaunch.errors import EndpointError, MachineError
from smlaunch.local import liveness_fds, path_ownership
from smlaunch.local.state_errors import require_folder_or_file, unusable_file_error
from smlaunch.local.stores.ext4_topdir import mark_as_topdir

PROBE_PREFIX = "probe-"
"""Name prefix of a folder in hosts/ that tests an isolation level. The folder is locked during the test."""


def default_root() -> Path:
    """Return $SMLAUNCH_HOME, by default ~/.smlaunch. Raises MachineError where neither is known."""
    configured = os.environ.get("SMLAUNCH_HOME")
    if configured:
        return Path(configured)
    try:
        return Path.home() / ".smlaunch"
    except RuntimeError as error:
        raise MachineError("no home directory is known: set HOME or SMLAUNCH_HOME to a folder") from error


class StateDir:
    """Paths of a state directory, which is created if it is missing.

    Raises EndpointError when it cannot be created, and when other users own it or may write it.
    ``owner_uid``: user that has to own it; None is this process's user.
    """

    def __init__(self, root: Path, owner_uid: int | None = None) -> None:
        """Create the endpoint's state directory if it is missing, check that only its owner can write to it,
        and make its files private. ``owner_uid``: user that has to own it, None for this process's user.
        Raises EndpointError for a directory that cannot be used, and StateDamaged for a damaged one."""
        self.root = root.absolute()
        self.objects_dir = self.root / "s3"
        self.logs_dir = self.root / "logs"
        self.hosts_dir = self.root / "hosts"  # files of the simulated hosts that jobs run on
        self.owners_dir = self.root / "owners"  # a lock file for each running endpoint
        self.unsaved_dir = self.root / "unsaved"  # files that a job could not upload to S3
        self.jobs_database = self.root / "jobs.sqlite"
        self.pipelines_database = self.root / "pipelines.sqlite"
        self.metrics_database = self.root / "metrics.sqlite"
        self.address_file = self.root / "endpoint.json"
        self.endpoint_lock = self.root / "endpoint.lock"
        self.endpoint_log = self.root / "endpoint.log"
        self.moto_log = self.root / "moto.log"  # of moto's server, which simulates the other AWS services
        self.isolation_cache = self.root / "levels.json"  # which isolation levels of hosts work here
        self.engine_cache = self.root / "engine.json"  # which container engine works here
        self.credentials_file = self.root / "credentials.json"
        try:
            self._create_folders(os.geteuid() if owner_uid is None else owner_uid)
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

    def _create_folders(self, owner_uid: int) -> None:
        """Create the root and the folders in it, check all that exists, and make it private to its owner.
        Raises UntrustedPath, StateDamaged and OSError."""
        resolved_root = path_ownership.resolve_trusted_path(self.root, owner_uid, create=True)
        # True: group or others may enter the root (x bit), so they may have written to files in it.
        is_open_to_others = bool(resolved_root.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH))
        folders = (self.objects_dir, self.logs_dir, self.hosts_dir, self.owners_dir, self.unsaved_dir)
        for path in self._paths_directly_in_root():
            if path != self.address_file:  # checked by its reader, whose error names the process to stop
                _require_expected_file_type(path, is_folder=path in folders)
        for folder in folders:
            folder.mkdir(mode=0o700, exist_ok=True)
        for path in self._paths_directly_in_root():
            _revoke_access_of_others(path, owner_uid, is_open_to_others)
        mark_as_topdir(self.hosts_dir)  # makes it fast to create many files in it

    def _paths_directly_in_root(self) -> list[Path]:
        """List all paths that may exist directly in the directory, with SQLite's files beside a database."""
        paths = [path for path in vars(self).values() if path.parent == self.root]  # of the attributes
        databases = [path for path in paths if path.suffix == ".sqlite"]
        for suffix in ("-wal", "-shm"):
            paths += [database.with_name(database.name + suffix) for database in databases]
        return paths


def _require_expected_file_type(path: Path, is_folder: bool) -> None:
    """Raise StateDamaged unless ``path``, in the endpoint's state directory, is missing or what belongs
    there: a directory (``is_folder``) or a regular file, or a link to one."""
    if path.suffix.startswith(".sqlite"):
        return  # checked when the database is opened, with an error that names the lost data
    try:
        require_folder_or_file(path, path.stat(), is_folder)
    except FileNotFoundError:
        is_broken_link = path.is_symlink()
        if is_folder and is_broken_link:  # mkdir would fail; a missing file is created through the link
            require_folder_or_file(path, path.lstat(), is_folder)


def _revoke_access_of_others(path: Path, owner_uid: int, is_open_to_others: bool) -> None:
    """Make a path of the state directory private (no rights for group and others), if it exists and is no
    link. ``owner_uid``: the directory's owner; ``is_open_to_others``: whether other users can enter the
    directory. Raises UntrustedPath if they may already have written to the path: its content would be
    theirs."""
    try:
        path_stat = path.lstat()
    except FileNotFoundError:
        return
    is_link = stat.S_ISLNK(path_stat.st_mode)
    if is_link:
        # The user's own link, to a larger disk for example. Raises UntrustedPath for an unsafe target.
        path = path_ownership.resolve_trusted_path(path, owner_uid)
        path_stat = path.stat()
    is_own = path_stat.st_uid == owner_uid
    if is_open_to_others or not is_own:
        # Raises UntrustedPath.
        path_ownership.require_only_owner_writes(path, path_stat, owner_uid, allow_sticky=False)
    rights_of_others = stat.S_IRWXG | stat.S_IRWXO
    # Root's files stay as they are, and so does what a link leads to: it may be any folder of this machine.
    if path_stat.st_mode & rights_of_others and is_own and not is_link:
        path.chmod(stat.S_IMODE(path_stat.st_mode) & ~rights_of_others)


def write_private_file(path: Path, data: bytes, overwrite: bool = True) -> None:
    """Write a file that only its owner can read (mode 0600), atomically: a reader sees all of it or nothing.
    With ``overwrite=False`` an existing file stays. Raises StateDamaged if ``path`` is a directory."""
    temporary_path = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # in the same folder
    temporary_fd = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(temporary_fd, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(temporary_fd)  # before the rename: else a power cut may leave an empty file
    if overwrite:
        try:
            temporary_path.replace(path)
        except IsADirectoryError:
            temporary_path.unlink()
            raise unusable_file_error(path, problem="is a directory", lost_data="nothing") from None
        return
    try:
        path.hardlink_to(temporary_path)  # unlike a rename, fails when another process created the file first
    except FileExistsError:
        return
    finally:
        temporary_path.unlink()


class EndpointRegistration:
    """The entry of this endpoint process in a state directory, which several endpoints may share.

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
        self.mailbox_fd = liveness_fds.close_after_fork(
            os.open(self._mailbox_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        )
        temporary_lock.replace(state.owners_dir / f"{self.id}.lock")
        self._hosts_dir = state.hosts_dir / self.id
        self._hosts_dir_lock = threading.Lock()  # several jobs may begin at once
        self._hosts_dir_fd: int | None = None

    def create_hosts_dir(self) -> Path:
        """Return the folder of this endpoint's hosts. The first call creates it, and locks it where the file
        system can: nobody removes it while this process lives, even if the lock file is gone."""
        with self._hosts_dir_lock:
            if self._hosts_dir_fd is None:
                self._hosts_dir.mkdir(exist_ok=True)
                self._hosts_dir_fd = liveness_fds.close_after_fork(
                    os.open(self._hosts_dir, os.O_RDONLY | os.O_CLOEXEC)
                )
                with suppress(OSError):  # NFS has no locks on folders
                    fcntl.flock(self._hosts_dir_fd, fcntl.LOCK_EX)
        return self._hosts_dir

    def close(self) -> None:
        with suppress(OSError):
            self._hosts_dir.rmdir()  # empty by now, or never created
        if self._hosts_dir_fd is not None:
            liveness_fds.close(self._hosts_dir_fd)
        (self._state.owners_dir / f"{self.id}.lock").unlink(missing_ok=True)
        self._mailbox_path.unlink(missing_ok=True)
        liveness_fds.close(self.mailbox_fd)
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


def is_endpoint_reachable(state: StateDir, endpoint_id: str) -> bool:
    """Return whether another endpoint reads its mailbox: it does while it lives."""
    try:
        os.close(os.open(_mailbox_path(state, endpoint_id), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def dead_endpoint_ids(state_dir: StateDir) -> Iterator[str]:
    """Yield the ids of endpoints that died without closing, among those that share a state directory: their
    lock files (in owners/) are no longer locked. Each id goes to one caller only, across processes. The dead
    endpoint's lock file and mailbox (a named pipe) are removed when the caller asks for the next id."""
    # An endpoint that died before it was ready left .ID.new and had no jobs yet.
    for lock_path in sorted((*state_dir.owners_dir.glob("*.lock"), *state_dir.owners_dir.glob(".*.new"))):
        try:
            lock_fd = os.open(lock_path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # its endpoint, or another one, has removed it
        try:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # its endpoint lives, or another caller has this id
            if not lock_path.exists():
                continue  # another endpoint removed it before this one had the lock
            endpoint_id = lock_path.stem.removeprefix(".")
            yield endpoint_id  # still locked while the caller works with it
            _mailbox_path(state_dir, endpoint_id).unlink(missing_ok=True)
            lock_path.unlink(missing_ok=True)
        finally:
            os.close(lock_fd)


def abandoned_host_folders(state_dir: StateDir) -> Iterator[Path]:
    """Yield the folders of simulated hosts (in hosts/) that no process uses: those of endpoints that are
    gone, and those of isolation tests (probes) whose process is gone. The caller may remove each before it
    asks for the next."""
    # Folders before locks: an endpoint locks before it creates a folder, and unlocks after it removed it.
    folder_by_endpoint_id = {
        folder.name: folder
        for folder in state_dir.hosts_dir.iterdir()
        if not folder.name.startswith(PROBE_PREFIX)
    }
    living_endpoint_ids = {
        lock_path.stem.removeprefix(".")
        for lock_path in state_dir.owners_dir.iterdir()
        if lock_path.suffix != ".mail"  # not a lock but a mailbox
    }
    folders = [
        folder
        for endpoint_id, folder in folder_by_endpoint_id.items()
        if endpoint_id not in living_endpoint_ids
    ]
    yield from _unlocked_folders([*folders, *state_dir.hosts_dir.glob(f"{PROBE_PREFIX}*")])


def _unlocked_folders(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the folders whose processes are gone: each process, an endpoint or the test (probe) of an
    isolation level, locks its own while it lives. A folder is locked here until the caller, who removes it,
    asks for the next one."""
    for folder in folders:
        try:
            folder_fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # its process has just removed it
        try:
            try:
                fcntl.flock(folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # its process lives
            except OSError:
                pass  # NFS has no locks on folders
            yield folder
        finally:
            os.close(folder_fd)
