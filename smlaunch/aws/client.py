"""Implements ``aws.interfaces`` on botocore. Translates only: ``retry`` decides what to do about errors."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    IncompleteReadError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    ResponseStreamingError,
)
from botocore.parsers import ResponseParserError

from smlaunch.api.request import CREATE_PROCESSING_JOB, operation_of
from smlaunch.aws import processing_jobs
from smlaunch.aws.interfaces import UNREACHABLE, UNREADABLE, CallError, JobSummary, LogEvent, StoredObject
from smlaunch.aws.responses import validate_responses

_MULTIPART_FROM_BYTES = 8 << 20
"""Larger files are uploaded in parallel parts by s3transfer (whose import costs 30 ms)."""

_MAX_KEYS_PER_DELETE = 1000
"""DeleteObjects takes at most 1,000 keys (S3 API reference)."""

_CHUNK_BYTES = 1 << 20
"""Bytes of a large object that are read before they are passed on."""

_FAILED_CONDITION, _CONFLICT = 412, 409
"""PreconditionFailed and ConditionalRequestConflict of conditional writes (S3 user guide)."""
_CONDITIONAL_PUT_TRIES = 5

_LOG_PAGE_EVENTS = 10_000
"""GetLogEvents returns at most 10,000 events or 1 MB a call (CloudWatch Logs API reference)."""

_MAX_QUOTA_PAGES = 50
"""Of 100 quotas each: SageMaker has several for each instance type. A quota on none of them counts as not
listed."""

_NO_SUCH_JOB = ("ValidationException", "ResourceNotFound")
_NOT_ALLOWED = ("AccessDenied", "AccessDeniedException", "UnknownOperationException")

_RESPONSE_LOST_ERRORS = (ConnectionClosedError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError)
"""The request was sent and may have been carried out; botocore's other errors come before that."""

NO_CREDENTIALS = "NoCredentials"
"""Code of a CallError for a caller without usable credentials."""


class _Response(dict[str, Any]):
    """A response in which a missing member raises a CallError: a proxy or an endpoint may leave one out."""

    def __init__(self, operation: str, members: Mapping[str, Any]) -> None:
        super().__init__(members)
        self._operation = operation

    def __missing__(self, member: str) -> Any:
        raise CallError(self._operation, UNREADABLE, f"the answer has no {member}")


def call_api(operation: str, function: Callable[..., Any], **params: Any) -> Any:
    """Call a client method. Every way in which it can fail becomes a CallError."""
    try:
        response = function(**params)
        return _Response(operation, response) if isinstance(response, dict) else response
    except ClientError as error:
        response = error.response.get("Error", {})
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(response.get("Code", "Unknown"))
        raise CallError(operation, code, str(response.get("Message", "")) or code, status) from error
    except (NoCredentialsError, PartialCredentialsError, ProfileNotFound, NoRegionError) as error:
        raise CallError(operation, NO_CREDENTIALS, str(error)) from error
    except ParamValidationError as error:
        raise CallError(operation, "ValidationException", str(error)) from error
    except (ResponseParserError, *_RESPONSE_LOST_ERRORS) as error:
        raise CallError(operation, UNREADABLE, str(error).splitlines()[0]) from error
    except BotoCoreError as error:
        raise CallError(operation, UNREACHABLE, str(error)) from error


