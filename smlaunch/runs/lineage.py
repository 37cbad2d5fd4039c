"""What the services know of a run: its jobs, its checkpoints, and the few files of its folder in S3.

There is no other memory. Whatever one client learned, any other learns here, from names, tags and S3.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from smlaunch.planning.reconcile import JobSeen
from smlaunch.planning.workflow import Workflow, ending_of
from smlaunch.ports import CallError, ObjectStorage
from smlaunch.protocol.checkpoint import OUTCOME, Outcome, parse_step
from smlaunch.protocol.names import TaskName, parse_task_name
from smlaunch.protocol.paths import RUNTIME_CHANNEL
from smlaunch.protocol.progress import steps_in
from smlaunch.protocol.segment import FROM_FILES, FROM_REPORTED, FROM_STEP, RUN
from smlaunch.runs.checkpoints import Checkpoints
from smlaunch.runs.follow import TERMINAL, host_number, host_of, log_group
from smlaunch.runs.retry import retrying
from smlaunch.runs.target import Target

CHAIN_FILE = "chain.json"
PARTS_FILE = "parts.json"
"""In the folder of a run in parts: the names of the parts' runs."""

LEFT_OUT_FILE = "left-out.json"
"""What was not sent of the source and of local inputs, and why, for a run that fails for the lack of it."""

STOP_FILE = "stop"
"""Its presence says that a person wants the run to start nothing more."""


_OURS = re.compile(rf"{re.escape(OUTCOME)}|\.{re.escape(OUTCOME)}\.\d+")
"""With what it is called while it is being written."""

_DIGITS = 16


@dataclass(frozen=True)
class RunFolder:
    """``s3://<bucket>/smlaunch/<run>/``: ``prefix`` ends in a slash."""

    bucket: str
    prefix: str

    @classmethod
    def of(cls, bucket: str, run: str) -> RunFolder:
        return cls(bucket, f"smlaunch/{run}/")

    @classmethod
    def found(cls, run: str, description: Mapping[str, Any]) -> RunFolder | None:
        """From where a job of the run gets its runtime; None for a job that smlaunch did not make."""
        for channel in description.get("InputDataConfig", []):
            if channel["ChannelName"] == RUNTIME_CHANNEL:
                uri = str(channel["DataSource"]["S3DataSource"]["S3Uri"])
                bucket, _, key = uri.removeprefix("s3://").partition("/")
                head, found, _ = key.partition(f"smlaunch/{run}/")
                return cls(bucket, head + found) if found else None
        return None

    def save(self, workflow: Workflow, storage: ObjectStorage) -> None:
        storage.put_bytes(self.bucket, self.prefix + CHAIN_FILE, workflow.to_json().encode())

    def load(self, storage: ObjectStorage) -> Workflow | None:
        """None for a run that is one job and needs none. Raises JobError when it cannot be read."""
        content = retrying(lambda: storage.get_bytes(self.bucket, self.prefix + CHAIN_FILE))
        return None if content is None else Workflow.from_json(content)

    def beside(self, run: str, other: str) -> RunFolder:
        """The folder of another run, where this one is ``run``'s."""
        return RunFolder(self.bucket, self.prefix.removesuffix(f"{run}/") + f"{other}/")

    def save_parts(self, runs: Sequence[str], storage: ObjectStorage) -> None:
        content = json.dumps({"version": "1.0", "runs": list(runs)}) + "\n"
        storage.put_bytes(self.bucket, self.prefix + PARTS_FILE, content.encode())

    def load_parts(self, storage: ObjectStorage) -> list[str] | None:
        """None for a run that is not in parts."""
        content = retrying(lambda: storage.get_bytes(self.bucket, self.prefix + PARTS_FILE))
        return None if content is None else [str(run) for run in json.loads(content)["runs"]]

    def save_left_out(self, files: Mapping[str, str], storage: ObjectStorage) -> None:
        if files:
            content = json.dumps({"version": "1.0", "files": dict(files)}) + "\n"
            storage.put_bytes(self.bucket, self.prefix + LEFT_OUT_FILE, content.encode())

    def load_left_out(self, storage: ObjectStorage) -> dict[str, str]:
        content = storage.get_bytes(self.bucket, self.prefix + LEFT_OUT_FILE)
        return {} if content is None else {str(k): str(v) for k, v in json.loads(content)["files"].items()}

    def stop_wanted(self, storage: ObjectStorage) -> bool:
        return retrying(lambda: storage.size(self.bucket, self.prefix + STOP_FILE)) is not None

    def want_stop(self, storage: ObjectStorage, wanted: bool) -> None:
        if wanted:
            storage.put_bytes(self.bucket, self.prefix + STOP_FILE, b"")
        else:
            storage.delete(self.bucket, [self.prefix + STOP_FILE])


