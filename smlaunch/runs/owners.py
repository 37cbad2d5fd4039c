"""Whose bucket every request to S3 has to reach: S3 refuses it (403) where another account owns the bucket.

The default bucket's name can be guessed, and whoever creates a bucket first has it. So a request never goes
by a bucket's name alone: ``installed`` adds ExpectedBucketOwner to all that a botocore client sends,
whichever library calls it, and tells a bucket of somebody else apart from a missing permission.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import Any

from smlaunch.ports import NOT_THE_OWNER
from smlaunch.protocol.segment import owners_in

_DEFAULT_BUCKET = re.compile(r"sagemaker-[a-z]{2}(?:-[a-z]+)+-[0-9]+-([0-9]{12})")
"""The SageMaker SDK's default bucket says in its name whose it is."""

_READS = ("Get", "Head", "List")

_CONTEXT = "smlaunch_bucket_and_owner"

ANYBODY = ""
"""As a call's ExpectedBucketOwner: the owner is not compared. S3 itself takes no such value."""


class Owners:
    """The accounts that own the buckets of a target. ``account``: asks for the caller's own, once."""

    def __init__(self, account: Callable[[], str]) -> None:
        self._ask = account
        self._own: str | None = None
        self._lock = Lock()
        self._named: dict[str, str] = {}

    def name(self, bucket: str, account: str) -> None:
        """Somebody has said that the bucket belongs to this account."""
        self._named[bucket] = account

    def learn(self, environment: Mapping[str, str]) -> None:
        """What a job's request says (protocol.segment, OWNERS)."""
        self._named.update(owners_in(environment))

    def known(self, bucket: str) -> str | None:
        """None for a bucket that may be anybody's, as far as reading it goes."""
        default = _DEFAULT_BUCKET.fullmatch(bucket)
        return self._named.get(bucket) or (default[1] if default else None)

    def expected(self, bucket: str) -> str:
        """Whose the bucket has to be: the caller's, unless it is known to be another's. Raises CallError
        where nobody can say who the caller is: then nothing is sent."""
        return self.known(bucket) or self._account()

    def _account(self) -> str:
        with self._lock:
            if self._own is None:
                self._own = self._ask()
            return self._own


def installed(client: Any, owners: Owners, *, anyones: bool = False) -> Any:
    """The botocore client for S3, every request of which names the bucket's owner. ``anyones``: what it reads
    may be anybody's, where no owner is known; what it writes may not."""
    events = client.meta.events
    events.register("before-parameter-build.s3", partial(_name_owner, owners, anyones))
    events.register("after-call.s3", partial(_tell_why, client))
    return client


def owner_for(owners: Owners, anyones: bool, operation: str, bucket: str) -> str | None:
    reads = operation.startswith(_READS)
    return owners.known(bucket) if anyones and reads else owners.expected(bucket)


def _name_owner(
    owners: Owners, anyones: bool, params: dict[str, Any], model: Any, context: dict[str, Any], **_: object
) -> None:
    bucket = params.get("Bucket")
    members = model.input_shape.members if model.input_shape else {}
    if not isinstance(bucket, str) or "ExpectedBucketOwner" not in members:
        return  # CreateBucket, which makes one of the caller's own
    owner = params.get("ExpectedBucketOwner")
    if owner is None:
        owner = owner_for(owners, anyones, model.name, bucket)
    params.pop("ExpectedBucketOwner", None)
    if owner:
        params["ExpectedBucketOwner"] = owner
        context[_CONTEXT] = (bucket, owner)


def _tell_why(
    client: Any, http_response: Any, parsed: dict[str, Any], model: Any, context: dict[str, Any], **_: object
) -> None:
    """A 403 for a wrong owner has the same words as one for a missing permission."""
    if http_response.status_code != 403 or _CONTEXT not in context:
        return
    bucket, owner = context[_CONTEXT]
    error = parsed.setdefault("Error", {})
    if model.name != "HeadBucket" and _reached(client, bucket, owner):
        return  # the owner is right, so that it is the permission that lacks
    if _reached(client, bucket, ANYBODY):
        error["Code"] = NOT_THE_OWNER
        error["Message"] = f"the bucket {bucket} does not belong to the account {owner}"
    else:
        said = error.get("Message") or "Access Denied"
        error["Message"] = (
            f"{said}: the caller lacks the permission, or the bucket {bucket} does not belong to the account "
            f"{owner}"
        )


def _reached(client: Any, bucket: str, owner: str) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client.head_bucket(Bucket=bucket, ExpectedBucketOwner=owner)
    except (BotoCoreError, ClientError):
        return False
    return True
