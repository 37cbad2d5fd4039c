"""Errors of the services: whether to retry, and the message for the user.

Source of the codes: facts on CreateTrainingJob (service model: ResourceNotFound, ResourceInUse,
ResourceLimitExceeded; common errors of the SageMaker and S3 API references for the rest).
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import TypeVar

from smlaunch.api.retry_policy import TRANSIENT_ERRORS
from smlaunch.api.retry_policy import BackoffPolicy as BackoffPolicy
from smlaunch.aws.credential_source import CredentialSource
from smlaunch.aws.interfaces import (
    INVALID_CONFIGURATION,
    NO_CREDENTIALS,
    UNREACHABLE,
    UNREADABLE,
    UNUSABLE_CREDENTIALS,
    WRONG_BUCKET_OWNER,
    CallError,
)
from smlaunch.errors import AccountError, EndpointError, JobError, Problem, ServiceError, SmlaunchError

Result = TypeVar("Result")

_JITTER = random.Random()  # noqa: S311 - spreads load, no secret
"""Own numbers: the program's generator, which its user may have seeded, is left alone."""

_EXPIRED_CODES = frozenset(("ExpiredToken", "ExpiredTokenException", "RequestExpired"))
_UNKNOWN_CALLER_CODES = frozenset(
    (
        *("UnrecognizedClientException", "InvalidClientTokenId", "InvalidAccessKeyId"),
        *("SignatureDoesNotMatch", "InvalidSignatureException", "AuthFailure", "OptInRequired"),
        *("IncompleteSignature", "MissingAuthenticationTokenException"),
    )
)
_CLOCK_CODES = frozenset(("RequestTimeTooSkewed", "RequestInTheFuture"))
_CLOCK_MESSAGE = re.compile(r"Signature (?:expired|not yet current)|too skewed")
"""In messages of codes for a wrong signature: the caller's clock is wrong."""
_NO_SOURCE = CredentialSource("none")
_DENIED_CODES = frozenset(
    ("AccessDenied", "AccessDeniedException", "403", "AllAccessDisabled", "Forbidden", "ForbiddenException")
)

_ROLE_NOT_READY = re.compile(r"could not assume role|cannot be assumed|is invalid.*role", re.IGNORECASE)
"""A new role is not known to all services at once."""

_NO_TRUST_MESSAGE = "authorized to assume the provided role"
"""Step Functions' message about a state machine's role, with AccessDeniedException; a new role gets it
too."""

_QUOTA_MESSAGE = re.compile(
    r"limit '(?P<what>[^']+)' is (?P<limit>[\d.]+) \w+, with current utilization of (?P<used>[\d.]+)"
    r".*request delta of (?P<delta>[\d.]+)",
    re.DOTALL,
)


_DEFAULT_BACKOFF = BackoffPolicy()
_ENDPOINT_GONE_BACKOFF = BackoffPolicy(first_seconds=0.5, max_seconds=1.0, total_seconds=5.0)
"""For an endpoint on this machine that refuses connections: it restarts, or was stopped."""
_CONNECTION_REFUSED = re.compile(
    r"Could not connect to the endpoint URL: \"https?://(?:127\.|localhost|\[::1\])"
)
"""botocore's message for a refused connection. Where nobody listens, nobody will soon."""
BACKOFF_FOR_NEW_ROLE = BackoffPolicy(first_seconds=5.0, max_seconds=15.0, total_seconds=60.0)


_ENDPOINT_STATE_DAMAGED = "EndpointStateDamaged"
"""The local endpoint's code for a file that it did not write. Retries do not help."""


_ENDPOINT_DISK_FULL = "EndpointDiskFull"
"""The local endpoint's code for a full disk. A person has to free space."""


def is_transient_error(error: CallError) -> bool:
    if error.code in (_ENDPOINT_STATE_DAMAGED, _ENDPOINT_DISK_FULL):
        return False
    return (
        error.code in TRANSIENT_ERRORS or error.code in (UNREACHABLE, UNREADABLE) or error.http_status >= 500
    )


def _is_local_endpoint_gone(error: CallError) -> bool:
    return error.code == UNREACHABLE and _CONNECTION_REFUSED.match(error.message) is not None


def may_have_succeeded(error: CallError) -> bool:
    """Return whether the request may have been carried out although no response confirms it."""
    return error.code in (UNREACHABLE, UNREADABLE) or error.http_status >= 500


def is_role_not_ready_yet(error: CallError) -> bool:
    if error.code in _DENIED_CODES:
        return _NO_TRUST_MESSAGE in error.message
    return error.code == "ValidationException" and _ROLE_NOT_READY.search(error.message) is not None


