"""From the start of a host's runtime to the first line of the user's script, on two ranks, against torchrun.

    python benchmarks/startup_runtime.py [--rounds 11]

Two commands in turn, of the same script: ``torchrun --standalone --nproc-per-node 2`` and a host as the
platform starts it, ``python3 runtime.pyz`` with its /opt/ml below a folder, source archive to unpack
included. The script prints the wall clock when its first line runs; what counts is the last of the two
ranks. torch must be installed beside smlaunch.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path

from harness import first_line, interleave, report

from smlaunch.contract.launch_spec import LaunchSpec, RankSpec, Ref
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

# In one write: torchrun's ranks share one pipe, and print() may write word by word.
SCRIPT = b"import os, time; t = time.time(); os.write(1, b'FIRST-LINE %.6f\\n' % t)\n"
BIN = Path(sys.executable).parent


def make_host(root: Path, script: bytes, ranks: int, hyperparameters: dict[str, str]) -> list[str]:
    """The tree a one-host job finds; returns the command that SageMaker would run there."""
    paths = Paths(str(root))
    launch, source = Path(paths.channel_dir(RUNTIME_CHANNEL)), Path(paths.channel_dir(SOURCE_CHANNEL))
    for folder in (launch, source, Path(paths.config)):
        folder.mkdir(parents=True)
    words = (Ref("python"), Ref("source", suffix="/hello.py"), Ref("hyperparameters"))
    spec = LaunchSpec(RankSpec(words, per_host=ranks), source=SOURCE_ARCHIVE)
    (launch / LAUNCH_FILE).write_text(spec.to_json())
    (launch / RUNTIME_ARCHIVE).write_bytes(build_runtime_archive())
    with tarfile.open(source / SOURCE_ARCHIVE, "w:gz") as archive:
        member = tarfile.TarInfo("hello.py")
        member.size = len(script)
        archive.addfile(member, io.BytesIO(script))
    Path(paths.hyperparameters).write_text(json.dumps(hyperparameters))
    Path(paths.resource_config).write_text(
        json.dumps({"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"})
    )
    return [sys.executable, str(launch / RUNTIME_ARCHIVE)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        host = make_host(Path(folder) / "ml", SCRIPT, 2, {"epochs": "3", "lr": "0.1"})
        script = Path(folder) / "hello.py"
        script.write_bytes(SCRIPT)
        torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", str(script)]
        environment = {**os.environ, ROOT_VARIABLE: f"{folder}/ml"}
        figures = interleave(
            {
                "torchrun --standalone": lambda: first_line(torchrun, dict(os.environ)),
                "runtime": lambda: first_line(host, environment),
            },
            rounds,
        )
    sys.exit(not report(figures, "torchrun --standalone", {"runtime": 0.05}))


if __name__ == "__main__":
    main()
