"""What a host's supervisor is told on its standard input.

All of it is words that cannot hold a zero byte (paths, arguments, variables), so zero bytes part them and
counts precede lists. Loaded by the supervisor: it imports nothing, so that a host starts quickly.
"""

from __future__ import annotations

OWNER_VARIABLE = "SMLAUNCH_OWNER"
"""In every host process's environment: owner/job/label/. Finds what a killed supervisor left behind."""


class ViewPlan:
    """``mode`` is read-only, shared (what is written is in ``source``), or own: then ``upper`` and ``work``
    are empty directories on one file system, for what the host writes. ``target`` is relative to the root,
    or a path anywhere on the host."""

    def __init__(self, source: str, target: str, mode: str, upper: str, work: str) -> None:
        self.source = source
        self.target = target
        self.mode = mode
        self.upper = upper
        self.work = work


class HostPlan:
    """``level``: full, user or plain. Paths are as this machine sees them, ``root`` and ``directory`` as the
    host does.

    ``keep``: directories that stay visible where the host's private /tmp hides them.
    ``network``: empty (the machine's), ``new``, or the pid of the host whose network is shared.
    """

    def __init__(
        self,
        *,
        level: str,
        directory: str,
        hostname: str,
        tree: str,
        root: str,
        stage: str,
        tmp: str,
        hosts_file: str,
        network: str,
        argv: list[str],
        environment: dict[str, str],
        keep: list[str],
        views: list[ViewPlan],
    ) -> None:
        self.level = level
        self.directory = directory
        self.hostname = hostname
        self.tree = tree
        self.root = root
        self.stage = stage
        self.tmp = tmp
        self.hosts_file = hosts_file
        self.network = network
        self.argv = argv
        self.environment = environment
        self.keep = keep
        self.views = views

    def encode(self) -> bytes:
        """Raises ValueError for a word with a zero byte, which no process can be given."""
        words = [getattr(self, name) for name in _SINGLE]
        flat = [word for pair in self.environment.items() for word in pair]
        views = [
            word
            for view in self.views
            for word in (view.source, view.target, view.mode, view.upper, view.work)
        ]
        for part in (self.argv, flat, self.keep, views):
            words += [str(len(part)), *part]
        if any("\0" in word for word in words):
            raise ValueError("a zero byte in an argument or in the environment")
        return "\0".join(words).encode("utf-8", "surrogateescape")

    @classmethod
    def decode(cls, text: bytes) -> HostPlan:
        words = iter(text.decode("utf-8", "surrogateescape").split("\0"))
        single = {name: next(words) for name in _SINGLE}
        argv, flat, keep, views = ([next(words) for _ in range(int(next(words)))] for _ in range(4))
        return cls(
            **single,
            argv=argv,
            environment=dict(zip(flat[::2], flat[1::2], strict=True)),
            keep=keep,
            views=[
                ViewPlan(source, target, mode, upper, work)
                for source, target, mode, upper, work in zip(*[iter(views)] * 5, strict=True)
            ],
        )


_SINGLE = ("level", "directory", "hostname", "tree", "root", "stage", "tmp", "hosts_file", "network")