def is_quota_in_use(error: CallError) -> bool:
    """Return whether the quota is large enough for this job, and other jobs use it now."""
    numbers = _QUOTA_MESSAGE.search(error.message) if error.code == "ResourceLimitExceeded" else None
    return numbers is not None and float(numbers["delta"]) <= float(numbers["limit"])


def call_with_retries(
    operation: Callable[[], Result],
    backoff: BackoffPolicy = _DEFAULT_BACKOFF,
    *,
    on_retry: Callable[[CallError, float], None] | None = None,
    sleep: Callable[[float], object] = time.sleep,
    random_fraction: Callable[[], float] = _JITTER.random,
) -> Result:
    """Return the result of ``operation``, which raises CallError. Transient errors are retried as ``backoff``
    says, and errors of a new role that is not known everywhere yet; others are raised at once.

    ``backoff`` has the first and the longest wait and the total time for retries. ``on_retry`` receives the
    error and the seconds to wait before each retry. ``random_fraction`` returns a number from 0 to 1 for the
    jitter of the waits.
    """
    failed_attempts, waited_seconds = 0, 0.0
    while True:
        try:
            return operation()
        except CallError as error:
            if _is_local_endpoint_gone(error):
                backoff = _ENDPOINT_GONE_BACKOFF  # from now on: it restarts soon, or not at all
            if is_transient_error(error):  # throttling, no connection, an error within the service
                backoff_of_error = backoff
            elif is_role_not_ready_yet(error):
                backoff_of_error = BACKOFF_FOR_NEW_ROLE  # longer waits, a minute in all
            else:
                raise
            failed_attempts += 1
            delay_seconds = backoff_of_error.next_delay(failed_attempts, waited_seconds, random_fraction())
            if delay_seconds is None:  # the time for retries is used up
                raise
            if on_retry is not None:
                on_retry(error, delay_seconds)
            sleep(delay_seconds)
            waited_seconds += delay_seconds


def _is_credential_error(error: CallError) -> bool:
    """Return whether the caller cannot be identified: no credentials, or some that are not accepted."""
    own_codes = (NO_CREDENTIALS, UNUSABLE_CREDENTIALS, INVALID_CONFIGURATION)
    return error.code in (*own_codes, *_EXPIRED_CODES, *_UNKNOWN_CALLER_CODES, *_CLOCK_CODES)


def to_user_error(
    error: CallError, location: str, credentials: CredentialSource = _NO_SOURCE
) -> SmlaunchError:
    """Return the error with which a failed API call is reported to the user: its cause first, then the next
    step. The class decides the command's exit code: EndpointError (the local endpoint), ServiceError (try
    again later), AccountError (credentials, permissions, quotas) or JobError (the request).

    ``location`` describes the target, such as ``eu-west-1`` or ``the local endpoint at http://...``.
    ``credentials``: where the caller's come from.
    """
    code, message = error.code, error.message.rstrip(".")
    if code == UNREACHABLE:  # no connection, or none in time
        if location.startswith("the local endpoint"):
            return EndpointError(
                f"{location} does not answer ({message}); `smlaunch local status` shows whether it runs, "
                "`smlaunch local start` starts it"
            )
        return ServiceError(
            f"{error.operation}: {location} does not answer: {message}; check the network and the region"
        )
    if code == UNREADABLE:  # a response that no service of AWS sends, or a part of one
        return ServiceError(
            f"{error.operation}: {location} sent no readable response: {message}; a proxy between may have "
            "truncated or replaced it"
        )
    if code == WRONG_BUCKET_OWNER:
        return AccountError(
            f"{error.operation}: {message}, so that S3 has refused the request; name a bucket of your own, "
            "or, where it is meant to be another account's, that account by bucket_owner (--bucket-owner)"
        )
    if code in (_ENDPOINT_STATE_DAMAGED, _ENDPOINT_DISK_FULL):  # codes of the local endpoint only
        return EndpointError(error.message)  # the local endpoint's message names the next step itself
    if is_transient_error(error):
        return ServiceError(
            f"{error.operation}: {location} still returns {code} after retries: {message}; "
            "the same launch under the same name continues from here"
        )
    if _is_credential_error(error):
        return AccountError(_explain_credential_error(error, location, credentials))
    if code in _DENIED_CODES:
        return AccountError(f"{error.operation}: refused: {message}; {_advise_on_missing_permission(error)}")
    if code == "ResourceLimitExceeded":
        return AccountError(_format_quota_error(message))
    if code in ("NoSuchBucket", "PermanentRedirect", "301"):  # 301: a bucket of another region
        return JobError(
            [Problem("", f"{error.operation}: {message}; the bucket must exist, in the job's region")]
        )
    if code == "BucketAlreadyExists":
        return AccountError(
            f"{error.operation}: another account has taken the name of the bucket ({message}); nothing was "
            "sent there; use another --region, whose default bucket has another name, and tell AWS Support"
        )
    # "": the problem is of the whole job, and of no single field.
    return JobError([Problem("", f"{error.operation}: {location} refused the request: {code}: {message}")])


