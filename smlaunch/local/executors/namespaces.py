"""Linux namespaces by plain system calls: what makes a process tree look like a host of its own.

The order of the steps matters and is explained where it does. Loaded by the supervisor
alone, and like it with few imports.
"""
# pathlib would take as long to load as all of this takes to run.
# ruff: noqa: PTH102, PTH103, PTH112, PTH115, PTH118, PTH123, PTH211

from __future__ import annotations

import ctypes
import errno
import os

from smlaunch.local.executors.host_plan import HostPlan, ViewPlan

_NEWNS, _NEWUTS, _NEWUSER, _NEWPID, _NEWNET = 0x00020000, 0x04000000, 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    options = None if data is None else os.fsencode(data)
    _check(_libc.mount(*words, ctypes.c_ulong(flags), options), f"mount {kind or source or ''} on {target}")


def die_with_parent() -> None:
    """SIGKILL to this process when its parent's thread ends. Call it in a child of the main thread only."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl PR_SET_CHILD_SUBREAPER")


def enter(level: str, network: str) -> None:
    """Moves the supervisor into fresh namespaces; its next child is pid 1 of the new one.

    Raises OSError: EPERM where that is forbidden, ENOSPC where the number of namespaces is limited to 0.
    """
    flags = _NEWNS | _NEWUTS | _NEWPID
    if network not in ("", "new"):
        _join(level, network)
    else:
        if level == "user":
            flags |= _NEWUSER
        if network == "new":
            flags |= _NEWNET
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(flags), "unshare")
    if flags & _NEWUSER:
        # Without setgroups=deny an ordinary user may not write gid_map.
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {user} 1")
        _write("/proc/self/gid_map", f"0 {group} 1")
    if network == "new":
        _bring_loopback_up()


def _join(level: str, pid: str) -> None:
    """Into another host's network. At level user it belongs to that host's user namespace: that one first."""
    kinds = (("user", _NEWUSER), ("net", _NEWNET)) if level == "user" else (("net", _NEWNET),)
    for name, kind in kinds:
        descriptor = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(descriptor, kind), f"setns {name} of {pid}")
        finally:
            os.close(descriptor)


def _write(path: str, text: str) -> None:
    with open(path, "w") as stream:
        stream.write(text)


def _bring_loopback_up() -> None:
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def furnish(plan: HostPlan) -> None:
    """Builds the host around pid 1: its mounts, its name, its /proc. Raises OSError naming the step."""
    # First of all, or every mount below would spread to the machine.
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    # Opened before anything is mounted: a private /tmp may soon hide the paths.
    tree, tmp, hosts = (_open(path) for path in (plan.tree, plan.tmp, plan.hosts_file))
    open_paths = [(path, _open(path)) for path in plan.keep]
    views = [_OpenView(view) for view in plan.views]
    _place_for(plan.root, plan.stage)
    for view in views:
        if view.is_elsewhere and not view.is_private:
            _place_for(view.target(plan.root), plan.stage)
    _mount(_via(tree), plan.root, None, _MS_BIND | _MS_REC)
    for view in views:
        if not view.is_private:
            view.mount(plan.root, plan.level)
    _mount(_via(hosts), "/etc/hosts", None, _MS_BIND)
    _mount(_via(tmp), "/tmp", None, _MS_BIND)  # noqa: S108
    for path, descriptor in open_paths:
        os.makedirs(path, exist_ok=True)
        _mount(_via(descriptor), path, None, _MS_BIND | _MS_REC)
    if os.path.isdir("/dev/shm"):  # noqa: S108
        # Shared memory of a killed host must not stay on the machine.
        _mount("tmpfs", "/dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777")  # noqa: S108
    for view in views:
        if view.is_private:
            os.makedirs(view.target(plan.root), exist_ok=True)
            view.mount(plan.root, plan.level)
    name = os.fsencode(plan.hostname)
    _check(_libc.sethostname(name, len(name)), "sethostname")
    # Without it /proc shows the machine's processes and /proc/self another's.
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def _open(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _via(descriptor: int) -> str:
    """A path to an open directory, whatever its name holds: mount options know colons and commas."""
    return f"/proc/self/fd/{descriptor}"


def _place_for(target: str, stage: str) -> None:
    """Makes a mount point at ``target`` (/opt/ml) without touching the machine's own directories."""
    if os.path.isdir(target):
        return
    parent, _ = os.path.split(target)
    while not os.path.isdir(parent):
        parent, _ = os.path.split(parent)
    name = os.path.relpath(target, parent)
    _mount("tmpfs", stage, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")
    if parent == "/":
        # Nothing can be mounted over the root that is in use: the host gets another one, with the same in it.
        again = os.path.join(stage, "again")
        _assemble(parent, name, again)
        os.chroot(again)
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
        _rebuild(parent, name, os.path.join(stage, "again"))
    _check(_libc.umount2(os.fsencode(stage), _MNT_DETACH), f"umount {stage}")


def _rebuild(parent: str, name: str, again: str) -> None:
    """For kernels that refuse an overlay."""
    _assemble(parent, name, again)
    _mount(again, parent, None, _MS_BIND | _MS_REC)


def _assemble(parent: str, name: str, again: str) -> None:
    """In ``again``, on a tmpfs: everything that is in ``parent``, bound, and the new directory ``name``."""
    os.mkdir(again)
    # What holds the tmpfs itself comes first, or it would hold the other mounts a second time.
    entries = sorted(os.scandir(parent), key=lambda entry: not again.startswith(entry.path + "/"))
    for entry in entries:
        place = os.path.join(again, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), place)
            continue
        if entry.is_dir():
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY))
        _mount(entry.path, place, None, _MS_BIND | _MS_REC)
    os.makedirs(os.path.join(again, name))


class _OpenView:
    """A view whose directories were opened before the mounts that may hide them."""

    def __init__(self, view: ViewPlan) -> None:
        self._view = view
        self._source = _open(view.source)
        self._layers = (_open(view.upper), _open(view.work)) if view.mode == "own" else ()

    @property
    def is_elsewhere(self) -> bool:
        return self._view.target.startswith("/")

    @property
    def is_private(self) -> bool:
        """Whether it belongs below a directory that the host has for itself alone, and that comes late."""
        return self._view.target.startswith(("/tmp/", "/dev/shm/"))  # noqa: S108

    def target(self, root: str) -> str:
        return os.path.join(root, self._view.target)

    def mount(self, root: str, level: str) -> None:
        target = self.target(root)
        if self._view.mode == "shared":
            _mount(_via(self._source), target, None, _MS_BIND)
            return
        if self._view.mode == "read-only":
            _mount(_via(self._source), target, None, _MS_BIND)
            # A remount may not drop what the file system itself forbids.
            held = os.statvfs(target).f_flag & (_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
            _mount(None, target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | held)
            return
        upper, work = (_via(layer) for layer in self._layers)
        options = f"lowerdir={_via(self._source)},upperdir={upper},workdir={work}"
        if level == "user":
            # The trusted.* attributes an overlay marks its directories with are not to be had there.
            options += ",userxattr"
        _mount("overlay", target, "overlay", 0, options)
