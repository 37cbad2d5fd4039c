"""The ports on botocore: translation only. What to do about an error is decided in ``retry``."""

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

from smlaunch.ports import UNREACHABLE, UNREADABLE, CallError, JobSummary, LogEvent, StoredObject
from smlaunch.request import PROCESSING, operation_of
from smlaunch.runs import processing_jobs
from smlaunch.runs.answers import checked

_MULTIPART_FROM = 8 << 20
"""Files from this size on go up in parallel parts, by s3transfer (whose import costs 30 ms)."""

_DELETED_AT_ONCE = 1000
"""DeleteObjects takes at most 1,000 keys (S3 API reference)."""

_CHUNK = 1 << 20
"""Bytes that are read of a large object before they are handed on."""

_FAILED_CONDITION, _CONFLICT = 412, 409
"""PreconditionFailed and ConditionalRequestConflict of conditional writes (S3 user guide)."""
_TRIES_AT_ONCE = 5

_LOG_PAGE = 10_000
"""GetLogEvents returns at most 10,000 events or 1 MB a call (CloudWatch Logs API reference)."""

_MOST_QUOTA_PAGES = 50
"""Of 100 quotas: SageMaker has several for each instance type. What is on none of them counts as unlisted."""

_NO_SUCH_JOB = ("ValidationException", "ResourceNotFound")
_MAY_NOT = ("AccessDenied", "AccessDeniedException", "UnknownOperationException")

_ANSWER_LOST = (ConnectionClosedError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError)
"""The request was sent, and what was asked for may have been done; botocore's other errors come before."""

NO_CREDENTIALS = "NoCredentials"
"""The code of a CallError when the caller has no usable credentials at all."""


class _Answer(dict[str, Any]):
    """A member that an answer has to have is missing from what a proxy made up, or an endpoint got wrong."""

    def __init__(self, operation: str, members: Mapping[str, Any]) -> None:
        super().__init__(members)
        self._operation = operation

    def __missing__(self, member: str) -> Any:
        raise CallError(self._operation, UNREADABLE, f"the answer has no {member}")


def call(operation: str, function: Callable[..., Any], **params: Any) -> Any:
    """Calls a client method; every way it can go wrong becomes one CallError."""
    try:
        answer = function(**params)
        return _Answer(operation, answer) if isinstance(answer, dict) else answer
    except ClientError as error:
        answer = error.response.get("Error", {})
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(answer.get("Code", "Unknown"))
        raise CallError(operation, code, str(answer.get("Message", "")) or code, status) from error
    except (NoCredentialsError, PartialCredentialsError, ProfileNotFound, NoRegionError) as error:
        raise CallError(operation, NO_CREDENTIALS, str(error)) from error
    except ParamValidationError as error:
        raise CallError(operation, "ValidationException", str(error)) from error
    except (ResponseParserError, *_ANSWER_LOST) as error:
        raise CallError(operation, UNREADABLE, str(error).splitlines()[0]) from error
    except BotoCoreError as error:
        raise CallError(operation, UNREACHABLE, str(error)) from error


