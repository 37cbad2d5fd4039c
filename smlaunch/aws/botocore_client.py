"""Implements ``aws.interfaces`` on botocore. Translates only: ``retry`` decides what to do about errors."""

from __future__ import annotations

import base64
import hashlib
import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from smlaunch.api.job_descriptions import describe_as_training_job
from smlaunch.api.job_kinds import JOB_KINDS, TRAINING, JobKind, job_kind_of, method_name
from smlaunch.aws.api_call import call_api
from smlaunch.aws.interfaces import (
    UNREACHABLE,
    UNREADABLE,
    CallError,
    JobSummary,
    LogEvent,
    StoredObject,
)
from smlaunch.aws.response_validation import validate_responses

_MULTIPART_FROM_BYTES = 8 << 20
"""Larger files are uploaded in parallel parts by s3transfer (whose import costs 30 ms)."""

_MAX_KEYS_PER_DELETE = 1000
"""DeleteObjects takes at most 1,000 keys (S3 API reference)."""

_CHUNK_BYTES = 1 << 20
"""Bytes of a large object that are read before they are passed on."""

_HTTP_PRECONDITION_FAILED, _HTTP_CONFLICT = 412, 409
"""PreconditionFailed and ConditionalRequestConflict of conditional writes (S3 user guide)."""
_MAX_CONDITIONAL_PUT_TRIES = 5

_LOG_PAGE_EVENTS = 10_000
"""GetLogEvents returns at most 10,000 events or 1 MB a call (CloudWatch Logs API reference)."""

_MAX_QUOTA_PAGES = 50
"""Of 100 quotas each: SageMaker has several for each instance type. A quota on none of them counts as not
listed."""

_MAX_PRODUCT_PAGES = 500
"""Of 100 products each: SageMaker has several thousand in a region."""

_NO_SUCH_JOB_CODES = ("ValidationException", "ResourceNotFound")
_ACCESS_DENIED_CODES = ("AccessDenied", "AccessDeniedException", "UnknownOperationException")


