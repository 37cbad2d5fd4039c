"""The platform's own sync of the checkpoint directory: there is nothing to do but to follow its rules.

SageMaker copies the whole prefix to every host before the start, then new files to S3, and repeats deletes
there (developer guide, model-checkpoints). It documents no interval and no order, and a script cannot ask for
its progress: from inside a job, which may have no network, S3 cannot be read. What can be done here is not to
delete early (``settle_seconds``). A sync that has stopped, as users have reported (sagemaker-python-sdk issue
3062), is visible from outside: compare `smlaunch checkpoints ls` with the job's log.
"""

from smlaunch.train.transports.base import SETTLE_SECONDS, CheckpointTransport


class SyncTransport(CheckpointTransport):
    """``settle_seconds``: longer than the slowest upload of one checkpoint takes."""

    def __init__(self, settle_seconds: float = SETTLE_SECONDS) -> None:
        self.settle_seconds = settle_seconds
