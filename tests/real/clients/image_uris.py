"""Prints the images that the official package names: for each of its versions of the frameworks and
algorithms of the command line, each region and each instance type there the address, or None where it names
none.

`python image_uris.py '{"frameworks": [...], "regions": [...], "instance_types": [...]}'`
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

from botocore.loaders import JSONFileLoader

try:
    from sagemaker.core import image_uris  # version 3
except ImportError:
    from sagemaker import image_uris


def arguments_of(framework: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each version, short ones too, with what `retrieve` needs besides it."""
    scope = "processing" if framework == "spark" else "training"
    config = image_uris.config_for_framework(framework)
    config = config.get(scope, config)
    aliases = config.get("version_aliases", {})
    for version in [*config["versions"], *aliases]:
        row = config["versions"][aliases.get(version, version)]
        arguments: dict[str, Any] = {"image_scope": scope}
        if framework == "huggingface":
            bases = sorted(
                (name for name in row if name.startswith("pytorch")),
                key=lambda name: [int(part) for part in name[7:].split(".")],
            )
            if not bases:
                continue  # TensorFlow alone
            arguments["base_framework_version"] = bases[-1]
            row = row[bases[-1]]
        if row.get("py_versions"):
            arguments["py_version"] = row["py_versions"][-1]
        if framework == "spark":
            arguments["container_version"] = "v1"
        yield version, arguments


def main() -> None:
    # The package reads the file of all endpoints anew for each address.
    load = functools.cache(functools.partial(JSONFileLoader.load_file, JSONFileLoader()))
    JSONFileLoader.load_file = lambda _, path: load(path)
    wanted = json.loads(sys.argv[1])
    answers = []
    for framework in wanted["frameworks"]:
        for (version, arguments), region, instance_type in itertools.product(
            arguments_of(framework), wanted["regions"], wanted["instance_types"]
        ):
            try:
                uri = image_uris.retrieve(
                    framework, region, version=version, instance_type=instance_type, **arguments
                )
            except Exception:  # of all types
                uri = None
            answers.append([framework, version, region, instance_type, uri])
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
