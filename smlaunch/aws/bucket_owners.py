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

from smlaunch.aws.interfaces import NOT_THE_OWNER
from smlaunch.contract.segment import parse_bucket_owners

_DEFAULT_BUCKET = re.compile(r"sagemaker-[a-z]{2}(?:-[a-z]+)+-[0-9]+-([0-9]{12})")
"""The SageMaker SDK's default bucket has its owner's account in its name."""

_READ_PREFIXES = ("Get", "Head", "List")

_CONTEXT_KEY = "smlaunch_bucket_and_owner"

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

    def set_owner(self, bucket: str, account: str) -> None:
        """Record that the bucket belongs to this account."""
        self._account_by_bucket[bucket] = account

    def add_from_environment(self, environment: Mapping[str, str]) -> None:
        """Record the owners that a job's request states (contract.segment, OWNERS)."""
        self._account_by_bucket.update(parse_bucket_owners(environment))

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
    events.register("after-call.s3", partial(_explain_denial, client))
    return client


def owner_to_check(
    owners: BucketOwners, allow_unknown_owner: bool, operation: str, bucket: str
) -> str | None:
    is_read = operation.startswith(_READ_PREFIXES)
    return owners.known_owner(bucket) if allow_unknown_owner and is_read else owners.expected_owner(bucket)


def _add_expected_owner(
    owners: BucketOwners,
    allow_unknown_owner: bool,
    params: dict[str, Any],
    model: Any,
    context: dict[str, Any],
    **_: object,
) -> None:
    """Add ``ExpectedBucketOwner`` to the parameters of an S3 request if its bucket's owner is known: a
    handler for botocore, which calls it before each request."""
    bucket = params.get("Bucket")
    members = model.input_shape.members if model.input_shape else {}
    if not isinstance(bucket, str) or "ExpectedBucketOwner" not in members:
        return  # CreateBucket makes a bucket of the caller's own
    owner = params.get("ExpectedBucketOwner")
    if owner is None:
        owner = owner_to_check(owners, allow_unknown_owner, model.name, bucket)
    params.pop("ExpectedBucketOwner", None)
    if owner:
        params["ExpectedBucketOwner"] = owner
        context[_CONTEXT_KEY] = (bucket, owner)


def _explain_denial(
    client: Any, http_response: Any, parsed: dict[str, Any], model: Any, context: dict[str, Any], **_: object
) -> None:
    """Explain a 403. S3 sends the same message for a wrong owner and for a missing permission."""
    if http_response.status_code != 403 or _CONTEXT_KEY not in context:
        return
    bucket, owner = context[_CONTEXT_KEY]
    error = parsed.setdefault("Error", {})
    if model.name != "HeadBucket" and _is_bucket_owned_by(client, bucket, owner):
        return  # the owner is right: the permission is missing
    if _is_bucket_owned_by(client, bucket, ANY_OWNER):
        error["Code"] = NOT_THE_OWNER
        error["Message"] = f"the bucket {bucket} does not belong to the account {owner}"
    else:
        message = error.get("Message") or "Access Denied"
        error["Message"] = (
            f"{message}: the caller lacks the permission, or the bucket {bucket} does not belong to the "
            f"account {owner}"
        )


def _is_bucket_owned_by(client: Any, bucket: str, owner: str) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client.head_bucket(Bucket=bucket, ExpectedBucketOwner=owner)
    except (BotoCoreError, ClientError):
        return False
    return True
