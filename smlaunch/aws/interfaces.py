"""Interfaces to the services that discovery and launching use. ``aws.botocore_client`` implements them on
botocore.

Tests use fakes. Every method raises ``CallError``, and nothing else, when the service responds with an error
or cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from smlaunch.chain.orchestrator_execution import OrchestratorExecution

UNREACHABLE = "Unreachable"
"""Code of a CallError without any response."""

UNREADABLE = "Unreadable"
"""Code of a CallError for a response that did not come from the service: truncated, empty, or a web page. The
request may have been carried out."""

NO_CREDENTIALS = "NoCredentials"
"""Code of a CallError for a caller who has no credentials at all."""

UNUSABLE_CREDENTIALS = "UnusableCredentials"
"""Code of a CallError for configured credentials that botocore cannot get: without an SSO login, for
example."""

INVALID_CONFIGURATION = "InvalidConfiguration"
"""Code of a CallError for an AWS configuration of the user that botocore cannot use."""

NO_SUCH_ROLE = "NoSuchEntity"
"""IAM's code for a role that the account does not have."""

WRONG_BUCKET_OWNER = "NotTheBucketOwner"
"""Code of a CallError for a bucket that belongs to another account than expected."""


class CallError(Exception):
    """A failed API call: the operation, and the service's own code and message."""

    def __init__(
        self, operation: str, code: str, message: str, http_status: int = 0, retries: int = 0
    ) -> None:
        self.operation = operation
        self.code = code
        self.message = message
        self.http_status = http_status
        self.retries = retries
        """Requests of this call before the one that was answered, whose own answers may be lost."""
        super().__init__(f"{operation}: {code}: {message}")


class JobSummary(NamedTuple):
    """One row of ListTrainingJobs. ``created`` and ``ended`` are seconds since the epoch."""

    name: str
    arn: str
    status: str
    created: float
    """Seconds since the epoch."""
    ended: float | None
    """Seconds since the epoch; None while it runs."""


class StoredObject(NamedTuple):
    """One object in S3. ``size`` is in bytes."""

    key: str
    size: int
    etag: str | None = None
    """Without quotes; None where it is unknown."""


class TransferItem(NamedTuple):
    """A file and an object that a transfer makes equal, in either direction."""

    key: str
    path: Path
    size: int
    """Bytes of the source."""
    etag: str | None = None
    """Of an object to download, where it is known."""
    sha256: bytes | None = None
    """Of the content that an upload must have; None uploads what the file holds."""


class UploadedPart(NamedTuple):
    """A part of a multipart upload that S3 has stored. ``size`` is in bytes."""

    size: int
    etag: str
    """Without quotes."""
    sha256: str
    """In base64."""


class MultipartUpload(NamedTuple):
    """A multipart upload that is not completed."""

    upload_id: str
    parts: Mapping[int, UploadedPart]
    """By number, from 1."""


class ObjectChecksum(NamedTuple):
    """The checksums that S3 has of an object. None where S3 has none."""

    part_size: int | None
    """Bytes of each part but the last; None for an object that was uploaded in one request."""
    sha256: str | None
    """In base64: of the content, or of the parts' digests, followed by ``-`` and their number."""
    md5: str | None
    """The ETag, where it is made of MD5 sums."""
    crc32: str | None = None
    """In the form of ``sha256``. Most clients send no other checksum."""


class KeyPage(NamedTuple):
    """One response of ListObjectsV2, a list per column."""

    keys: list[str]
    sizes: list[int]
    etags: list[str]
    modified: list[str]
    """ISO 8601 in UTC, as S3 writes it."""
    has_more: bool
    """Keys exist after the last one."""


class LogEvent(NamedTuple):
    """One event of CloudWatch Logs."""

    timestamp_ms: int
    """Milliseconds since the epoch."""
    text: str


class ControlPlane(Protocol):
    """Operations of the SageMaker API on training jobs. Jobs of other kinds are used in the same way."""

    def create_job(self, request: Mapping[str, Any]) -> str:
        """Create a job of any kind with exactly this request. Returns the job's ARN."""

    def describe_job(self, name: str) -> dict[str, Any]:
        """Return DescribeTrainingJob's response, or the same members for a job of another kind
        (api.job_descriptions).

        An unknown job is a CallError (``ValidationException``).
        """

    def stop_job(self, name: str) -> None: ...

    def list_jobs(self, name_contains: str | None = None) -> Iterator[JobSummary]:
        """Yield jobs, newest first, page by page as the caller goes on."""

    def list_jobs_with_tag(self, key: str, value: str) -> Iterator[JobSummary]:
        """Yield training jobs with this tag, newest first; none without permission to search. New jobs may
        not be found yet."""

    def list_tags(self, arn: str) -> dict[str, str]: ...


class Orchestrators(Protocol):
    """Services that drive exported runs. ``execution`` is an execution's ARN or another name of it
    (contract.segment, DRIVER)."""

    def describe_execution(self, execution_arn: str) -> OrchestratorExecution | None:
        """Return the execution's state; None for one that is unknown, inaccessible or of another kind of
        service."""

    def stop_execution(self, execution_arn: str) -> bool:
        """Stop the execution and its running job. Returns False where that is not possible from here."""


