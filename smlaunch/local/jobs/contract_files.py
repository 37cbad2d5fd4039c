"""The files below /opt/ml/input/config and the environment of a host.

Source: facts on the SageMaker contract, 2.4 and 2.5 (developer guide, training toolkit).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from smlaunch.contract.sagemaker_paths import SHARED_PYTHON_VARIABLE, Paths
from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs.job_spec import DEFAULT_GROUP, JobSpec, TrainingSpec
from smlaunch.local.json_types import JsonMapping, JsonObject


def resource_config(spec: TrainingSpec, hosts: Sequence[JobHost], current_host: JobHost) -> JsonObject:
    """Return the content of /opt/ml/input/config/resourceconfig.json on ``current_host``: the hosts of the
    training job and their instance groups. ``spec`` has the hosts as the request asks for them (algo-1, ...),
    ``hosts`` as they run, with the names under which they reach each other."""
    network_name_by_host = {host.name: host.network_name for host in hosts}
    current_host_spec = next(host_spec for host_spec in spec.hosts if host_spec.name == current_host.name)
    instance_group_by_name: dict[str, JsonObject] = {}
    for host_spec in spec.hosts:
        instance_group = instance_group_by_name.setdefault(
            host_spec.instance_group,
            {
                "instance_group_name": host_spec.instance_group,
                "instance_type": host_spec.instance_type,
                "hosts": [],
            },
        )
        instance_group["hosts"].append(network_name_by_host[host_spec.name])
    # Hosts are sorted as text, as documented: algo-10 comes before algo-2.
    for instance_group in instance_group_by_name.values():
        instance_group["hosts"].sort()
    # DEFAULT_GROUP: what SageMaker writes for a job without instance groups, homogeneousCluster.
    group_name = current_host_spec.instance_group if spec.has_instance_groups else DEFAULT_GROUP
    return {
        "current_host": current_host.network_name,
        "current_instance_type": current_host_spec.instance_type,
        "current_group_name": group_name,
        "hosts": sorted(network_name_by_host.values()),
        "instance_groups": list(instance_group_by_name.values()),
        "network_interface_name": current_host.interface,  # such as eth0
    }


def input_data_config(spec: TrainingSpec, host_name: str) -> dict[str, dict[str, str]]:
    """Return the content of /opt/ml/input/config/inputdataconfig.json on a host: the channels that it gets,
    by name. On SageMaker the file has no S3 addresses."""
    config_by_channel: dict[str, dict[str, str]] = {}
    for channel in spec.channels:
        if host_name not in spec.host_names_for_channel(channel):
            continue  # the channel is for other instance groups
        channel_config = {
            "TrainingInputMode": channel.input_mode,
            "S3DistributionType": "ShardedByS3Key" if channel.is_sharded else "FullyReplicated",
            "RecordWrapperType": "RecordIO" if channel.is_recordio_wrapped else "None",
        }
        if channel.is_gzipped:
            channel_config["CompressionType"] = "Gzip"
        if channel.content_type:
            channel_config["ContentType"] = channel.content_type
        config_by_channel[channel.name] = channel_config
    return config_by_channel


def write_host_files(spec: TrainingSpec, hosts: Sequence[JobHost], current_host: JobHost) -> None:
    """Create the directories and configuration files of ``current_host``."""
    paths = Paths(str(current_host.opt_ml_folder))
    for folder in (paths.config, paths.data, paths.model, paths.output_data, paths.code):
        Path(folder).mkdir(parents=True, exist_ok=True)
    documents: JsonMapping = {
        paths.hyperparameters: dict(spec.hyperparameters),
        paths.input_data_config: input_data_config(spec, current_host.name),
        paths.resource_config: resource_config(spec, hosts, current_host),
    }
    for path, document in documents.items():
        Path(path).write_text(json.dumps(document))


def host_environment(
    spec: JobSpec,
    executor_variables: Mapping[str, str],
    inherited_names: Sequence[str],
    credentials: Mapping[str, str],
    endpoint_environment: Mapping[str, str],
    uses_endpoint_python: bool = True,
) -> dict[str, str]:
    """Return the environment variables of the program on a job's host. Those of the request win, then those
    of the executor (which starts the host).

    ``uses_endpoint_python``: the host runs this process's Python, with these variables only; otherwise it has
    variables of its own, such as those of an image. ``endpoint_environment`` is the environment of this
    process, of which the host inherits ``inherited_names``; one with its own Python inherits the proxy
    settings only.
    ``credentials`` let a script's boto3 reach this endpoint.
    """
    if not uses_endpoint_python:  # other variables of this machine would not fit there
        inherited_names = [name for name in inherited_names if _is_proxy_variable(name)]
    variables = {name: endpoint_environment[name] for name in inherited_names if name in endpoint_environment}
    if uses_endpoint_python:
        variables |= _python_variables(endpoint_environment)  # PATH, beginning with this interpreter's folder
    # platform_variables: those that SageMaker sets itself, such as TRAINING_JOB_NAME.
    variables |= {**spec.platform_variables, "AWS_REGION": spec.region, "AWS_DEFAULT_REGION": spec.region}
    if not spec.network_isolation:  # SageMaker gives an isolated container no credentials either
        variables |= credentials
    # Neither the local endpoint nor the other hosts can be reached through a proxy.
    if uses_endpoint_python:
        variables |= _no_proxy_variables(variables, ["127.0.0.0/8"])  # each process has a loopback address
    elif any(_is_proxy_variable(name) for name in variables):
        variables |= _no_proxy_variables(variables, [host_spec.name for host_spec in spec.hosts])
    return {**variables, **executor_variables, **spec.environment}


def _is_proxy_variable(name: str) -> bool:
    """Return whether a variable sets a proxy or its exceptions: https_proxy, NO_PROXY, ..."""
    return name.lower().endswith("_proxy")


def _no_proxy_variables(variables: Mapping[str, str], job_hosts: Sequence[str]) -> dict[str, str]:
    """Return no_proxy, in the spellings that ``variables`` has, extended by the hosts of the job and by the
    local endpoint: they are on this machine, where no proxy reaches them."""
    present_names = {"no_proxy", "NO_PROXY"} & variables.keys()
    return {
        name: ",".join(filter(None, [variables.get(name), *job_hosts, "127.0.0.1", "localhost"]))
        for name in present_names or {"no_proxy"}
    }


def _python_variables(endpoint_environment: Mapping[str, str]) -> dict[str, str]:
    """Put the local endpoint's interpreter first on PATH, so that `python3` has smlaunch even if its
    environment is not activated."""
    python_folder = str(Path(sys.executable).parent)
    other_folders = [
        folder
        for folder in endpoint_environment.get("PATH", os.defpath).split(os.pathsep)
        if folder and folder != python_folder
    ]
    return {"PATH": os.pathsep.join([python_folder, *other_folders]), SHARED_PYTHON_VARIABLE: "1"}
