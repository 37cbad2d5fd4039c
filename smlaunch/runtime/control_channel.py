"""How hosts without ranks follow the leader, and how the leader learns of their failures.

Each follower keeps one connection to the leader for the whole job. Both sides prove that they know the job's
secret (peer_connection.py); every message is signed and numbered.

    follower -> leader   {"ready": true}                                    its services are up
                         {"failed": {exit_code, failure_text, failed_at}}   it has failed, and why
    leader -> follower   {"end": {exit_code, failure_text, failed_at}}      how the leader ended: all end so

A connection that ends without a final message means that the host is lost: the kernel closes it when the
runtime is killed, and keep-alive notices a lost machine within half a minute.

Nothing here blocks the supervisor: its loop also waits for ``descriptors`` and then calls ``process_events``.
"""

import time
from typing import List, Optional, Set

from smlaunch.contract.tcp_ports import CONTROL_CHANNEL_PORT
from smlaunch.runtime.cluster import Cluster
from smlaunch.runtime.errors import StoppedDuringSetup
from smlaunch.runtime.host_outcome import PeerStatus as PeerStatus
from smlaunch.runtime.name_lookup import PEER_TIMEOUT_SECONDS

GOODBYE_SECONDS = 5.0
"""Time for followers to close their connections after the final message. If the leader exited first, its
network might disappear together with the message.
"""

PEER_LOST_EXIT_CODE = 1
"""Exit code of a host that has lost its peer."""


class ControlChannel:
    """One end of the connections between leader and followers."""

    is_leader: bool
    all_ready: bool = False
    """On the leader: the services of all other hosts are up."""

    peer_status: Optional[PeerStatus] = None
    """Set when this host must end: how the leader ended, or on the leader a follower's failure."""

    is_connected: bool = False

    next_action_at: Optional[float] = None
    """When to call ``process_events`` even if nothing is readable (time.monotonic)."""

    log_message: str = ""
    """A line for the log, set by the last call of ``process_events``; empty for none."""

    def descriptors(self) -> List[int]:
        """What the supervisor's loop waits for."""
        raise NotImplementedError

    def process_events(self, ready: Set[int]) -> None:
        """Handle what has arrived. ``ready``: readable descriptors."""
        raise NotImplementedError

    def report_ready(self) -> None:
        """This host's services are up."""

    def send_status(self, status: PeerStatus) -> None:
        """Send the final message: how this host ended. Only the first call counts."""
        raise NotImplementedError


def open_channel(
    cluster: Cluster, key: bytes, port: int, timeout_seconds: float = PEER_TIMEOUT_SECONDS
) -> ControlChannel:
    """This host's end of the control channel. ``port``: the job's first port. Raises SetupError when the
    leader cannot listen.
    """
    port += CONTROL_CHANNEL_PORT
    if cluster.current_host == cluster.leader:
        from smlaunch.runtime.control_leader import LeaderChannel

        return LeaderChannel(cluster.leader, cluster.hosts[1:], key, port)
    from smlaunch.runtime.control_follower import FollowerChannel

    return FollowerChannel(cluster.current_host, cluster.leader, key, port, timeout_seconds)


def status_of_error(host: str, error: BaseException) -> PeerStatus:
    """Status of a host that ends before its ranks or services have started."""
    exit_code = int(getattr(error, "exit_code", 70))
    if isinstance(error, StoppedDuringSetup):
        return PeerStatus(exit_code)
    from smlaunch.contract.failure import format_failure

    return PeerStatus(exit_code, format_failure(host, None, None, str(error)), time.time())
