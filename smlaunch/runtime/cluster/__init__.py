"""The hosts of a job as one host sees them. Each source of them has a module, and all return a Cluster."""

from typing import NamedTuple, Tuple

from smlaunch.contract.host_order import natural_sort_key as natural_sort_key

DEFAULT_GROUP = "homogeneousCluster"
"""What SageMaker calls the only group of a job without instance groups (training toolkit,
environment.py)."""


class InstanceGroup(NamedTuple):
    """An instance group of the job."""

    name: str
    instance_type: str
    hosts: Tuple[str, ...]


class Cluster(NamedTuple):
    """The hosts of the job."""

    hosts: Tuple[str, ...]
    """Hosts of this host's group, in natural order: they train together."""

    current_host: str
    network_interface: str
    """The interface by which the hosts reach each other."""

    group_name: str
    instance_type: str
    all_hosts: Tuple[str, ...]
    """Hosts of the whole job, in the platform's order."""

    groups: Tuple[InstanceGroup, ...]
    """Empty when the source has no groups."""

    @property
    def host_rank(self) -> int:
        """This host's index among ``hosts``."""
        return self.hosts.index(self.current_host)

    @property
    def leader(self) -> str:
        """The first host of the group. That need not be algo-1, which may belong to another group."""
        return self.hosts[0]
