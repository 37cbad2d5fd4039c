"""Caller and region of the current request. The dispatcher sets them around every call of a service."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

ACCOUNT = "000000000000"
ROLE_NAME = "smlaunch-local"
ROLE_ARN = f"arn:aws:iam::{ACCOUNT}:role/{ROLE_NAME}"
DEFAULT_REGION = "us-east-1"


class RequestContext(NamedTuple):
    """Caller of a request. ``region``: the one that the client signed for; any name is accepted."""

    region: str = DEFAULT_REGION
    account: str = ACCOUNT
    arn: str = f"arn:aws:iam::{ACCOUNT}:root"
    access_key: str = ""
    request_id: str = ""

    def resource_arn(self, service: str, resource: str) -> str:
        """Return the ARN of a resource, such as ``("sagemaker", "training-job/x")``."""
        return f"arn:{arn_partition(self.region)}:{service}:{self.region}:{self.account}:{resource}"


def assumed_role_arn(role_arn: str, session_name: str, region: str) -> str:
    """Return the ARN of the caller in a session of a role."""
    name = role_arn.rpartition("/")[2]
    return f"arn:{arn_partition(region)}:sts::{ACCOUNT}:assumed-role/{name}/{session_name}"


def arn_partition(region: str) -> str:
    if region.startswith("cn-"):
        return "aws-cn"
    if region.startswith("us-gov-"):
        return "aws-us-gov"
    return "aws"


context_var: ContextVar[RequestContext] = ContextVar("caller")


def current_request_context() -> RequestContext:
    """Return the context of the current request; outside a request, the account's root in us-east-1."""
    return context_var.get(_DEFAULT_CONTEXT)


_DEFAULT_CONTEXT = RequestContext()
