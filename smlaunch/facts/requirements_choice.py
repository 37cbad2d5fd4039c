"""Which requirements file the hosts install: the job's own, or the one beside the script. Pure."""

from __future__ import annotations

from smlaunch.contract.sagemaker_paths import WHEELHOUSE_CHANNEL
from smlaunch.facts.discovered_facts import SourceFacts
from smlaunch.job.model import Job

NO_REQUIREMENTS = "none"
"""A job whose ``requirements`` are this text installs nothing."""


def requirements_to_install(job: Job, source: SourceFacts) -> str | None:
    """Return the path, in the source, of the file that pip installs before the ranks start; None without."""
    if job.requirements is not None:
        return None if job.requirements == NO_REQUIREMENTS else job.requirements
    return None if lacks_index(job) else source.default_requirements


def lacks_index(job: Job) -> bool:
    """Return whether pip on the hosts can reach neither an index nor wheels of the job."""
    return job.network_isolation and WHEELHOUSE_CHANNEL not in job.inputs
