"""XGBoost's tracker, at which the workers of a job meet.

    python -c "from smlaunch.train.xgboost_tracker import main; main()" WORKERS ADDRESS PORT READY-PORT

Who finds READY-PORT open knows that the tracker listens; whoever knocks at the tracker itself is taken for a
worker that does not know what to say. Stays until it is told to end: how the training went is the workers'
to tell, and they are the ones that notice.
"""

import socket
import sys
from typing import List, Optional


def main(words: Optional[List[str]] = None) -> None:
    """``words``: those of this process by default. Does not return. Raises RuntimeError where XGBoost is too
    old.
    """
    workers, address, port, ready = sys.argv[1:] if words is None else words
    from xgboost import __version__ as version

    if tuple(int(part) for part in version.split(".")[:2]) < (2, 1):
        raise RuntimeError("XGBoost {} has no tracker for several workers; 2.1 has".format(version))
    from xgboost.tracker import RabitTracker

    # Ranks by task: worker n of the job is the collective's rank n.
    tracker = RabitTracker(n_workers=int(workers), host_ip=address, port=int(port), sortby="task")
    tracker.start()
    with socket.create_server((address, int(ready))) as server:
        while True:
            server.accept()[0].close()
