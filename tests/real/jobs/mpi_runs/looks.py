"""A rank prints its variables, and the files of its host in which the job's secret must not be."""

import json
import os
from pathlib import Path

from mpi4py import MPI

SECRET = Path("/opt/ml/input/data/smlaunch/secret").read_bytes().strip()


def holds_secret(path: Path) -> bool:
    if path.is_fifo():
        return False
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return SECRET in content or bytes.fromhex(SECRET.decode()) in content


def main() -> None:
    MPI.COMM_WORLD.Barrier()  # all daemons and remote shells are there
    files = [path for name in ("cmdline", "environ") for path in Path("/proc").glob(f"[0-9]*/{name}")]
    temporary = [path for top in Path("/tmp").glob("smlaunch-*") for path in (top, *top.rglob("*"))]
    assert temporary
    job = Path("/opt/ml/input/data/smlaunch/job.json")
    paths_with_secret = [str(path) for path in (*files, *temporary, job) if holds_secret(path)]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "SM_CURRENT_HOST", "OWN")
    values = {name: os.environ[name] for name in names}
    values["port"] = os.environ["MASTER_PORT"].isdigit()
    values["source"] = Path.cwd() == Path("/opt/ml/code") and os.environ["PYTHONPATH"].startswith(
        "/opt/ml/code"
    )
    print(
        "place " + json.dumps({**values, "processes": len(files) > 6, "secret in": paths_with_secret}),
        flush=True,
    )
    MPI.COMM_WORLD.Barrier()


main()
