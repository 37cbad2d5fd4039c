"""The cluster of a training job, from ``resourceconfig.json``.

AWS documents current_host, hosts and network_interface_name; the keys about groups are those that AWS's own
training toolkit reads (environment.py), and they may be missing. Nothing is promised about the
order of hosts.
"""

import json
from typing import Any, Dict, List, Tuple

from smlaunch.runtime.cluster import DEFAULT_GROUP, Cluster, InstanceGroup, natural_sort_key
from smlaunch.runtime.errors import SetupError


def read_cluster(path: str) -> Tuple[Cluster, Dict[str, Any]]:
    """Return the cluster, the hosts of the job as this host sees them, from the platform's file
    resourceconfig.json, and the content of the file. Raises SetupError.
    """
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except OSError as error:
        raise SetupError(
            "{}: {}; it is the platform that writes this file, so is this a training job?".format(
                path, error.strerror
            )
        ) from None
    except ValueError as error:
        raise SetupError("{}: not JSON: {}".format(path, error)) from None
    if not isinstance(document, dict):
        raise SetupError("{}: not a JSON object".format(path))
    try:
        return parse_cluster(document), document
    except (KeyError, TypeError, ValueError) as error:
        raise SetupError("{}: {}".format(path, _describe_error(error))) from None


def parse_cluster(document: Dict[str, Any]) -> Cluster:
    """Return the hosts that train together with this one: those of its instance group, or all hosts of a job
    without groups. ``document``: the content of resourceconfig.json. Raises KeyError, TypeError or ValueError
    for one without a usable cluster.
    """
    current_host = str(document["current_host"])
    all_hosts = _parse_host_names(document["hosts"])
    groups = tuple(
        InstanceGroup(
            name=str(group["instance_group_name"]),
            instance_type=str(group.get("instance_type", "")),
            hosts=_parse_host_names(group["hosts"]),
        )
        for group in document.get("instance_groups") or ()
    )
    own_group = next((group for group in groups if current_host in group.hosts), None)
    hosts = own_group.hosts if own_group else all_hosts
    if current_host not in hosts:
        raise ValueError("current_host {!r} is not among the hosts {}".format(current_host, ", ".join(hosts)))
    stated_group_name = str(document.get("current_group_name") or "")
    instance_type = document.get("current_instance_type") or (own_group.instance_type if own_group else "")
    return Cluster(
        hosts=tuple(sorted(set(hosts), key=natural_sort_key)),
        current_host=current_host,
        network_interface=str(document.get("network_interface_name") or "eth0"),
        # The lists of hosts decide; current_group_name counts only where no list has this host. The default
        # is the platform's own name, homogeneousCluster.
        group_name=own_group.name if own_group else stated_group_name or DEFAULT_GROUP,
        instance_type=str(instance_type or "local"),
        all_hosts=all_hosts,
        groups=groups,
    )


def _parse_host_names(value: Any) -> Tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("hosts: a list of names is needed, not {!r}".format(value))
    names: List[str] = [str(name) for name in value]
    return tuple(names)


def _describe_error(error: Exception) -> str:
    return "{} is missing".format(error) if isinstance(error, KeyError) else str(error)
