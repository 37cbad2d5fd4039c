"""Creates Linux namespaces by system calls, so that a process tree looks like a host of its own.

Comments explain the order of the steps where it matters. Only the supervisor loads this module, which
therefore imports little.
"""
# Importing pathlib would take as long as everything in this module.
# ruff: noqa: PTH102, PTH103, PTH112, PTH115, PTH118, PTH123, PTH211

from __future__ import annotations

import ctypes
import errno
import os

from smlaunch.local.executors.host_plan import HostPlan, MountPlan

_NEWNS, _NEWUTS, _NEWUSER, _NEWPID, _NEWNET = 0x00020000, 0x04000000, 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)


def _raise_on_error(result: int, call: str) -> None:
    """Raise the OSError of a failed system call."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def _mount(
    source: str | None, target: str, file_system: str | None, flags: int, data: str | None = None
) -> None:
    c_strings = [None if text is None else os.fsencode(text) for text in (source, target, file_system)]
    options = None if data is None else os.fsencode(data)
    _raise_on_error(
        _libc.mount(*c_strings, ctypes.c_ulong(flags), options),
        f"mount {file_system or source or ''} on {target}",
    )


def die_with_parent() -> None:
    """Let the kernel send SIGKILL to this process when its parent's thread ends. Call it only in a child of
    the main thread."""
    _raise_on_error(_libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent ends."""
    _raise_on_error(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl PR_SET_CHILD_SUBREAPER")


def enter_namespaces(level: str, network: str) -> None:
    """Move the supervisor into new namespaces; its next child is pid 1. ``network`` is HostPlan.network.

    Raises OSError: EPERM where that is forbidden, ENOSPC where the number of namespaces is limited to 0.
    """
    flags = _NEWNS | _NEWUTS | _NEWPID
    if network not in ("", "new"):
        _join_network(level, network)
    else:
        if level == "user":
            flags |= _NEWUSER
        if network == "new":
            flags |= _NEWNET
    user_id, group_id = os.geteuid(), os.getegid()
    _raise_on_error(_libc.unshare(flags), "unshare")
    if flags & _NEWUSER:
        # An ordinary user may write gid_map only after setgroups=deny.
        _write_file("/proc/self/setgroups", "deny")
        _write_file("/proc/self/uid_map", f"0 {user_id} 1")
        _write_file("/proc/self/gid_map", f"0 {group_id} 1")
    if network == "new":
        _bring_loopback_up()


def _join_network(level: str, pid: str) -> None:
    """Enter the network namespace of another host's process. At level user, it belongs to that host's user
    namespace, which must be entered first."""
    namespaces = (("user", _NEWUSER), ("net", _NEWNET)) if level == "user" else (("net", _NEWNET),)
    for name, flag in namespaces:
        descriptor = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _raise_on_error(_libc.setns(descriptor, flag), f"setns {name} of {pid}")
        finally:
            os.close(descriptor)


def _write_file(path: str, text: str) -> None:
    with open(path, "w") as stream:
        stream.write(text)


def _bring_loopback_up() -> None:
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(control_socket, _SIOCGIFFLAGS, request))
        fcntl.ioctl(control_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def build_host(plan: HostPlan) -> None:
    """Set up the mounts, the host name and /proc of the host; called by its pid 1. Raises OSError that names
    the failed call."""
    # First, so that the mounts below do not propagate to the machine.
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    # Opened before anything is mounted: a private /tmp may hide the paths.
    tree_fd, tmp_fd, hosts_file_fd = (_open_path(path) for path in (plan.tree, plan.tmp, plan.hosts_file))
    visible_folder_fds = [(path, _open_path(path)) for path in plan.visible_folders]
    open_mounts = [_OpenMount(open_mount) for open_mount in plan.mounts]
    _create_mount_point(plan.root, plan.stage)
    for open_mount in open_mounts:
        if open_mount.is_outside_contract and not open_mount.is_below_private_folder:
            _create_mount_point(open_mount.target(plan.root), plan.stage)
    _mount(_path_of_descriptor(tree_fd), plan.root, None, _MS_BIND | _MS_REC)
    for open_mount in open_mounts:
        if not open_mount.is_below_private_folder:
            open_mount.mount(plan.root, plan.level)
    _mount(_path_of_descriptor(hosts_file_fd), "/etc/hosts", None, _MS_BIND)
    _mount(_path_of_descriptor(tmp_fd), "/tmp", None, _MS_BIND)  # noqa: S108
    for path, descriptor in visible_folder_fds:
        os.makedirs(path, exist_ok=True)
        _mount(_path_of_descriptor(descriptor), path, None, _MS_BIND | _MS_REC)
    if os.path.isdir("/dev/shm"):  # noqa: S108
        # The shared memory of a killed host must not remain on the machine.
        _mount("tmpfs", "/dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777")  # noqa: S108
    for open_mount in open_mounts:
        if open_mount.is_below_private_folder:
            os.makedirs(open_mount.target(plan.root), exist_ok=True)
            open_mount.mount(plan.root, plan.level)
    name = os.fsencode(plan.hostname)
    _raise_on_error(_libc.sethostname(name, len(name)), "sethostname")
    # Otherwise /proc shows the machine's processes, and /proc/self another process.
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def _open_path(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _path_of_descriptor(descriptor: int) -> str:
    """Return a path to an open directory. Mount options treat colons and commas in a real path as
    separators."""
    return f"/proc/self/fd/{descriptor}"


def _create_mount_point(target: str, stage: str) -> None:
    """Create a directory for a mount at ``target`` (/opt/ml) without changing the machine's own
    directories."""
    if os.path.isdir(target):
        return
    parent, _ = os.path.split(target)
    while not os.path.isdir(parent):
        parent, _ = os.path.split(parent)
    name = os.path.relpath(target, parent)
    _mount("tmpfs", stage, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")
    if parent == "/":
        # Nothing can be mounted over the current root: the host gets another one with the same entries.
        copy_folder = os.path.join(stage, "again")
        _bind_entries(parent, name, copy_folder)
        os.chroot(copy_folder)
        os.chdir("/")
        return
    upper, work = os.path.join(stage, "upper"), os.path.join(stage, "work")
    os.makedirs(os.path.join(upper, name))
    os.mkdir(work)
    try:
        _mount("overlay", parent, "overlay", 0, f"lowerdir={parent},upperdir={upper},workdir={work}")
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EINVAL, errno.ENODEV):
            raise
        _replace_folder(parent, name, os.path.join(stage, "again"))
    _raise_on_error(_libc.umount2(os.fsencode(stage), _MNT_DETACH), f"umount {stage}")


def _replace_folder(parent: str, name: str, copy_folder: str) -> None:
    """Replace a directory by a copy of bind mounts, for kernels that refuse an overlay."""
    _bind_entries(parent, name, copy_folder)
    _mount(copy_folder, parent, None, _MS_BIND | _MS_REC)


def _bind_entries(parent: str, name: str, copy_folder: str) -> None:
    """Create ``copy_folder``, on a tmpfs, with bind mounts of all entries of ``parent`` and the new
    directory ``name``."""
    os.mkdir(copy_folder)
    # The entry that contains the tmpfs comes first; otherwise it would contain the other mounts twice.
    entries = sorted(os.scandir(parent), key=lambda entry: not copy_folder.startswith(entry.path + "/"))
    for entry in entries:
        copy_path = os.path.join(copy_folder, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), copy_path)
            continue
        if entry.is_dir():
            os.mkdir(copy_path)
        else:
            os.close(os.open(copy_path, os.O_CREAT | os.O_WRONLY))
        _mount(entry.path, copy_path, None, _MS_BIND | _MS_REC)
    os.makedirs(os.path.join(copy_folder, name))


class _OpenMount:
    """A mount whose directories were opened before other mounts can hide them."""

    def __init__(self, mount_plan: MountPlan) -> None:
        self._plan = mount_plan
        self._source_fd = _open_path(mount_plan.source)
        self._layer_fds = (
            (_open_path(mount_plan.upper), _open_path(mount_plan.work)) if mount_plan.mode == "own" else ()
        )

    @property
    def is_outside_contract(self) -> bool:
        """Whether the target is an absolute path."""
        return self._plan.target.startswith("/")

    @property
    def is_below_private_folder(self) -> bool:
        """Whether the target is below a directory of the host's own, which is mounted late."""
        return self._plan.target.startswith(("/tmp/", "/dev/shm/"))  # noqa: S108

    def target(self, root: str) -> str:
        return os.path.join(root, self._plan.target)

    def mount(self, root: str, level: str) -> None:
        """Mount the opened directory at its target below ``root`` in the mode of its plan: shared, read-only,
        or with changes in a layer of the host's own. ``level``: the isolation level."""
        target = self.target(root)
        if self._plan.mode == "shared":
            _mount(_path_of_descriptor(self._source_fd), target, None, _MS_BIND)
            return
        if self._plan.mode == "read-only":
            _mount(_path_of_descriptor(self._source_fd), target, None, _MS_BIND)
            # A remount must repeat the restrictions of the file system.
            file_system_flags = os.statvfs(target).f_flag & (_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
            _mount(None, target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | file_system_flags)
            return
        upper, work = (_path_of_descriptor(layer_fd) for layer_fd in self._layer_fds)
        options = f"lowerdir={_path_of_descriptor(self._source_fd)},upperdir={upper},workdir={work}"
        if level == "user":
            # In a user namespace, an overlay cannot mark its directories by trusted.* attributes.
            options += ",userxattr"
        _mount("overlay", target, "overlay", 0, options)
