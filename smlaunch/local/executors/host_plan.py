"""The plan that a host's supervisor reads from its standard input.

Its values (paths, arguments, variables) cannot contain a zero byte. So zero bytes separate them, and a count
precedes each list. The supervisor loads this module: it imports nothing, so that a host starts quickly.
"""

from __future__ import annotations

OWNER_VARIABLE = "SMLAUNCH_OWNER"
"""In every host process's environment, with the value ENDPOINT_ID/JOB/HOST/. It identifies the processes that
a killed supervisor left behind."""


class MountPlan:
    """A mount on the host."""

    def __init__(self, source: str, target: str, mode: str, upper: str, work: str) -> None:
        self.source = source
        self.target = target
        """Relative to the contract's root, or an absolute path on the host."""
        self.mode = mode
        """read-only; shared: what is written is in ``source``; overlay: what is written is in ``upper``."""
        self.upper = upper
        """With mode overlay: an empty directory on the same file system as ``work``."""
        self.work = work
        """With mode overlay: an empty directory for the overlay's own use."""


class HostPlan:
    """What a supervisor needs to start its host. Paths are those of this machine, except ``ml_path_on_host``
    and ``working_directory``, which are paths on the host."""

    def __init__(
        self,
        *,
        isolation_level: str,
        working_directory: str,
        hostname: str,
        ml_folder: str,
        ml_path_on_host: str,
        staging_folder: str,
        tmp_folder: str,
        hosts_file: str,
        network: str,
        argv: list[str],
        environment: dict[str, str],
        visible_folders: list[str],
        mounts: list[MountPlan],
    ) -> None:
        self.isolation_level = isolation_level
        """Isolation level: full, user or plain."""
        self.working_directory = working_directory
        """Working directory of the program."""
        self.hostname = hostname
        self.ml_folder = ml_folder
        """Directory that the host sees as /opt/ml."""
        self.ml_path_on_host = ml_path_on_host
        """/opt/ml, or ``ml_folder`` itself at level plain."""
        self.staging_folder = staging_folder
        """Empty directory for creating mount points."""
        self.tmp_folder = tmp_folder
        """The host's /tmp."""
        self.hosts_file = hosts_file
        """The host's /etc/hosts."""
        self.network = network
        """Empty for the machine's network, ``new``, or the pid of the host whose network is shared."""
        self.argv = argv
        self.environment = environment
        self.visible_folders = visible_folders
        """Directories below the machine's /tmp that the host needs to see."""
        self.mounts = mounts

    def encode(self) -> bytes:
        """Return the form that ``decode`` reads. Raises ValueError for a value with a zero byte, which no
        process can be given."""
        values = [getattr(self, name) for name in _SINGLE_VALUES]
        variables = [text for name_and_value in self.environment.items() for text in name_and_value]
        mount_values = [getattr(mount, name) for mount in self.mounts for name in _MOUNT_VALUES]
        for value_list in (self.argv, variables, self.visible_folders, mount_values):
            values += [str(len(value_list)), *value_list]
        if any("\0" in value for value in values):
            raise ValueError("a zero byte in an argument or in the environment")
        return "\0".join(values).encode("utf-8", "surrogateescape")

    @classmethod
    def decode(cls, data: bytes) -> HostPlan:
        """Read the form that ``encode`` returns: single values, then lists, each with its length first."""
        values = iter(data.decode("utf-8", "surrogateescape").split("\0"))

        def read_list() -> list[str]:
            length = int(next(values))
            return [next(values) for _ in range(length)]

        single_values = {name: next(values) for name in _SINGLE_VALUES}
        argv = read_list()
        variables = read_list()  # name, value, name, value, ...
        visible_folders = read_list()
        mount_values = read_list()
        mount_starts = range(0, len(mount_values), len(_MOUNT_VALUES))
        return cls(
            **single_values,
            argv=argv,
            environment=dict(zip(variables[::2], variables[1::2], strict=True)),
            visible_folders=visible_folders,
            mounts=[MountPlan(*mount_values[start : start + len(_MOUNT_VALUES)]) for start in mount_starts],
        )


_MOUNT_VALUES = ("source", "target", "mode", "upper", "work")
_SINGLE_VALUES = (
    "isolation_level",
    "working_directory",
    "hostname",
    "ml_folder",
    "ml_path_on_host",
    "staging_folder",
    "tmp_folder",
    "hosts_file",
    "network",
)
