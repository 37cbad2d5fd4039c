"""The segment that a host's ranks train: variables that the runtime sets for every rank.

A script that does not read them can be trained too. ``smlaunch.train`` reads them for scripts that use it.
"""

from typing import Dict, Mapping, NamedTuple, Optional

from smlaunch.contract.run_names import CheckpointWriter
from smlaunch.contract.s3_uri import split_s3_uri

RUN_VARIABLE = "SMLAUNCH_RUN"
JOB_VARIABLE = "SMLAUNCH_JOB"
"""The training job's name; segment and attempt are parsed from it where smlaunch named it."""

SEGMENT_VARIABLE = "SMLAUNCH_SEGMENT"
ATTEMPT_VARIABLE = "SMLAUNCH_ATTEMPT"
CHECKPOINTS_VARIABLE = "SMLAUNCH_CHECKPOINTS"
"""The checkpoint directory on this host."""

CHECKPOINTS_URI_VARIABLE = "SMLAUNCH_CHECKPOINTS_URI"
UPLOAD_VARIABLE = "SMLAUNCH_CHECKPOINT_UPLOAD"
"""SYNC: the service synchronizes the directory with S3. DIRECT: ranks upload their own shards."""

KEEP_VARIABLE = "SMLAUNCH_CHECKPOINT_KEEP"
INTERVAL_VARIABLE = "SMLAUNCH_CHECKPOINT_INTERVAL"
"""Seconds between two checkpoints; without it they follow from what a checkpoint costs."""

FAILURE_SECONDS_VARIABLE = "SMLAUNCH_FAILURE_SECONDS"
"""Mean time between failures that the plan assumes."""

BUCKET_OWNERS_VARIABLE = "SMLAUNCH_BUCKET_OWNERS"
"""In the request's Environment: the accounts that own buckets, as ``bucket=account``, with spaces between."""

STOP_FILE_VARIABLE = "SMLAUNCH_STOP_FILE"
"""A file that appears on the host when its ranks should exit: at the planned end, or on SIGTERM."""

STOP_AT_VARIABLE = "SMLAUNCH_STOP_AT"
"""When the planned end is: seconds since the epoch."""

STOP_AFTER_VARIABLE = "SMLAUNCH_STOP_AFTER"
"""In the request's Environment: seconds from the start of an attempt to its planned end."""

UNTIL_STEP_VARIABLE = "SMLAUNCH_UNTIL_STEP"
"""In the request's Environment: the segment ends after this training step."""

FROM_STEP_VARIABLE = "SMLAUNCH_FROM_STEP"
"""In the request's Environment: the newest committed step when the job was submitted. It shows drivers of the
run, at any later time, what each job added."""

FROM_REPORTED_VARIABLE = "SMLAUNCH_FROM_REPORTED"
"""In the request's Environment: the highest step that jobs before had reported when the run last made
progress. The host's runtime compares what its ranks report with it."""

FROM_FILES_VARIABLE = "SMLAUNCH_FROM_FILES"
"""In the request's Environment, for a script that reports no step: a digest of its checkpoint files when the
run last made progress."""

DRIVER_VARIABLE = "SMLAUNCH_DRIVER"
"""In the request's Environment, where an orchestrator submits the jobs: the ARN, or another identifier, of
the execution that submitted this one. The state of the run can be read there.
"""

REPORT_FINISHED_VARIABLE = "SMLAUNCH_REPORT_FINISHED"
"""In the request's Environment: the leader prints FINISHED_LINE, with 0 when a segment begins and 1 when the
training has come to its end, for drivers that can see a job's metrics and nothing else. It is a hint: what
counts is the outcome file."""

FINISHED_LINE_PREFIX = "metric finished="
"""After progress.MARK, and before 0 or 1."""

INTERNAL_METRIC_PREFIX = "smlaunch:"
"""Prefix of metrics that only pipelines use."""

FINISHED_METRIC = INTERNAL_METRIC_PREFIX + "finished"
"""The name of this metric in the job."""

REQUIRED_METRICS_VARIABLE = "SMLAUNCH_REQUIRED"
"""In the request's Environment, beside REPORT_FINISHED: metrics that will be queried, with values that do
not meet what is required of them (``accuracy=-0.1 loss=2``). The leader prints them when a segment begins,
behind REQUIRED_LINE: a segment that has not come to its end has none of its own, and asking for what is not
there fails."""

REQUIRED_LINE_PREFIX = "required "
"""After progress.MARK, and before a name and a value."""

DETERMINISTIC_VARIABLE = "SMLAUNCH_DETERMINISTIC"

TRACE_VARIABLE = "SMLAUNCH_TRACE"
"""In the request's Environment: directory to which ranks write what they did in each step."""

OWN_PREFIX = "SMLAUNCH_"
"""Prefix of all variables of this program; a job's own have other names."""

SYNC = "sync"
DIRECT = "direct"
UPLOAD_MODES = (SYNC, DIRECT)


