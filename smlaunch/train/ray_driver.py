"""Wait for a Ray cluster to be complete, then become the script that drives it.

    python -c "from smlaunch.train.ray_driver import main; main()" HOSTS PYTHON SCRIPT ARGUMENTS...

A node that has been started needs a moment until it is one of the cluster. A script that begins before may
place all its work on the first node, and never notice. RAY_ADDRESS says where the cluster is.
"""

import os
import sys
import time
from typing import List, Optional

_PATIENCE = 300.0
"""Seconds."""


def main(words: Optional[List[str]] = None) -> None:
    """``words``: the number of hosts and the script's command, those of this process by default. Does not
    return. Raises TimeoutError.
    """
    words = sys.argv[1:] if words is None else words
    await_nodes(int(words[0]))
    os.execvp(words[1], words[1:])  # noqa: S606


def await_nodes(hosts: int, patience: float = _PATIENCE) -> None:
    import ray

    give_up = time.monotonic() + patience
    ray.init(log_to_driver=False, logging_level="ERROR")
    while True:
        there = sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])
        if len(there) >= hosts:
            break
        if time.monotonic() > give_up:
            raise TimeoutError(
                "{} of {} hosts have joined the Ray cluster within {:g} s: {}".format(
                    len(there), hosts, patience, ", ".join(there)
                )
            )
        time.sleep(0.1)
    ray.shutdown()