class SageMaker:
    """ControlPlane. A name that no training job has may be a processing job's."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._processing: set[str] = set()
        """Names that are known to be processing jobs'."""

    def create(self, request: Mapping[str, Any]) -> str:
        if operation_of(request) == PROCESSING:
            answer = call(PROCESSING, self._client.create_processing_job, **request)
            self._processing.add(request["ProcessingJobName"])
            return str(answer["ProcessingJobArn"])
        return str(call("CreateTrainingJob", self._client.create_training_job, **request)["TrainingJobArn"])

    def describe(self, name: str) -> dict[str, Any]:
        if name not in self._processing:
            try:
                answer = call("DescribeTrainingJob", self._client.describe_training_job, TrainingJobName=name)
                _ = answer["TrainingJobArn"], answer["TrainingJobStatus"]
                return {key: value for key, value in answer.items() if key != "ResponseMetadata"}
            except CallError as error:
                if error.code not in _NO_SUCH_JOB:
                    raise
                missing = error
            try:
                return self._describe_processing(name)
            except CallError as error:
                # Also where nobody may ask: what is known is that there is no such training job.
                if error.code in (*_NO_SUCH_JOB, *_MAY_NOT):
                    raise missing from None
                raise
        return self._describe_processing(name)

    def _describe_processing(self, name: str) -> dict[str, Any]:
        operation = self._client.describe_processing_job
        answer = call("DescribeProcessingJob", operation, ProcessingJobName=name)
        _ = answer["ProcessingJobArn"], answer["ProcessingJobStatus"]
        self._processing.add(name)
        return processing_jobs.as_training(answer)

    def stop(self, name: str) -> None:
        self.describe(name)  # whose it is
        if name in self._processing:
            call("StopProcessingJob", self._client.stop_processing_job, ProcessingJobName=name)
        else:
            call("StopTrainingJob", self._client.stop_training_job, TrainingJobName=name)

    def list(self, name_contains: str | None = None) -> Iterator[JobSummary]:
        both = (self._list_training(name_contains), self._list_processing(name_contains))
        return heapq.merge(*both, key=lambda row: row.created, reverse=True)

    def _list_processing(self, name_contains: str | None) -> Iterator[JobSummary]:
        params: dict[str, Any] = {"SortBy": "CreationTime", "SortOrder": "Descending", "MaxResults": 100}
        if name_contains:
            params["NameContains"] = name_contains
        while True:
            try:
                page = call("ListProcessingJobs", self._client.list_processing_jobs, **params)
            except CallError as error:
                if error.code in _MAY_NOT:  # whoever may not list them has made none
                    return
                raise
            yield from map(processing_jobs.summary_of, page["ProcessingJobSummaries"])
            if not page.get("NextToken"):
                return
            params["NextToken"] = page["NextToken"]

    def _list_training(self, name_contains: str | None) -> Iterator[JobSummary]:
        params: dict[str, Any] = {"SortBy": "CreationTime", "SortOrder": "Descending", "MaxResults": 100}
        if name_contains:
            params["NameContains"] = name_contains
        while True:
            page = call("ListTrainingJobs", self._client.list_training_jobs, **params)
            yield from map(_summary, page["TrainingJobSummaries"])
            if not page.get("NextToken"):
                return
            params["NextToken"] = page["NextToken"]

    def tagged(self, key: str, value: str) -> Iterator[JobSummary]:
        wanted = {"Filters": [{"Name": f"Tags.{key}", "Operator": "Equals", "Value": value}]}
        params: dict[str, Any] = {"Resource": "TrainingJob", "SearchExpression": wanted, "MaxResults": 100}
        params |= {"SortBy": "CreationTime", "SortOrder": "Descending"}
        while True:
            try:
                page = call("Search", self._client.search, **params)
            except CallError as error:
                if error.code in _MAY_NOT:
                    return
                raise
            yield from (_summary(row["TrainingJob"]) for row in page["Results"])
            if not page.get("NextToken"):
                return
            params["NextToken"] = page["NextToken"]

    def tags(self, arn: str) -> dict[str, str]:
        found: dict[str, str] = {}
        params = {"ResourceArn": arn}
        while True:
            page = call("ListTags", self._client.list_tags, **params)
            found.update({tag["Key"]: tag["Value"] for tag in page.get("Tags", [])})
            if not page.get("NextToken"):
                return found
            params["NextToken"] = page["NextToken"]


def _summary(row: Mapping[str, Any]) -> JobSummary:
    """Of a training job, in a list or found by a search."""
    ended = row.get("TrainingEndTime")
    return JobSummary(
        row["TrainingJobName"],
        row["TrainingJobArn"],
        row["TrainingJobStatus"],
        row["CreationTime"].timestamp(),
        ended.timestamp() if ended else None,
    )