class SageMakerControlPlane:
    """Implements ControlPlane. A name that no training job has may be a processing job's."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._processing_job_names: set[str] = set()
        """Names known to belong to processing jobs."""

    def create(self, request: Mapping[str, Any]) -> str:
        if operation_of(request) == CREATE_PROCESSING_JOB:
            response = call_api(CREATE_PROCESSING_JOB, self._client.create_processing_job, **request)
            self._processing_job_names.add(request["ProcessingJobName"])
            return str(response["ProcessingJobArn"])
        return str(
            call_api("CreateTrainingJob", self._client.create_training_job, **request)["TrainingJobArn"]
        )

    def describe(self, name: str) -> dict[str, Any]:
        """Return the description of a training job, or of a processing job in the form of a training
        job's."""
        if name not in self._processing_job_names:
            try:
                response = call_api(
                    "DescribeTrainingJob", self._client.describe_training_job, TrainingJobName=name
                )
                _ = response["TrainingJobArn"], response["TrainingJobStatus"]
                return {key: value for key, value in response.items() if key != "ResponseMetadata"}
            except CallError as error:
                if error.code not in _NO_SUCH_JOB:
                    raise
                no_training_job = error
            try:
                return self._describe_processing(name)
            except CallError as error:
                # Without permission to describe processing jobs, only the missing training job is known.
                if error.code in (*_NO_SUCH_JOB, *_NOT_ALLOWED):
                    raise no_training_job from None
                raise
        return self._describe_processing(name)

    def _describe_processing(self, name: str) -> dict[str, Any]:
        operation = self._client.describe_processing_job
        response = call_api("DescribeProcessingJob", operation, ProcessingJobName=name)
        _ = response["ProcessingJobArn"], response["ProcessingJobStatus"]
        self._processing_job_names.add(name)
        return processing_jobs.as_training_job(response)

    def stop(self, name: str) -> None:
        self.describe(name)  # finds out whether it is a processing job
        if name in self._processing_job_names:
            call_api("StopProcessingJob", self._client.stop_processing_job, ProcessingJobName=name)
        else:
            call_api("StopTrainingJob", self._client.stop_training_job, TrainingJobName=name)

    def list(self, name_contains: str | None = None) -> Iterator[JobSummary]:
        summaries = (self._list_training(name_contains), self._list_processing(name_contains))
        return heapq.merge(*summaries, key=lambda row: row.created, reverse=True)

    def _list_processing(self, name_contains: str | None) -> Iterator[JobSummary]:
        """Yield all processing jobs, newest first, with the text in their names if one is given; none without
        permission to list them."""
        params: dict[str, Any] = {"SortBy": "CreationTime", "SortOrder": "Descending", "MaxResults": 100}
        if name_contains:
            params["NameContains"] = name_contains
        while True:
            try:
                page = call_api("ListProcessingJobs", self._client.list_processing_jobs, **params)
            except CallError as error:
                if error.code in _NOT_ALLOWED:  # a caller who may not list them has made none
                    return
                raise
            yield from map(processing_jobs.job_summary, page["ProcessingJobSummaries"])
            if not page.get("NextToken"):
                return
            params["NextToken"] = page["NextToken"]

    def _list_training(self, name_contains: str | None) -> Iterator[JobSummary]:
        """Yield all training jobs, newest first, with the text in their names if one is given."""
        params: dict[str, Any] = {"SortBy": "CreationTime", "SortOrder": "Descending", "MaxResults": 100}
        if name_contains:
            params["NameContains"] = name_contains
        while True:
            page = call_api("ListTrainingJobs", self._client.list_training_jobs, **params)
            yield from map(_training_job_summary, page["TrainingJobSummaries"])
            if not page.get("NextToken"):
                return
            params["NextToken"] = page["NextToken"]

    def list_tagged(self, key: str, value: str) -> Iterator[JobSummary]:
        """Yield the training jobs with this tag, newest first; none without permission to search."""
        search = {"Filters": [{"Name": f"Tags.{key}", "Operator": "Equals", "Value": value}]}
        params: dict[str, Any] = {"Resource": "TrainingJob", "SearchExpression": search, "MaxResults": 100}
        params |= {"SortBy": "CreationTime", "SortOrder": "Descending"}
        while True:
            try:
                page = call_api("Search", self._client.search, **params)
            except CallError as error:
                if error.code in _NOT_ALLOWED:
                    return
                raise
            yield from (_training_job_summary(row["TrainingJob"]) for row in page["Results"])
            if not page.get("NextToken"):
                return
            params["NextToken"] = page["NextToken"]

    def tags(self, arn: str) -> dict[str, str]:
        tags: dict[str, str] = {}
        params = {"ResourceArn": arn}
        while True:
            page = call_api("ListTags", self._client.list_tags, **params)
            tags.update({tag["Key"]: tag["Value"] for tag in page.get("Tags", [])})
            if not page.get("NextToken"):
                return tags
            params["NextToken"] = page["NextToken"]


