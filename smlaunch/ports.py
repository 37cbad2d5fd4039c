"""What survey and launch need from outside: a few narrow ports. Adapters on botocore are in ``runs.aws``.

Tests bring fakes. Every method raises ``CallError`` when the service answered with an error or could not be
reached, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from smlaunch.planning.orchestrated import Execution

UNREACHABLE = "Unreachable"
"""The code of a CallError when no answer came back at all."""

UNREADABLE = "Unreadable"
"""The code of a CallError when what came back is no answer of the service: cut off, empty, or a web page.
What was asked for may have been done."""

NOT_THE_OWNER = "NotTheBucketOwner"
"""The code of a CallError when a bucket belongs to another account than it has to."""


class CallError(Exception):
    """An API call that did not succeed: the service's own code and words, and the operation's name."""

    def __init__(self, operation: str, code: str, message: str, status: int = 0) -> None:
        self.operation = operation
        self.code = code
        self.message = message
        self.status = status
        super().__init__(f"{operation}: {code}: {message}")


class JobSummary(NamedTuple):
    """One row of ListTrainingJobs. ``created`` and ``ended`` are seconds since the epoch."""

    name: str
    arn: str
    status: str
    created: float
    ended: float | None


class StoredObject(NamedTuple):
    """``etag``: without its quotes; None where nobody said it."""

    key: str
    size: int
    etag: str | None = None


class Parcel(NamedTuple):
    """A file and the object that is to have the same bytes, or the other way round.

    ``size`` is in bytes, of whichever is there. ``etag``: of an object that is to be fetched, where known.
    """

    key: str
    path: Path
    size: int
    etag: str | None = None


class Part(NamedTuple):
    """A part of a multipart upload that S3 has. ``etag``: without quotes; ``sha256``: in base64."""

    size: int
    etag: str
    sha256: str


class Unfinished(NamedTuple):
    """A multipart upload that nobody has completed. ``parts`` by their numbers, which begin with 1."""

    upload: str
    parts: Mapping[int, Part]


class Check(NamedTuple):
    """What S3 knows an object's content by.

    ``part``: the bytes of each of its parts but the last, None for an object put whole. ``sha256``: of the
    content, or (followed by ``-`` and how many) of its parts' digests, in base64; None where it was put
    without. ``md5``: the ETag, where that is made of MD5 sums. ``crc32``: as ``sha256``; most clients send
    nothing else.
    """

    part: int | None
    sha256: str | None
    md5: str | None
    crc32: str | None = None


class LogEvent(NamedTuple):
    """``at`` is milliseconds since the epoch, as CloudWatch Logs counts."""

    at: int
    text: str


class ControlPlane(Protocol):
    """The operations of the SageMaker API on training jobs, and on processing jobs in the same words."""

    def create(self, request: Mapping[str, Any]) -> str:
        """Sends CreateTrainingJob or CreateProcessingJob with exactly this request; returns the job's ARN."""

    def describe(self, name: str) -> dict[str, Any]:
        """DescribeTrainingJob's answer; of a processing job what corresponds to it (launch.processing_jobs).
        No such job is a CallError (``ValidationException``)."""

    def stop(self, name: str) -> None: ...

    def list(self, name_contains: str | None = None) -> Iterator[JobSummary]:
        """Newest first, page by page as the caller goes on."""

    def tagged(self, key: str, value: str) -> Iterator[JobSummary]:
        """Training jobs with this tag, newest first; none where nobody may search. What was made a moment ago
        may not be found yet."""

    def tags(self, arn: str) -> dict[str, str]: ...


class Orchestrators(Protocol):
    """What drives an exported run, as far as it can be asked. ``execution``: its ARN, or whatever else names
    it (protocol.segment, DRIVER)."""

    def ask(self, execution: str) -> Execution | None:
        """How it stands; None for one that cannot be asked, or may not be, or is gone."""

    def stop(self, execution: str) -> bool:
        """Asks it to end, with the job that runs; False where that cannot be done from here."""


