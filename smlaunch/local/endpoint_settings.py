"""Settings of the local endpoint: each undocumented behaviour of SageMaker is one, with its default here.

A difference found against a region is corrected here, in one place (facts: sagemaker.md section 8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smlaunch.local.fault_injection import FaultPlan

ShardingRule = Literal["round-robin", "contiguous", "hash"]
CALL_LOG_VARIABLE = "SMLAUNCH_CALL_LOG"
SyncOrder = Literal["oldest-first", "newest-first", "shuffled"]


@dataclass(frozen=True)
class Settings:
    """What the local endpoint does where AWS documents nothing. All durations are in seconds."""

    stop_grace_seconds: float = 120.0
    """Between SIGTERM and SIGKILL, for StopTrainingJob and MaxRuntime. Documented for training jobs: 120
    (developer guide, your-algorithms-training-algo-dockerfile); for processing jobs nothing is documented."""

    failed_peer_grace_seconds: float = 5.0
    """How long the other hosts have to exit after one has failed. Not documented."""

    close_grace_seconds: float = 5.0
    """How long jobs have to exit when the endpoint is closed. Specific to this endpoint."""

    checkpoint_sync_seconds: float = 1.0
    """Between two scans of the checkpoint directory. SageMaker's interval is not documented."""

    checkpoint_sync_order: SyncOrder = "oldest-first"
    """Order in which the changes of one scan are uploaded, by modification time. Not documented: a program
    whose last file (a COMMIT) means that all others exist must work with every order."""

    checkpoint_sync_loss: float = 0.0
    """Share of changes, from 0 to 1, that are never uploaded, for tests; chosen by ``checkpoint_sync_seed``.
    In accounts, syncs were observed that stop silently. A file that changes again may be uploaded."""

    checkpoint_sync_seed: int = 0
    """Seed of the order ``shuffled`` and of the loss: the same job loses the same changes."""

    checkpoint_last_sync: bool = True
    """Whether changes are uploaded once more after the hosts have exited. Not documented."""

    sharding: ShardingRule = "round-robin"
    """How the keys of a ShardedByS3Key channel are assigned to hosts. AWS documents only that each host gets
    about 1/n of the objects, so jobs must not depend on the rule: test yours with another one."""

    empty_shard: Literal["empty", "absent"] = "empty"
    """What a host finds whose shard of a ShardedByS3Key channel has no object: an empty directory (in Pipe
    mode a FIFO that ends at once), or no directory. Not documented; a program must work with both."""

    reshard_between_epochs: bool = True
    """Whether ShuffleConfig with ShardedByS3Key gives a host other objects in the next epoch of Pipe mode.
    AWS documents only that it might (API reference, ShuffleConfig)."""

    max_runtime_from: Literal["Downloading", "Training"] = "Training"
    """Status from which MaxRuntimeInSeconds counts. Not documented."""

    upload_empty_model: bool = True
    """Whether a model.tar.gz is written when /opt/ml/model is empty. Observed in accounts, not documented."""

    upload_empty_output: bool = False
    """Whether an output.tar.gz is written when /opt/ml/output/data is empty. Not documented."""

    upload_output_of_failed: bool = True
    """Whether model and output of a failed training job are uploaded, where it has written any. Observed in
    accounts (aws/sagemaker-python-sdk, pull request 746), not documented."""

    processing_outputs_of: Literal["completed", "stopped", "all"] = "completed"
    """Processing jobs whose EndOfJob outputs are uploaded: completed ones, also stopped ones, or all,
    including failed ones. Not documented."""

    processing_continuous_deletes: bool = False
    """Whether a file of a Continuous output that is deleted on its host is deleted in S3. Not documented.
    Interval and order of uploads are those of ``checkpoint_sync_seconds`` and ``checkpoint_sync_order``."""

    spot_notice_seconds: float = 120.0
    """Between SIGTERM and SIGKILL when a spot job is interrupted. EC2 gives a notice of two minutes; that
    SageMaker passes it on as SIGTERM is not documented."""

    spot_billable_share: float = 0.3
    """BillableTimeInSeconds of a managed spot job as a share of TrainingTimeInSeconds. On SageMaker this is
    the ratio of spot price and on-demand price, which is not known here; 0.3 is a typical value."""

    warm_pools: int | None = None
    """Maximum number of hosts in warm pools; 0 keeps none, like an account without the quota, where no error
    is reported. None: no limit. A pool is a record only: hosts start at once here with or without it."""

    faults: FaultPlan | None = None
    """Fault injection (fault_injection.py). None: the plan in the file named by SMLAUNCH_FAULTS, if any."""

    make_buckets: bool = True
    """Whether missing buckets that a job writes to (OutputDataConfig, CheckpointConfig,
    TensorBoardOutputConfig) are created. SageMaker fails such a job; here the same job file should run on a
    machine without the region's buckets. The first host's log names each bucket that was created."""

    step_functions_wait_factor: float = 1.0
    """Factor for the waiting times of a state machine's Wait and Retry: 0.01 makes an hour 36 seconds, for
    tests. Time limits and jobs are not affected."""

    step_functions_error_names: tuple[tuple[str, str], ...] = ()
    """Error names in Retry and Catch of a state machine for error codes of a task's API, as pairs (code,
    name), such as ("ThrottlingException", "SageMaker.ThrottlingException"). Other codes have the names of
    Amazon's SDK for Java (moto/sagemaker_tasks.py), which are not confirmed for Step Functions."""

    call_log: str | None = None
    """File to which each answered call is appended as a line (call_log.py). None: the one that
    SMLAUNCH_CALL_LOG names, if any."""

    max_parallel_jobs: int | None = None
    """Further jobs wait in status Starting, as they do for capacity. None: no limit."""

    container_engine: str | None = None
    """``podman`` or ``docker``, for the executor ``containers``. None: the value of
    SMLAUNCH_CONTAINER_ENGINE, or else the first that works."""

    container_shm_bytes: int | None = 2 << 30
    """Size of /dev/shm in a container; None: the engine's default, whose 64 MB are too little for a data
    loader's workers. SageMaker's size is not documented."""

    container_options: tuple[str, ...] = ()
    """Further arguments for the engine's `create`, such as ``--memory=8g`` or
    ``--device=nvidia.com/gpu=all``, passed on unchanged. Empty: those in SMLAUNCH_CONTAINER_OPTIONS."""

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
    """Environment variables of the endpoint that hosts inherit. PATH is always set, with the endpoint's
    interpreter first. AWS_* variables are never inherited: jobs must not see the user's real credentials."""
