"""How hosts without ranks follow the leader, and how it hears of their failures.

Each of them keeps one connection to the leader for as long as the job lasts. Both sides prove that they know
the job's secret (wire.py); every message is signed and counted.

    follower -> leader   {"ready": true}                        its services are up
                         {"failed": {code, text, began}}        it has failed, and why
    leader -> follower   {"end": {code, text, began}}           how the leader ended: all shall end so

A connection that ends without a last word means that the host is gone: the kernel closes it when the runtime
is killed, and finds out in half a minute when the machine itself is (keep-alive).

Nothing here blocks the supervisor: its loop waits for the ``descriptors`` too, and then calls ``act``.
"""

import time
from typing import List, Optional, Set

from smlaunch.protocol.ports import LINK
from smlaunch.runtime.cluster import Cluster
from smlaunch.runtime.names import PATIENCE
from smlaunch.runtime.outcome import News as News
from smlaunch.runtime.problems import Stopped

GOODBYE_SECONDS = 5.0
"""For followers to hang up when they have been told of the end: when we are gone first, so may be what we
said, together with our network.
"""

GONE = 1
"""The exit code of a host whose peer is gone."""


class Link:
    """What the supervisor waits for beside its processes."""

    leads: bool
    everyone_ready: bool = False
    """On the leader: all others have their services up."""

    over: Optional[News] = None
    """Why everything here is to end: on a follower, the leader's end; on the leader, a follower's failure."""

    connected: bool = False

    due: Optional[float] = None
    """When ``act`` is to be called though nothing is readable (time.monotonic)."""

    remark: str = ""
    """What is to be told in the log; ``act`` sets it, for once."""

    def descriptors(self) -> List[int]:
        raise NotImplementedError

    def act(self, ready: Set[int]) -> None:
        raise NotImplementedError

    def say_ready(self) -> None:
        """This host's services are up."""

    def tell(self, news: News) -> None:
        """The last word: how this host ended. Only the first call counts."""
        raise NotImplementedError


def join(cluster: Cluster, key: bytes, port: int, patience: float = PATIENCE) -> Link:
    """``port``: the job's first. Raises Unusable when the leader cannot listen."""
    port += LINK
    if cluster.current == cluster.leader:
        from smlaunch.runtime.link_leader import Leader

        return Leader(cluster.leader, cluster.hosts[1:], key, port)
    from smlaunch.runtime.link_follower import Follower

    return Follower(cluster.current, cluster.leader, key, port, patience)


def last_word(host: str, error: BaseException) -> News:
    """Of a host that ends before its ranks or services have."""
    code = int(getattr(error, "exit_code", 70))
    if isinstance(error, Stopped):
        return News(code)
    from smlaunch.protocol.failure import format_failure

    return News(code, format_failure(host, None, None, str(error)), time.time())
