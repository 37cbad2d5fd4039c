"""What an answered PUT costs: 4 KB by one connection and by eight, beside moto's server, which syncs nothing,
and beside the disk's own word: a file of 4 KB, written and synced with its folder.

    python benchmarks/puts.py [ROUNDS] [--moto PYTHON] [--before CHECKOUT]

``--moto``: a Python that has moto[s3,server]. ``--before``: another checkout of smlaunch to compare with.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config
from harness import interleave, report

ROOT = Path(__file__).resolve().parent.parent
BODY = os.urandom(4096)
PUTS = 64
CONNECTIONS = (1, 8)


def client(url: str, key: str, secret: str) -> Any:
    session = botocore.session.Session()
    session.set_credentials(key, secret)
    config = Config(max_pool_connections=8, s3={"addressing_style": "path"}, proxies={})
    made = session.create_client("s3", region_name="us-east-1", endpoint_url=url, config=config)
    made.create_bucket(Bucket="puts")
    return made


@contextmanager
def endpoint(checkout: Path, home: Path) -> Iterator[Any]:
    words = [sys.executable, "-m", "tests.local.endpoint_process", str(home), "plain", "embedded", "{}"]
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        info = json.loads(process.stdout.readline())
        yield client(info["url"], info["access_key"], info["secret_key"])
        process.stdin.close()


@contextmanager
def moto(python: str, port: int = 5099) -> Iterator[Any]:
    process = subprocess.Popen(
        [python, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            try:
                made = client(f"http://127.0.0.1:{port}", "k", "s")
                break
            except botocore.exceptions.EndpointConnectionError:
                time.sleep(0.1)
        yield made
    finally:
        process.terminate()
        process.wait()


def putting(s3: Any, connections: int) -> Callable[[], float]:
    """Seconds per PUT."""
    numbers = count()

    def some(mine: list[int]) -> None:
        for number in mine:
            s3.put_object(Bucket="puts", Key=f"folder/{number}", Body=BODY)

    def measure() -> float:
        keys = [next(numbers) for _ in range(PUTS)]
        threads = [threading.Thread(target=some, args=(keys[at::connections],)) for at in range(connections)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (time.perf_counter() - started) / PUTS

    return measure


def syncing(folder: Path) -> Callable[[], float]:
    """Seconds per file."""
    numbers = count()

    def measure() -> float:
        above = os.open(folder, os.O_RDONLY)
        started = time.perf_counter()
        for _ in range(PUTS):
            descriptor = os.open(folder / str(next(numbers)), os.O_WRONLY | os.O_CREAT)
            os.write(descriptor, BODY)
            os.fsync(descriptor)
            os.close(descriptor)
            os.fsync(above)
        seconds = (time.perf_counter() - started) / PUTS
        os.close(above)
        return seconds

    return measure


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("rounds", nargs="?", type=int, default=9)
    words.add_argument("--moto")
    words.add_argument("--before", type=Path)
    chosen = words.parse_args()
    # Not /tmp, which may be memory: there nothing is ever synced.
    folder = Path(tempfile.mkdtemp(prefix=".bench-puts-", dir=ROOT))
    try:
        with ExitStack() as stack:
            servers = {"this": stack.enter_context(endpoint(ROOT, folder / "home"))}
            if chosen.before:
                servers["before"] = stack.enter_context(endpoint(chosen.before, folder / "before"))
            if chosen.moto:
                servers["moto"] = stack.enter_context(moto(chosen.moto))
            measures: dict[str, Callable[[], float]] = {
                f"{name}, {connections} connection{'s' if connections > 1 else ''}": putting(s3, connections)
                for connections in CONNECTIONS
                for name, s3 in servers.items()
            }
            (folder / "synced").mkdir()
            measures["the disk: write, fsync, fsync of the folder"] = syncing(folder / "synced")
            report(interleave(measures, chosen.rounds), next(iter(measures)))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
