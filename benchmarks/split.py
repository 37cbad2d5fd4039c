"""Millions of keys over hosts: how even, how fast and in how much memory, against largest first with a heap.

    python benchmarks/split.py [--keys 10000000] [--hosts 64] [--rounds 3] [--stream 100000000]

Goals: the assignment takes at most 0.1 of largest first over all keys (heapq), from the Parquet file to lists
and manifests at most 5 times as long as decoding the file takes, with at most 700 MB; the fullest host has at
most 1.0001 of the least it can have, for a million keys of five distributions, and never more than by count.
``--stream``: so many sizes that come block by block and are never held, with the peak of memory.
``--stream-file``: the same from a file to lists, which takes much disk. And the share of keys and bytes that
move when one key in a hundred is new. Every timed part is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from harness import interleave, report

from smlaunch.data.inventory_file import ROW_GROUP_ROWS, Inventory
from smlaunch.data.split import BLOCK_ROWS, split_size_blocks, split_sizes

ASSIGNED, DECODED, WHOLE, MOST_MB, EVEN = 0.1, 5.0, 5.0, 700, 1.0001


def distributions(count: int, seed: int = 0) -> Iterator[tuple[str, Any]]:
    draw = np.random.default_rng(seed)
    yield "equal", np.full(count, 1 << 30)
    yield "images, lognormal 0.6", (draw.lognormal(0, 0.6, count) * 110_000).astype(np.int64)
    yield "lognormal 2", (draw.lognormal(0, 2.0, count) * 50_000).astype(np.int64)
    yield "Pareto 1.2", ((draw.pareto(1.2, count) + 1) * 10_000).astype(np.int64)
    yield "Zipf 1.6", np.minimum(draw.zipf(1.6, count), 10**12) * 100


def evenness() -> bool:
    print(f"{'fullest host / lower bound, 1M keys':36s} {'hosts':>5s} {'by count':>10s} {'here':>12s}")
    reached = True
    for hosts in (16, 64):
        for name, sizes in distributions(1_000_000):
            found = split_sizes(sizes, hosts)
            reached &= found.imbalance <= min(EVEN, found.imbalance_by_row_count)
            print(f"{name:36s} {hosts:5d} {found.imbalance_by_row_count:10.6f} {found.imbalance:12.9f}")
    print(f"goal {EVEN}, and never above by count: {'met' if reached else 'MISSED'}")
    return reached


def stability() -> None:
    """How much has another host than before, when one key in a hundred is new."""
    print(f"{'moved of 1M keys, 1 % are new':36s} {'hosts':>5s} {'keys':>8s} {'bytes':>8s}   with previous")
    for name, sizes in distributions(1_000_000, 7):
        for where in ("all over", "at the end"):
            old = np.ones(len(sizes), bool)
            if where == "at the end":
                old[len(old) * 99 // 100 :] = False
            else:
                old = np.random.default_rng(6).random(len(old)) >= 0.01
            for hosts in (16, 64):
                previous = np.full(len(sizes), -1)
                previous[old] = split_sizes(sizes[old], hosts).hosts_of(0, int(old.sum()))
                changed = old & (split_sizes(sizes, hosts).hosts_of(0, len(sizes)) != previous)
                kept = split_sizes(sizes, hosts, previous=previous)
                keys, moved = changed.sum() / old.sum(), sizes[changed].sum() / sizes.sum()
                still = kept.moved[1] / sizes.sum() if kept.moved else 0.0
                what = f"{name}, {where}"
                print(f"{what:36s} {hosts:5d} {keys:8.2%} {moved:8.2%}   {still:.3%}, {kept.imbalance:.6f}")


def write_inventory(path: Path, count: int) -> None:
    """Keys as data sets have them, 44 bytes each, and lognormal sizes."""
    kept = {"smlaunch.bucket": "bucket", "smlaunch.prefix": "data/train/", "smlaunch.version": "1.0"}
    schema = pa.schema([("key", pa.string()), ("size", pa.int64())], metadata=kept)
    draw = np.random.default_rng(0)

    def digits(numbers: Any, width: int) -> Any:
        return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0")

    with pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=1, use_dictionary=False
    ) as file:
        for start in range(0, count, ROW_GROUP_ROWS):
            rows = np.arange(start, min(start + ROW_GROUP_ROWS, count))
            marks = rows * 4096 + draw.integers(0, 4096, len(rows))
            words = ("data/train/n", digits(rows // 1300, 8), "/", digits(marks, 15), ".JPEG", "")
            names = pc.binary_join_element_wise(*words)
            sizes = (draw.lognormal(0, 2.0, len(rows)) * 50_000).astype(np.int64)
            file.write_table(pa.table([names, sizes], schema=schema), row_group_size=ROW_GROUP_ROWS)


# ---- what is timed, each in a process of its own -----------------------------------------------------------


def assign(path: Path, hosts: int) -> float:
    sizes = Inventory(path).column("size")
    began = time.perf_counter()
    split_sizes(sizes, hosts)
    return time.perf_counter() - began


def heap(path: Path, hosts: int) -> float:
    """Largest first over all keys, as one would write it."""
    from heapq import heapify, heapreplace

    sizes = Inventory(path).column("size")
    began = time.perf_counter()
    order = np.argsort(-sizes, kind="stable")
    loads = [(0, host) for host in range(hosts)]
    heapify(loads)
    host_of = np.empty(len(sizes), dtype=np.int32)
    found = []
    for size in sizes[order].tolist():
        load, host = loads[0]
        found.append(host)
        heapreplace(loads, (load + size, host))
    host_of[order] = found
    return time.perf_counter() - began


def decode(path: Path, hosts: int) -> float:
    began = time.perf_counter()
    for _ in Inventory(path).batches():
        pass
    return time.perf_counter() - began


def whole(path: Path, hosts: int) -> float:
    from smlaunch.data.inventory_split import split_inventory
    from smlaunch.data.split_files import write_split

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        began = time.perf_counter()
        found = split_inventory(Inventory(path), hosts)
        write_split(found.keys, found.host_split, Path(folder, "out"), found.summary)
        return time.perf_counter() - began


def stream(path: Path, hosts: int) -> float:
    """``path`` is a number of keys here. The sizes are made block by block, twice."""
    count = int(path.name)

    def blocks() -> Iterator[Any]:
        for start in range(0, count, BLOCK_ROWS):
            draw = np.random.default_rng(start)
            yield draw.integers(1, 1 << 16, min(BLOCK_ROWS, count - start)) ** 2

    began = time.perf_counter()
    found = split_size_blocks(blocks, count, hosts)
    print(f"imbalance {found.imbalance:.9f}, by count {found.imbalance_by_row_count:.6f}", file=sys.stderr)
    return time.perf_counter() - began


def apart(what: Callable[[Path, int], float], path: Path, hosts: int, peaks: dict[str, float]) -> float:
    command = [sys.executable, __file__, "--only", what.__name__, "--path", str(path), "--hosts", str(hosts)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seconds, peak = json.loads(done.stdout)
    peaks[what.__name__] = max(peak, peaks.get(what.__name__, 0.0))
    return float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stream", type=int, default=100_000_000)
    parser.add_argument(
        "--stream-file", type=int, default=0, help="keys from a file to lists; 100 bytes each"
    )
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where the files are")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    hosts = arguments.hosts
    if arguments.only:
        seconds = globals()[arguments.only](arguments.path, hosts)
        print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000]))
        return
    reached = evenness()
    stability()
    peaks: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "keys.parquet"
        write_inventory(path, arguments.keys)
        print(f"{arguments.keys:,} keys, {hosts} hosts, {path.stat().st_size / 1e6:.0f} MB of Parquet")
        for baseline, other, goal in (("heap", "assign", ASSIGNED), ("decode", "whole", WHOLE)):
            names = {name: globals()[name] for name in (baseline, other)}
            measures = {name: lambda way=way: apart(way, path, hosts, peaks) for name, way in names.items()}
            reached &= report(interleave(measures, arguments.rounds), baseline, {other: goal})
    for name, peak in peaks.items():
        print(f"peak of {name}: {peak:.0f} MB")
    reached &= peaks["whole"] <= MOST_MB
    seconds = apart(stream, Path(str(arguments.stream)), hosts, peaks)
    print(f"{arguments.stream:,} keys in a stream: {seconds:.1f} s, peak {peaks['stream']:.0f} MB")
    if arguments.stream_file:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            path = Path(folder) / "keys.parquet"
            write_inventory(path, arguments.stream_file)
            peaks = {}
            seconds = apart(whole, path, hosts, peaks)
            mapped = path.stat().st_size / 1e6
            print(f"{arguments.stream_file:,} keys, from the file to lists: {seconds:.1f} s")
            print(f"peak {peaks['whole']:.0f} MB, of which the mapped file may be {mapped:.0f} MB")
    sys.exit(not reached)


if __name__ == "__main__":
    main()