class SageMakerControlPlane:
    """Implements ControlPlane. A name that no job of one kind has may be one of the next kind."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._kind_by_job_name: dict[str, JobKind] = {}
        """Of the names that are known from an earlier call."""

    def _call(self, operation: str, **params: Any) -> Any:
        return call_api(operation, getattr(self._client, method_name(operation)), **params)

    def create_job(self, request: Mapping[str, Any]) -> str:
        kind = job_kind_of(request)
        response = self._call(kind.create_operation, **request)
        self._kind_by_job_name[request[kind.name_field]] = kind
        return str(response[kind.arn_field])

    def describe_job(self, job_name: str) -> dict[str, Any]:
        """Return the description of a job in the form of a training job's. Raises CallError for a name that
        no job has."""
        known_kind = self._kind_by_job_name.get(job_name)
        if known_kind is not None:
            return self._describe_job_of_kind(known_kind, job_name)
        errors: list[CallError] = []
        for kind in JOB_KINDS.values():
            try:
                return self._describe_job_of_kind(kind, job_name)
            except CallError as error:
                is_first_kind = not errors
                # A caller who may not describe jobs of the other kinds has made none.
                may_be_other_kind = error.code in _NO_SUCH_JOB_CODES or (
                    error.code in _ACCESS_DENIED_CODES and not is_first_kind
                )
                if not may_be_other_kind:
                    raise
                errors.append(error)
        raise errors[0]  # there is no such training job

    def _describe_job_of_kind(self, kind: JobKind, name: str) -> dict[str, Any]:
        response = self._call(kind.describe_operation, **{kind.name_field: name})
        # Raises CallError if the response is incomplete: then it did not come from the service.
        _ = response[kind.arn_field], response[kind.status_field]
        self._kind_by_job_name[name] = kind
        return describe_as_training_job(kind, response)

    def stop_job(self, name: str) -> None:
        self.describe_job(name)  # finds out of which kind it is
        kind = self._kind_by_job_name[name]
        self._call(kind.stop_operation, **{kind.name_field: name})

    def list_jobs(self, name_contains: str | None = None) -> Iterator[JobSummary]:
        summaries = [self._list_jobs_of_kind(kind, name_contains) for kind in JOB_KINDS.values()]
        return heapq.merge(*summaries, key=lambda row: row.created, reverse=True)

    def _list_jobs_of_kind(self, kind: JobKind, name_contains: str | None) -> Iterator[JobSummary]:
        """Yield the jobs with ``name_contains`` in their names (None: all), newest first; none of a kind
        other than training without permission to list them."""
        params: dict[str, Any] = {"SortBy": "CreationTime", "SortOrder": "Descending", "MaxResults": 100}
        if name_contains:
            params["NameContains"] = name_contains
        while True:
            try:
                page = self._call(kind.list_operation, **params)
            except CallError as error:
                # A caller who may not list such jobs has made none.
                if kind is not TRAINING and error.code in _ACCESS_DENIED_CODES:
                    return
                raise
            yield from (_job_summary(kind, row) for row in page[kind.summaries_field])
            if not page.get("NextToken"):
                return
            params["NextToken"] = page["NextToken"]

    def list_jobs_with_tag(self, tag_key: str, tag_value: str) -> Iterator[JobSummary]:
        """Yield the training jobs of this account and region that have a tag, newest first; none without
        permission to search."""
        has_tag = {"Name": f"Tags.{tag_key}", "Operator": "Equals", "Value": tag_value}
        params: dict[str, Any] = {
            "Resource": "TrainingJob",
            "SearchExpression": {"Filters": [has_tag]},
            "SortBy": "CreationTime",
            "SortOrder": "Descending",
            "MaxResults": 100,
        }
        while True:
            try:
                page = call_api("Search", self._client.search, **params)
            except CallError as error:
                if error.code in _ACCESS_DENIED_CODES:
                    return
                raise
            yield from (
                _job_summary(TRAINING, search_result["TrainingJob"]) for search_result in page["Results"]
            )
            if not page.get("NextToken"):
                return
            params["NextToken"] = page["NextToken"]

    def list_tags(self, arn: str) -> dict[str, str]:
        tags: dict[str, str] = {}
        params = {"ResourceArn": arn}
        while True:
            page = call_api("ListTags", self._client.list_tags, **params)
            tags.update({tag["Key"]: tag["Value"] for tag in page.get("Tags", [])})
            if not page.get("NextToken"):
                return tags
            params["NextToken"] = page["NextToken"]


def _job_summary(kind: JobKind, row: Mapping[str, Any]) -> JobSummary:
    """Return the summary of a job in a list or a search result."""
    ended = row.get(kind.end_time_field)
    return JobSummary(
        row[kind.name_field],
        row[kind.arn_field],
        row[kind.status_field],
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
        self._buckets_must_exist = must_exist

    def object_size(self, bucket: str, key: str) -> int | None:
        try:
            return int(
                call_api("HeadObject", self._client.head_object, Bucket=bucket, Key=key)["ContentLength"]
            )
        except CallError as error:
            if error.code in ("404", "NoSuchKey", "NoSuchBucket", "NotFound"):
                return None
            raise

    def list_objects(self, bucket: str, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects below a prefix, in key order."""
        params: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix}
        while True:
            page = call_api("ListObjectsV2", self._client.list_objects_v2, **params)
            for listed_object in page.get("Contents", []):
                etag = listed_object.get("ETag", "").strip('"') or None
                yield StoredObject(listed_object["Key"], int(listed_object["Size"]), etag)
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

    def read_chunks(self, bucket: str, key: str) -> Iterator[bytes]:
        body = call_api("GetObject", self._client.get_object, Bucket=bucket, Key=key)["Body"]
        with closing(body):
            while chunk := call_api("GetObject", body.read, amt=_CHUNK_BYTES):
                yield chunk

    def put_bytes(self, bucket: str, key: str, content: bytes) -> None:
        # S3 compares the content with it, refuses a difference, and keeps it: by it the object is recognized
        # later without a download.
        sha256 = base64.b64encode(hashlib.sha256(content).digest()).decode()
        params = {"Bucket": bucket, "Key": key, "Body": content, "ChecksumSHA256": sha256}
        call_api("PutObject", self._client.put_object, **params)

    def put_if_absent(self, bucket: str, key: str, content: bytes) -> bool:
        """Create an object of S3, and return True; return False if one with this key exists already. S3
        decides: of two callers at the same time, one gets True."""
        put_object = partial(
            call_api, "PutObject", self._client.put_object, Bucket=bucket, Key=key, Body=content
        )
        for remaining_tries in reversed(range(_MAX_CONDITIONAL_PUT_TRIES)):
            try:
                put_object(IfNoneMatch="*")
                return True
            except CallError as error:
                if error.http_status == _HTTP_PRECONDITION_FAILED:  # 412: the object exists
                    return False
                # 409: while another request for the key is in progress, S3 may not decide and expects a
                # retry.
                may_retry = error.http_status == _HTTP_CONFLICT and remaining_tries > 0
                if not may_retry:
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

    def delete_objects(self, bucket: str, keys: Sequence[str]) -> None:
        """Delete objects; keys without an object are ignored. Raises CallError for the first object that
        could not be deleted.
        """
        for start in range(0, len(keys), _MAX_KEYS_PER_DELETE):
            objects = [{"Key": key} for key in keys[start : start + _MAX_KEYS_PER_DELETE]]
            deletion = {"Objects": objects, "Quiet": True}  # quiet: the response has only errors
            response = call_api("DeleteObjects", self._client.delete_objects, Bucket=bucket, Delete=deletion)
            for failed_object in response.get("Errors", []):
                message = f"{failed_object['Key']}: {failed_object.get('Message', '')}"
                raise CallError("DeleteObjects", failed_object["Code"], message)

    def create_bucket(self, bucket: str, region: str) -> bool:
        """Create a bucket in the region of the client, ``region``, and return True; return False if the
        caller owns it already."""
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

    def check_bucket_owner(self, bucket: str) -> None:
        """Raise CallError if the bucket belongs to another account (this client's requests all state the
        expected owner), or does not exist although it must. The local endpoint creates buckets when they are
        needed; there ``_buckets_must_exist`` is false."""
        try:
            call_api("HeadBucket", self._client.head_bucket, Bucket=bucket)
        except CallError as error:
            if error.http_status != 404:
                raise
            if not self._buckets_must_exist:
                return
            message = f"there is no bucket {bucket}"
            raise CallError("HeadBucket", "NoSuchBucket", message, 404) from error


