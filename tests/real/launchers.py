"""AWS's two launchers and ours, each with the same host, script and hyperparameters."""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
import tarfile
from pathlib import Path

from smlaunch.contract.launch_spec import MPI
from smlaunch.runs.runtime_archive import build_runtime_archive
from smlaunch.strategies import load_strategy
from smlaunch.strategies.base import LaunchContext
from tests.real.platform import HYPERPARAMETERS, TRAIN, Machine, ReceivedLaunch

PYTORCH_CONTAINER = """\
from sagemaker_training import entry_point, environment, runner

def main():
    env = environment.Environment()
    chosen = runner.TorchDistributedRunnerType
    entry_point.run(env.module_dir, env.user_entry_point, env.to_cmd_args(), env.to_env_vars(),
                    capture_error=True, runner_type=chosen)
"""
"""The few lines of sagemaker-pytorch-training (sagemaker_pytorch_container.training) that choose torchrun."""


def by_toolkit(machine: Machine, distributed: bool) -> ReceivedLaunch:
    """Runs ``train``, as in AWS's framework images, with the settings that SDK v2 sends."""
    control = {
        "sagemaker_program": "train.py",
        "sagemaker_submit_directory": "/opt/ml/input/data/code",
        "sagemaker_region": "us-east-1",
        "sagemaker_job_name": "golden",
        "sagemaker_container_log_level": 20,
    }
    if distributed:
        control["sagemaker_torch_distributed_enabled"] = True
        control["sagemaker_instance_type"] = "ml.m5.xlarge"
    encoded = {name: json.dumps(value) for name, value in control.items()}
    machine.configure("hyperparameters.json", {**HYPERPARAMETERS, **encoded})
    machine.put("input/data/code/train.py", TRAIN)
    machine.put("container/pytorch_container.py", PYTORCH_CONTAINER)
    return machine.run([str(machine.python.parent / "train")])


def by_drivers(machine: Machine, distributed: bool, sdk3: Path) -> ReceivedLaunch:
    """SDK v3's own script and drivers, in the channels that ModelTrainer makes for them. ``sdk3``: its
    site-packages.
    """
    train = sdk3 / "sagemaker" / "train"
    drivers = machine.ml / "input" / "data" / "sm_drivers"
    shutil.copytree(train / "container_drivers", drivers)
    spec = importlib.util.spec_from_file_location("sm_templates", train / "templates.py")
    assert spec is not None and spec.loader is not None
    templates = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(templates)
    if distributed:
        execute = templates.EXEUCTE_DISTRIBUTED_DRIVER.format(
            driver_name="Torchrun", driver_script="torchrun_driver.py"
        )
    else:
        execute = templates.EXECUTE_BASIC_SCRIPT_DRIVER
    script = templates.TRAIN_SCRIPT_TEMPLATE.format(
        working_dir="cd /opt/ml/input/data/code", install_requirements="", execute_driver=execute
    )
    drivers_folder = "input/data/sm_drivers/"
    machine.put(drivers_folder + "sm_train.sh", script.lstrip(), 0o755)
    source = {"source_dir": "src", "entry_script": "train.py"}
    machine.put(drivers_folder + "sourcecode.json", json.dumps(source))
    machine.put(
        drivers_folder + "distributed.json",
        json.dumps({"process_count_per_node": 1, "smp": None} if distributed else {}),
    )
    machine.put("input/data/code/train.py", TRAIN)
    return machine.run(["/bin/bash", "-c", "/opt/ml/input/data/sm_drivers/sm_train.sh"])


def by_smlaunch(machine: Machine, distributed: bool) -> ReceivedLaunch:
    strategy = load_strategy("ddp" if distributed else "custom")
    spec = strategy.launch_spec(LaunchContext("train.py", host_count=len(machine.hosts)))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as members:
        member = tarfile.TarInfo("train.py")
        member.size = len(TRAIN)
        members.addfile(member, io.BytesIO(TRAIN.encode()))
    machine.put("input/data/code/source.tar.gz", archive.getvalue())
    machine.put("input/data/smlaunch/runtime.pyz", build_runtime_archive(spec.ranks.launcher == MPI))
    machine.put("input/data/smlaunch/job.json", spec.to_json())
    return machine.run([str(machine.python), "/opt/ml/input/data/smlaunch/runtime.pyz"])
