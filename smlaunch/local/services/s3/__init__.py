"""S3 over HTTP, as much of it as boto3, s3transfer, the AWS CLI, s5cmd and obstore use to move data."""

from __future__ import annotations

from smlaunch.local.services.s3.service import S3Service

__all__ = ["S3Service"]