class S3:
    """ObjectStorage. ``must_exist``: of the buckets whose owner is checked; the local endpoint makes those
    that a job names when they are needed."""

    def __init__(self, client: Any, *, must_exist: bool = True) -> None:
        self._client = client
        self._must_exist = must_exist

    def size(self, bucket: str, key: str) -> int | None:
        try:
            return int(call("HeadObject", self._client.head_object, Bucket=bucket, Key=key)["ContentLength"])
        except CallError as error:
            if error.code in ("404", "NoSuchKey", "NoSuchBucket", "NotFound"):
                return None
            raise

    def list(self, bucket: str, prefix: str) -> Iterator[StoredObject]:
        params: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix}
        while True:
            page = call("ListObjectsV2", self._client.list_objects_v2, **params)
            for row in page.get("Contents", []):
                yield StoredObject(row["Key"], int(row["Size"]), row.get("ETag", "").strip('"') or None)
            if not page.get("IsTruncated"):
                return
            params["ContinuationToken"] = page["NextContinuationToken"]

    def get_bytes(self, bucket: str, key: str) -> bytes | None:
        try:
            answer = call("GetObject", self._client.get_object, Bucket=bucket, Key=key)
        except CallError as error:
            if error.code in ("404", "NoSuchKey", "NoSuchBucket", "NotFound"):
                return None
            raise
        content: bytes = call("GetObject", answer["Body"].read)
        return content

    def chunks(self, bucket: str, key: str) -> Iterator[bytes]:
        body = call("GetObject", self._client.get_object, Bucket=bucket, Key=key)["Body"]
        with closing(body):
            while chunk := call("GetObject", body.read, amt=_CHUNK):
                yield chunk

    def put_bytes(self, bucket: str, key: str, content: bytes) -> None:
        call("PutObject", self._client.put_object, Bucket=bucket, Key=key, Body=content)

    def put_new(self, bucket: str, key: str, content: bytes) -> bool:
        put = partial(call, "PutObject", self._client.put_object, Bucket=bucket, Key=key, Body=content)
        for left in reversed(range(_TRIES_AT_ONCE)):
            try:
                put(IfNoneMatch="*")
                return True
            except CallError as error:
                if error.status == _FAILED_CONDITION:
                    return False
                # While another's is on its way, S3 may not say who was first, and wants to be asked again.
                if error.status != _CONFLICT or not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def put_file(self, bucket: str, key: str, source: Path) -> None:
        if source.stat().st_size < _MULTIPART_FROM:
            with source.open("rb") as body:
                call("PutObject", self._client.put_object, Bucket=bucket, Key=key, Body=body)
            return
        from s3transfer.manager import TransferManager

        with TransferManager(self._client) as manager:
            upload = manager.upload(str(source), bucket, key)
            call("PutObject", upload.result)

    def delete(self, bucket: str, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            rows = [{"Key": key} for key in keys[start : start + _DELETED_AT_ONCE]]
            wanted = {"Objects": rows, "Quiet": True}
            answer = call("DeleteObjects", self._client.delete_objects, Bucket=bucket, Delete=wanted)
            for fault in answer.get("Errors", []):
                raise CallError("DeleteObjects", fault["Code"], f"{fault['Key']}: {fault.get('Message', '')}")

    def make_bucket(self, bucket: str, region: str) -> bool:
        params: dict[str, Any] = {"Bucket": bucket}
        if region != "us-east-1":  # the one region that may not be named in CreateBucket
            params["CreateBucketConfiguration"] = {"LocationConstraint": region}
        try:
            call("CreateBucket", self._client.create_bucket, **params)
        except CallError as error:
            if error.code == "BucketAlreadyOwnedByYou":
                return False
            raise
        return True

    def check_owner(self, bucket: str) -> None:
        try:
            call("HeadBucket", self._client.head_bucket, Bucket=bucket)
        except CallError as error:
            if error.status != 404:
                raise
            if not self._must_exist:
                return
            told = f"there is no bucket {bucket}"
            raise CallError("HeadBucket", "NoSuchBucket", told, 404) from error


class CloudWatchLogs:
    """LogReader."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def streams(self, group: str, prefix: str) -> Sequence[str]:
        names: list[str] = []
        params: dict[str, Any] = {"logGroupName": group, "logStreamNamePrefix": prefix}
        while True:
            try:
                page = call("DescribeLogStreams", self._client.describe_log_streams, **params)
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
        params = {"logGroupName": group, "logStreamName": stream, "limit": _LOG_PAGE, **params}
        if token is not None:
            params["nextToken"] = token
        try:
            page = call("GetLogEvents", self._client.get_log_events, **params)
        except CallError as error:
            if error.code == "ResourceNotFoundException":
                return (), token
            raise
        events = [LogEvent(int(row["timestamp"]), str(row["message"])) for row in page.get("events", [])]
        return events, page.get("nextForwardToken", token)


class ServiceQuotas:
    """Quotas. They are looked for by their names, page by page: their codes are nowhere documented."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def values(self, names: Collection[str]) -> dict[str, float]:
        found: dict[str, float] = {}
        params: dict[str, Any] = {"ServiceCode": "sagemaker", "MaxResults": 100}
        for _ in range(_MOST_QUOTA_PAGES):
            page = call("ListServiceQuotas", self._client.list_service_quotas, **params)
            for row in page.get("Quotas", []):
                if row.get("QuotaName") in names:
                    found[row["QuotaName"]] = float(row["Value"])
            if len(found) == len(set(names)) or not page.get("NextToken"):
                break
            params["NextToken"] = page["NextToken"]
        return found


class Caller:
    """Identity."""

    def __init__(self, sts: Callable[[], Any], iam: Callable[[], Any]) -> None:
        self._sts = sts
        self._iam = iam

    def caller(self) -> tuple[str, str]:
        answer = call("GetCallerIdentity", self._sts().get_caller_identity)
        return str(answer["Account"]), str(answer["Arn"])

    def role_arn(self, name: str) -> str | None:
        try:
            answer = call("GetRole", self._iam().get_role, RoleName=name)
        except CallError as error:
            if error.code in ("NoSuchEntity", "AccessDenied", "AccessDeniedException", "ValidationError"):
                return None
            raise
        return str(answer["Role"]["Arn"])


def opened(session: Any, service: str, region: str, url: str | None, config: Any) -> Any:
    """A client of the session; what is wrong with the user's AWS configuration becomes a CallError."""
    client = call(
        f"client {service}",
        session.create_client,
        service_name=service,
        region_name=region,
        endpoint_url=url,
        config=config,
    )
    return checked(client)
