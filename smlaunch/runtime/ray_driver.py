"""Wait for a Ray cluster to be complete, then become the script that drives it.

    python -c "from smlaunch.runtime.ray_driver import main; main()" HOSTS PYTHON SCRIPT ARGUMENTS...

A started node needs a moment to join the cluster. A script that starts earlier may place all its work on the
first node. RAY_ADDRESS is the address of the cluster.
"""

import os
import sys
import time
from typing import List, Optional

_TIMEOUT_SECONDS = 300.0
"""Seconds."""


def main(arguments: Optional[List[str]] = None) -> None:
    """``arguments``: the number of hosts and the script's command, by default of this process. Does not
    return. Raises TimeoutError.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    wait_for_nodes(int(arguments[0]))
    os.execvp(arguments[1], arguments[1:])  # noqa: S606


def wait_for_nodes(host_count: int, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
    """Return when ``host_count`` hosts have joined the Ray cluster. Raises TimeoutError when fewer join in
    time.
    """
    import ray

    deadline = time.monotonic() + timeout_seconds
    ray.init(log_to_driver=False, logging_level="ERROR")
    while True:
        node_addresses = sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])
        if len(node_addresses) >= host_count:
            break
        if time.monotonic() > deadline:
            raise TimeoutError(
                "{} of {} hosts have joined the Ray cluster within {:g} s: {}".format(
                    len(node_addresses), host_count, timeout_seconds, ", ".join(node_addresses)
                )
            )
        time.sleep(0.1)
    ray.shutdown()
