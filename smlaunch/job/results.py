"""What a job leaves: checkpoints, output, and metrics that the service reads from its log."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from smlaunch.job.field_types import AccountId, Duration, NonEmptyText, S3Uri, integer_from
from smlaunch.job.sections import Section, section
from smlaunch.job.service_types import KmsKey, MetricRegex, OutputPath

UploadName = Literal["sync", "direct"]
"""contract.segment.UPLOADS; a test compares them."""

DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints"

UploadTime = Literal["EndOfJob", "Continuous"]

CompressionName = Literal["gzip", "none"]


@section
class Checkpoints(Section):
    """Where and how a training saves its state while it runs."""

    SHORTHAND_FIELD: ClassVar[str] = "uri"

    uri: S3Uri | None = None
    """The S3 prefix; by default one of the run's own."""
    local_path: NonEmptyText = DEFAULT_CHECKPOINT_PATH
    """Directory on every host that checkpoints are written to and read from."""
    interval: Duration = None
    """Time between two checkpoints. None derives it from the cost of a checkpoint and the rate of failures.
    """
    keep: Annotated[int, integer_from(3)] = 3
    """Number of newest checkpoints that are not deleted."""
    upload: UploadName | None = None
    """How checkpoints reach S3. ``sync`` copies the whole prefix to every host before its start and keeps
    both equal during the training (SageMaker's checkpoint sync: a file that is deleted locally is deleted in
    S3 too). ``direct`` lets every rank transfer its own part. None lets the plan choose."""
    bucket_owner: AccountId | None = None
    """The account (twelve digits) that owns the bucket of uri, where it is not the caller's own."""

    def __init__(
        self,
        uri: str | None = None,
        *,
        local_path: str = DEFAULT_CHECKPOINT_PATH,
        interval: str | None = None,
        keep: int = 3,
        upload: UploadName | None = None,
        bucket_owner: str | None = None,
    ) -> None:
        super().__init__(
            uri=uri,
            local_path=local_path,
            interval=interval,
            keep=keep,
            upload=upload,
            bucket_owner=bucket_owner,
        )


@section
class Output(Section):
    """Where and how model and output are stored. A bare string is the S3 prefix."""

    SHORTHAND_FIELD: ClassVar[str] = "uri"
    IS_USUALLY_TEXT: ClassVar[bool] = True

    uri: S3Uri | None = None
    """The S3 prefix below which model and output are written; by default one of the run's own."""
    kms_key: KmsKey | None = None
    """The KMS key that encrypts them: its id, its ARN, or an alias. None leaves it to the bucket."""
    compression: CompressionName | None = None
    """``gzip``: the model is one archive, model.tar.gz. ``none``: its files are stored as they are, in a
    folder. None leaves it to the service, which takes gzip."""

    def __init__(
        self,
        uri: str | None = None,
        *,
        kms_key: str | None = None,
        compression: CompressionName | None = None,
    ) -> None:
        super().__init__(uri=uri, kms_key=kms_key, compression=compression)


@section
class ProcessingOutput(Section):
    """One more output of a processing job, beside ``output``. A bare string is its folder."""

    SHORTHAND_FIELD: ClassVar[str] = "path"

    path: OutputPath
    """The folder on the hosts, below /opt/ml/processing."""
    uri: S3Uri | None = None
    """The S3 prefix that its files are stored at; by default a folder beside that of ``output``."""
    upload: UploadTime = "EndOfJob"
    """When its files are uploaded: ``EndOfJob``, or ``Continuous`` while the job runs."""


@section
class Metric(Section):
    """A metric that the service reads from what a training job prints (a metric definition)."""

    name: NonEmptyText
    """Name of the metric, in CloudWatch and in the job's description."""
    regex: MetricRegex
    """Regular expression whose first group is the number, such as ``loss=([0-9.]+)``."""
