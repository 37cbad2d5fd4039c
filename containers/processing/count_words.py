"""Counts words in this host's share of the input files; every host writes one part. Standard library only."""

import argparse
import json
from collections import Counter
from pathlib import Path

ML = Path("/opt/ml")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--top", type=int, default=10)
    options = parser.parse_args()
    config = json.loads((ML / "config/resourceconfig.json").read_text())
    hosts, me = sorted(config["hosts"]), config["current_host"]
    files = sorted(path for path in (ML / "processing/input").rglob("*") if path.is_file())
    mine = files[hosts.index(me) :: len(hosts)]
    counts = Counter(word for file in mine for word in file.read_text(encoding="utf-8").split())
    output = ML / "processing/output"
    output.mkdir(parents=True, exist_ok=True)
    part = {"host": me, "files": [file.name for file in mine], "top": counts.most_common(options.top)}
    (output / f"{me}.json").write_text(json.dumps(part))
    # The first kilobyte of this file becomes the job's ExitMessage.
    (ML / "output").mkdir(exist_ok=True)
    (ML / "output/message").write_text(f"{me}: {sum(counts.values())} words\n")
    print(f"{me}: {sum(counts.values())} words in {len(mine)} of {len(files)} files")


if __name__ == "__main__":
    main()
