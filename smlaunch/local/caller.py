"""Who is calling, and in which region: set by the dispatcher around every call of a service."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

ACCOUNT = "000000000000"
ROLE_NAME = "smlaunch-local"
ROLE_ARN = f"arn:aws:iam::{ACCOUNT}:role/{ROLE_NAME}"
DEFAULT_REGION = "us-east-1"


class Caller(NamedTuple):
    """``region`` is the one the client signed for; any name is taken, and ARNs carry it."""

    region: str = DEFAULT_REGION
    account: str = ACCOUNT
    arn: str = f"arn:aws:iam::{ACCOUNT}:root"
    access_key: str = ""
    request_id: str = ""

    def resource_arn(self, service: str, resource: str) -> str:
        """``caller.resource_arn("sagemaker", "training-job/x")``; the partition follows from the region."""
        return f"arn:{partition(self.region)}:{service}:{self.region}:{self.account}:{resource}"


def assumed(role: str, session: str, region: str) -> str:
    """The ARN under which a session of a role calls. ``role``: its ARN."""
    name = role.rpartition("/")[2]
    return f"arn:{partition(region)}:sts::{ACCOUNT}:assumed-role/{name}/{session}"


def partition(region: str) -> str:
    if region.startswith("cn-"):
        return "aws-cn"
    if region.startswith("us-gov-"):
        return "aws-us-gov"
    return "aws"


caller: ContextVar[Caller] = ContextVar("caller")


def current() -> Caller:
    """The caller of the request being answered; outside a request, the account itself in us-east-1."""
    return caller.get(_NOBODY)


_NOBODY = Caller()
