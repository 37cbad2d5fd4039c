"""Services of the endpoint other than SageMaker."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smlaunch.local.front.credentials import Keyring
    from smlaunch.local.front.request_dispatcher import Service
    from smlaunch.local.stores.log_store import LogStore
    from smlaunch.local.stores.metric_store import MetricStore
    from smlaunch.local.stores.object_store import ObjectStore


def standard_services(
    objects: ObjectStore, logs: LogStore, metrics: MetricStore, keyring: Keyring
) -> dict[str, Service]:
    """Create S3, CloudWatch, CloudWatch Logs, STS and IAM, by the names that clients sign for."""
    from smlaunch.local.services.cloudwatch import CloudWatchOperations, CloudWatchService
    from smlaunch.local.services.cloudwatch_logs import CloudWatchLogsOperations
    from smlaunch.local.services.iam import NAMESPACE as IAM_NAMESPACE
    from smlaunch.local.services.iam import IamOperations
    from smlaunch.local.services.json_service import JsonService
    from smlaunch.local.services.query_service import QueryService
    from smlaunch.local.services.s3 import S3Service
    from smlaunch.local.services.sts import NAMESPACE as STS_NAMESPACE
    from smlaunch.local.services.sts import StsOperations

    return {
        "s3": S3Service(objects),
        "logs": JsonService("logs", CloudWatchLogsOperations(logs)),
        "monitoring": CloudWatchService(CloudWatchOperations(metrics)),
        "sts": QueryService(STS_NAMESPACE, StsOperations(keyring)),
        "iam": QueryService(IAM_NAMESPACE, IamOperations()),
    }
