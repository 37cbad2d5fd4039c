"""The SM_* variables of a rank, as AWS's training toolkit sets them.

Source: aws/sagemaker-training-toolkit, commit 33839372 (2025-09), environment.Environment.to_env_vars and
mapping.to_env_vars: names in upper case behind ``SM_``, text as it is, None as nothing, everything else as
compact JSON with sorted keys. Where the toolkit is told by its own hyperparameters what this runtime knows
from job.json, the same variable holds the same kind of value: the entry point, the source directory, and
that the ranks of this group train together.

The drivers of SageMaker's SDK v3 (sagemaker.train.container_drivers, environment.py) have some names of their
own for the same things; those are set as well. docs/environment.md says what remains different, and why.
"""

import json
import os
from typing import Any, Dict, Mapping, NamedTuple, Optional

from smlaunch.protocol.paths import Paths
from smlaunch.runtime import accelerators, programs
from smlaunch.runtime.arguments import Hyperparameters
from smlaunch.runtime.cluster import Cluster, natural_key
from smlaunch.runtime.problems import Unusable

_LOG_LEVEL = 20
"""logging.INFO, the toolkit's default."""


class Machine(NamedTuple):
    """What the machine has to say. Accelerators are counted once: a vendor's tool may take its time."""

    cpus: int
    gpus: int
    neuron_cores: int

    @classmethod
    def seen(cls, instance_type: str) -> "Machine":
        return cls(os.cpu_count() or 1, accelerators.gpus(), accelerators.neuron_cores(instance_type))


def read_input_data_config(path: str) -> Dict[str, Any]:
    """The channels by name. A job without channels has no such file, or an empty one. Raises Unusable."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Unusable("{}: cannot be read: {}".format(path, error)) from None
    if not isinstance(document, dict):
        raise Unusable("{}: not a JSON object".format(path))
    return document


def sagemaker_variables(
    paths: Paths,
    cluster: Cluster,
    resource_config: Mapping[str, Any],
    channels: Mapping[str, Any],
    hyperparameters: Hyperparameters,
    machine: Machine,
    entry_point: Optional[str],
    distributed: bool,
    port: int,
    environ: Mapping[str, str],
) -> Dict[str, str]:
    """``entry_point`` is relative to the source; ``distributed``: the group is one process group, which meets
    at ``port`` of its leader.
    """
    groups = {group["instance_group_name"]: group for group in resource_config.get("instance_groups") or ()}
    own_group = groups.get(cluster.group)
    topology = resource_config.get("topology") or []
    module = entry_point[:-3] if entry_point and entry_point.endswith(".py") else entry_point
    facts: Dict[str, Any] = {
        "channel_input_dirs": {name: paths.channel(name) for name in channels},
        "current_host": cluster.current,
        "current_instance_group": cluster.group,
        "current_instance_group_hosts": own_group["hosts"] if own_group else [],
        "current_instance_type": cluster.instance_type,
        "distribution_instance_groups": [cluster.group] if distributed else [],
        "framework_module": environ.get("SAGEMAKER_TRAINING_MODULE"),
        "hosts": list(cluster.all_hosts),
        "input_config_dir": paths.config,
        "input_data_config": dict(channels),
        "input_dir": paths.input,
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "is_hetero": len(groups) > 1,
        "log_level": _LOG_LEVEL,
        "model_dir": paths.model,
        "module_dir": paths.code,
        "module_name": module,
        "network_interface_name": cluster.interface,
        "num_cpus": machine.cpus,
        "num_gpus": machine.gpus,
        "num_neurons": machine.neuron_cores,
        "output_data_dir": paths.output_data,
        "output_dir": paths.output,
        "output_intermediate_dir": paths.intermediate,
        "resource_config": dict(resource_config),
        "user_entry_point": entry_point,
    }
    # The toolkit's Environment has these under one name as an attribute, and some under another as a
    # variable.
    training_env = dict(
        facts,
        additional_framework_parameters=hyperparameters.framework,
        distribution_hosts=list(cluster.hosts) if distributed or not groups else [],
        hyperparameters=hyperparameters.values,
        is_master=cluster.current == cluster.leader,
        is_modelparallel_enabled=_model_parallel(environ),
        is_smddpmprun_installed=programs.on_path("smddpmprun") is not None,
        is_smddprun_installed=programs.on_path("smddprun") is not None,
        job_name=environ.get("TRAINING_JOB_NAME"),
        master_hostname=cluster.leader,
        topology=topology,
    )
    facts.update(
        channels=sorted(channels),
        framework_params=hyperparameters.framework,
        hps=hyperparameters.values,
        training_env=training_env,
        user_args=hyperparameters.words(),
    )
    del facts["channel_input_dirs"]
    if topology:
        facts["topology"] = topology
    facts.update(("channel_" + name, paths.channel(name)) for name in channels)
    facts.update(_drivers_own(paths, cluster, entry_point, port))
    facts.update(("hp_" + key.replace("-", "_"), value) for key, value in hyperparameters.values.items())
    facts.update(("hp_" + key, value) for key, value in hyperparameters.values.items())
    variables = {"SM_" + name.upper(): _text(value) for name, value in facts.items()}
    variables.update(
        CURRENT_HOST=cluster.current,
        SAGEMAKER_JOB_NAME=environ.get("TRAINING_JOB_NAME", ""),
        SAGEMAKER_REGION=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "",
    )
    return variables


def _drivers_own(paths: Paths, cluster: Cluster, entry_point: Optional[str], port: int) -> Dict[str, Any]:
    return {
        "current_host_rank": sorted(cluster.all_hosts, key=natural_key).index(cluster.current),
        "entry_script": entry_point,
        "host_count": len(cluster.all_hosts),
        "input_data_dir": paths.data,
        "master_addr": cluster.leader,
        "master_port": port,
        "output_failure": paths.failure,
        "source_dir": paths.code,
    }


def _model_parallel(environ: Mapping[str, str]) -> Any:
    """The toolkit's value is that of ``text and text != "{}"``: None without the variable, else text or a
    truth.
    """
    parameters = environ.get("SM_HP_MP_PARAMETERS")
    return parameters and parameters != "{}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
