"""The cluster of a processing job, from ``/opt/ml/config/resourceconfig.json`` and the request beside it.

AWS documents current_host and hosts (developer guide, byoc-config); the other keys of a training job's file
are used where they exist. The request, processingjobconfig.json, has the inputs.
"""

import json
from typing import Any, Dict, Tuple

from smlaunch.contract.sagemaker_paths import ProcessingPaths
from smlaunch.runtime.cluster import Cluster, training
from smlaunch.runtime.errors import SetupError

_LOOPBACK = "127."


def read_cluster(paths: ProcessingPaths) -> Tuple[Cluster, Dict[str, Any]]:
    """As cluster.training.read_cluster. Raises SetupError."""
    cluster, document = training.read_cluster(paths.resource_config)
    if not document.get("network_interface_name"):
        cluster = cluster._replace(network_interface=_detect_interface(cluster.current_host))
    return cluster, document


def read_job(paths: ProcessingPaths) -> Tuple[str, Dict[str, Any]]:
    """Return the processing job's name, and those of its inputs that lie where a training job's channels do,
    in the form of inputdataconfig.json. Raises SetupError.
    """
    try:
        with open(paths.job_config, encoding="utf-8") as file:
            job = json.load(file)
        channels: Dict[str, Any] = {}
        for input_spec in job.get("ProcessingInputs") or ():
            name, s3_input = input_spec["InputName"], input_spec.get("S3Input")
            if s3_input and paths.resolve(s3_input.get("LocalPath") or "") == paths.channel_dir(name):
                channels[name] = {
                    "TrainingInputMode": s3_input.get("S3InputMode") or "File",
                    "S3DistributionType": s3_input.get("S3DataDistributionType") or "FullyReplicated",
                    "RecordWrapperType": "None",
                }
        return str(job["ProcessingJobName"]), channels
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SetupError("{}: cannot be read: {!r}".format(paths.job_config, error)) from None


def _detect_interface(host: str) -> str:
    """Return the interface by which the hosts reach each other: loopback where their addresses are loopback
    ones, otherwise SageMaker's own.
    """
    import socket

    try:
        address = socket.gethostbyname(host)
    except OSError:
        return "eth0"
    return "lo" if address.startswith(_LOOPBACK) else "eth0"
