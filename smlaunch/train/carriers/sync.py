"""The platform's own sync of the checkpoint directory: there is nothing to do but to keep to its rules.

SageMaker copies the whole prefix to every host before the start, then new files to S3, and repeats deletes
there (developer guide, model-checkpoints). It names no interval and no order, and a script has no way to ask
how far it has come: nobody can see S3 from inside a job that may be without a network. What can be done here
is to delete nothing early (``settle_seconds``). That the sync has stopped, as users have reported
(sagemaker-python-sdk issue 3062), shows from outside: `smlaunch checkpoints ls` against the job's own log.
"""

from smlaunch.train.carriers.base import SETTLE_SECONDS, Carrier


class Sync(Carrier):
    """``settle_seconds``: longer than the slowest upload of one checkpoint takes."""

    def __init__(self, settle_seconds: float = SETTLE_SECONDS) -> None:
        self.settle_seconds = settle_seconds
