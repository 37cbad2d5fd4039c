"""Makes smlaunch/catalog/instances.json, network.json and efa.json from collected facts.

    python tools/generate_catalog.py FACTS_DIR

FACTS_DIR holds ``instances.json``: the API's instance types, their EC2 counterparts' specifications, and
prices from public sources. The output keeps what planning needs, with source and date. Images and algorithms
are made by tools/generate_images.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CATALOG = Path(__file__).parent.parent / "smlaunch" / "catalog"

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
    """One line per instance type: small, and a change shows as one line of a diff."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    for name, row in document["types"].items():
        pretty = json.dumps({name: row}, indent=1, ensure_ascii=False)[1:-1].strip()
        compact = json.dumps({name: row}, ensure_ascii=False, separators=(",", ":"))[1:-1]
        text = text.replace(pretty.replace("\n", "\n "), compact)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    facts = Path(sys.argv[1])
    machines = json.loads((facts / "instances.json").read_text())
    write(CATALOG / "instances.json", instances(machines))
    write(CATALOG / "network.json", network(machines))
    write(CATALOG / "efa.json", efa(machines))


if __name__ == "__main__":
    main()
