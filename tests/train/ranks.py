"""Ranks of one host as plain processes, without an endpoint: forked from one that has PyTorch in it already,
so that a start costs milliseconds and a test can afford many of them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ENTRYPOINTS = Path(__file__).resolve().parents[2] / "entrypoints"

# One thread per rank, and before the server starts: a process with threads must not be forked.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["numpy", "torch", "torch._dynamo", "torch.distributed.fsdp", "smlaunch.train.resumable_loader"]
)


class Ranks:
    """``world_size`` processes of one script, whose output goes to ``folder/out-<rank>``."""

    def __init__(
        self,
        script: Path,
        arguments: Sequence[str],
        world_size: int,
        folder: Path,
        environment: Mapping[str, str],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.world_size = world_size
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self.processes = []
        for rank in range(world_size):
            variables = {
                **environment,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            arguments_of = (str(script), list(arguments), variables, str(folder / f"out-{rank}"))
            process = _SERVER.Process(target=_run, args=arguments_of)
            process.start()
            self.processes.append(process)

    def wait(self, seconds: float = 90) -> list[int | None]:
        """Returns the exit codes; None for a process that had to be killed."""
        codes = []
        for process in self.processes:
            process.join(seconds)
            codes.append(process.exitcode)
            if process.exitcode is None:
                process.kill()
                process.join()
        return codes

    def signal(self, rank: int, number: int = signal.SIGTERM) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def output(self, rank: int = 0) -> str:
        return (self.folder / f"out-{rank}").read_text()


def run(
    script: Path,
    arguments: Sequence[str],
    world_size: int,
    folder: Path,
    environment: Mapping[str, str],
) -> str:
    """Runs all ranks to their end, which has to be 0; returns rank 0's output."""
    ranks = Ranks(script, arguments, world_size, folder, environment)
    codes = ranks.wait()
    assert codes == [0] * world_size, "\n".join(ranks.output(rank) for rank in range(world_size))
    return ranks.output()


def _run(script: str, arguments: list[str], environment: dict[str, str], out: str) -> None:
    descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    # The forkserver was started with SIGTERM as pytest has it; a rank starts with the default.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    multiprocessing.set_start_method("fork", force=True)
    for name in [name for name in os.environ if name.startswith(("SMLAUNCH_", "SM_"))]:
        del os.environ[name]
    os.environ.update(environment)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