class ObjectStorage(Protocol):
    """The parts of S3 that launching uses."""

    def object_size(self, bucket: str, key: str) -> int | None:
        """Return the object's length in bytes; None when there is no such object (or bucket)."""

    def list_objects(self, bucket: str, prefix: str) -> Iterator[StoredObject]:
        """Yield objects in key order, page by page as the caller goes on."""

    def get_bytes(self, bucket: str, key: str) -> bytes | None:
        """Return a small object's content; None when there is no such object (or bucket)."""

    def read_chunks(self, bucket: str, key: str) -> Iterator[bytes]:
        """Yield a large object's content in chunks. An unknown object is a CallError (``NoSuchKey``)."""

    def put_bytes(self, bucket: str, key: str, content: bytes) -> None: ...

    def put_if_absent(self, bucket: str, key: str, content: bytes) -> bool:
        """Create the object and return True, or return False if it exists. Of several callers at once, S3
        returns True to one."""

    def put_file(self, bucket: str, key: str, source: Path) -> None: ...

    def delete_objects(self, bucket: str, keys: Sequence[str]) -> None:
        """Delete objects in this order, in requests of up to a thousand keys. Unknown keys are ignored."""

    def create_bucket(self, bucket: str, region: str) -> bool:
        """Create the bucket. Returns False when it existed already. ``BucketAlreadyExists``: another account
        has the name."""

    def check_bucket_owner(self, bucket: str) -> None:
        """Raise CallError unless the bucket exists and belongs to the expected account."""


class KeyPager(Protocol):
    """The part of S3 that a listing needs. Called by several threads at a time."""

    def list_page(self, bucket: str, prefix: str, start_after: str) -> KeyPage:
        """Return the first keys that begin with ``prefix`` and come after ``start_after``. Raises only
        CallError."""


class PartStorage(Protocol):
    """Multipart operations of S3, for objects that are too large for one request."""

    def create_multipart_upload(self, bucket: str, key: str) -> str:
        """Begin a multipart upload with SHA-256 checksums. Returns its id."""

    def upload_part(self, bucket: str, key: str, upload_id: str, number: int, content: bytes) -> UploadedPart:
        """Upload one part. S3 compares the content with its SHA-256 and refuses a difference."""

    def complete_multipart_upload(
        self, bucket: str, key: str, upload_id: str, parts: Sequence[UploadedPart]
    ) -> None:
        """Assemble the object from all its parts, in their order."""

    def list_resumable_uploads(self, bucket: str, key: str) -> Sequence[MultipartUpload]:
        """Return the unfinished uploads of exactly this key that have SHA-256 checksums."""

    def get_range(self, bucket: str, key: str, start: int, length: int, etag: str | None) -> Iterator[bytes]:
        """Yield the range in chunks. Raises CallError when the object does not have this ``etag`` any
        more."""

    def get_object_checksum(self, bucket: str, key: str) -> ObjectChecksum: ...


class Transfer(Protocol):
    """Transfers many files at once, or large ones. ``on_progress`` receives numbers of bytes and of files,
    from any thread."""

    def upload_files(
        self, bucket: str, items: Sequence[TransferItem], on_progress: Callable[[int, int], None]
    ) -> None:
        """Upload the files. A content other than an item's ``sha256`` is hashed while it is sent, and never
        becomes an object. Raises CallError when S3 refuses a file, JobError when one cannot be read or has
        changed."""

    def download_files(
        self, bucket: str, items: Sequence[TransferItem], on_progress: Callable[[int, int], None]
    ) -> None:
        """Download the objects. Each file appears complete and verified, or not at all.

        Raises CallError, or JobError when a file cannot be written or does not match S3's checksum.
        """

    def has_same_content(self, bucket: str, item: TransferItem) -> bool:
        """Return whether file and object have the same content, as far as S3 can tell; of an item with a
        ``sha256``, whether the object has the content with this hash. Raises CallError."""


class LogReader(Protocol):
    """Reads CloudWatch Logs."""

    def list_streams(self, group: str, prefix: str) -> Sequence[str]:
        """Return the names of the streams that begin with ``prefix``; none when the group does not exist
        yet."""

    def read_last_page(self, group: str, stream: str) -> Sequence[LogEvent]:
        """Return the stream's last page (at most 10,000 events or 1 MB), oldest first."""

    def read_page(self, group: str, stream: str, token: str | None) -> tuple[Sequence[LogEvent], str | None]:
        """Return one page from ``token`` on (None: from the start), and the next page's token."""


class Quotas(Protocol):
    """Reads Service Quotas."""

    def quota_values(self, names: Collection[str]) -> dict[str, float]:
        """Return the values of SageMaker's quotas in this account that have one of these names."""

    def all_quota_values(self) -> dict[str, float]:
        """Return the values of all quotas of SageMaker in this account, by name."""


class ProductList(Protocol):
    """Reads AWS's price list."""

    def training_products(self, region: str) -> Iterator[str]:
        """Yield the products of SageMaker in a region, each a JSON text with its prices."""


class Identity(Protocol):
    """Identifies the caller: STS, and IAM's look-up of roles."""

    def get_caller_identity(self) -> tuple[str, str]:
        """Return the account id and the caller's ARN."""

    def find_role_arn(self, name: str) -> str | None:
        """Return the ARN of the role with this name; None where the caller may not or cannot ask. Raises
        CallError, with NO_SUCH_ROLE if the account has none."""