class CloudWatchLogs:
    """Implements LogReader."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def list_streams(self, group_name: str, name_prefix: str) -> Sequence[str]:
        """Return the names of a log group's streams that begin with ``name_prefix``; none if the group does
        not exist yet, as before an account's first job."""
        stream_names: list[str] = []
        params: dict[str, Any] = {"logGroupName": group_name, "logStreamNamePrefix": name_prefix}
        while True:
            try:
                page = call_api("DescribeLogStreams", self._client.describe_log_streams, **params)
            except CallError as error:
                if error.code == "ResourceNotFoundException":
                    return stream_names
                raise
            stream_names.extend(stream["logStreamName"] for stream in page.get("logStreams", []))
            if not page.get("nextToken"):
                return stream_names
            params["nextToken"] = page["nextToken"]

    def read_page(self, group: str, stream: str, token: str | None) -> tuple[Sequence[LogEvent], str | None]:
        return self._get_log_events_page(group, stream, {"startFromHead": True}, token)

    def read_last_page(self, group: str, stream: str) -> Sequence[LogEvent]:
        return self._get_log_events_page(group, stream, {"startFromHead": False}, None)[0]

    def _get_log_events_page(
        self, group_name: str, stream_name: str, further_params: dict[str, Any], token: str | None
    ) -> tuple[Sequence[LogEvent], str | None]:
        """Return the events of one page of a log stream, and the token of the next page, which is the same
        one at the end of the stream. Without the stream: no events, and the token for the next try.
        ``further_params``: of GetLogEvents. ``token``: of this page; None for the first."""
        params: dict[str, Any] = {
            "logGroupName": group_name,
            "logStreamName": stream_name,
            "limit": _LOG_PAGE_EVENTS,
            **further_params,
        }
        if token is not None:
            params["nextToken"] = token
        try:
            page = call_api("GetLogEvents", self._client.get_log_events, **params)
        except CallError as error:
            if error.code == "ResourceNotFoundException":
                return (), token
            raise
        events = [
            LogEvent(int(event["timestamp"]), str(event["message"])) for event in page.get("events", [])
        ]
        return events, page.get("nextForwardToken", token)


