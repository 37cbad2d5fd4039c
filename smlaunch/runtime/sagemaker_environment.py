"""The SM_* variables of a rank, as AWS's training toolkit sets them.

Source: aws/sagemaker-training-toolkit, commit 33839372 (2025-09), environment.Environment.to_env_vars and
mapping.to_env_vars: names in upper case behind ``SM_``, text as it is, None as nothing, everything else as
compact JSON with sorted keys. The toolkit gets the entry point, the source directory and whether the ranks of
this group train together from hyperparameters, this runtime from job.json; the variables are the same.

The drivers of SageMaker's SDK v3 (sagemaker.train.container_drivers, environment.py) have
additional names for some of them, which are set too. docs/environment.md lists the remaining differences and
their reasons.
"""

import json
import os
from typing import Any, Dict, Mapping, NamedTuple, Optional

from smlaunch.contract.sagemaker_paths import Paths
from smlaunch.runtime import accelerators, external_tools
from smlaunch.runtime.cluster import Cluster, natural_sort_key
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.hyperparameters import Hyperparameters

_LOG_LEVEL = 20
"""logging.INFO, the toolkit's default."""


class HostHardware(NamedTuple):
    """Processors and accelerators of this host. Counted once: a vendor's tool may be slow."""

    cpus: int
    gpus: int
    neuron_cores: int

    @classmethod
    def detect(cls, instance_type: str) -> "HostHardware":
        return cls(
            os.cpu_count() or 1, accelerators.count_gpus(), accelerators.count_neuron_cores(instance_type)
        )


def read_input_data_config(path: str) -> Dict[str, Any]:
    """Return the channels by name. A job without channels has no such file, or an empty one. Raises
    SetupError."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SetupError("{}: cannot be read: {}".format(path, error)) from None
    if not isinstance(document, dict):
        raise SetupError("{}: not a JSON object".format(path))
    return document


def build_sagemaker_variables(
    paths: Paths,
    cluster: Cluster,
    resource_config: Mapping[str, Any],
    channels: Mapping[str, Any],
    hyperparameters: Hyperparameters,
    hardware: HostHardware,
    entry_point: Optional[str],
    distributed: bool,
    port: int,
    environ: Mapping[str, str],
) -> Dict[str, str]:
    """Return the variables SM_... that scripts written for AWS's training toolkit read.

    ``resource_config``: the platform's description of the hosts. ``channels``: the job's inputs, by name.
    ``entry_point``: the script, relative to the source. ``distributed``: the ranks of the instance group form
    one process group, which meets at ``port`` of its leader.
    """
    topology = resource_config.get("topology") or []
    # What is the same in the variables and in the attributes of the toolkit's class Environment.
    values: Dict[str, Any] = {
        **_directories(paths),
        **_describe_instance_groups(cluster, resource_config, distributed),
        "current_host": cluster.current_host,
        "current_instance_type": cluster.instance_type,
        "framework_module": environ.get("SAGEMAKER_TRAINING_MODULE"),
        "hosts": list(cluster.all_hosts),
        "input_data_config": dict(channels),
        "log_level": _LOG_LEVEL,  # 20, INFO
        "module_name": entry_point[: -len(".py")]
        if entry_point and entry_point.endswith(".py")
        else entry_point,
        "network_interface_name": cluster.network_interface,
        "num_cpus": hardware.cpus,
        "num_gpus": hardware.gpus,
        "num_neurons": hardware.neuron_cores,
        "resource_config": dict(resource_config),
        "user_entry_point": entry_point,
    }
    # The attributes of that class, which SM_TRAINING_ENV has as JSON.
    has_instance_groups = bool(values["instance_groups"])
    training_env = dict(
        values,
        channel_input_dirs={name: paths.channel_dir(name) for name in channels},
        additional_framework_parameters=hyperparameters.framework_params,
        distribution_hosts=list(cluster.hosts) if distributed or not has_instance_groups else [],
        hyperparameters=hyperparameters.values,
        is_master=cluster.current_host == cluster.leader,
        is_modelparallel_enabled=_is_model_parallel(environ),
        is_smddpmprun_installed=external_tools.find_on_path("smddpmprun") is not None,
        is_smddprun_installed=external_tools.find_on_path("smddprun") is not None,
        job_name=environ.get("TRAINING_JOB_NAME"),
        master_hostname=cluster.leader,
        topology=topology,
    )
    # Variables that have other names than the attributes.
    values.update(
        channels=sorted(channels),
        framework_params=hyperparameters.framework_params,
        hps=hyperparameters.values,
        training_env=training_env,
        user_args=hyperparameters.to_args(),
    )
    if topology:
        values["topology"] = topology
    values.update(("channel_" + name, paths.channel_dir(name)) for name in channels)
    # What the driver scripts of SageMaker's SDK v3 read, such as master_addr and source_dir
    values.update(_sdk_driver_variables(paths, cluster, entry_point, port))
    # Under both names: a shell cannot read a variable whose name has a hyphen.
    values.update(("hp_" + key.replace("-", "_"), value) for key, value in hyperparameters.values.items())
    values.update(("hp_" + key, value) for key, value in hyperparameters.values.items())
    variables = {"SM_" + name.upper(): _format_value(value) for name, value in values.items()}
    variables.update(
        CURRENT_HOST=cluster.current_host,
        SAGEMAKER_JOB_NAME=environ.get("TRAINING_JOB_NAME", ""),
        SAGEMAKER_REGION=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "",
    )
    return variables


def _directories(paths: Paths) -> Dict[str, str]:
    """Return the directories that the toolkit's variables name."""
    return {
        "input_config_dir": paths.config,
        "input_dir": paths.input,
        "model_dir": paths.model,
        "module_dir": paths.code,
        "output_data_dir": paths.output_data,
        "output_dir": paths.output,
        "output_intermediate_dir": paths.output_intermediate,
    }


def _describe_instance_groups(
    cluster: Cluster, resource_config: Mapping[str, Any], distributed: bool
) -> Dict[str, Any]:
    """Return what the toolkit's variables say of the job's instance groups; ``cluster`` is one of them."""
    groups = {group["instance_group_name"]: group for group in resource_config.get("instance_groups") or ()}
    own_group = groups.get(cluster.group_name)
    return {
        "current_instance_group": cluster.group_name,
        "current_instance_group_hosts": own_group["hosts"] if own_group else [],
        "distribution_instance_groups": [cluster.group_name] if distributed else [],
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "is_hetero": len(groups) > 1,
    }


def _sdk_driver_variables(
    paths: Paths, cluster: Cluster, entry_point: Optional[str], port: int
) -> Dict[str, Any]:
    """Names that only the drivers of SageMaker's SDK v3 use."""
    return {
        "current_host_rank": sorted(cluster.all_hosts, key=natural_sort_key).index(cluster.current_host),
        "entry_script": entry_point,
        "host_count": len(cluster.all_hosts),
        "input_data_dir": paths.data,
        "master_addr": cluster.leader,
        "master_port": port,
        "output_failure": paths.failure_file,
        "source_dir": paths.code,
    }


def _is_model_parallel(environ: Mapping[str, str]) -> Any:
    """As in the toolkit, ``text and text != "{}"``: None without the variable, otherwise text or a truth
    value.
    """
    parameters = environ.get("SM_HP_MP_PARAMETERS")
    return parameters and parameters != "{}"


def _format_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
