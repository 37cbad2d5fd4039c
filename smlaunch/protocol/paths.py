"""The places of the SageMaker training contract, below /opt/ml or, where that cannot be had, another root.

Source: AWS developer guide, model-train-storage and your-algorithms-training-algo-running-container; for
processing jobs byoc-config and byoc-metadata.
"""

import os
from typing import Mapping, Optional

ROOT_VARIABLE = "SMLAUNCH_ML_ROOT"
"""Set by a host that could not put its tree at /opt/ml (isolation level ``plain``)."""

PORT_VARIABLE = "SMLAUNCH_PORT"
"""Overrides job.json's rendezvous port: where several jobs share one network, hosts are told a free one."""

SHARED_PYTHON_VARIABLE = "SMLAUNCH_SHARED_PYTHON"
"""Set (to ``1``) by a host whose Python belongs to the machine and not to this job alone: requirements are
then installed into an environment of the job's own, laid over that Python, which itself stays as it is.
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
"""Beside them where hosts have to prove to each other that they are of one job. No copy of it is kept."""

_CONTRACT = "/opt/ml"


class Paths:
    """All paths are absolute strings."""

    def __init__(self, root: str = _CONTRACT) -> None:
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
        self.intermediate = os.path.join(root, "output", "intermediate")
        self.failure = os.path.join(root, "output", "failure")
        self.checkpoints = os.path.join(root, "checkpoints")
        self.code = os.path.join(root, "code")
        self.overlay = os.path.join(root, "python")
        self.own = os.path.join(root, "smlaunch")

    @staticmethod
    def from_environment(environ: Optional[Mapping[str, str]] = None) -> "Paths":
        """Those of this host: a processing job's where it has that one's resourceconfig.json alone."""
        variables = os.environ if environ is None else environ
        root = variables.get(ROOT_VARIABLE) or _CONTRACT
        paths, processing = Paths(root), ProcessingPaths(root)
        if os.path.exists(processing.resource_config) and not os.path.exists(paths.resource_config):
            return processing
        return paths

    def here(self, path: str) -> str:
        """A path as the contract names it (``/opt/ml/checkpoints``), where it is on this host."""
        inside = path.startswith(_CONTRACT + "/")
        return os.path.normpath(self.root + path[len(_CONTRACT) :] if inside else path)

    def channel(self, name: str) -> str:
        return os.path.join(self.data, name)


class ProcessingPaths(Paths):
    """The same words in a processing job, whose platform knows other places: what is a channel in a training
    job is an input, where the SageMaker SDK puts its own; all that is to be kept goes into one output; the
    exit message is where a failure is told. Of ``hyperparameters`` and ``input_data_config`` there is none.
    """

    def __init__(self, root: str = _CONTRACT) -> None:
        super().__init__(root)
        self.processing = os.path.join(root, "processing")
        self.config = os.path.join(root, "config")
        self.job_config = os.path.join(self.config, "processingjobconfig.json")
        self.resource_config = os.path.join(self.config, "resourceconfig.json")
        self.hyperparameters = os.path.join(self.config, "hyperparameters.json")
        self.input_data_config = os.path.join(self.config, "inputdataconfig.json")
        self.message = self.failure = os.path.join(self.output, "message")
        self.input = self.data = os.path.join(self.processing, "input")
        self.output_data = os.path.join(self.processing, "output")
        self.model = os.path.join(self.output_data, "model")
        self.intermediate = os.path.join(self.output_data, "intermediate")
