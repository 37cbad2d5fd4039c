"""Prepare a table with Spark: read, join, group, and write Parquet, on all hosts.

    python entrypoints/prepare_spark.py --make spark-data
    smlaunch run entrypoints/prepare_spark.py --strategy spark --hosts 2 \\
        --input sales=spark-data/sales --input shops=spark-data/shops --local

Input: ``sales/*.csv`` with the columns day, shop, item, cents, and ``shops/*.csv`` with shop, region; every
host has all of it. Output: what each region earned with each item (region, item, sales, cents), in Parquet
files below ``by-region``. Each executor writes its own files on its own host, which uploads them; the leader
adds ``summary.json``. The master's address and all settings are spark-submit's: nothing here names a host.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

SALES_FILES, SALES_PER_FILE, SHOPS, ITEMS = 8, 5_000, 40, 25
REGIONS = ("north", "south", "east", "west")


def main() -> None:
    parser = argparse.ArgumentParser(description="what each region earned with each item")
    parser.add_argument("--make", type=Path, help="write example tables there, and do nothing else")
    parser.add_argument("--sales", type=Path, default=os.environ.get("SM_CHANNEL_SALES", "spark-data/sales"))
    parser.add_argument("--shops", type=Path, default=os.environ.get("SM_CHANNEL_SHOPS", "spark-data/shops"))
    parser.add_argument("--out", type=Path, default=os.environ.get("SM_OUTPUT_DATA_DIR", "spark-out"))
    args = parser.parse_args()
    if args.make is not None:
        make(args.make)
    else:
        prepare(args.sales, args.shops, args.out)


def prepare(sales_folder: Path, shops_folder: Path, out: Path) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    session = SparkSession.builder.appName("prepare_spark").getOrCreate()
    # file: by name, since an image may have another file system for its default.
    sales = session.read.csv(
        sales_folder.resolve().as_uri(), header=True, schema="day DATE, shop INT, item INT, cents LONG"
    )
    shops = session.read.csv(shops_folder.resolve().as_uri(), header=True, schema="shop INT, region STRING")
    joined = sales.join(f.broadcast(shops), "shop")
    by_host = dict(joined.rdd.mapPartitions(count_here).reduceByKey(lambda a, b: a + b).collect())

    table = joined.groupBy("region", "item").agg(f.count("*").alias("sales"), f.sum("cents").alias("cents"))
    parts = 2 * session.sparkContext.defaultParallelism
    table.repartition(parts, "item").write.parquet((out.resolve() / "by-region").as_uri())
    rows = sum(by_host.values())
    expected_rows = sum(len(path.read_text().splitlines()) - 1 for path in sales_folder.glob("*.csv"))
    if rows != expected_rows:
        raise RuntimeError(f"Spark's executors joined {rows} of {expected_rows} sales")
    (out / "summary.json").write_text(json.dumps({"sales": rows, "by_host": by_host}, indent=2) + "\n")
    for host, count in sorted(by_host.items()):
        print(f"host {host} joined {count} of {rows} sales", flush=True)
    print(f"smlaunch: metric sales={rows}", flush=True)
    session.stop()


def count_here(rows: Iterable[object]) -> Iterator[tuple[str, int]]:
    """Runs on an executor: its host, and how many rows it has seen."""
    yield os.environ.get("SM_CURRENT_HOST") or socket.gethostname(), sum(1 for _ in rows)


def make(folder: Path) -> None:
    """The same tables every time."""
    chance = random.Random(7)
    for name in ("sales", "shops"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    with (folder / "shops" / "shops.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("shop", "region"))
        table.writerows((shop, REGIONS[shop % len(REGIONS)]) for shop in range(SHOPS))
    for number in range(SALES_FILES):
        with (folder / "sales" / f"part-{number}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(("day", "shop", "item", "cents"))
            for _ in range(SALES_PER_FILE):
                day = f"2026-{chance.randint(1, 12):02d}-{chance.randint(1, 28):02d}"
                table.writerow(
                    (day, chance.randrange(SHOPS), chance.randrange(ITEMS), chance.randint(50, 9_999))
                )
    print(f"{SALES_FILES * SALES_PER_FILE} sales and {SHOPS} shops in {folder}")


if __name__ == "__main__":
    main()
