"""Makes smlaunch/catalog/regions.json: regions by service, and the instance types that EC2 offers in them.

    python tools/generate_regions.py OFFERINGS_DIR MONTH

OFFERINGS_DIR holds ``<region>.json.gz`` files with the answer to EC2's DescribeInstanceTypeOfferings, as moto
ships them (moto/ec2/resources/instance_type_offerings/region). MONTH is the table's date: 2026-11. Regions
are those of the installed botocore.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import botocore.session

CATALOG = Path(__file__).parent.parent / "smlaunch" / "catalog"


def regions_of(service: str) -> set[str]:
    session = botocore.session.Session()
    partitions = session.get_available_partitions()
    return {
        region for partition in partitions for region in session.get_available_regions(service, partition)
    }


def offerings(folder: Path, known_types: set[str]) -> dict[str, set[str]]:
    """Regions by instance type of SageMaker; types that EC2 lists nowhere are left out."""
    regions_by_type: dict[str, set[str]] = defaultdict(set)
    for path in sorted(folder.glob("*.json.gz")):
        for offering in json.loads(gzip.decompress(path.read_bytes())):
            name = f"ml.{offering['InstanceType']}"
            if name in known_types:
                regions_by_type[name].add(path.name.partition(".")[0])
    return regions_by_type


def catalog_document(folder: Path, month: str) -> dict[str, Any]:
    types = json.loads((CATALOG / "instances.json").read_text("utf-8"))["types"]
    types_by_regions: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, regions in offerings(folder, set(types)).items():
        types_by_regions[tuple(sorted(regions))].append(name)
    sagemaker_regions = regions_of("sagemaker")
    return {
        "source": f"regions: endpoints of botocore {version('botocore')}; offerings: EC2's answers to "
        "DescribeInstanceTypeOfferings in moto 5.2.5, by region (Apache-2.0); SageMaker has no such table",
        "as_of": month,
        "sagemaker": sorted(sagemaker_regions),
        "without_sagemaker": sorted(regions_of("ec2") - sagemaker_regions),
        "offerings": [
            {"types": " ".join(sorted(names)), "regions": " ".join(regions)}
            for regions, names in sorted(types_by_regions.items())
        ],
    }


if __name__ == "__main__":
    document = catalog_document(Path(sys.argv[1]), sys.argv[2])
    (CATALOG / "regions.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
