"""Move a checkpoint directory to S3 and back: one file per way, each with a ``base.CheckpointTransport``."""

from smlaunch.contract.segment import DIRECT, Segment
from smlaunch.train.transports.base import CheckpointTransport


def open_transport(segment: Segment) -> CheckpointTransport:
    """Return the transport the plan has chosen. Raises ValueError for ``direct`` without an S3 address, and
    ImportError if it needs boto3 and the image does not have it."""
    if segment.upload_mode != DIRECT:
        from smlaunch.train.transports.sync import SyncTransport

        return SyncTransport()
    if segment.checkpoints_uri is None:
        raise ValueError("the carrier `direct` needs a place in S3: set checkpoints.uri in the job")
    from smlaunch.train.transports.direct import DirectTransport

    return DirectTransport(segment.checkpoints_uri, owner=segment.bucket_owner)
