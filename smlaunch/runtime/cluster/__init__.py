"""The hosts of a job as one host sees them. One module per source of it gives the same Cluster."""

from typing import NamedTuple, Tuple

from smlaunch.protocol.hosts import natural_key as natural_key

DEFAULT_GROUP = "homogeneousCluster"
"""What SageMaker calls the only group of a job without instance groups (training toolkit, environment.py)."""


class Group(NamedTuple):
    name: str
    instance_type: str
    hosts: Tuple[str, ...]


class Cluster(NamedTuple):
    """``hosts`` are those of this host's own group, in natural order: they train together.

    ``all_hosts`` are those of the whole job in the order the platform gave; ``groups`` is empty when the
    source knows of none. ``interface`` is the network interface the hosts reach each other by.
    """

    hosts: Tuple[str, ...]
    current: str
    interface: str
    group: str
    instance_type: str
    all_hosts: Tuple[str, ...]
    groups: Tuple[Group, ...]

    @property
    def rank(self) -> int:
        """This host's index among ``hosts``."""
        return self.hosts.index(self.current)

    @property
    def leader(self) -> str:
        """The first of the group; that need not be algo-1, which may belong to another group."""
        return self.hosts[0]
