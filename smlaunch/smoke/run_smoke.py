"""Runs the smoke job on a target: launches it, watches it, stops it, and reads what it has left."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from smlaunch.aws.interfaces import CallError
from smlaunch.aws.service_errors import to_user_error
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.errors import EXIT_SERVICE, EXIT_STOPPED, SmlaunchError
from smlaunch.job.model import Job
from smlaunch.planner.plan import RunPlan
from smlaunch.runs.job_poller import LogLine, StateChange
from smlaunch.runs.launch_plan import launch
from smlaunch.runs.launch_target import Target
from smlaunch.runs.plan_job import prepare
from smlaunch.runs.run import Run
from smlaunch.runs.run_outcome import RunOutcome
from smlaunch.smoke.checks import Observations, SmokeCheck, describe_end, evaluate
from smlaunch.smoke.smoke import AFTER_STOP, BEFORE_STOP

MAX_RUNTIME = "5m"
"""The service ends the job after that, whatever becomes of this client."""

_PROGRAM_SECONDS = 240
"""How long the program waits to be stopped; then it ends by itself."""

_STATES_BEFORE_THE_END = frozenset(
    ("Starting", "Pending", "LaunchingMLInstances", "PreparingTrainingStack")
    + ("Downloading", "DownloadingTrainingImage", "Training", "Restarting")
)
"""Secondary statuses of a job that trains or is going to (DescribeTrainingJob, SecondaryStatus)."""

_SYNC_SECONDS = 120.0
"""How long a checkpoint may take to appear in S3 before the job is stopped without it."""


class SmokeResult(NamedTuple):
    """The end of a smoke job."""

    run: str
    instance_type: str
    image: str
    checks: list[SmokeCheck]
    exit_code: int
    """0: all is confirmed. Otherwise that of the job, or of a service that did not do what was checked."""
    end: str
    """How the job ended, as a clause."""
    prefix: str
    """Where the run's files are in S3."""


def run_smoke(
    target: Target,
    instance_type: str,
    role: str | None,
    on_plan: Callable[[RunPlan], None],
    on_message: Callable[[str], None],
) -> SmokeResult:
    """Run the job to its end. ``on_plan`` gets the plan before anything is launched. Raises as ``prepare``
    and ``launch`` do; what fails later is a check that fails. An interrupt stops the job and is raised."""
    nonce = secrets.token_hex(16)
    with TemporaryDirectory(prefix="smlaunch-smoke-") as folder:
        prepared = prepare(_smoke_job(Path(folder), nonce, instance_type, role), target)
        prepared.require_account()
        on_plan(prepared.plan)
        run = launch(prepared, on_message=on_message)
    plan = prepared.plan
    observed = Observations(nonce, hashlib.sha256(nonce.encode()).hexdigest())
    checkpoints = str(plan.requests[0]["CheckpointConfig"]["S3Uri"])
    outcome = None
    try:
        _watch(run, checkpoints, observed)
        outcome = run.describe()
    except (SmlaunchError, CallError) as error:
        observed.problem = _describe(error, target)
    except BaseException:
        run.stop()
        raise
    if outcome is not None:
        _read_end(outcome, checkpoints, target, observed)
    checks = evaluate(observed)
    return SmokeResult(
        run.name,
        instance_type,
        str(plan.image),
        checks,
        _exit_code(checks, outcome),
        describe_end(observed),
        f"s3://{plan.facts.bucket}/smlaunch/{run.name}/",
    )


def _smoke_job(folder: Path, nonce: str, instance_type: str, role: str | None) -> Job:
    """Return the job. Its files are in ``folder``, from which they are uploaded."""
    source, data = folder / "source", folder / "data"
    source.mkdir()
    data.mkdir()
    program = files("smlaunch.smoke").joinpath("smoke.py").read_bytes()
    (source / "smoke.py").write_bytes(program)
    (data / "nonce.txt").write_text(nonce)
    return Job.from_mapping(
        {
            "entry": str(source / "smoke.py"),
            "source": str(source),
            "args": [nonce, str(_PROGRAM_SECONDS)],
            "inputs": {"probe": str(data)},
            "compute": {"hosts": 1, "processes_per_host": 1, "instance_type": instance_type},
            "limits": {"max_runtime": MAX_RUNTIME, "attempts": 1},
            "checkpoints": {"upload": "sync"},
            **({} if role is None else {"role": role}),
        }
    )


def _watch(run: Run, checkpoints_uri: str, observed: Observations) -> None:
    """Follow the job to its end, and stop it as soon as it waits and its checkpoint is in S3."""
    written_at = None
    for follower in run.follow():
        for events in follower.event_batches():
            states = [event.state for event in events if isinstance(event, StateChange)]
            observed.has_ended = observed.has_ended or not _STATES_BEFORE_THE_END.issuperset(states)
            for event in events:
                if isinstance(event, LogLine):
                    observed.add_line(event.text.rstrip("\n"))
            if not observed.is_waiting:
                continue
            written_at = written_at or time.monotonic()
            waited = time.monotonic() - written_at
            content = _read(run.target, checkpoints_uri, BEFORE_STOP)
            if content is None and waited < _SYNC_SECONDS:
                continue
            if content is not None:
                observed.synced_seconds = waited
                observed.is_checkpoint_changed = content != observed.nonce.encode()
            observed.is_stop_requested = True
            try:
                run.stop()
            except SmlaunchError as error:
                observed.stop_problem = f"{error}; the job ends by itself within {MAX_RUNTIME}"
                return


def _read_end(outcome: RunOutcome, checkpoints_uri: str, target: Target, observed: Observations) -> None:
    job = outcome.last_job
    observed.status, observed.failure_reason = job.status, job.failure_reason
    observed.billable_seconds = job.billable_seconds
    try:
        observed.saved_after_stop = _read(target, checkpoints_uri, AFTER_STOP) == observed.nonce.encode()
        model = split_s3_uri(job.model_artifacts or "")
        observed.has_model = model is not None and target.storage.object_size(*model) is not None
    except CallError as error:
        observed.problem = _describe(error, target)


def _read(target: Target, uri: str, name: str) -> bytes | None:
    location = split_s3_uri(uri)
    if location is None:
        return None
    bucket, prefix = location
    return target.storage.get_bytes(bucket, f"{prefix.rstrip('/')}/{name}")


def _describe(error: SmlaunchError | CallError, target: Target) -> str:
    if isinstance(error, CallError):
        return str(to_user_error(error, target.location, target.credential_source))
    return str(error)


def _exit_code(checks: list[SmokeCheck], outcome: RunOutcome | None) -> int:
    """Return the command's exit code: that of a job that failed by itself, otherwise that of a service that
    has not done what was checked."""
    if all(check.verdict == "confirmed" for check in checks):
        return 0
    job_code = None if outcome is None else outcome.exit_code
    return job_code if job_code not in (None, 0, EXIT_STOPPED) else EXIT_SERVICE
