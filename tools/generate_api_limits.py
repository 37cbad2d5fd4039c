"""Writes smlaunch/catalog/api_limits.json: what the API model says about requests, for
smlaunch.api.validation.

    python tools/generate_api_limits.py [--check] [--date YYYY-MM-DD]

Source: the service models inside the installed botocore. botocore itself checks only required members, types
and minima before it sends; maxima, patterns and enums are left to the service, so a mistake in them costs a
round trip, and a job on a region may fail after minutes. ``--check`` writes nothing and fails when the file
is not what the installed botocore would give (the date aside).
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import botocore
from botocore.loaders import Loader

TARGET = Path(__file__).parent.parent / "smlaunch" / "catalog" / "api_limits.json"

_NOUNS = ("TrainingJob", "ProcessingJob", "HyperParameterTuningJob", "Pipeline", "PipelineExecution")
_VERBS = ("Create", "Describe", "Stop", "Update", "Delete", "Start", "Retry")
_LISTS = (
    "ListTrainingJobs",
    "ListProcessingJobs",
    "ListHyperParameterTuningJobs",
    "ListTrainingJobsForHyperParameterTuningJob",
    "ListPipelines",
    "ListPipelineExecutions",
    "ListPipelineExecutionSteps",
    "ListPipelineParametersForExecution",
    "DescribePipelineDefinitionForExecution",
)
OPERATIONS: Mapping[str, Iterable[str]] = {
    "sagemaker": (
        *(verb + noun for noun in _NOUNS for verb in _VERBS),
        *_LISTS,
        *("AddTags", "DeleteTags", "ListTags", "Search"),
    ),
    "logs": (
        *("CreateLogGroup", "CreateLogStream", "DeleteLogGroup", "DeleteLogStream"),
        *("PutLogEvents", "GetLogEvents", "FilterLogEvents", "DescribeLogGroups", "DescribeLogStreams"),
    ),
}
_SCALARS = ("min", "max", "pattern", "enum")


def generate(date: str) -> dict[str, Any]:
    services = {}
    for service, wanted in OPERATIONS.items():
        model = Loader().load_service_model(service, "service-2")
        operations = {
            name: model["operations"][name]["input"]["shape"]
            for name in sorted(set(wanted))
            if "input" in model["operations"].get(name, {})
        }
        services[service] = {
            "operations": operations,
            "shapes": _shapes(model["shapes"], operations.values()),
        }
    return {
        "_meta": {
            "source": f"botocore {botocore.__version__}, data/<service>/*/service-2.json.gz",
            "as_of": date,
            "made_by": "tools/generate_api_limits.py",
            "note": "Requests only. Patterns match the whole value and are in Java's dialect.",
        },
        "services": services,
    }


def _shapes(shapes: Mapping[str, Any], roots: Iterable[str]) -> dict[str, Any]:
    """Everything that can be reached from the roots, without its prose."""
    found: dict[str, Any] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        shape = shapes[name]
        entry: dict[str, Any] = {"type": shape["type"]}
        entry.update({key: shape[key] for key in _SCALARS if key in shape})
        if shape["type"] == "structure":
            entry["members"] = {key: member["shape"] for key, member in shape["members"].items()}
            entry.update({key: shape[key] for key in ("required", "union") if shape.get(key)})
            waiting.extend(entry["members"].values())
        for part in ("member", "key", "value"):
            if part in shape:
                entry[part] = shape[part]["shape"]
                waiting.append(entry[part])
        found[name] = entry
    return dict(sorted(found.items()))


def render(document: Mapping[str, Any]) -> str:
    """One shape a line: small, and a new botocore gives a readable diff."""
    lines = ['{"_meta": ' + json.dumps(document["_meta"], indent=1) + ',\n"services": {']
    services = []
    for name, service in document["services"].items():
        tables = [
            f'"{table}": {{\n'
            + ",\n".join(
                f"{json.dumps(key)}:{json.dumps(entry, separators=(',', ':'))}"
                for key, entry in service[table].items()
            )
            + "}"
            for table in ("operations", "shapes")
        ]
        services.append(f'"{name}": {{' + ",\n".join(tables) + "}")
    lines.append(",\n".join(services) + "}}\n")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--date", default=datetime.datetime.now(datetime.timezone.utc).date().isoformat())
    options = parser.parse_args()
    document = generate(options.date)
    if options.check:
        same = json.loads(TARGET.read_text())["services"] == document["services"]
        print(f"{TARGET.name} {'is' if same else 'is NOT'} what botocore {botocore.__version__} gives")
        return 0 if same else 1
    TARGET.write_text(render(document))
    print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
