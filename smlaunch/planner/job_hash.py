"""Hash of a job: what is run, independent of place, time, user, name and price."""

from __future__ import annotations

import hashlib
import json

from smlaunch.contract import formats
from smlaunch.job.model import Job
from smlaunch.planner.facts import Facts

_EXCLUDED_FIELDS = {
    "": ("name", "role", "source", "entry", "include_secrets"),
    "compute": ("price_per_hour", "on_demand_fallback"),
    "limits": ("max_cost", "attempts"),
}


def job_hash(job: Job, facts: Facts) -> str:
    """SHA-256 (hex) over the job, its source archive and its local inputs.

    Local paths are replaced by the hash of their content, so that another clone of the same source on
    another machine attaches to its own run. What is hashed is part of a run's format (docs/formats.md).
    """
    mapping = job.to_mapping()
    for section, keys in _EXCLUDED_FIELDS.items():
        section_mapping = mapping.get(section, {}) if section else mapping
        for key in keys:
            section_mapping.pop(key, None)
        if section and not section_mapping:
            mapping.pop(section, None)
    for name, channel in job.inputs.items():
        input_facts = facts.inputs.get(name)
        if channel.is_local and input_facts is not None:
            mapping["inputs"][name]["uri"] = f"sha256:{input_facts.sha256}"
    document = {
        "version": formats.JOB_HASH.version,
        "job": mapping,
        "entry": facts.source.entry,
        "source": facts.source.archive_sha256,
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
