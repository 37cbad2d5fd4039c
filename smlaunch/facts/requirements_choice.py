"""Which requirements file the hosts install: the job's own, or the one beside the script. Pure."""

from __future__ import annotations

from typing import NamedTuple

from smlaunch.contract.sagemaker_paths import WHEELHOUSE_CHANNEL
from smlaunch.facts.discovered_facts import SourceFacts
from smlaunch.job.model import Job

NO_REQUIREMENTS = "none"
"""A job whose ``requirements`` are this text installs nothing."""


class RequirementsChoice(NamedTuple):
    """What pip installs on the hosts before the ranks start."""

    installed_file: str | None
    """The requirements file, relative to the source; None without one."""

    lacks_index: bool
    """Pip reaches neither an index nor wheels of the job."""


def choose_requirements(job: Job, source: SourceFacts) -> RequirementsChoice:
    """Return which requirements file the hosts install: that of the job, or else the source's own. Without a
    network, hosts have only the packages of a wheelhouse, which is an input."""
    lacks_index = job.network_isolation and WHEELHOUSE_CHANNEL not in job.inputs
    if job.requirements is not None:
        installed_file = None if job.requirements == NO_REQUIREMENTS else job.requirements
    else:
        installed_file = None if lacks_index else source.default_requirements
    return RequirementsChoice(installed_file, lacks_index)
