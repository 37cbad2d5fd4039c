"""Count the accelerators of this host without importing a framework, or starting a driver where there is
none.
"""

import itertools
import json
import os
from typing import List, Mapping

from smlaunch.runtime import external_tools

_TOOLKIT_CORES_OF_TRN2_48XLARGE = 64
"""The training toolkit's own number for trn2.48xlarge (environment.num_neurons): its neuron-ls counts
otherwise.
"""


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs of this host: of their device files, or else of the lines that
    ``nvidia-smi --list-gpus`` prints.
    """
    devices = _list_device_files("nvidia")
    if devices:
        return len(devices)
    return len(_lines_of_gpus())  # no device files, for example in WSL


def gpu_names() -> List[str]:
    """Return the different names of this host's NVIDIA GPUs, such as ``NVIDIA A10G``, in their order; empty
    without nvidia-smi.
    """
    names = [line.partition(": ")[2].partition(" (UUID")[0] for line in _lines_of_gpus()]
    return list(dict.fromkeys(names))


def _lines_of_gpus() -> List[str]:
    nvidia_smi = external_tools.find_on_path("nvidia-smi")
    if nvidia_smi is None:
        return []
    lines = external_tools.capture_stdout(nvidia_smi, "--list-gpus").splitlines()
    return [line for line in lines if line.startswith("GPU ")]


def count_neuron_cores(instance_type: str) -> int:
    """Return the number of NeuronCores of this host, as ``neuron-ls`` counts them; 0 without the device files
    /dev/neuron* or the tool.
    """
    if not _list_device_files("neuron"):
        return 0
    if "trn2.48xlarge" in instance_type:
        # neuron-ls counts otherwise here than AWS's training toolkit, whose number, 64, scripts expect.
        return _TOOLKIT_CORES_OF_TRN2_48XLARGE
    neuron_ls = external_tools.find_on_path("neuron-ls")
    if neuron_ls is None:
        return 0
    try:
        devices = json.loads(external_tools.capture_stdout(neuron_ls, "-j") or "[]")  # -j: as JSON
        return sum(int(device.get("nc_count", 0)) for device in devices)  # NeuronCores of each device
    except (ValueError, TypeError, AttributeError):
        return 0


def default_ranks_per_host(gpu_count: int, neuron_count: int, environ: Mapping[str, str]) -> int:
    """Return the ranks per host for ``auto``: the accelerators that a process may use, otherwise 1.

    CUDA_VISIBLE_DEVICES limits GPUs as in CUDA itself: devices after an invalid index do not exist.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if gpu_count and visible is not None:
        device_ids = [device_id.strip() for device_id in visible.split(",")]
        valid_ids = itertools.takewhile(lambda device_id: device_id and device_id[0] != "-", device_ids)
        gpu_count = min(gpu_count, len(list(valid_ids)))
    return gpu_count or neuron_count or 1


def _list_device_files(prefix: str) -> List[str]:
    """Return the names in /dev that are ``prefix`` and a number: nvidia0, nvidia1 ..., not nvidiactl."""
    try:
        names = os.listdir("/dev")
    except OSError:
        return []
    return [name for name in names if name.startswith(prefix) and name[len(prefix) :].isdigit()]
