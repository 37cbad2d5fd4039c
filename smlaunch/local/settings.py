"""Every point of SageMaker's behaviour that is not documented, as a setting with the default used here.

A difference found against a region is corrected here, in one place (facts: sagemaker.md section 8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smlaunch.local.faults import FaultPlan

ShardingRule = Literal["round-robin", "contiguous", "hash"]
CALL_LOG_VARIABLE = "SMLAUNCH_CALL_LOG"
SyncOrder = Literal["oldest-first", "newest-first", "shuffled"]


@dataclass(frozen=True)
class Settings:
    """How the local endpoint decides where AWS does not say. All durations are seconds."""

    stop_grace_seconds: float = 120.0
    """Between SIGTERM and SIGKILL, for StopTrainingJob and MaxRuntime. Documented: 120 (developer guide,
    your-algorithms-training-algo-dockerfile), of training jobs; of processing jobs nothing is."""

    failed_peer_grace_seconds: float = 5.0
    """How long the other hosts may take to leave once one has failed. Not documented."""

    close_grace_seconds: float = 5.0
    """How long jobs may take to leave when the endpoint itself is closed. Ours alone."""

    checkpoint_sync_seconds: float = 1.0
    """Between two scans of the checkpoint directory. SageMaker's interval is not documented."""

    checkpoint_sync_order: SyncOrder = "oldest-first"
    """In which order the changes that one scan found are uploaded, by time of modification. Not documented:
    a program that takes its last file (a COMMIT) for a sign that all others are there must stand every
    order."""

    checkpoint_sync_loss: float = 0.0
    """The part of changes, from 0 to 1, that never reach S3, for tests. Which ones, ``checkpoint_sync_seed``
    says. Seen in accounts is a sync that stops without a word; a file that changes again has another
    chance."""

    checkpoint_sync_seed: int = 0
    """What the order ``shuffled`` and the loss are drawn with: the same job loses the same changes."""

    checkpoint_last_sync: bool = True
    """Whether what has changed is uploaded once more when the hosts have ended. Not documented."""

    sharding: ShardingRule = "round-robin"
    """Which key of a ShardedByS3Key channel goes to which host. Documented is only that each host gets
    about 1/n of the objects: nobody may depend on the rule, so try your job with another one."""

    empty_shard: Literal["empty", "absent"] = "empty"
    """What a host finds whose part of a ShardedByS3Key channel has no object: a directory with nothing in it
    (in Pipe mode a FIFO that ends at once), or none. Not documented, and a program must stand both."""

    reshard_between_epochs: bool = True
    """Whether ShuffleConfig with ShardedByS3Key gives a host other objects in the next epoch of Pipe mode.
    Documented (API reference, ShuffleConfig) is only that it might."""

    max_runtime_from: Literal["Downloading", "Training"] = "Training"
    """From which status on MaxRuntimeInSeconds counts. Not documented."""

    upload_empty_model: bool = True
    """Whether a model.tar.gz is written when /opt/ml/model is empty. Seen so in accounts, not documented."""

    upload_empty_output: bool = False
    """Whether an output.tar.gz is written when /opt/ml/output/data is empty. Not documented."""

    processing_outputs_of: Literal["completed", "stopped", "all"] = "completed"
    """Of which processing jobs the EndOfJob outputs are uploaded: of those that complete, also of those that
    were stopped, or of failed ones too. Not documented."""

    processing_continuous_deletes: bool = False
    """Whether a file of a Continuous output that is deleted on its host is deleted in S3. Not documented. How
    often and in which order files go up, ``checkpoint_sync_seconds`` and its neighbours say."""

    spot_notice_seconds: float = 120.0
    """Between SIGTERM and SIGKILL when a spot job's hosts are taken away. EC2 gives a notice of two minutes;
    that SageMaker hands it on as SIGTERM is not documented."""

    spot_billable_share: float = 0.3
    """BillableTimeInSeconds of a managed spot job as a share of TrainingTimeInSeconds. On SageMaker it is
    the market's price against the on-demand one, which nobody knows here; 0.3 stands for a usual saving."""

    warm_pools: int | None = None
    """How many hosts warm pools may keep together; 0 keeps none, as an account without the quota does (no
    error tells). None: no limit. A pool is a record only: hosts start at once here, with or without it."""

    faults: FaultPlan | None = None
    """What goes wrong on purpose (faults.py). None: what the file named by SMLAUNCH_FAULTS says, if any."""

    make_buckets: bool = True
    """Whether the buckets that a job writes to (OutputDataConfig, CheckpointConfig, TensorBoardOutputConfig)
    are made when they are not there. SageMaker fails such a job; here the same job file is to run on a
    machine that knows none of the region's buckets. The first host's log names each bucket that was made."""

    step_functions_wait_factor: float = 1.0
    """How long a second of a state machine's Wait and Retry is: 0.01 makes an hour 36 seconds, for tests.
    Time limits and jobs keep their own."""

    step_functions_error_names: tuple[tuple[str, str], ...] = ()
    """What Retry and Catch of a state machine call an error of a task's API, as pairs (code, name), such as
    ("ThrottlingException", "SageMaker.ThrottlingException"). Other codes have the names of Amazon's SDK for
    Java (moto/sagemaker_tasks.py), which are not confirmed for Step Functions."""

    call_log: str | None = None
    """A file to which each call that was answered is added as a line (call_log.py). None: the one that
    SMLAUNCH_CALL_LOG names, if any."""

    max_parallel_jobs: int | None = None
    """More jobs than this wait in Starting, as they do for capacity. None: no limit."""

    container_engine: str | None = None
    """``podman`` or ``docker``, for the executor ``containers``. None: what SMLAUNCH_CONTAINER_ENGINE says,
    if anything, else the first that works."""

    container_shm_bytes: int | None = 2 << 30
    """The size of /dev/shm in a container; None leaves it to the engine, whose 64 MB are too little for a
    data loader's workers. What SageMaker gives is not documented."""

    container_options: tuple[str, ...] = ()
    """Further words for the engine's `create`, such as ``--memory=8g`` or ``--device=nvidia.com/gpu=all``.
    They are handed on as they are. Empty: those in SMLAUNCH_CONTAINER_OPTIONS."""

    inherit_environment: tuple[str, ...] = (
        *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "USER", "LOGNAME"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"),
        *(
            "PIP_CONFIG_FILE",
            "http_proxy",
            "https_proxy",
            "no_proxy",
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "NO_PROXY",
        ),
    )
    """Variables of the endpoint's own environment that a host sees. PATH is always there, with the
    endpoint's interpreter first. Nothing of AWS_*: the person's real credentials are none of a job's
    business."""