class Segment(NamedTuple):
    """The segment that this process trains."""

    run: Optional[str] = None
    job: Optional[str] = None
    segment: int = 1
    attempt: int = 1
    checkpoint_dir: Optional[str] = None
    """None where no checkpoints are kept."""

    checkpoints_uri: Optional[str] = None
    upload_mode: str = SYNC
    keep_steps: int = 3
    """Number of committed steps that are kept."""

    interval_seconds: Optional[float] = None
    """Between checkpoints; None: derived from their cost."""

    failure_seconds: Optional[float] = None
    """Mean time between failures."""

    stop_file: Optional[str] = None
    """Appears when the ranks should exit."""

    stop_at: Optional[float] = None
    """The planned end, in seconds since the epoch."""

    until_step: Optional[int] = None
    deterministic: bool = False
    bucket_owner: Optional[str] = None
    """The account that owns the bucket of ``checkpoints_uri``; None where it is unknown."""

    job_hash: Optional[str] = None
    """Of the job that was launched, as job.json has it; ranks do not get it."""

    @property
    def writer(self) -> CheckpointWriter:
        """The writer of its checkpoints and its outcome."""
        return CheckpointWriter(self.run, self.segment, self.attempt)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Segment":
        """Return the segment by the variables SMLAUNCH_... of a job. Raises ValueError naming one that cannot
        be read.
        """
        checkpoints_location = split_s3_uri(environ.get(CHECKPOINTS_URI_VARIABLE) or "")
        bucket_owner = None
        if checkpoints_location is not None:
            bucket_name, _ = checkpoints_location
            bucket_owner = parse_bucket_owners(environ).get(bucket_name)
        return cls(
            run=environ.get(RUN_VARIABLE) or None,
            job=environ.get(JOB_VARIABLE) or None,
            segment=int(_parse_number(environ, SEGMENT_VARIABLE) or 1),
            attempt=int(_parse_number(environ, ATTEMPT_VARIABLE) or 1),
            checkpoint_dir=environ.get(CHECKPOINTS_VARIABLE) or None,
            checkpoints_uri=environ.get(CHECKPOINTS_URI_VARIABLE) or None,
            upload_mode=environ.get(UPLOAD_VARIABLE) or SYNC,
            keep_steps=int(_parse_number(environ, KEEP_VARIABLE) or 3),
            interval_seconds=_parse_number(environ, INTERVAL_VARIABLE),
            failure_seconds=_parse_number(environ, FAILURE_SECONDS_VARIABLE),
            stop_file=environ.get(STOP_FILE_VARIABLE) or None,
            stop_at=_parse_number(environ, STOP_AT_VARIABLE),
            until_step=_parse_integer(environ, UNTIL_STEP_VARIABLE),
            deterministic=environ.get(DETERMINISTIC_VARIABLE) == "1",
            bucket_owner=bucket_owner,
        )

    def to_environment(self) -> Dict[str, str]:
        """Return the variables that ``from_environment`` reads; a field that is None has no variable."""
        checkpoints_location = split_s3_uri(self.checkpoints_uri or "")
        bucket_owners = None
        if checkpoints_location is not None and self.bucket_owner is not None:
            bucket_name, _ = checkpoints_location
            bucket_owners = format_bucket_owners({bucket_name: self.bucket_owner})
        variables = {
            RUN_VARIABLE: self.run,
            JOB_VARIABLE: self.job,
            SEGMENT_VARIABLE: self.segment,
            ATTEMPT_VARIABLE: self.attempt,
            CHECKPOINTS_VARIABLE: self.checkpoint_dir,
            CHECKPOINTS_URI_VARIABLE: self.checkpoints_uri,
            UPLOAD_VARIABLE: self.upload_mode,
            KEEP_VARIABLE: self.keep_steps,
            INTERVAL_VARIABLE: self.interval_seconds,
            FAILURE_SECONDS_VARIABLE: self.failure_seconds,
            STOP_FILE_VARIABLE: self.stop_file,
            STOP_AT_VARIABLE: self.stop_at,
            UNTIL_STEP_VARIABLE: self.until_step,
            DETERMINISTIC_VARIABLE: "1" if self.deterministic else None,
            BUCKET_OWNERS_VARIABLE: bucket_owners,
        }
        return {name: str(value) for name, value in variables.items() if value is not None}


def format_bucket_owners(owners: Mapping[str, str]) -> str:
    """The text of BUCKET_OWNERS_VARIABLE. ``owners``: accounts by bucket name."""
    return " ".join("{}={}".format(*pair) for pair in sorted(owners.items()))


def parse_bucket_owners(environ: Mapping[str, str]) -> Dict[str, str]:
    """Accounts by bucket name, from BUCKET_OWNERS_VARIABLE."""
    pairs = (entry.partition("=") for entry in environ.get(BUCKET_OWNERS_VARIABLE, "").split())
    return {bucket: account for bucket, equals, account in pairs if equals}


def _parse_number(environ: Mapping[str, str], name: str) -> Optional[float]:
    """None for a missing variable. Raises ValueError naming one that is no number."""
    text = environ.get(name)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError("{}: a number is needed, not {!r}".format(name, text)) from None


def _parse_integer(environ: Mapping[str, str], name: str) -> Optional[int]:
    number = _parse_number(environ, name)
    return None if number is None else int(number)