class ServiceQuotas:
    """Implements Quotas. Quotas are found by name, page by page, because their codes are not documented."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def quota_values(self, quota_names: Collection[str]) -> dict[str, float]:
        """Return the values of the account's SageMaker quotas by name; quotas that the service does not list
        are missing."""
        wanted_count = len(set(quota_names))
        value_by_quota_name: dict[str, float] = {}
        for name, value in self._quotas():
            if name in quota_names:
                value_by_quota_name[name] = value
            if len(value_by_quota_name) == wanted_count:
                break
        return value_by_quota_name

    def all_quota_values(self) -> dict[str, float]:
        return dict(self._quotas())

    def _quotas(self) -> Iterator[tuple[str, float]]:
        """Yield names and values, page by page as the caller goes on."""
        params: dict[str, Any] = {"ServiceCode": "sagemaker", "MaxResults": 100}
        for _ in range(_MAX_QUOTA_PAGES):
            page = call_api("ListServiceQuotas", self._client.list_service_quotas, **params)
            for quota in page.get("Quotas", []):
                if "QuotaName" in quota and "Value" in quota:
                    yield quota["QuotaName"], float(quota["Value"])
            if not page.get("NextToken"):
                break
            params["NextToken"] = page["NextToken"]


class PriceListService:
    """Implements ProductList."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def training_products(self, region: str) -> Iterator[str]:
        params: dict[str, Any] = {
            "ServiceCode": "AmazonSageMaker",
            "FormatVersion": "aws_v1",
            "MaxResults": 100,
            "Filters": [{"Type": "TERM_MATCH", "Field": "regionCode", "Value": region}],
        }
        for _ in range(_MAX_PRODUCT_PAGES):
            page = call_api("GetProducts", self._client.get_products, **params)
            yield from page.get("PriceList", [])
            if not page.get("NextToken"):
                return
            params["NextToken"] = page["NextToken"]
        raise CallError("GetProducts", UNREADABLE, f"the list has more than {_MAX_PRODUCT_PAGES} pages")


class StsIdentity:
    """Implements Identity."""

    def __init__(self, sts: Callable[[], Any], iam: Callable[[], Any]) -> None:
        self._sts = sts
        self._iam = iam
        self._caller: tuple[str, str] | None = None

    def get_caller_identity(self) -> tuple[str, str]:
        """Return the account id and the caller's ARN. Asks once: credentials that are renewed stay those of
        the same caller."""
        if self._caller is None:
            response = call_api("GetCallerIdentity", self._sts().get_caller_identity)
            self._caller = str(response["Account"]), str(response["Arn"])
        return self._caller

    def find_role_arn(self, name: str) -> str | None:
        try:
            response = call_api("GetRole", self._iam().get_role, RoleName=name)
        except CallError as error:
            # A private network may have no way to IAM.
            if error.code in ("AccessDenied", "AccessDeniedException", "ValidationError", UNREACHABLE):
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
