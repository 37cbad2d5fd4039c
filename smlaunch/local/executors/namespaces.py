"""Creates Linux namespaces by system calls, so that a process tree looks like a host of its own.

Comments explain the order of the steps where it matters. Only the supervisor loads this module, which
therefore imports little.
"""
# Importing pathlib would take as long as everything in this module.
# ruff: noqa: PTH102, PTH103, PTH112, PTH115, PTH116, PTH118, PTH123, PTH211

from __future__ import annotations

import ctypes
import errno
import os

from smlaunch.local.executors.host_plan import HostPlan, MountPlan

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = (
    0x00020000,
    0x04000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check_syscall(result: int, call: str) -> None:
    """Raise the OSError of a failed system call."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def _mount(
    source: str | None, target: str, file_system: str | None, flags: int, data: str | None = None
) -> None:
    """Call mount(2): mount a directory or a file system ``source`` at ``target``; None where the call takes a
    null pointer. Raises OSError that names the mount."""
    c_strings = [None if text is None else os.fsencode(text) for text in (source, target, file_system)]
    options = None if data is None else os.fsencode(data)
    _check_syscall(
        _libc.mount(*c_strings, ctypes.c_ulong(flags), options),
        f"mount {file_system or source or ''} on {target}",
    )


def _bind_mount(source_fd: int, target: str, more_flags: int = 0) -> None:
    """Show an opened file or directory at ``target`` too; with the flag _MS_REC, also what is mounted below
    it."""
    _mount(_proc_path_of_fd(source_fd), target, None, _MS_BIND | more_flags)


def die_with_parent() -> None:
    """Let the kernel send SIGKILL to this process when its parent's thread ends. Call it only in a child of
    the main thread."""
    _check_syscall(_libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent ends."""
    _check_syscall(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl PR_SET_CHILD_SUBREAPER")


def enter_namespaces(isolation_level: str, network: str) -> None:
    """Move this process (a host's supervisor) into new namespaces; its next child is pid 1 of a new host.

    ``isolation_level``: full (as root) or user (in a user namespace). ``network``: empty for the machine's
    network, ``new``, or the pid of the host's supervisor whose network is shared.
    Raises OSError: EPERM where that is forbidden, ENOSPC where the number of namespaces is limited to 0.
    """
    joins_network = network not in ("", "new")  # then it is a pid
    if joins_network:
        _join_network_of(network, isolation_level)
    # The network to join belongs to another host's user namespace, which this process has entered then.
    needs_user_namespace = isolation_level == "user" and not joins_network
    flags = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWPID  # mounts, host name, processes
    if needs_user_namespace:
        flags |= _CLONE_NEWUSER
    if network == "new":
        flags |= _CLONE_NEWNET
    user_id, group_id = os.geteuid(), os.getegid()
    _check_syscall(_libc.unshare(flags), "unshare")
    if needs_user_namespace:
        # This user is root in the namespace. Only after setgroups=deny may a user write gid_map.
        _write_file("/proc/self/setgroups", "deny")
        _write_file("/proc/self/uid_map", f"0 {user_id} 1")
        _write_file("/proc/self/gid_map", f"0 {group_id} 1")
    if network == "new":
        _bring_loopback_up()


def join_namespaces(pid: int) -> None:
    """Enter the namespaces of another process in which this process is not yet; the next child is in its pid
    namespace. This process must have one thread only. Raises OSError."""
    # The user namespace first: it gives the right to enter the others.
    flag_by_namespace = {
        "user": _CLONE_NEWUSER,
        "pid": _CLONE_NEWPID,
        "uts": _CLONE_NEWUTS,
        "net": _CLONE_NEWNET,
        "mnt": _CLONE_NEWNS,
    }
    # All are opened first: in another namespace, /proc/PID may be another process.
    namespace_fds = {
        namespace: os.open(f"/proc/{pid}/ns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
        for namespace in flag_by_namespace
    }
    for namespace, namespace_fd in namespace_fds.items():
        if not os.path.samestat(os.fstat(namespace_fd), os.stat(f"/proc/self/ns/{namespace}")):
            _check_syscall(
                _libc.setns(namespace_fd, flag_by_namespace[namespace]), f"setns {namespace} of {pid}"
            )
        os.close(namespace_fd)


def _join_network_of(pid: str, isolation_level: str) -> None:
    """Enter the network namespace of another host's process. At level user, it belongs to that host's user
    namespace, which must be entered first."""
    namespaces = (
        (("user", _CLONE_NEWUSER), ("net", _CLONE_NEWNET))
        if isolation_level == "user"
        else (("net", _CLONE_NEWNET),)
    )
    for name, flag in namespaces:
        descriptor = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check_syscall(_libc.setns(descriptor, flag), f"setns {name} of {pid}")
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


def set_up_host(plan: HostPlan) -> None:
    """Set up the mounts, the host name and /proc of the host; called by its pid 1 in its new namespaces,
    where nothing of it is visible to the machine. The plan says which of the machine's directories the host
    sees at /opt/ml (``ml_folder``), at /tmp and elsewhere (``mounts``). Raises OSError that names the failed
    call."""
    # First, so that the mounts below do not propagate to the machine.
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    # Opened before anything is mounted: the host's own /tmp may hide the paths.
    ml_folder_fd = _open_path(plan.ml_folder)
    tmp_fd = _open_path(plan.tmp_folder)
    hosts_file_fd = _open_path(plan.hosts_file)
    visible_folder_fds = [(path, _open_path(path)) for path in plan.visible_folders]
    open_mounts = [_OpenMount(mount_plan) for mount_plan in plan.mounts]
    # Those below /tmp or /dev/shm come after the host's own /tmp and /dev/shm, which would hide them.
    early_mounts = [open_mount for open_mount in open_mounts if not open_mount.is_below_private_tmp]
    late_mounts = [open_mount for open_mount in open_mounts if open_mount.is_below_private_tmp]
    # A mount needs a directory to cover. The machine may lack it: it is created for this host only, with the
    # help of the staging folder.
    _create_mount_point(plan.ml_path_on_host, plan.staging_folder)
    for open_mount in early_mounts:
        if open_mount.has_absolute_target:  # the others are below /opt/ml, and exist there
            _create_mount_point(open_mount.mount_point(plan.ml_path_on_host), plan.staging_folder)
    _bind_mount(ml_folder_fd, plan.ml_path_on_host, _MS_REC)
    for open_mount in early_mounts:
        open_mount.mount_at_target(plan.ml_path_on_host, plan.isolation_level)
    _bind_mount(hosts_file_fd, "/etc/hosts")
    _bind_mount(tmp_fd, "/tmp")  # noqa: S108
    # Directories below the machine's /tmp that the host's /tmp has just hidden.
    for path, descriptor in visible_folder_fds:
        os.makedirs(path, exist_ok=True)
        _bind_mount(descriptor, path, _MS_REC)
    if os.path.isdir("/dev/shm"):  # noqa: S108
        # The shared memory of a killed host must not remain on the machine.
        _mount("tmpfs", "/dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777")  # noqa: S108
    for open_mount in late_mounts:
        os.makedirs(open_mount.mount_point(plan.ml_path_on_host), exist_ok=True)
        open_mount.mount_at_target(plan.ml_path_on_host, plan.isolation_level)
    encoded_hostname = os.fsencode(plan.hostname)
    _check_syscall(_libc.sethostname(encoded_hostname, len(encoded_hostname)), "sethostname")
    # Otherwise /proc shows the machine's processes, and /proc/self another process.
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def _open_path(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _proc_path_of_fd(descriptor: int) -> str:
    """Return a path to an open directory. Mount options treat colons and commas in a real path as
    separators."""
    return f"/proc/self/fd/{descriptor}"


def _create_mount_point(mount_point: str, staging_folder: str) -> None:
    """Create the directory ``mount_point`` (/opt/ml) for this mount namespace only, without changing the
    machine's own directories. The new directory is in an overlay over the nearest existing parent, or in a
    copy of that parent. ``staging_folder``: an empty directory for a small tmpfs that holds the overlay's
    directories or the copy."""
    if os.path.isdir(mount_point):
        return
    existing_parent, _ = os.path.split(mount_point)
    while not os.path.isdir(existing_parent):
        existing_parent, _ = os.path.split(existing_parent)
    missing_path = os.path.relpath(mount_point, existing_parent)
    copy_folder = os.path.join(staging_folder, "again")  # for a copy of the parent, if it is needed
    _mount("tmpfs", staging_folder, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")
    if existing_parent == "/":
        # Nothing can be mounted over the current root: the host gets another one with the same entries.
        _copy_entries_by_bind_mounts(existing_parent, missing_path, copy_folder)
        os.chroot(copy_folder)
        os.chdir("/")
        return
    try:
        _add_folder_by_overlay(existing_parent, missing_path, staging_folder)
    except OSError as error:
        is_overlay_refused = error.errno in (errno.EPERM, errno.EINVAL, errno.ENODEV)
        if not is_overlay_refused:
            raise
        _replace_by_bind_mounts(existing_parent, missing_path, copy_folder)
    # Detached from its path; the mounts over the parent still use the tmpfs.
    _check_syscall(_libc.umount2(os.fsencode(staging_folder), _MNT_DETACH), f"umount {staging_folder}")


def _add_folder_by_overlay(parent: str, missing_path: str, staging_folder: str) -> None:
    """Mount an overlay over ``parent`` with the same content and the new directory ``missing_path``. Raises
    OSError, also if the kernel or the file system refuses an overlay."""
    upper_folder, work_folder = os.path.join(staging_folder, "upper"), os.path.join(staging_folder, "work")
    os.makedirs(os.path.join(upper_folder, missing_path))
    os.mkdir(work_folder)
    options = f"lowerdir={parent},upperdir={upper_folder},workdir={work_folder}"
    _mount("overlay", parent, "overlay", 0, options)


def _replace_by_bind_mounts(folder: str, new_folder: str, copy_folder: str) -> None:
    """Replace a directory by a copy of bind mounts with a new directory, for kernels that refuse an
    overlay."""
    _copy_entries_by_bind_mounts(folder, new_folder, copy_folder)
    _mount(copy_folder, folder, None, _MS_BIND | _MS_REC)


def _copy_entries_by_bind_mounts(source_folder: str, new_folder: str, copy_folder: str) -> None:
    """Create ``copy_folder``, a directory that looks like ``source_folder``: its entries are bind mounts, and
    copies of the symbolic links. In addition it has the new directory ``new_folder``, a relative path.
    ``copy_folder`` is on a tmpfs somewhere below ``source_folder``."""
    os.mkdir(copy_folder)
    # The entry that contains the tmpfs comes first; otherwise it would contain the other mounts twice.
    entries = sorted(
        os.scandir(source_folder), key=lambda entry: not copy_folder.startswith(entry.path + "/")
    )
    for entry in entries:
        copy_path = os.path.join(copy_folder, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), copy_path)
            continue
        if entry.is_dir():
            os.mkdir(copy_path)
        else:  # a file can be mounted over a file only
            os.close(os.open(copy_path, os.O_CREAT | os.O_WRONLY))
        _mount(entry.path, copy_path, None, _MS_BIND | _MS_REC)
    os.makedirs(os.path.join(copy_folder, new_folder))


class _OpenMount:
    """A mount whose directories were opened before other mounts can hide them."""

    def __init__(self, mount_plan: MountPlan) -> None:
        self._plan = mount_plan
        self._source_fd = _open_path(mount_plan.source)
        self._layer_fds = (
            (_open_path(mount_plan.upper), _open_path(mount_plan.work))
            if mount_plan.mode == "overlay"
            else ()
        )

    @property
    def has_absolute_target(self) -> bool:
        """Whether the target is an absolute path."""
        return self._plan.target.startswith("/")

    @property
    def is_below_private_tmp(self) -> bool:
        """Whether the target is below a directory of the host's own, which is mounted late."""
        return self._plan.target.startswith(("/tmp/", "/dev/shm/"))  # noqa: S108

    def mount_point(self, ml_path_on_host: str) -> str:
        return os.path.join(ml_path_on_host, self._plan.target)

    def mount_at_target(self, ml_path_on_host: str, isolation_level: str) -> None:
        """Mount the opened directory at its target in the mode of its plan: shared, read-only, or with
        changes in an overlay of the host's own. A relative target is below ``ml_path_on_host`` (/opt/ml)."""
        mount_point = self.mount_point(ml_path_on_host)
        if self._plan.mode == "shared":
            _bind_mount(self._source_fd, mount_point)
            return
        if self._plan.mode == "read-only":
            _bind_mount(self._source_fd, mount_point)
            # Only a remount makes a bind mount read-only; it must repeat the restrictions of the file system.
            file_system_flags = os.statvfs(mount_point).f_flag & (_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
            _mount(None, mount_point, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | file_system_flags)
            return
        # An overlay: the directory is the lower layer, the host's changes go to the upper one. Paths in /proc
        # lead to the opened directories, even if a mount hides their own paths by now.
        upper_path, work_path = map(_proc_path_of_fd, self._layer_fds)
        options = f"lowerdir={_proc_path_of_fd(self._source_fd)},upperdir={upper_path},workdir={work_path}"
        if isolation_level == "user":
            # In a user namespace, an overlay cannot mark its directories by trusted.* attributes.
            options += ",userxattr"
        _mount("overlay", mount_point, "overlay", 0, options)
