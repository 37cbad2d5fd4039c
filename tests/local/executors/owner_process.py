"""Run as a program by test_orphans: an endpoint with running hosts that the test kills."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from smlaunch.local.executors.executor_interface import Program
from smlaunch.local.executors.process_allocation import ProcessAllocation

folder, owner, level, script = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]


def run() -> None:
    import os

    process_owner = f"{owner}/job"
    allocation = ProcessAllocation(
        folder / "job", process_owner, ["algo-1", "algo-2"], level, isolated_network=False, can_mount=False
    )
    for host in allocation.hosts:
        (host.opt_ml_folder / "code").mkdir()
    program = Program(("sh", "-c", script), {"PATH": os.environ["PATH"]})
    for process in allocation.start([program, program]):
        text = b""
        while b"ready" not in text:
            text += os.read(process.output_fd, 4096)
    print("running", flush=True)
    globals()["allocation"] = allocation  # a reference that outlives this thread: its hosts must go on


# The hosts start from a thread that ends, as in the endpoint.
thread = threading.Thread(target=run)
thread.start()
thread.join()
sys.stdin.read()
