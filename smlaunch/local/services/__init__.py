"""The services that the contract cannot do without, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smlaunch.local.credentials import Keyring
    from smlaunch.local.dispatch import Service
    from smlaunch.local.log_store import LogStore
    from smlaunch.local.metric_store import MetricStore
    from smlaunch.local.objects import ObjectStore


def standard_services(
    objects: ObjectStore, logs: LogStore, metrics: MetricStore, keyring: Keyring
) -> dict[str, Service]:
    """S3, CloudWatch and its Logs, STS and IAM, by the names that clients sign for."""
    from smlaunch.local.services.cloudwatch import CloudWatch, CloudWatchService
    from smlaunch.local.services.iam import NAMESPACE as IAM_NAMESPACE
    from smlaunch.local.services.iam import Iam
    from smlaunch.local.services.json_service import JsonService
    from smlaunch.local.services.logs import Logs
    from smlaunch.local.services.query_service import QueryService
    from smlaunch.local.services.s3 import S3Service
    from smlaunch.local.services.sts import NAMESPACE as STS_NAMESPACE
    from smlaunch.local.services.sts import Sts

    return {
        "s3": S3Service(objects),
        "logs": JsonService("logs", Logs(logs)),
        "monitoring": CloudWatchService(CloudWatch(metrics)),
        "sts": QueryService(STS_NAMESPACE, Sts(keyring)),
        "iam": QueryService(IAM_NAMESPACE, Iam()),
    }
