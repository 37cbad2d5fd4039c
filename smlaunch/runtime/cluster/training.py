"""The cluster of a training job, from ``resourceconfig.json``.

AWS documents current_host, hosts and network_interface_name; the keys about groups are those that AWS's own
training toolkit reads (environment.py), and they may be missing. Nothing is promised about the order of
hosts.
"""

import json
from typing import Any, Dict, List, Tuple

from smlaunch.runtime.cluster import DEFAULT_GROUP, Cluster, Group, natural_key
from smlaunch.runtime.problems import Unusable


def read(path: str) -> Tuple[Cluster, Dict[str, Any]]:
    """The cluster, and the file's content as it is. Raises Unusable."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except OSError as error:
        raise Unusable(
            "{}: {}; it is the platform that writes this file, so is this a training job?".format(
                path, error.strerror
            )
        ) from None
    except ValueError as error:
        raise Unusable("{}: not JSON: {}".format(path, error)) from None
    if not isinstance(document, dict):
        raise Unusable("{}: not a JSON object".format(path))
    try:
        return cluster_of(document), document
    except (KeyError, TypeError, ValueError) as error:
        raise Unusable("{}: {}".format(path, _told(error))) from None


def cluster_of(document: Dict[str, Any]) -> Cluster:
    """Raises KeyError, TypeError or ValueError for a document that names no usable cluster."""
    current = str(document["current_host"])
    all_hosts = _names(document["hosts"])
    groups = tuple(
        Group(
            str(group["instance_group_name"]),
            str(group.get("instance_type", "")),
            _names(group["hosts"]),
        )
        for group in document.get("instance_groups") or ()
    )
    own = next((group for group in groups if current in group.hosts), None)
    hosts = own.hosts if own else all_hosts
    if current not in hosts:
        raise ValueError("current_host {!r} is not among the hosts {}".format(current, ", ".join(hosts)))
    named = str(document.get("current_group_name") or "")
    instance_type = document.get("current_instance_type") or (own.instance_type if own else "")
    return Cluster(
        hosts=tuple(sorted(set(hosts), key=natural_key)),
        current=current,
        interface=str(document.get("network_interface_name") or "eth0"),
        # A host is where the lists of hosts say it is; the name is only believed where no list speaks.
        group=own.name if own else named or DEFAULT_GROUP,
        instance_type=str(instance_type or "local"),
        all_hosts=all_hosts,
        groups=groups,
    )


def _names(value: Any) -> Tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("hosts: a list of names is needed, not {!r}".format(value))
    names: List[str] = [str(name) for name in value]
    return tuple(names)


def _told(error: Exception) -> str:
    return "{} is missing".format(error) if isinstance(error, KeyError) else str(error)