class ObjectStorage(Protocol):
    """S3, as far as launching needs it."""

    def size(self, bucket: str, key: str) -> int | None:
        """The object's length in bytes; None when there is no such object (or bucket)."""

    def list(self, bucket: str, prefix: str) -> Iterator[StoredObject]:
        """In key order, page by page as the caller goes on."""

    def get_bytes(self, bucket: str, key: str) -> bytes | None:
        """A small object's content; None when there is no such object (or bucket)."""

    def chunks(self, bucket: str, key: str) -> Iterator[bytes]:
        """A large object's content, piece by piece. No such object is a CallError (``NoSuchKey``)."""

    def put_bytes(self, bucket: str, key: str, content: bytes) -> None: ...

    def put_new(self, bucket: str, key: str, content: bytes) -> bool:
        """Puts it unless there is an object already; False when there is. S3 itself decides: of several
        callers at once, one gets True."""

    def put_file(self, bucket: str, key: str, source: Path) -> None: ...

    def delete(self, bucket: str, keys: Sequence[str]) -> None:
        """Deletes objects in this order, at least by the thousand; what is not there is passed over."""

    def make_bucket(self, bucket: str, region: str) -> bool:
        """False when it was there already. ``BucketAlreadyExists``: another account has the name."""

    def check_owner(self, bucket: str) -> None:
        """Raises CallError unless the bucket is there and belongs to whom it has to."""


class PartStorage(Protocol):
    """S3 by parts of objects, for what is too large to go in one piece."""

    def begin(self, bucket: str, key: str) -> str:
        """Begins a multipart upload with SHA-256 checksums; returns its id."""

    def put_part(self, bucket: str, key: str, upload: str, number: int, content: bytes) -> Part:
        """S3 compares the content with its SHA-256 and refuses what differs."""

    def complete(self, bucket: str, key: str, upload: str, parts: Sequence[Part]) -> None:
        """Makes the object of all its parts, in their order."""

    def unfinished(self, bucket: str, key: str) -> Sequence[Unfinished]:
        """Uploads of exactly this key, with SHA-256 checksums, that have been begun and not ended."""

    def get_range(self, bucket: str, key: str, start: int, length: int, etag: str | None) -> Iterator[bytes]:
        """Piece by piece. ``etag``: a CallError when the object is another one by now."""

    def check(self, bucket: str, key: str) -> Check: ...


class Transfer(Protocol):
    """Many files at once, or large ones. ``moved`` hears, from any thread, of bytes and of whole files."""

    def put(self, bucket: str, parcels: Sequence[Parcel], moved: Callable[[int, int], None]) -> None:
        """Raises CallError when S3 refuses one, JobError when a file cannot be read or has changed."""

    def get(self, bucket: str, parcels: Sequence[Parcel], moved: Callable[[int, int], None]) -> None:
        """Each file appears whole and checked, or not at all. Raises CallError, or JobError when one cannot
        be written or what came is not what S3 knows the object by."""

    def is_there(self, bucket: str, parcel: Parcel) -> bool:
        """Whether file and object have the same content, by all that S3 tells. Raises CallError."""


class LogReader(Protocol):
    """CloudWatch Logs, reading only."""

    def streams(self, group: str, prefix: str) -> Sequence[str]:
        """Names of the streams that begin with ``prefix``; none when the group does not exist yet."""

    def tail(self, group: str, stream: str) -> Sequence[LogEvent]:
        """The stream's last page (at most 10,000 events or 1 MB), oldest first."""

    def read(self, group: str, stream: str, token: str | None) -> tuple[Sequence[LogEvent], str | None]:
        """One page from ``token`` on (None: from the start), and the token to go on with."""


class Quotas(Protocol):
    """Service Quotas, as far as planning a run needs it."""

    def values(self, names: Collection[str]) -> dict[str, float]:
        """Those of SageMaker's quotas in this account that have one of these names and are listed."""


class Identity(Protocol):
    """Who is calling: STS, and the IAM look-ups a role needs."""

    def caller(self) -> tuple[str, str]:
        """The account id and the caller's ARN."""

    def role_arn(self, name: str) -> str | None:
        """The ARN of the role with this name; None when it does not exist or may not be looked up."""
