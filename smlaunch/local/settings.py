"""Every point of SageMaker's behaviour that is not documented, as a setting with the default used here.

A difference found against a region is corrected here, in one place (facts: sagemaker.md section 8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ShardingRule = Literal["round-robin", "contiguous", "hash"]


@dataclass(frozen=True)
class Settings:
    """How the local endpoint decides where AWS does not say. All durations are seconds."""

    stop_grace_seconds: float = 120.0
    """Between SIGTERM and SIGKILL, for StopTrainingJob and MaxRuntime. Documented: 120 (developer guide,
    your-algorithms-training-algo-dockerfile)."""

    failed_peer_grace_seconds: float = 5.0
    """How long the other hosts may take to leave once one has failed. Not documented."""

    close_grace_seconds: float = 5.0
    """How long jobs may take to leave when the endpoint itself is closed. Ours alone."""

    checkpoint_sync_seconds: float = 1.0
    """Between two scans of the checkpoint directory. SageMaker's interval is not documented."""

    sharding: ShardingRule = "round-robin"
    """Which key of a ShardedByS3Key channel goes to which host. Documented is only that each host gets
    about 1/n of the objects: nobody may depend on the rule, so try your job with another one."""

    max_runtime_from: Literal["Downloading", "Training"] = "Training"
    """From which status on MaxRuntimeInSeconds counts. Not documented."""

    upload_empty_model: bool = True
    """Whether a model.tar.gz is written when /opt/ml/model is empty. Seen so in accounts, not documented."""

    upload_empty_output: bool = False
    """Whether an output.tar.gz is written when /opt/ml/output/data is empty. Not documented."""

    make_buckets: bool = True
    """Whether the buckets that a job writes to (OutputDataConfig, CheckpointConfig, TensorBoardOutputConfig)
    are made when they are not there. SageMaker fails such a job; here the same job file is to run on a
    machine that knows none of the region's buckets. The first host's log names each bucket that was made."""

    max_parallel_jobs: int | None = None
    """More jobs than this wait in Starting, as they do for capacity. None: no limit."""

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
