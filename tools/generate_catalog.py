"""Makes smlaunch/catalog/images.json, instances.json, network.json and efa.json from collected facts.

    python tools/generate_catalog.py FACTS_DIR

FACTS_DIR holds ``dlc.json`` (the SageMaker SDK's image data and the tags published by
aws/deep-learning-containers) and ``instances.json`` (the API's instance types, their EC2 counterparts'
specifications, and prices from public sources). The output keeps what planning needs, with source and date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CATALOG = Path(__file__).parent.parent / "smlaunch" / "catalog"

IMAGE_REPOSITORIES = ("pytorch-training", "pytorch")
DNS_SUFFIXES = {
    "aws": "amazonaws.com",
    "aws-cn": "amazonaws.com.cn",
    "aws-eusc": "amazonaws.eu",
    "aws-iso": "c2s.ic.gov",
    "aws-iso-b": "sc2s.sgov.gov",
    "aws-iso-e": "cloud.adc-e.uk",
    "aws-iso-f": "csp.hci.ic.gov",
    "aws-us-gov": "amazonaws.com",
}
"""From botocore's partitions.json."""

COLUMNS = (
    "vcpu",
    "memory_gib",
    "accelerator",
    "accelerators",
    "accelerator_memory_gib",
    "nvme_gb",
    "usd_per_hour",
    "price_confidence",
)


def images(facts: dict[str, Any]) -> dict[str, Any]:
    versions: dict[str, dict[str, Any]] = {}
    for row in facts["published"]:
        if row["repository"] not in IMAGE_REPOSITORIES or row["accelerator"] not in ("cpu", "gpu"):
            continue
        entry = versions.setdefault(
            row["version"],
            {
                "repository": row["repository"],
                "python": row["python"],
                "end_of_patch": row["end_of_patch"],
                "tags": {},
            },
        )
        # The first tag is the longest and the only one that is never moved to another image.
        entry["tags"][row["accelerator"]] = row["tags"][0]
    whole = {version: entry for version, entry in versions.items() if len(entry["tags"]) == 2}
    return {
        "source": facts["_meta"]["as_of"],
        "pytorch": {
            "default": max(whole, key=lambda version: whole[version]["end_of_patch"]),
            "versions": dict(sorted(whole.items(), key=lambda item: [int(n) for n in item[0].split(".")])),
        },
        "accounts": facts["accounts"]["dlc"],
        "dns_suffixes": DNS_SUFFIXES,
    }


def instances(facts: dict[str, Any]) -> dict[str, Any]:
    rows = {}
    for row in facts["instances"]:
        rows[row["instance_type"]] = [
            row["vcpu"],
            row["memory_gib"],
            row["accelerator"],
            # One rank per NeuronCore, not per device, is how PyTorch Neuron runs on Trainium.
            row["gpu_count"] or row["neuron_cores"],
            row.get("gpu_memory_gib_each"),
            row["local_storage_gb"] if row["local_storage_nvme"] else 0,
            row["usd_per_hour_us_east_1"],
            row["price_confidence"],
        ]
    return {
        "source": facts["_meta"]["source"],
        "as_of": facts["_meta"]["as_of"],
        "price_region": "us-east-1",
        "columns": COLUMNS,
        "types": rows,
    }


def network(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "source": facts["_meta"]["source"],
        "as_of": facts["_meta"]["as_of"],
        "columns": ("gbps", "burst"),
        "types": {
            row["instance_type"]: [row["network_gbps"], row["network_burst"]]
            for row in facts["instances"]
            if row.get("network_gbps")
        },
    }


def efa(facts: dict[str, Any]) -> dict[str, Any]:
    """Elastic Fabric Adapters by type; those without are left out."""
    return {
        "source": facts["_meta"]["source"],
        "as_of": facts["_meta"]["as_of"],
        "types": {
            row["instance_type"]: row["efa_max_interfaces"]
            for row in facts["instances"]
            if row["efa"] and row["efa_max_interfaces"]
        },
    }


def write(path: Path, document: dict[str, Any]) -> None:
    """One line per entry of the innermost tables: small, and a change shows as one line of a diff."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    for key in ("types", "versions"):
        table = document.get(key) or document.get("pytorch", {}).get(key)
        for name, row in (table or {}).items():
            pretty = json.dumps({name: row}, indent=1, ensure_ascii=False)[1:-1].strip()
            compact = json.dumps({name: row}, ensure_ascii=False, separators=(",", ":"))[1:-1]
            depth = 2 if key in document else 3
            text = text.replace(pretty.replace("\n", "\n" + " " * (depth - 1)), compact)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    facts = Path(sys.argv[1])
    write(CATALOG / "images.json", images(json.loads((facts / "dlc.json").read_text())))
    machines = json.loads((facts / "instances.json").read_text())
    write(CATALOG / "instances.json", instances(machines))
    write(CATALOG / "network.json", network(machines))
    write(CATALOG / "efa.json", efa(machines))


if __name__ == "__main__":
    main()