class Kept(NamedTuple):
    """What lies in the run's checkpoint prefix. ``step``: the newest whole one, 0 for none. ``files``:
    without one, a digest of the names and contents of the script's own files; empty where there are none."""

    step: int = 0
    outcome: Outcome | None = None
    files: str = ""


def kept_at(checkpoints: Checkpoints | None, storage: ObjectStorage) -> Kept:
    """Reads names, sizes, manifests and the outcome: no part is downloaded."""
    if checkpoints is None:
        return Kept()
    outcome = checkpoints.outcome()
    whole = checkpoints.committed()
    if whole:
        return Kept(whole[0].step, outcome)
    try:
        rows = retrying(lambda: list(storage.list(checkpoints.bucket, checkpoints.prefix)))
    except CallError as error:
        if error.code != "NoSuchBucket":
            raise
        return Kept(0, outcome)
    return Kept(0, outcome, _digest((row.key[len(checkpoints.prefix) :], row.size, row.etag) for row in rows))


def _digest(files: Iterable[tuple[str, int, str | None]]) -> str:
    own = [
        file
        for file in files
        if _OURS.fullmatch(file[0]) is None and parse_step(file[0].split("/")[0]) is None
    ]
    return hashlib.sha256(repr(sorted(own)).encode()).hexdigest()[:_DIGITS] if own else ""


def reported_in_log(description: Mapping[str, Any], target: Target) -> int | None:
    """The highest step at the end of a job's log: for a job whose host did not live to tell. None where the
    log has none, or may not be read."""
    job, group = str(description["TrainingJobName"]), log_group(description)
    try:
        streams = {
            name: host_of(job, name) for name in retrying(partial(target.logs.streams, group, job + "/"))
        }
        leader = min(streams.values(), key=host_number, default=None)
        tails = [
            retrying(partial(target.logs.tail, group, name))
            for name, host in streams.items()
            if host == leader
        ]
    except CallError:
        return None
    return max(
        (step for tail in tails for event in tail for step in steps_in(event.text.encode())), default=None
    )


class Lineage:
    """The jobs of one run. What has ended is asked about once: it does not change any more."""

    def __init__(self, run: str, target: Target) -> None:
        self.run = run
        self._target = target
        self._descriptions: dict[TaskName, dict[str, Any]] = {}

    def descriptions(self) -> dict[TaskName, dict[str, Any]]:
        """DescribeTrainingJob's answers as they are now, oldest first."""
        control = self._target.control
        # The list may lag behind a job made a moment ago: what was once seen stays known.
        names = set(self._descriptions)
        for summary in retrying(lambda: list(control.list(f"{self.run}-s"))):
            name = parse_task_name(summary.name)
            if name is not None and name.run == self.run:
                names.add(name)
        for name in names:
            known = self._descriptions.get(name, {})
            if known.get("TrainingJobStatus") not in TERMINAL:
                self._descriptions[name] = retrying(partial(control.describe, str(name)))
        self._descriptions = dict(sorted(self._descriptions.items()))
        return dict(self._descriptions)

    @property
    def known(self) -> list[dict[str, Any]]:
        """What was last seen of each job that was seen at all, oldest first."""
        return [answer for _, answer in sorted(self._descriptions.items()) if answer]

    def expect(self, name: TaskName) -> None:
        """A job that has just been made."""
        self._descriptions.setdefault(name, {})


def orchestrated_run(description: Mapping[str, Any]) -> str | None:
    """Which run a job says it is of; None for one that no orchestrator asked for (export.flow)."""
    run = description.get("Environment", {}).get(RUN)
    return None if run is None else str(run)


def seen(name: TaskName, description: Mapping[str, Any]) -> JobSeen:
    """One description, as far as deciding goes."""
    status = str(description["TrainingJobStatus"])
    reason = str(description.get("FailureReason", ""))
    environment = description.get("Environment", {})
    ended = description.get("TrainingEndTime") or description.get("LastModifiedTime")
    ending = ending_of(status, str(description.get("SecondaryStatus", status)), reason)
    return JobSeen(
        segment=name.segment,
        attempt=name.attempt,
        ending=ending,
        reason=reason,
        ended=ended.timestamp() if ending is not None and isinstance(ended, datetime) else None,
        training_seconds=float(description.get("TrainingTimeInSeconds") or 0),
        billable_seconds=float(description.get("BillableTimeInSeconds") or 0),
        spot=bool(description.get("EnableManagedSpotTraining")),
        from_step=_number(environment.get(FROM_STEP)) or 0,
        from_reported=_number(environment.get(FROM_REPORTED)),
        from_files=str(environment.get(FROM_FILES, "")),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
