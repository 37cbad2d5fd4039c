"""What a host finds below /opt/ml/input/config and in its environment. Pure but for the writing.

Source: facts on the SageMaker contract, 2.4 and 2.5 (developer guide, training toolkit).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smlaunch.contract.paths import SHARED_PYTHON_VARIABLE, Paths
from smlaunch.local.executors.base import Place
from smlaunch.local.jobs.spec import DEFAULT_GROUP, JobSpec, TrainingSpec


def resource_config(spec: TrainingSpec, places: Sequence[Place], current: Place) -> dict[str, Any]:
    names = {place.label: place.name for place in places}
    mine = next(host for host in spec.hosts if host.label == current.label)
    groups: dict[str, dict[str, Any]] = {}
    for host in spec.hosts:
        group = groups.setdefault(
            host.group,
            {"instance_group_name": host.group, "instance_type": host.instance_type, "hosts": []},
        )
        group["hosts"].append(names[host.label])
    for group in groups.values():
        group["hosts"].sort()
    return {
        "current_host": current.name,
        "current_instance_type": mine.instance_type,
        "current_group_name": mine.group if spec.heterogeneous else DEFAULT_GROUP,
        "hosts": sorted(names.values()),  # lexicographic, as documented: algo-10 before algo-2
        "instance_groups": list(groups.values()),
        "network_interface_name": current.interface,
    }


def input_data_config(spec: TrainingSpec, label: str) -> dict[str, dict[str, str]]:
    """The channels this host has. No S3 address stands in it."""
    channels = {}
    for channel in spec.channels:
        if label not in spec.hosts_of(channel):
            continue
        entry = {
            "TrainingInputMode": channel.mode,
            "S3DistributionType": "ShardedByS3Key" if channel.sharded else "FullyReplicated",
            "RecordWrapperType": "RecordIO" if channel.wrapped else "None",
        }
        if channel.gzipped:
            entry["CompressionType"] = "Gzip"
        if channel.content_type:
            entry["ContentType"] = channel.content_type
        channels[channel.name] = entry
    return channels


def lay_out(spec: TrainingSpec, places: Sequence[Place], current: Place) -> None:
    """Makes the directories and configuration files of one host."""
    paths = Paths(str(current.tree))
    for folder in (paths.config, paths.data, paths.model, paths.output_data, paths.code):
        Path(folder).mkdir(parents=True, exist_ok=True)
    documents: Mapping[str, Any] = {
        paths.hyperparameters: dict(spec.hyperparameters),
        paths.input_data_config: input_data_config(spec, current.label),
        paths.resource_config: resource_config(spec, places, current),
    }
    for path, document in documents.items():
        Path(path).write_text(json.dumps(document))


def environment(
    spec: JobSpec,
    offered: Mapping[str, str],
    inherited: Sequence[str],
    credentials: Mapping[str, str],
    own: Mapping[str, str],
    runs_image: bool = False,
) -> dict[str, str]:
    """A host's environment: the platform's variables, then the request's own, which win.

    ``offered``: the executor's. ``credentials``: how a script's boto3 reaches this endpoint; left out under
    network isolation, where SageMaker gives a container none either. ``own``: this process's environment,
    of which ``inherited`` names are taken. Without ``runs_image`` that is the whole environment; an image has
    its own, so that of ours only the ways through the network mean something there.
    """
    if runs_image:
        inherited = [name for name in inherited if name.lower().endswith("_proxy")]
    variables = {name: own[name] for name in inherited if name in own}
    if not runs_image:
        variables |= _this_python(own)
    variables |= {**spec.variables, "AWS_REGION": spec.region, "AWS_DEFAULT_REGION": spec.region}
    if not spec.isolated_network:
        variables |= credentials
    if runs_image and not any(name.lower().endswith("_proxy") for name in variables):
        return {**variables, **offered, **spec.environment}
    hosts = [host.label for host in spec.hosts] if runs_image else ["127.0.0.0/8"]
    for name in {"no_proxy", "NO_PROXY"} & variables.keys() or {"no_proxy"}:
        # The endpoint and the other hosts are on this machine: no proxy knows them.
        variables[name] = ",".join(filter(None, [variables.get(name), *hosts, "127.0.0.1", "localhost"]))
    return {**variables, **offered, **spec.environment}


def _this_python(own: Mapping[str, str]) -> dict[str, str]:
    """The endpoint's interpreter first, so that `python3` is the one smlaunch was installed for, in an
    environment that is not activated too."""
    here = str(Path(sys.executable).parent)
    others = [folder for folder in own.get("PATH", os.defpath).split(os.pathsep) if folder and folder != here]
    return {"PATH": os.pathsep.join([here, *others]), SHARED_PYTHON_VARIABLE: "1"}
