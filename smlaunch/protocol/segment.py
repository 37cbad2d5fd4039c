"""What a host tells its ranks about the segment they train: variables that the runtime sets for every rank.

A script that does not read them trains all the same. ``smlaunch.train`` reads them for scripts that use it.
"""

from typing import Dict, Mapping, NamedTuple, Optional

from smlaunch.protocol.addresses import split_s3

RUN = "SMLAUNCH_RUN"
JOB = "SMLAUNCH_JOB"
"""The training job's own name; segment and attempt are read from it where it is one of ours."""

SEGMENT = "SMLAUNCH_SEGMENT"
ATTEMPT = "SMLAUNCH_ATTEMPT"
CHECKPOINTS = "SMLAUNCH_CHECKPOINTS"
"""The directory on this host that checkpoints are kept in."""

CHECKPOINTS_URI = "SMLAUNCH_CHECKPOINTS_URI"
CARRIER = "SMLAUNCH_CARRIER"
"""SYNC: the service keeps the directory and CHECKPOINTS_URI equal. DIRECT: ranks move their own parts."""

KEEP = "SMLAUNCH_KEEP"
INTERVAL = "SMLAUNCH_CHECKPOINT_INTERVAL"
"""Seconds between two checkpoints; without it they follow from what a checkpoint costs."""

FAILURE_SECONDS = "SMLAUNCH_FAILURE_SECONDS"
"""Mean time between failures that the plan reckons with."""

OWNERS = "SMLAUNCH_BUCKET_OWNERS"
"""In the request's Environment: the accounts that own buckets, as ``bucket=account``, with spaces between."""

STOP_FILE = "SMLAUNCH_STOP_FILE"
"""A file that appears on the host when its ranks are to leave: at the planned end, or on SIGTERM."""

STOP_AT = "SMLAUNCH_STOP_AT"
"""When the planned end is: seconds since the epoch."""

STOP_AFTER = "SMLAUNCH_STOP_AFTER"
"""In the request's Environment: seconds from the start of an attempt to its planned end."""

UNTIL_STEP = "SMLAUNCH_UNTIL_STEP"
"""In the request's Environment: the segment ends after this training step."""

FROM_STEP = "SMLAUNCH_FROM_STEP"
"""In the request's Environment: the newest committed step when the job was asked for. Whoever drives the run
learns from it, at any later time, what each job added."""

FROM_REPORTED = "SMLAUNCH_FROM_REPORTED"
"""In the request's Environment: the highest step that jobs before had reported when the run last made
progress. The host's runtime compares what its ranks report with it."""

FROM_FILES = "SMLAUNCH_FROM_FILES"
"""In the request's Environment, for a script that reports no step: a digest of its checkpoint files when the
run last made progress."""

DRIVER = "SMLAUNCH_DRIVER"
"""In the request's Environment, where an orchestrator asks for the jobs: the ARN of the execution that asked
for this one, or what else says which it is. Whoever looks at the run learns there how it stands."""

TELL_FINISHED = "SMLAUNCH_TELL_FINISHED"
"""In the request's Environment: the leader prints FINISHED_LINE, with 0 when a segment begins and 1 when the
training has come to its end, for drivers that can see a job's metrics and nothing else. It is a hint: what
counts is ``outcome.json``."""

FINISHED_LINE = "metric finished="
"""After progress.MARK, and before 0 or 1."""

OWN_METRICS = "smlaunch:"
"""Before the names of those that are a pipeline's to ask for, and no person's."""

FINISHED_METRIC = OWN_METRICS + "finished"
"""As which a job's metrics have it."""

REQUIRED = "SMLAUNCH_REQUIRED"
"""In the request's Environment, beside TELL_FINISHED: metrics that will be asked for, with values that do not
meet what is required of them (``accuracy=-0.1 loss=2``). The leader prints them when a segment begins, behind
REQUIRED_LINE: a segment that has not come to its end has none of its own, and asking for what is not there
fails."""

REQUIRED_LINE = "required "
"""After progress.MARK, and before a name and a value."""

DETERMINISTIC = "SMLAUNCH_DETERMINISTIC"

SYNC = "sync"
DIRECT = "direct"
CARRIERS = (SYNC, DIRECT)


class Segment(NamedTuple):
    """``checkpoints`` is None where nobody keeps any. Times in seconds; ``stop_at`` since the epoch."""

    run: Optional[str] = None
    job: Optional[str] = None
    segment: int = 1
    attempt: int = 1
    checkpoints: Optional[str] = None
    uri: Optional[str] = None
    carrier: str = SYNC
    keep: int = 3
    interval: Optional[float] = None
    failure_seconds: Optional[float] = None
    stop_file: Optional[str] = None
    stop_at: Optional[float] = None
    until_step: Optional[int] = None
    deterministic: bool = False
    bucket_owner: Optional[str] = None
    """The account that owns the bucket of ``uri``; None where nobody has said."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Segment":
        """Raises ValueError naming the variable that cannot be read."""
        place = split_s3(environ.get(CHECKPOINTS_URI) or "")
        return cls(
            run=environ.get(RUN) or None,
            job=environ.get(JOB) or None,
            segment=int(_number(environ, SEGMENT) or 1),
            attempt=int(_number(environ, ATTEMPT) or 1),
            checkpoints=environ.get(CHECKPOINTS) or None,
            uri=environ.get(CHECKPOINTS_URI) or None,
            carrier=environ.get(CARRIER) or SYNC,
            keep=int(_number(environ, KEEP) or 3),
            interval=_number(environ, INTERVAL),
            failure_seconds=_number(environ, FAILURE_SECONDS),
            stop_file=environ.get(STOP_FILE) or None,
            stop_at=_number(environ, STOP_AT),
            until_step=_whole(environ, UNTIL_STEP),
            deterministic=environ.get(DETERMINISTIC) == "1",
            bucket_owner=None if place is None else owners_in(environ).get(place[0]),
        )

    def to_environment(self) -> Dict[str, str]:
        """The variables that ``from_environment`` reads; what is None has none."""
        place, owner = split_s3(self.uri or ""), self.bucket_owner
        values = {
            RUN: self.run,
            JOB: self.job,
            SEGMENT: self.segment,
            ATTEMPT: self.attempt,
            CHECKPOINTS: self.checkpoints,
            CHECKPOINTS_URI: self.uri,
            CARRIER: self.carrier,
            KEEP: self.keep,
            INTERVAL: self.interval,
            FAILURE_SECONDS: self.failure_seconds,
            STOP_FILE: self.stop_file,
            STOP_AT: self.stop_at,
            UNTIL_STEP: self.until_step,
            DETERMINISTIC: "1" if self.deterministic else None,
            OWNERS: None if place is None or owner is None else owners_text({place[0]: owner}),
        }
        return {name: str(value) for name, value in values.items() if value is not None}


def owners_text(owners: Mapping[str, str]) -> str:
    """For OWNERS. ``owners``: accounts by the names of their buckets."""
    return " ".join("{}={}".format(*pair) for pair in sorted(owners.items()))


def owners_in(environ: Mapping[str, str]) -> Dict[str, str]:
    """Accounts by the names of their buckets, as OWNERS has them."""
    pairs = (word.partition("=") for word in environ.get(OWNERS, "").split())
    return {bucket: account for bucket, equals, account in pairs if equals}


def _number(environ: Mapping[str, str], name: str) -> Optional[float]:
    text = environ.get(name)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError("{}: a number is needed, not {!r}".format(name, text)) from None


def _whole(environ: Mapping[str, str], name: str) -> Optional[int]:
    number = _number(environ, name)
    return None if number is None else int(number)
