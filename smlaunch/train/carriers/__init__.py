"""How a checkpoint directory gets to S3 and back: one file per way, each a ``base.Carrier``."""

from smlaunch.protocol.segment import DIRECT, Segment
from smlaunch.train.carriers.base import Carrier


def carrier_for(segment: Segment) -> Carrier:
    """The one the plan has chosen. Raises ValueError for ``direct`` without a place in S3, and ImportError
    where it needs boto3 and the image has none."""
    if segment.carrier != DIRECT:
        from smlaunch.train.carriers.sync import Sync

        return Sync()
    if segment.uri is None:
        raise ValueError("the carrier `direct` needs a place in S3: set checkpoints.uri in the job")
    from smlaunch.train.carriers.direct import Direct

    return Direct(segment.uri, owner=segment.bucket_owner)
