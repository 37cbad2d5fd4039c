"""A host for tests: an /opt/ml tree below a folder, and the real zip started in it by a real Python."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from smlaunch.contract.launch_spec import ALL, MPI, RUNTIME, Arg, LaunchSpec, RankSpec, Ref
from smlaunch.contract.sagemaker_paths import (
    LAUNCH_FILE,
    ROOT_VARIABLE,
    RUNTIME_ARCHIVE,
    RUNTIME_CHANNEL,
    SOURCE_ARCHIVE,
    SOURCE_CHANNEL,
    Paths,
)
from smlaunch.runs.runtime_archive import build_runtime_archive

SCRIPT: tuple[Arg, ...] = (Ref("python"), Ref("source", suffix="/train.py"), Ref("hyperparameters"))

runtime_archive = lru_cache(build_runtime_archive)


@dataclass(frozen=True)
class Result:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()

    def documents(self) -> list[Any]:
        """Return the JSON document that each rank printed on one line, ordered by the ranks' prefixes."""
        return [json.loads(line.split("] ", 1)[-1]) for line in sorted(self.lines)]


@dataclass
class Host:
    """``source`` maps names to contents; ``train.py`` is what the default command runs."""

    root: Path
    train: str = ""
    source: Mapping[str, str] = field(default_factory=dict)
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    hosts: Sequence[str] = ("algo-1",)
    current: str = "algo-1"
    resource_config: Mapping[str, Any] = field(default_factory=dict)
    channels: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    wrapper: Sequence[str] = ()
    """The start of the command line, before the runtime's own words, such as ``unshare``'s."""

    def __post_init__(self) -> None:
        self.paths = Paths(str(self.root))
        for name in (RUNTIME_CHANNEL, SOURCE_CHANNEL, *self.channels):
            Path(self.paths.channel_dir(name)).mkdir(parents=True)
        for folder in (self.paths.config, self.paths.model, self.paths.output_data):
            Path(folder).mkdir(parents=True)
        self.runtime = Path(self.paths.channel_dir(RUNTIME_CHANNEL)) / RUNTIME_ARCHIVE
        self.runtime.write_bytes(runtime_archive())
        Path(self.paths.hyperparameters).write_text(json.dumps(dict(self.hyperparameters)))
        config = {"current_host": self.current, "hosts": list(self.hosts), "network_interface_name": "lo"}
        Path(self.paths.resource_config).write_text(json.dumps({**config, **self.resource_config}))
        channel = {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated"}
        Path(self.paths.input_data_config).write_text(json.dumps(dict.fromkeys(self.channels, channel)))
        archive = Path(self.paths.channel_dir(SOURCE_CHANNEL)) / SOURCE_ARCHIVE
        with tarfile.open(archive, "w:gz") as members:
            for name, text in {"train.py": self.train, **self.source}.items():
                content = text.encode("utf-8")
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(content), 0o755
                members.addfile(member, io.BytesIO(content))

    @property
    def failure(self) -> str:
        path = Path(self.paths.failure_file)
        return path.read_text() if path.exists() else ""

    def specify(
        self, per_host: int | str = 1, argv: Sequence[Arg] = SCRIPT, rendezvous: bool = True, **more: Any
    ) -> None:
        env = tuple(more.pop("env", {}).items())
        launcher, on = more.pop("launcher", RUNTIME), more.pop("on", ALL)
        options = tuple(more.pop("options", ()))
        if launcher == MPI:
            self.runtime.write_bytes(runtime_archive(uses_mpi=True))
        independent = more.pop("independent", False)
        ranks = RankSpec(tuple(argv), env, per_host, rendezvous, launcher, on, options, independent)
        spec = LaunchSpec(ranks, **{"source": SOURCE_ARCHIVE, **more})
        (Path(self.paths.channel_dir(RUNTIME_CHANNEL)) / LAUNCH_FILE).write_text(spec.to_json())

    def start(self, **spec: Any) -> subprocess.Popen[str]:
        """Start the runtime, or the wrapper with the runtime's command, and return the process."""
        if spec or not (Path(self.paths.channel_dir(RUNTIME_CHANNEL)) / LAUNCH_FILE).exists():
            self.specify(**spec)
        return subprocess.Popen(
            [*self.wrapper, self.python, str(self.runtime)],
            env={**_clean_environment(), ROOT_VARIABLE: str(self.root), **self.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def run(self, **spec: Any) -> Result:
        with self.start(**spec) as process:
            return finish(process)


def finish(process: subprocess.Popen[str]) -> Result:
    try:
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    return Result(process.returncode, stdout, stderr)


def _clean_environment() -> dict[str, str]:
    """Return this process's environment without another launcher's variables and Python settings."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "OMP_", "SM_", "NCCL_", "GLOO_", "CUDA_"))
    }
