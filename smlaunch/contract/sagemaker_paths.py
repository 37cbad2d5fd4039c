"""The paths of the SageMaker training contract, below /opt/ml or, where that is not possible, another root.

Source: AWS developer guide, model-train-storage and your-algorithms-training-algo-running-container; for
processing jobs byoc-config and byoc-metadata.
"""

import os
from typing import Mapping, Optional

ROOT_VARIABLE = "SMLAUNCH_ML_ROOT"
"""Set by a host that could not put its tree at /opt/ml (isolation level ``plain``)."""

PORT_VARIABLE = "SMLAUNCH_PORT"
"""Overrides the port of job.json: where several jobs share one network, hosts get a free one."""

SHARED_PYTHON_VARIABLE = "SMLAUNCH_SHARED_PYTHON"
"""Set (to ``1``) by a host whose Python is shared by the machine: requirements are then installed into a
virtual environment of the job on top of that Python, which stays unchanged.
"""

RUNTIME_CHANNEL = "smlaunch"
"""The input channel that carries ``runtime.pyz`` and ``job.json``."""

SOURCE_CHANNEL = "code"
"""The input channel that carries the user's source as one archive."""

WHEELHOUSE_CHANNEL = "wheelhouse"
"""An input channel of wheels: when it is there, requirements are installed from it and from nowhere else."""

SOURCE_ARCHIVE = "source.tar.gz"
RUNTIME_ARCHIVE = "runtime.pyz"
LAUNCH_FILE = "job.json"

SECRET_FILE = "secret"  # noqa: S105
"""Beside them where the hosts of a job have to authenticate each other. No copy of it is stored."""

_DEFAULT_ROOT = "/opt/ml"


class Paths:
    """Paths of a training job's host. All are absolute strings."""

    def __init__(self, root: str = _DEFAULT_ROOT) -> None:
        self.root = root
        self.input = os.path.join(root, "input")
        self.config = os.path.join(root, "input", "config")
        self.data = os.path.join(root, "input", "data")
        self.hyperparameters = os.path.join(self.config, "hyperparameters.json")
        self.input_data_config = os.path.join(self.config, "inputdataconfig.json")
        self.resource_config = os.path.join(self.config, "resourceconfig.json")
        self.model = os.path.join(root, "model")
        self.output = os.path.join(root, "output")
        self.output_data = os.path.join(root, "output", "data")
        self.output_intermediate = os.path.join(root, "output", "intermediate")
        self.failure_file = os.path.join(root, "output", "failure")
        self.checkpoints = os.path.join(root, "checkpoints")
        self.code = os.path.join(root, "code")
        self.venv_overlay = os.path.join(root, "python")
        self.runtime_dir = os.path.join(root, "smlaunch")

    @staticmethod
    def from_environment(environ: Optional[Mapping[str, str]] = None) -> "Paths":
        """Return the paths of this host: of a processing job where only that job's resourceconfig.json
        exists."""
        variables = os.environ if environ is None else environ
        root = variables.get(ROOT_VARIABLE) or _DEFAULT_ROOT
        paths, processing = Paths(root), ProcessingPaths(root)
        if os.path.exists(processing.resource_config) and not os.path.exists(paths.resource_config):
            return processing
        return paths

    def resolve(self, path: str) -> str:
        """The path on this host of a path in the contract, such as ``/opt/ml/checkpoints``."""
        is_below_default_root = path.startswith(_DEFAULT_ROOT + "/")
        return os.path.normpath(self.root + path[len(_DEFAULT_ROOT) :] if is_below_default_root else path)

    def channel_dir(self, name: str) -> str:
        return os.path.join(self.data, name)


class ProcessingPaths(Paths):
    """The same for a processing job, which has other paths: a channel is an input, at the path that the
    SageMaker SDK uses; everything to keep goes into one output; the exit message is the failure file. It
    has no ``hyperparameters`` and ``input_data_config``.
    """

    def __init__(self, root: str = _DEFAULT_ROOT) -> None:
        super().__init__(root)
        self.processing = os.path.join(root, "processing")
        self.config = os.path.join(root, "config")
        self.job_config = os.path.join(self.config, "processingjobconfig.json")
        self.resource_config = os.path.join(self.config, "resourceconfig.json")
        self.hyperparameters = os.path.join(self.config, "hyperparameters.json")
        self.input_data_config = os.path.join(self.config, "inputdataconfig.json")
        self.message = self.failure_file = os.path.join(self.output, "message")
        self.input = self.data = os.path.join(self.processing, "input")
        self.output_data = os.path.join(self.processing, "output")
        self.model = os.path.join(self.output_data, "model")
        self.output_intermediate = os.path.join(self.output_data, "intermediate")
