"""What this host has to do, as read from job.json and from the platform's descriptions of the job."""

import os
from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple, Optional

from smlaunch.contract.launch_spec import AUTO, LEADER, LaunchSpec, LaunchSpecError
from smlaunch.contract.launch_spec_parser import parse_launch_spec
from smlaunch.contract.sagemaker_paths import PORT_VARIABLE, Paths
from smlaunch.contract.segment import Segment
from smlaunch.runtime import accelerators, sagemaker_environment, segment_lifecycle, segment_outcome_files
from smlaunch.runtime.cluster import Cluster
from smlaunch.runtime.errors import SetupError

if TYPE_CHECKING:
    from smlaunch.runtime.independent_ranks import IndependentRanks


class HostTask(NamedTuple):
    """What this host has to do, as read at the start. ``runtime_dir``: the runtime's own folder."""

    spec: LaunchSpec
    paths: Paths
    cluster: Cluster
    resource_config: Dict[str, Any]
    input_channels: Dict[str, Any]
    runtime_dir: str
    segment: Segment
    segment_deadline: segment_lifecycle.SegmentDeadline
    previous_outcome: segment_outcome_files.PreviousOutcome
    hardware: sagemaker_environment.HostHardware
    independent_ranks: "Optional[IndependentRanks]"
    """None where ranks train together."""

    @property
    def has_ranks(self) -> bool:
        return self.spec.ranks.runs_on != LEADER or self.is_leader

    @property
    def is_leader(self) -> bool:
        return self.cluster.current_host == self.cluster.leader


def read_launch_spec(path: str) -> LaunchSpec:
    """Read job.json. Raises SetupError."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse_launch_spec(file.read())
    except OSError as error:
        raise SetupError("{}: {}".format(path, error.strerror)) from None
    except (LaunchSpecError, UnicodeDecodeError) as error:
        raise SetupError("{}: {}".format(path, error)) from None


def count_ranks_per_host(spec: LaunchSpec, hardware: sagemaker_environment.HostHardware) -> int:
    if spec.ranks.per_host == AUTO:
        return accelerators.default_ranks_per_host(hardware.gpus, hardware.neuron_cores, os.environ)
    return int(spec.ranks.per_host)


def read_first_port(spec: LaunchSpec, environ: Mapping[str, str]) -> int:
    """Return the first of the ports that the job uses: by an environment variable, otherwise by job.json.
    Raises SetupError for a text that is no port number.
    """
    text = environ.get(PORT_VARIABLE)
    if not text:
        return spec.port
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise SetupError("{}: a port number is needed, not {!r}".format(PORT_VARIABLE, text))
    return int(text)
