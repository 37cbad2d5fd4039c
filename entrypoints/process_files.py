"""Clean tables file by file, as a processing job: every host those that it was given.

    python entrypoints/prepare_spark.py --make tables
    smlaunch run entrypoints/process_files.py --strategy processing --hosts 2 \\
        --input sales=tables/sales,split=key --local -- --least 100

Of every CSV file in ``sales`` the rows that are worth at least so many cents are kept, under the same name;
``summary-<host>.json`` says how many. Nothing is trained, and hosts do not talk.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description="keep what is worth keeping")
    parser.add_argument("--least", type=int, default=0, help="cents")
    parser.add_argument("--sales", type=Path, default=os.environ.get("SM_CHANNEL_SALES", "tables/sales"))
    parser.add_argument("--out", type=Path, default=os.environ.get("SM_OUTPUT_DATA_DIR", "clean"))
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    counts = {}
    for path in sorted(args.sales.glob("*.csv")):
        counts[path.name] = clean(path, args.out / path.name, args.least)
    host = os.environ.get("SM_CURRENT_HOST", "localhost")
    summary = {name: {"rows": rows, "kept": kept_rows} for name, (rows, kept_rows) in counts.items()}
    (args.out / f"summary-{host}.json").write_text(json.dumps(summary, indent=2) + "\n")
    rows, kept_rows = (sum(column) for column in zip((0, 0), *counts.values(), strict=True))
    print(f"host {host}: {kept_rows} of {rows} rows kept, {len(counts)} files", flush=True)


def clean(source: Path, target: Path, min_cents: int) -> tuple[int, int]:
    """How many rows there were, and how many are kept."""
    rows = kept_rows = 0
    with source.open(newline="") as source_file, target.open("w", newline="") as target_file:
        reader = csv.DictReader(source_file)
        writer = csv.DictWriter(target_file, reader.fieldnames or ())
        writer.writeheader()
        for row in reader:
            rows += 1
            if int(row["cents"]) >= min_cents:
                writer.writerow(row)
                kept_rows += 1
    return rows, kept_rows


if __name__ == "__main__":
    main()
