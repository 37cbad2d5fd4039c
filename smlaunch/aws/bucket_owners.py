"""Checks of bucket ownership: S3 refuses a request (403) when another account owns the bucket.

The name of the default bucket can be guessed, and the first account to create a bucket has it. So no request
relies on a bucket's name alone: ``enforce_bucket_owners`` adds ExpectedBucketOwner to all requests of a
botocore client, from any library, and distinguishes a foreign bucket from a missing permission.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import Any

from smlaunch.aws.interfaces import WRONG_BUCKET_OWNER
from smlaunch.contract.segment import parse_bucket_owners

_DEFAULT_BUCKET = re.compile(r"sagemaker-[a-z]{2}(?:-[a-z]+)+-[0-9]+-([0-9]{12})")
"""The SageMaker SDK's default bucket has its owner's account in its name."""

_READ_PREFIXES = ("Get", "Head", "List")

_BUCKET_AND_OWNER_KEY = "smlaunch_bucket_and_owner"

ANY_OWNER = ""
"""As a call's ExpectedBucketOwner: the owner is not compared. S3 itself has no such value."""


class BucketOwners:
    """The accounts that own a target's buckets. ``get_account`` returns the caller's own account; it is
    called once."""

    def __init__(self, get_account: Callable[[], str]) -> None:
        self._get_account = get_account
        self._own_account: str | None = None
        self._lock = Lock()
        self._account_by_bucket: dict[str, str] = {}

    def add(self, account_by_bucket: Mapping[str, str]) -> None:
        """Record that these buckets belong to these accounts."""
        self._account_by_bucket.update(account_by_bucket)

    def add_from_environment(self, environment: Mapping[str, str]) -> None:
        """Record the owners that a job's request states (contract.segment, OWNERS)."""
        self.add(parse_bucket_owners(environment))

    def known_owner(self, bucket: str) -> str | None:
        """Return None for a bucket that may be read whoever owns it."""
        default = _DEFAULT_BUCKET.fullmatch(bucket)
        return self._account_by_bucket.get(bucket) or (default[1] if default else None)

    def expected_owner(self, bucket: str) -> str:
        """Return the known owner of the bucket, else the caller's own account.

        Raises CallError where the caller's account is unknown; then nothing is sent.
        """
        return self.known_owner(bucket) or self._caller_account()

    def _caller_account(self) -> str:
        with self._lock:
            if self._own_account is None:
                self._own_account = self._get_account()
            return self._own_account


def enforce_bucket_owners(client: Any, owners: BucketOwners, *, allow_unknown_owner: bool = False) -> Any:
    """Make every request of an S3 client state the bucket's owner, and return the client.

    ``allow_unknown_owner``: reads may go to buckets without a known owner; writes may not.
    """
    events = client.meta.events
    events.register("before-parameter-build.s3", partial(_add_expected_owner, owners, allow_unknown_owner))
    events.register("after-call.s3", partial(_explain_forbidden_response, client))
    return client


def owner_required_for_request(
    owners: BucketOwners, allow_unknown_owner: bool, operation: str, bucket: str
) -> str | None:
    """Return the account that must own the bucket: its known owner, or else the caller's own account. None
    for a read from a bucket without a known owner, if ``allow_unknown_owner``."""
    is_read = operation.startswith(_READ_PREFIXES)
    return owners.known_owner(bucket) if allow_unknown_owner and is_read else owners.expected_owner(bucket)


def _add_expected_owner(
    owners: BucketOwners,
    allow_unknown_owner: bool,
    params: dict[str, Any],
    model: Any,
    context: dict[str, Any],
    **_unused: object,
) -> None:
    """Add the account that should own the bucket to an S3 request, as ``ExpectedBucketOwner``: S3 refuses the
    request if another account owns it. botocore calls this handler before each request.

    ``allow_unknown_owner``: reads may go to buckets whose owner is not known. ``params``: the request's,
    which are changed. ``model``: botocore's model of the operation. ``context``: of the request; the handler
    of the response (_explain_forbidden_response) finds bucket and owner there.
    """
    bucket = params.get("Bucket")
    parameters_of_operation = model.input_shape.members if model.input_shape else {}
    if not isinstance(bucket, str) or "ExpectedBucketOwner" not in parameters_of_operation:
        return  # CreateBucket makes a bucket of the caller's own
    # An owner that the code which sends the request has stated comes first.
    expected_owner = params.pop("ExpectedBucketOwner", None)
    if expected_owner is None:
        expected_owner = owner_required_for_request(owners, allow_unknown_owner, model.name, bucket)
    # S3 has no value that means any owner: the parameter is left out.
    if expected_owner not in (None, ANY_OWNER):
        params["ExpectedBucketOwner"] = expected_owner
        context[_BUCKET_AND_OWNER_KEY] = (bucket, expected_owner)


def _explain_forbidden_response(
    client: Any, http_response: Any, parsed: dict[str, Any], model: Any, context: dict[str, Any], **_: object
) -> None:
    """Explain a response of S3 with status 403, which is the same for a wrong bucket owner and for a missing
    permission. botocore calls this handler after each request. ``parsed``: the response, whose error is
    changed. ``context``: has bucket and owner if the request stated an expected owner."""
    if http_response.status_code != 403 or _BUCKET_AND_OWNER_KEY not in context:
        return
    bucket, expected_owner = context[_BUCKET_AND_OWNER_KEY]
    error = parsed.setdefault("Error", {})  # botocore raises its ClientError from this
    # Ask S3 by HeadBucket, first with this owner, then without one (ANY_OWNER). If the refused request is
    # HeadBucket itself, the first question has been answered.
    if model.name != "HeadBucket" and _is_head_bucket_allowed(client, bucket, expected_owner):
        return  # the owner is right: the permission is missing
    if _is_head_bucket_allowed(client, bucket, ANY_OWNER):  # then only the owner is wrong
        error["Code"] = WRONG_BUCKET_OWNER
        error["Message"] = f"the bucket {bucket} does not belong to the account {expected_owner}"
    else:
        message = error.get("Message") or "Access Denied"
        error["Message"] = (
            f"{message}: the caller lacks the permission, or the bucket {bucket} does not belong to the "
            f"account {expected_owner}"
        )


def _is_head_bucket_allowed(client: Any, bucket: str, owner: str) -> bool:
    """Return whether S3 allows HeadBucket with this expected owner; ANY_OWNER states none."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client.head_bucket(Bucket=bucket, ExpectedBucketOwner=owner)
    except (BotoCoreError, ClientError):
        return False
    return True
