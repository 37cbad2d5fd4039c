"""Variables by which a rank finds its peers: those that torchrun sets.

Source: torch 2.13, distributed/elastic/agent/server/local_elastic_agent.py (_start_workers) and
distributed/run.py (OMP_NUM_THREADS).
"""

import os
from typing import Dict, Mapping

from smlaunch.contract.sagemaker_paths import SHARED_PYTHON_VARIABLE
from smlaunch.runtime.cluster import Cluster

_LOOPBACK = "127.0.0.1"


def shared_variables(
    cluster: Cluster, ranks_per_host: int, port: int, environ: Mapping[str, str]
) -> Dict[str, str]:
    """Return the variables that all ranks of this host share."""
    world_size = len(cluster.hosts) * ranks_per_host
    variables = {
        "GROUP_RANK": str(cluster.host_rank),
        "GROUP_WORLD_SIZE": str(len(cluster.hosts)),
        "LOCAL_WORLD_SIZE": str(ranks_per_host),
        "MASTER_ADDR": master_address(cluster),
        "MASTER_PORT": str(port),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(world_size),
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": rendezvous_id(environ),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "WORLD_SIZE": str(world_size),
    }
    variables.update(thread_limit(cluster, ranks_per_host, environ))
    variables.update(socket_interfaces(cluster, environ))
    return variables


def thread_limit(cluster: Cluster, ranks_per_host: int, environ: Mapping[str, str]) -> Dict[str, str]:
    """Return OMP_NUM_THREADS, the threads of a rank's math libraries, for ranks that share CPUs: 1 with
    several ranks on a host, as torchrun sets it; a share of the CPUs where several hosts of a local run are
    one machine. Otherwise, and where the job sets it itself, return nothing.
    """
    if "OMP_NUM_THREADS" in environ:
        return {}
    if ranks_per_host > 1:
        return {"OMP_NUM_THREADS": "1"}
    if len(cluster.hosts) > 1 and environ.get(SHARED_PYTHON_VARIABLE) == "1":
        return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // len(cluster.hosts)))}
    return {}


def master_address(cluster: Cluster) -> str:
    """A single host needs no name that has to be resolved."""
    return cluster.leader if len(cluster.hosts) > 1 else _LOOPBACK


def rendezvous_id(environ: Mapping[str, str]) -> str:
    return environ.get("TRAINING_JOB_NAME") or "none"


def socket_interfaces(cluster: Cluster, environ: Mapping[str, str]) -> Dict[str, str]:
    """NCCL as in the training toolkit. Gloo would look up this machine's hostname, which may not resolve in a
    container whose entry point is not the image's own.
    """
    if not _has_interface(cluster.network_interface):
        return {}
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    return {name: cluster.network_interface for name in names if name not in environ}


def rank_variables(rank: int, local_rank: int) -> Dict[str, str]:
    return {"LOCAL_RANK": str(local_rank), "RANK": str(rank), "ROLE_RANK": str(rank)}


def _has_interface(interface: str) -> bool:
    """By the kernel's list for this network namespace; /sys/class/net may show another namespace."""
    try:
        with open("/proc/self/net/dev", encoding="utf-8") as file:
            return any(line.partition(":")[0].strip() == interface for line in file)
    except OSError:  # not Linux, where interfaces are named otherwise anyway
        return False
