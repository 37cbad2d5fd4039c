"""The job's hash: what is run, and nothing of where, when, by whom, under which name or at what price."""

from __future__ import annotations

import hashlib
import json

from smlaunch.job import Job
from smlaunch.planning.surroundings import Surroundings

_NOT_PART_OF_IT = {
    "": ("name", "role", "source", "entry", "include_secrets"),
    "compute": ("price_per_hour", "on_demand_fallback"),
    "limits": ("max_cost", "attempts"),
}


def job_hash(job: Job, surroundings: Surroundings) -> str:
    """SHA-256 (hex) over the job, its source archive and its local inputs.

    Local paths are replaced by the hash of what lies there, so that another clone of the same source on
    another machine attaches to its own run.
    """
    mapping = job.to_mapping()
    for section, keys in _NOT_PART_OF_IT.items():
        part = mapping.get(section, {}) if section else mapping
        for key in keys:
            part.pop(key, None)
        if section and not part:
            mapping.pop(section, None)
    for name, channel in job.inputs.items():
        facts = surroundings.inputs.get(name)
        if channel.is_local and facts is not None:
            mapping["inputs"][name]["uri"] = f"sha256:{facts.sha256}"
    document = {
        "job": mapping,
        "entry": surroundings.source.entry,
        "source": surroundings.source.archive_sha256,
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