def _training_job_summary(row: Mapping[str, Any]) -> JobSummary:
    """Return the summary of a training job in a list or a search result."""
    ended = row.get("TrainingEndTime")
    return JobSummary(
        row["TrainingJobName"],
        row["TrainingJobArn"],
        row["TrainingJobStatus"],
        row["CreationTime"].timestamp(),
        ended.timestamp() if ended else None,
    )


class S3Storage:
    """Implements ObjectStorage.

    ``must_exist`` applies to buckets whose owner is checked; the local endpoint creates a job's buckets when
    they are needed.
    """

    def __init__(self, client: Any, *, must_exist: bool = True) -> None:
        self._client = client
        self._must_exist = must_exist

    def size(self, bucket: str, key: str) -> int | None:
        try:
            return int(
                call_api("HeadObject", self._client.head_object, Bucket=bucket, Key=key)["ContentLength"]
            )
        except CallError as error:
            if error.code in ("404", "NoSuchKey", "NoSuchBucket", "NotFound"):
                return None
            raise

    def list(self, bucket: str, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects below a prefix, in key order."""
        params: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix}
        while True:
            page = call_api("ListObjectsV2", self._client.list_objects_v2, **params)
            for row in page.get("Contents", []):
                yield StoredObject(row["Key"], int(row["Size"]), row.get("ETag", "").strip('"') or None)
            if not page.get("IsTruncated"):
                return
            params["ContinuationToken"] = page["NextContinuationToken"]

    def get_bytes(self, bucket: str, key: str) -> bytes | None:
        try:
            response = call_api("GetObject", self._client.get_object, Bucket=bucket, Key=key)
        except CallError as error:
            if error.code in ("404", "NoSuchKey", "NoSuchBucket", "NotFound"):
                return None
            raise
        content: bytes = call_api("GetObject", response["Body"].read)
        return content

    def chunks(self, bucket: str, key: str) -> Iterator[bytes]:
        body = call_api("GetObject", self._client.get_object, Bucket=bucket, Key=key)["Body"]
        with closing(body):
            while chunk := call_api("GetObject", body.read, amt=_CHUNK_BYTES):
                yield chunk

    def put_bytes(self, bucket: str, key: str, content: bytes) -> None:
        call_api("PutObject", self._client.put_object, Bucket=bucket, Key=key, Body=content)

    def put_if_absent(self, bucket: str, key: str, content: bytes) -> bool:
        """Create an object, and return True; return False if one with this key exists already."""
        put = partial(call_api, "PutObject", self._client.put_object, Bucket=bucket, Key=key, Body=content)
        for remaining_tries in reversed(range(_CONDITIONAL_PUT_TRIES)):
            try:
                put(IfNoneMatch="*")
                return True
            except CallError as error:
                if error.status == _FAILED_CONDITION:
                    return False
                # While another request is in progress, S3 may not decide and expects a retry.
                if error.status != _CONFLICT or not remaining_tries:
                    raise
        raise AssertionError("the last try returns or raises")

    def put_file(self, bucket: str, key: str, source: Path) -> None:
        if source.stat().st_size < _MULTIPART_FROM_BYTES:
            with source.open("rb") as body:
                call_api("PutObject", self._client.put_object, Bucket=bucket, Key=key, Body=body)
            return
        from s3transfer.manager import TransferManager

        with TransferManager(self._client) as manager:
            upload = manager.upload(str(source), bucket, key)
            call_api("PutObject", upload.result)

    def delete(self, bucket: str, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), _MAX_KEYS_PER_DELETE):
            rows = [{"Key": key} for key in keys[start : start + _MAX_KEYS_PER_DELETE]]
            request = {"Objects": rows, "Quiet": True}
            response = call_api("DeleteObjects", self._client.delete_objects, Bucket=bucket, Delete=request)
            for failed_key in response.get("Errors", []):
                raise CallError(
                    "DeleteObjects",
                    failed_key["Code"],
                    f"{failed_key['Key']}: {failed_key.get('Message', '')}",
                )

    def make_bucket(self, bucket: str, region: str) -> bool:
        """Create a bucket, and return True; return False if the caller owns it already."""
        params: dict[str, Any] = {"Bucket": bucket}
        if region != "us-east-1":  # the one region that may not be named in CreateBucket
            params["CreateBucketConfiguration"] = {"LocationConstraint": region}
        try:
            call_api("CreateBucket", self._client.create_bucket, **params)
        except CallError as error:
            if error.code == "BucketAlreadyOwnedByYou":
                return False
            raise
        return True

    def check_owner(self, bucket: str) -> None:
        """Raise CallError if the bucket belongs to another account, or does not exist although it must."""
        try:
            call_api("HeadBucket", self._client.head_bucket, Bucket=bucket)
        except CallError as error:
            if error.status != 404:
                raise
            if not self._must_exist:
                return
            message = f"there is no bucket {bucket}"
            raise CallError("HeadBucket", "NoSuchBucket", message, 404) from error


class CloudWatchLogs:
    """Implements LogReader."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def streams(self, group: str, prefix: str) -> Sequence[str]:
        """Return the names of a log group's streams that begin with the prefix; none without the group."""
        names: list[str] = []
        params: dict[str, Any] = {"logGroupName": group, "logStreamNamePrefix": prefix}
        while True:
            try:
                page = call_api("DescribeLogStreams", self._client.describe_log_streams, **params)
            except CallError as error:
                if error.code == "ResourceNotFoundException":
                    return names
                raise
            names.extend(row["logStreamName"] for row in page.get("logStreams", []))
            if not page.get("nextToken"):
                return names
            params["nextToken"] = page["nextToken"]

    def read(self, group: str, stream: str, token: str | None) -> tuple[Sequence[LogEvent], str | None]:
        return self._page(group, stream, {"startFromHead": True}, token)

    def tail(self, group: str, stream: str) -> Sequence[LogEvent]:
        return self._page(group, stream, {"startFromHead": False}, None)[0]

    def _page(
        self, group: str, stream: str, params: dict[str, Any], token: str | None
    ) -> tuple[Sequence[LogEvent], str | None]:
        """Return the events of one page of a stream, and the token of the next page, which is the same one at
        the end."""
        params = {"logGroupName": group, "logStreamName": stream, "limit": _LOG_PAGE_EVENTS, **params}
        if token is not None:
            params["nextToken"] = token
        try:
            page = call_api("GetLogEvents", self._client.get_log_events, **params)
        except CallError as error:
            if error.code == "ResourceNotFoundException":
                return (), token
            raise
        events = [LogEvent(int(row["timestamp"]), str(row["message"])) for row in page.get("events", [])]
        return events, page.get("nextForwardToken", token)


class ServiceQuotas:
    """Implements Quotas. Quotas are found by name, page by page, because their codes are not documented."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def values(self, names: Collection[str]) -> dict[str, float]:
        """Return the values of the account's quotas by name; quotas that the service does not list are
        missing."""
        values: dict[str, float] = {}
        params: dict[str, Any] = {"ServiceCode": "sagemaker", "MaxResults": 100}
        for _ in range(_MAX_QUOTA_PAGES):
            page = call_api("ListServiceQuotas", self._client.list_service_quotas, **params)
            for row in page.get("Quotas", []):
                if row.get("QuotaName") in names:
                    values[row["QuotaName"]] = float(row["Value"])
            if len(values) == len(set(names)) or not page.get("NextToken"):
                break
            params["NextToken"] = page["NextToken"]
        return values


class StsIdentity:
    """Implements Identity."""

    def __init__(self, sts: Callable[[], Any], iam: Callable[[], Any]) -> None:
        self._sts = sts
        self._iam = iam

    def caller(self) -> tuple[str, str]:
        response = call_api("GetCallerIdentity", self._sts().get_caller_identity)
        return str(response["Account"]), str(response["Arn"])

    def role_arn(self, name: str) -> str | None:
        try:
            response = call_api("GetRole", self._iam().get_role, RoleName=name)
        except CallError as error:
            if error.code in ("NoSuchEntity", "AccessDenied", "AccessDeniedException", "ValidationError"):
                return None
            raise
        return str(response["Role"]["Arn"])


def create_client(session: Any, service: str, region: str, url: str | None, config: Any) -> Any:
    """Return a client of the session. A wrong AWS configuration of the user becomes a CallError."""
    client = call_api(
        f"client {service}",
        session.create_client,
        service_name=service,
        region_name=region,
        endpoint_url=url,
        config=config,
    )
    return validate_responses(client)
