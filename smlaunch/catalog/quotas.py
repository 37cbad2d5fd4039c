"""Quotas of an account that may limit a job, by their names in Service Quotas.

Source: https://docs.aws.amazon.com/general/latest/gr/sagemaker.html.
"""

from __future__ import annotations

MAX_RUNTIME_QUOTA = "Longest run time for a {}"
"""In seconds. The braces stand for a kind of job, such as ``training job``."""

DEFAULT_RUNTIME_QUOTA = 5 * 86400
"""Seconds: AWS's default of MAX_RUNTIME_QUOTA."""

HOSTS_PER_JOB_QUOTA = "Number of instances for a {}"
"""The braces stand for a kind of job."""

DEFAULT_HOSTS_PER_JOB = 20
"""Default of HOSTS_PER_JOB_QUOTA."""

ON_DEMAND_QUOTA = "{{}} for {} usage"
"""A pattern of names: the inner braces stand for a kind of job, the doubled ones for an instance type."""

SPOT_QUOTA = "{} for spot training job usage"
WARM_POOL_QUOTA = "{} for training warm pool usage"
"""Of training jobs; the braces stand for an instance type."""
