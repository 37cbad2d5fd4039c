"""What every strategy is: data about how processes are started, a check, and a compiler to job.json.

A strategy compiles into the runtime's few verbs on the client; inside the job nobody knows its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from smlaunch.errors import Problem
from smlaunch.protocol.launch_spec import RUNTIME, TORCHRUN, CheckpointSpec, LaunchSpec, Ranks, Ref, Word
from smlaunch.protocol.paths import SOURCE_ARCHIVE


@dataclass(frozen=True)
class Setting:
    """What is decided already, and what the script shows.

    ``entry``: the script's path inside the source archive. ``per_host``: ranks, a number or ``auto``.
    ``environment``: the job's own variables, which win over a strategy's. ``imports``: dotted names.
    ``max_runtime``, ``margin`` (between a planned end and that) and ``hang`` in seconds; ``hang`` None leaves
    it to the strategy. ``run``: its id, for ranks that keep ``checkpoints``. ``split``: hosts get different
    parts of an input.
    """

    entry: str
    args: tuple[str, ...] = ()
    hosts: int = 1
    per_host: int | str = 1
    environment: frozenset[str] = frozenset()
    requirements: str | None = None
    max_runtime: int | None = None
    hang: int | None = None
    launcher: str = RUNTIME
    imports: frozenset[str] = field(default_factory=frozenset)
    reads_resource_config: bool = False
    run: str | None = None
    checkpoints: CheckpointSpec | None = None
    margin: int | None = None
    deterministic: bool = False
    split: bool = False


class Strategy:
    """A subclass states the data and, where something can be wrong, overrides ``check`` and ``advice``."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """What happens, as the end of a sentence: "ddp starts ..."."""

    rendezvous: ClassVar[bool]
    """Ranks get RANK, WORLD_SIZE, MASTER_ADDR and the rest as torchrun sets them."""

    operation: ClassVar[str] = "CreateTrainingJob"
    """What the service is asked for."""

    hang: ClassVar[int | None] = None
    """Seconds without output and CPU use that count as a hang where the job does not say; None: none do."""

    own_checkpoints: ClassVar[str | None] = None
    """What a chain of segments is worth where the script does not use smlaunch.train, as a sentence; None: it
    depends on the script alone."""

    def check_all(self, setting: Setting) -> list[Problem]:
        """``check``, and what holds for every strategy."""
        if setting.launcher != TORCHRUN or self.rendezvous:
            return self.check(setting)
        told = f"torchrun joins ranks, and {self.name} has none to join; use strategy: ddp, or leave it out"
        return [*self.check(setting), Problem("launcher", told)]

    def check(self, setting: Setting) -> list[Problem]:
        """What makes this strategy impossible here, by the job's own field names."""
        return []

    def advice(self, setting: Setting) -> list[str]:
        """What will work, but probably not as meant."""
        return []

    def command(self, setting: Setting) -> tuple[Word, ...]:
        """The words of each rank's command: interpreter, script, arguments, then hyperparameters."""
        script = Ref("source", suffix="/" + setting.entry)
        interpreter: Word = "bash" if setting.entry.endswith(".sh") else Ref("python")
        return (interpreter, script, *setting.args, Ref("hyperparameters"))

    def launch_spec(self, setting: Setting) -> LaunchSpec:
        environment: list[tuple[str, Word]] = []
        if "PYTHONUNBUFFERED" not in setting.environment:
            # Output goes into a pipe, where Python would hold back what a script prints until 8 KiB are full.
            environment.append(("PYTHONUNBUFFERED", "1"))
        command = self.command(setting)
        ranks = Ranks(command, tuple(environment), setting.per_host, self.rendezvous, setting.launcher)
        return LaunchSpec(
            ranks=ranks,
            source=SOURCE_ARCHIVE,
            requirements=setting.requirements,
            max_runtime_seconds=setting.max_runtime,
            hang_seconds=self.hang if setting.hang is None else setting.hang,
            run=setting.run,
            checkpoints=setting.checkpoints,
            margin_seconds=setting.margin,
            deterministic=setting.deterministic,
        )
