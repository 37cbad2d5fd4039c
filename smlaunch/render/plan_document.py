"""A plan as a JSON document for programs. It contains everything."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from smlaunch.contract.launch_spec import CheckpointSpec
from smlaunch.facts.discovered_facts import InputFacts
from smlaunch.job.model import Channel
from smlaunch.planner.plan import InputSharding, RunPlan
from smlaunch.render.candidates import candidate_as_dict
from smlaunch.secrets.masking import mask_document, mask_named_value


def plan_as_dict(plan: RunPlan) -> dict[str, Any]:
    """Return the document of ``plan --json`` in plain types, secrets masked. docs/planner.md lists the keys,
    which are a stable format."""
    # job.json of the first job, by which the runtime starts the ranks; None for an image's own program.
    launch_spec = plan.planned_jobs[0].launch_spec
    # Inputs that the service distributes by the number of objects; the plan distributes the others.
    split_by_service = [
        {"channel": name, "hosts": plan.hosts, "objects": input_facts_of(plan, name, channel).objects}
        for name, channel in plan.job.inputs.items()
        if channel.split == "key"
    ]
    document = {
        "run": plan.run,
        "job_hash": plan.job_hash,
        "target": plan.facts.target,
        "region": plan.facts.region,
        "strategy": plan.strategy,
        "hosts": plan.hosts,
        "processes_per_host": plan.processes_per_host,
        "instance_type": plan.instance_type,
        "instance_preferences": list(plan.job.compute.instance_preferences),
        "image": plan.image,
        "reasons": [{"rule": reason.rule, "because": reason.explanation} for reason in plan.reasons],
        "defaults": [
            {
                "field": default.field,
                "value": mask_named_value(default.field.rpartition(".")[2], default.value),
                "from": default.origin,
            }
            for default in plan.facts.team.applied
        ],
        "warnings": list(plan.warnings),
        # Files of the source or an input that are not uploaded, with the reason.
        "left_out": [
            {"field": field, "file": file_name, "because": reason}
            for field, reason_by_file in plan.excluded_by_field.items()
            for file_name, reason in sorted(reason_by_file.items())
        ],
        "segments": [asdict(segment) for segment in plan.segments],
        "schedule": None if plan.schedule is None else plan.schedule._asdict(),
        "checkpoints": None if plan.checkpoints is None else _checkpoints_as_dict(plan.checkpoints),
        "input_shardings": split_by_service
        + [_sharding_as_dict(sharding) for sharding in plan.input_shardings],
        "cost": {
            "known": plan.cost.is_known,
            "per_hour": plan.cost.per_hour,
            "at_most": plan.cost.maximum,
            "volume_gb": plan.cost.volume_gb,
            "money_ends": plan.cost.money_ends,
            "currency": "USD",
            "note": plan.cost.note,
        },
        "candidates": [candidate_as_dict(candidate) for candidate in plan.candidates],
        "uploads": [
            {"kind": upload.kind, "uri": upload.uri, "path": upload.path, "sha256": upload.sha256}
            for upload in plan.uploads
        ],
        "launch": None if launch_spec is None else json.loads(launch_spec.to_json()),
        "requests": [dict(request) for request in plan.requests],
    }
    return {key: mask_document(value) for key, value in document.items()}


def _checkpoints_as_dict(spec: CheckpointSpec) -> dict[str, Any]:
    return {
        "path": spec.path,
        "uri": spec.uri,
        "upload": spec.upload,
        "keep": spec.keep,
        "interval_seconds": spec.interval_seconds,
        "failure_seconds": spec.failure_seconds,
    }


def _sharding_as_dict(sharding: InputSharding) -> dict[str, Any]:
    """Row of ``input_shardings`` in ``plan --json``."""
    per_host = zip(sharding.bytes_by_host, sharding.files_by_host, sharding.bytes_by_count, strict=True)
    return {
        "channel": sharding.channel,
        "hosts": len(sharding.files_by_host),
        "objects": sum(sharding.files_by_host),
        "split_via": sharding.split_via,
        "method": sharding.method,
        "imbalance": sharding.imbalance,
        "imbalance_by_count": sharding.imbalance_by_count,
        "shards": [
            {"host": host, "bytes": bytes_of_host, "keys": file_count, "bytes_by_count": bytes_by_count}
            for host, (bytes_of_host, file_count, bytes_by_count) in enumerate(per_host)
        ],
    }


def input_facts_of(plan: RunPlan, name: str, channel: Channel) -> InputFacts:
    input_facts = plan.facts.inputs.get(name)
    return input_facts or InputFacts(channel.uri, "local" if channel.is_local else "s3")