def _explain_credential_error(error: CallError, region: str, source: CredentialSource) -> str:
    """Return why the caller could not be identified, and the next step, as a clause. ``source``: where the
    credentials come from."""
    code, message = error.code, error.message.rstrip(".")
    if code == NO_CREDENTIALS:
        cause = (
            "no AWS credentials were found"
            if source.profile is None
            else f"{source} states no AWS credentials"
        )
        return f"{cause}; {source.renewal}"
    if code == INVALID_CONFIGURATION:
        return f"the AWS configuration cannot be used: {message}; correct it in ~/.aws/config"
    if code == UNUSABLE_CREDENTIALS:
        return f"no usable AWS credentials from {source}: {message}; {source.renewal}"
    if code in _CLOCK_CODES or _CLOCK_MESSAGE.search(message):
        return f"AWS refuses the time of the request: {message}; set this machine's clock"
    if code in _EXPIRED_CODES:
        return f"the AWS credentials of {source} have expired; {source.renewal}"
    return (
        f"AWS does not accept the credentials of {source} ({message}); {source.renewal}; if AWS accepts them "
        f"in other regions, {region} may have to be enabled for the account"
    )


def _advise_on_missing_permission(error: CallError) -> str:
    """Return which permission the user is to grant after an "access denied" error of a service."""
    if _NO_TRUST_MESSAGE in error.message:  # Step Functions, about a state machine's role
        return "the role's trust policy has to let the service take it: trust.json of the export does"
    if error.operation == "GetRoleCredentials":  # of IAM Identity Center
        return "have the account and the role of the profile assigned to you, or use another profile"
    if "PassRole" in error.message:
        # The role is that of a state machine of Step Functions or of a job.
        resource = "machine" if error.operation.endswith("StateMachine") else "job"
        return f"allow the caller iam:PassRole on the {resource}'s role"
    return f"allow the caller {_find_required_iam_action(error.operation)}, or use another profile or role"


def _find_required_iam_action(operation: str) -> str:
    """Return the action that a policy must allow for an operation, such as ``s3:GetObject`` for
    HeadObject."""
    action_by_operation = {
        **dict.fromkeys(("HeadObject", "GetObject"), "s3:GetObject"),
        **dict.fromkeys(("ListObjectsV2", "HeadBucket"), "s3:ListBucket"),
        **dict.fromkeys(("PutObject", "CreateMultipartUpload", "UploadPart"), "s3:PutObject"),
        "CompleteMultipartUpload": "s3:PutObject",
        "ListMultipartUploads": "s3:ListBucketMultipartUploads",
        "ListParts": "s3:ListMultipartUploadParts",
        "DeleteObjects": "s3:DeleteObject",
        **dict.fromkeys(("GetCallerIdentity", "AssumeRole", "AssumeRoleWithWebIdentity"), f"sts:{operation}"),
        "CreateBucket": "s3:CreateBucket",
        "GetRole": "iam:GetRole",
        "GetProducts": "pricing:GetProducts",
        "ListServiceQuotas": "servicequotas:ListServiceQuotas",
        **dict.fromkeys(("GetLogEvents", "DescribeLogStreams"), f"logs:{operation}"),
        **dict.fromkeys(
            ("DescribeStateMachine", "CreateStateMachine", "UpdateStateMachine"), f"states:{operation}"
        ),
    }
    return action_by_operation.get(operation, f"sagemaker:{operation}")


def _format_quota_error(message: str) -> str:
    """Return a message about a quota, with the numbers of the service's own ``message`` and the next step."""
    numbers = _QUOTA_MESSAGE.search(message)
    if numbers is None:
        return f"quota: {message}; ask for more in the Service Quotas console, or use another --instance-type"
    quota_name, limit, used, requested = numbers["what"], numbers["limit"], numbers["used"], numbers["delta"]
    if float(requested) > float(limit):
        advice = (
            f"the job asks for {requested}: use fewer --hosts or another --instance-type, or raise the "
            "quota in Service Quotas"
        )
    else:
        advice = "wait until running jobs end, or stop one (`smlaunch ls`)"
    return f"quota: '{quota_name}' is {limit}, of which {used} are in use; {advice}"
