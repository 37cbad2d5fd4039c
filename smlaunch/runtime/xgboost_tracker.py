"""XGBoost's tracker, which connects the workers of a job.

    python -c "from smlaunch.runtime.xgboost_tracker import main; main()" WORKERS ADDRESS PORT READY-PORT

An open READY-PORT shows that the tracker listens; a connection to the tracker itself would count as a broken
worker. Runs until it is stopped: the workers report how the training went.
"""

import socket
import sys
from typing import List, Optional


def main(arguments: Optional[List[str]] = None) -> None:
    """Run XGBoost's tracker, at which the workers of a job meet, and accept connections at ``ready_port``
    from then on, which shows that it is ready. Does not return. Raises RuntimeError where XGBoost is too old.

    ``arguments``: number of workers, address, port and ready port; None: those of this process.
    """
    worker_count, address, port, ready_port = sys.argv[1:] if arguments is None else arguments
    from xgboost import __version__ as version

    if tuple(int(part) for part in version.split(".")[:2]) < (2, 1):
        raise RuntimeError("XGBoost {} has no tracker for several workers; 2.1 has".format(version))
    from xgboost.tracker import RabitTracker

    # Ranks by task: worker n of the job is the collective's rank n.
    tracker = RabitTracker(n_workers=int(worker_count), host_ip=address, port=int(port), sortby="task")
    tracker.start()
    with socket.create_server((address, int(ready_port))) as ready_server:
        while True:  # until the runtime stops this service
            ready_server.accept()[0].close()
