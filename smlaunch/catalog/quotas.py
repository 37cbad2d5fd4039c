"""Quotas of an account that may limit a job, by their names in Service Quotas.

Source: https://docs.aws.amazon.com/general/latest/gr/sagemaker.html.
"""

from __future__ import annotations

MAX_RUNTIME_QUOTA = "Longest run time for a training job"
"""In seconds."""

DEFAULT_RUNTIME_QUOTA = 5 * 86400
"""Seconds: AWS's default of the quota "Longest run time for a training job"."""

HOSTS_PER_JOB_QUOTA = "Number of instances for a training job"
DEFAULT_HOSTS_PER_JOB = 20
"""Default of HOSTS_PER_JOB_QUOTA."""

ON_DEMAND_QUOTA = "{} for training job usage"
SPOT_QUOTA = "{} for spot training job usage"
WARM_POOL_QUOTA = "{} for training warm pool usage"
"""Names in Service Quotas; the braces stand for an instance type."""
