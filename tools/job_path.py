"""Follow a job from `plan()` to its plan: which packages it passes through, and how often it comes back to
one.

    python tools/job_path.py [--json]

A stop is a stay in one package of smlaunch/ (or in one file): consecutive calls that receive the job, or an
object one of whose attributes is the job. A return is a stop in a package (or a file) that was left before.
Calls of `__init__`, properties and nested functions count like all others; what receives no job does not. The
job is a training script on two hosts of the region us-east-1, planned without a network: the service's
answers are those of tests/runs/fakes.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "smlaunch"
SCRIPT = (
    "import torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\nprint('loss=1.0')\n"
)


class JobPath(NamedTuple):
    """Where the job came, in this order."""

    packages: list[str]
    files: list[str]
    function_count: int
    """Different functions that received the job."""

    def figures(self) -> dict[str, int]:
        return {
            "package_stops": len(self.packages),
            "package_returns": count_returns(self.packages),
            "file_stops": len(self.files),
            "file_returns": count_returns(self.files),
            "functions": self.function_count,
        }


def count_returns(stops: list[str]) -> int:
    """Return how many stops are at a place that was left before."""
    return len(stops) - len(set(stops))


class _Follower:
    def __init__(self, job_type: type) -> None:
        self._job_type = job_type
        self.packages: list[str] = []
        self.files: list[str] = []
        self.functions: set[tuple[str, int]] = set()

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call":
            return
        file = Path(frame.f_code.co_filename)
        if PACKAGE not in file.parents or not self._receives_job(frame):
            return
        self.functions.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))
        name = file.relative_to(PACKAGE).as_posix()
        _append_if_new(self.packages, name.partition("/")[0])
        _append_if_new(self.files, name)

    def _receives_job(self, frame: FrameType) -> bool:
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return any(self._is_or_has_job(frame.f_locals.get(name)) for name in names)

    def _is_or_has_job(self, value: Any) -> bool:
        if isinstance(value, self._job_type):
            return True
        try:
            attributes = vars(value)
        except TypeError:
            return isinstance(value, tuple) and any(isinstance(member, self._job_type) for member in value)
        return any(isinstance(attribute, self._job_type) for attribute in attributes.values())


def _append_if_new(stops: list[str], place: str) -> None:
    if stops[-1:] != [place]:
        stops.append(place)


def follow_job() -> JobPath:
    from smlaunch import Job, plan
    from smlaunch.job.model import Compute
    from tests.runs.fakes import fake_target

    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        job = Job(
            entry=str(script),
            strategy="ddp",
            compute=Compute(instance_type="ml.g5.xlarge", hosts=2),
            role="arn:aws:iam::123456789012:role/Training",
        )
        target = fake_target()
        plan(job, target)  # imports everything
        follower = _Follower(Job)
        sys.setprofile(follower)
        try:
            plan(job, target)
        finally:
            sys.setprofile(None)
    return JobPath(follower.packages, follower.files, len(follower.functions))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    is_json = parser.parse_args().json
    sys.path.insert(0, str(ROOT))
    path = follow_job()
    if is_json:
        print(json.dumps({**path.figures(), **path._asdict()}))
    else:
        print(" > ".join(path.files))
        print(", ".join(f"{name} {number}" for name, number in path.figures().items()))


if __name__ == "__main__":
    main()
