"""The files below /opt/ml/input/config and the environment of a host.

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
from smlaunch.local.executors.base import JobHost
from smlaunch.local.jobs.spec import DEFAULT_GROUP, JobSpec, TrainingSpec


def resource_config(spec: TrainingSpec, hosts: Sequence[JobHost], current: JobHost) -> dict[str, Any]:
    """Return the content of resourceconfig.json for the host ``current``."""
    network_name_by_host = {host.name: host.network_name for host in hosts}
    current_spec = next(host_spec for host_spec in spec.hosts if host_spec.name == current.name)
    groups: dict[str, dict[str, Any]] = {}
    for host_spec in spec.hosts:
        group = groups.setdefault(
            host_spec.group,
            {"instance_group_name": host_spec.group, "instance_type": host_spec.instance_type, "hosts": []},
        )
        group["hosts"].append(network_name_by_host[host_spec.name])
    for group in groups.values():
        group["hosts"].sort()
    return {
        "current_host": current.network_name,
        "current_instance_type": current_spec.instance_type,
        "current_group_name": current_spec.group if spec.has_instance_groups else DEFAULT_GROUP,
        "hosts": sorted(network_name_by_host.values()),  # lexicographic, as documented: algo-10 before algo-2
        "instance_groups": list(groups.values()),
        "network_interface_name": current.interface,
    }


def input_data_config(spec: TrainingSpec, host_name: str) -> dict[str, dict[str, str]]:
    """Return the content of inputdataconfig.json for a host: its channels, without S3 addresses."""
    channels = {}
    for channel in spec.channels:
        if host_name not in spec.hosts_of(channel):
            continue
        entry = {
            "TrainingInputMode": channel.mode,
            "S3DistributionType": "ShardedByS3Key" if channel.is_sharded else "FullyReplicated",
            "RecordWrapperType": "RecordIO" if channel.is_recordio_wrapped else "None",
        }
        if channel.is_gzipped:
            entry["CompressionType"] = "Gzip"
        if channel.content_type:
            entry["ContentType"] = channel.content_type
        channels[channel.name] = entry
    return channels


def write_host_files(spec: TrainingSpec, hosts: Sequence[JobHost], current: JobHost) -> None:
    """Create the directories and configuration files of the host ``current``."""
    paths = Paths(str(current.tree))
    for folder in (paths.config, paths.data, paths.model, paths.output_data, paths.code):
        Path(folder).mkdir(parents=True, exist_ok=True)
    documents: Mapping[str, Any] = {
        paths.hyperparameters: dict(spec.hyperparameters),
        paths.input_data_config: input_data_config(spec, current.name),
        paths.resource_config: resource_config(spec, hosts, current),
    }
    for path, document in documents.items():
        Path(path).write_text(json.dumps(document))


def environment(
    spec: JobSpec,
    executor_variables: Mapping[str, str],
    inherited_names: Sequence[str],
    credentials: Mapping[str, str],
    endpoint_environment: Mapping[str, str],
    runs_image: bool = False,
) -> dict[str, str]:
    """Return a host's environment: the platform's variables, then those of the request, which win.

    ``executor_variables`` come from the executor. ``credentials`` let a script's boto3 reach this endpoint;
    they are omitted under network isolation, where SageMaker gives a container none either. From
    ``endpoint_environment``, the environment of this process, the variables ``inherited_names`` are taken.
    Without ``runs_image`` the result is the whole environment. An image has variables of its own, so that
    only this process's proxy variables are useful there.
    """
    if runs_image:
        inherited_names = [name for name in inherited_names if name.lower().endswith("_proxy")]
    variables = {name: endpoint_environment[name] for name in inherited_names if name in endpoint_environment}
    if not runs_image:
        variables |= _python_variables(endpoint_environment)
    variables |= {**spec.platform_variables, "AWS_REGION": spec.region, "AWS_DEFAULT_REGION": spec.region}
    if not spec.isolated_network:
        variables |= credentials
    if runs_image and not any(name.lower().endswith("_proxy") for name in variables):
        return {**variables, **executor_variables, **spec.environment}
    direct_hosts = [host_spec.name for host_spec in spec.hosts] if runs_image else ["127.0.0.0/8"]
    for name in {"no_proxy", "NO_PROXY"} & variables.keys() or {"no_proxy"}:
        # The endpoint and the other hosts are on this machine, where no proxy reaches them.
        variables[name] = ",".join(
            filter(None, [variables.get(name), *direct_hosts, "127.0.0.1", "localhost"])
        )
    return {**variables, **executor_variables, **spec.environment}


def _python_variables(endpoint_environment: Mapping[str, str]) -> dict[str, str]:
    """Put the endpoint's interpreter first on PATH, so that `python3` has smlaunch even if its environment
    is not activated."""
    python_folder = str(Path(sys.executable).parent)
    other_folders = [
        folder
        for folder in endpoint_environment.get("PATH", os.defpath).split(os.pathsep)
        if folder and folder != python_folder
    ]
    return {"PATH": os.pathsep.join([python_folder, *other_folders]), SHARED_PYTHON_VARIABLE: "1"}
