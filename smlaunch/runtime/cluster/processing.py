"""The cluster of a processing job, from ``/opt/ml/config/resourceconfig.json`` and the request beside it.

AWS documents current_host and hosts (developer guide, byoc-config); what else a training job's file has is
taken where it is there. The request, processingjobconfig.json, says which inputs there are.
"""

import json
from typing import Any, Dict, Tuple

from smlaunch.protocol.paths import ProcessingPaths
from smlaunch.runtime.cluster import Cluster, training
from smlaunch.runtime.problems import Unusable

_LOOPBACK = "127."


def read(paths: ProcessingPaths) -> Tuple[Cluster, Dict[str, Any]]:
    """As cluster.training.read. Raises Unusable."""
    cluster, document = training.read(paths.resource_config)
    if not document.get("network_interface_name"):
        cluster = cluster._replace(interface=_interface(cluster.current))
    return cluster, document


def job_of(paths: ProcessingPaths) -> Tuple[str, Dict[str, Any]]:
    """The job's name, and its inputs that lie where channels do, told as a training job's channels are.
    Raises Unusable.
    """
    try:
        with open(paths.job_config, encoding="utf-8") as file:
            job = json.load(file)
        channels = {
            given["InputName"]: {
                "TrainingInputMode": given["S3Input"].get("S3InputMode") or "File",
                "S3DistributionType": given["S3Input"].get("S3DataDistributionType") or "FullyReplicated",
                "RecordWrapperType": "None",
            }
            for given in job.get("ProcessingInputs") or ()
            if given.get("S3Input")
            and paths.here(given["S3Input"].get("LocalPath") or "") == paths.channel(given["InputName"])
        }
        return str(job["ProcessingJobName"]), channels
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unusable("{}: cannot be read: {!r}".format(paths.job_config, error)) from None


def _interface(host: str) -> str:
    """By which the hosts reach each other: loopback where they have its addresses, else SageMaker's own."""
    import socket

    try:
        address = socket.gethostbyname(host)
    except OSError:
        return "eth0"
    return "lo" if address.startswith(_LOOPBACK) else "eth0"
