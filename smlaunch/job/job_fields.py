"""Names of a job's fields, for type checkers: ``Job(entri="train.py")`` is an error in an editor already.

The values are not checked there, because a job takes more forms of them than its fields have in the end, such
as a path for an entry.
"""

from __future__ import annotations

from typing import Any, TypedDict


class JobFields(TypedDict, total=False):
    """The keyword arguments of ``Job``; ``smlaunch.job.model`` describes them."""

    entry: Any
    algorithm: Any
    strategy: Any
    options: Any
    launcher: Any
    args: Any
    hyperparameters: Any
    compute: Any
    inputs: Any
    source: Any
    include_secrets: Any
    allow: Any
    requirements: Any
    image: Any
    image_registry_credentials: Any
    container: Any
    framework_version: Any
    environment: Any
    secrets: Any
    limits: Any
    retries: Any
    remote_debug: Any
    workload: Any
    deterministic: Any
    segments: Any
    checkpoints: Any
    output: Any
    outputs: Any
    metrics: Any
    bucket_owner: Any
    role: Any
    network_isolation: Any
    encrypt_traffic: Any
    subnets: Any
    security_groups: Any
    tags: Any
    request: Any
    name: Any
