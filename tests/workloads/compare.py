"""Compares plans with expected.yaml and prints what differs.

    python compare.py PLANS [sized]

PLANS is a folder with the output of `smlaunch plan --json` of each workload, in NAME.json. With `sized` the
plans knew the sizes of the data (sized_listing.py). What `insane` says in words is left to a reader.
"""

import json
import re
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

WORDS = ("must", "should")


def outside(name: str, value: float, limits: list[float]) -> list[str]:
    return (
        []
        if limits[0] <= value <= limits[1]
        else [f"{name} {value:g}, expected {limits[0]:g} to {limits[1]:g}"]
    )


def differences(workload: dict[str, Any], plan: dict[str, Any], sized: bool) -> list[str]:
    more = workload.get("sized" if sized else "unsized", {})
    wanted = {**workload, **more, **{key: workload.get(key, []) + more.get(key, []) for key in WORDS}}
    parts = [plan.get("error", {}), [each["because"] for each in plan.get("reasons", [])]]
    text = json.dumps([*parts, plan.get("warnings", []), plan.get("cost")])
    result: list[str] = []
    if "error" in plan:
        result += ["refused"] if wanted["outcome"] == "plan" else []
    else:
        kind = plan["instance_type"]
        if plan["strategy"] not in wanted["strategies"]:
            result.append(f"strategy {plan['strategy']}")
        if any(fnmatch(kind, pattern) for pattern in wanted["insane"]["types"]):
            result.append(f"insane: {kind}")
        elif not any(fnmatch(kind, pattern) for pattern in wanted["types"]):
            result.append(f"type {kind}")
        result += outside("hosts", plan["hosts"], wanted["hosts"])
        ranks = plan["processes_per_host"]
        if "ranks_per_host" in wanted:
            result += outside("ranks per host", ranks, wanted["ranks_per_host"])
        if "segments" in wanted:
            result += outside("segments", len(plan["segments"]) or 1, wanted["segments"])
        if "ranks_per_vcpu" in wanted and ranks == 1:
            result.append("one rank per host")
        for candidate in plan["candidates"]:
            if candidate["chosen"] and candidate["seconds"]:
                result += outside(
                    "hours", candidate["seconds"][1] / 3600, [wanted["hours"][0], wanted["hours"][1] * 1.02]
                )
                if candidate["dollars"] is not None:  # None where the prices of the region are not known
                    result += outside("dollars", sum(candidate["dollars"]) / 2, wanted["dollars"])
        if plan["cost"]["at_most"] is not None:
            result += outside("at most", plan["cost"]["at_most"], wanted["at_most"])
    for key in WORDS:
        for item in wanted[key]:
            choice = [item] if isinstance(item, str) else item
            if not any(re.search(pattern, text, re.IGNORECASE) for pattern in choice):
                result.append(f"{key} say {' or '.join(choice)}")
    return result


def main() -> None:
    plans, sized = Path(sys.argv[1]), "sized" in sys.argv[2:]
    expected = yaml.safe_load((Path(__file__).parent / "expected.yaml").read_text())
    for workload in expected["workloads"]:
        path = plans / f"{workload['name']}.json"
        if path.exists():
            result = differences(workload, json.loads(path.read_text()), sized)
            print(f"{workload['name']}: {'; '.join(result) or 'as expected'}")


if __name__ == "__main__":
    main()
