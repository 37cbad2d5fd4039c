"""One table: what each answer of the services means, whether to try again, and what to tell the user.

Source of the codes: facts on CreateTrainingJob (service model: ResourceNotFound, ResourceInUse,
ResourceLimitExceeded; common errors of the SageMaker and S3 API references for the rest).
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import TypeVar

from smlaunch.errors import AccountError, EndpointError, JobError, Problem, ServiceError, SmlaunchError
from smlaunch.planning.patience import TRANSIENT
from smlaunch.planning.patience import Patience as Patience
from smlaunch.ports import NOT_THE_OWNER, UNREACHABLE, UNREADABLE, CallError

Result = TypeVar("Result")

_EXPIRED = frozenset(("ExpiredToken", "ExpiredTokenException", "RequestExpired"))
_UNKNOWN_CALLER = frozenset(
    (
        *("NoCredentials", "UnrecognizedClientException", "InvalidClientTokenId", "InvalidAccessKeyId"),
        *("SignatureDoesNotMatch", "InvalidSignatureException", "AuthFailure", "OptInRequired"),
        *("IncompleteSignature", "MissingAuthenticationTokenException"),
    )
)
_DENIED = frozenset(("AccessDenied", "AccessDeniedException", "403", "AllAccessDisabled", "Forbidden"))

_ROLE_NOT_YET = re.compile(r"could not assume role|cannot be assumed|is invalid.*role", re.IGNORECASE)
"""A role that was made a moment ago is not known everywhere yet."""

_NO_TRUST = "authorized to assume the provided role"
"""Step Functions of a machine's role, with AccessDeniedException; of a young one too."""

_QUOTA = re.compile(
    r"limit '(?P<what>[^']+)' is (?P<limit>[\d.]+) \w+, with current utilization of (?P<used>[\d.]+)"
    r".*request delta of (?P<delta>[\d.]+)",
    re.DOTALL,
)


_SOME_PATIENCE = Patience()
_GONE_PATIENCE = Patience(first=0.5, longest=1.0, total=5.0)
"""For an endpoint on this machine that nobody answers for: it is being started anew, or was stopped."""
_GONE = re.compile(r"Could not connect to the endpoint URL: \"https?://(?:127\.|localhost|\[::1\])")
"""botocore's words for a connection that was refused at once; where nobody listens, nobody begins to soon."""
ROLE_PATIENCE = Patience(first=5.0, longest=15.0, total=60.0)


_DAMAGED = "EndpointStateDamaged"
"""The local endpoint's own word for a file that is not what it wrote there: no patience mends that."""


_DISK_FULL = "EndpointDiskFull"
"""The same of its disk: a person has to make room."""


def is_transient(error: CallError) -> bool:
    if error.code in (_DAMAGED, _DISK_FULL):
        return False
    return error.code in TRANSIENT or error.code in (UNREACHABLE, UNREADABLE) or error.status >= 500


def _is_gone(error: CallError) -> bool:
    return error.code == UNREACHABLE and _GONE.match(error.message) is not None


def is_done_perhaps(error: CallError) -> bool:
    """Whether what was asked for may have been done although no answer says so."""
    return error.code in (UNREACHABLE, UNREADABLE) or error.status >= 500


def is_young_role(error: CallError) -> bool:
    if error.code in _DENIED:
        return _NO_TRUST in error.message
    return error.code == "ValidationException" and _ROLE_NOT_YET.search(error.message) is not None


def is_quota_in_use(error: CallError) -> bool:
    """Whether the quota would do for this job, and only others hold it at the moment."""
    numbers = _QUOTA.search(error.message) if error.code == "ResourceLimitExceeded" else None
    return numbers is not None and float(numbers["delta"]) <= float(numbers["limit"])


def retrying(
    action: Callable[[], Result],
    patience: Patience = _SOME_PATIENCE,
    *,
    told: Callable[[CallError, float], None] | None = None,
    wait: Callable[[float], object] = time.sleep,
    chance: Callable[[], float] = random.random,
) -> Result:
    """The action's result. Transient errors are tried again as ``patience`` says; others are raised at once.

    ``told`` is called before each wait with the error and the seconds to come.
    """
    tries, waited = 0, 0.0
    while True:
        try:
            return action()
        except CallError as error:
            tries += 1
            if is_transient(error):
                patience = _GONE_PATIENCE if _is_gone(error) else patience
                delay = patience.delay(tries, waited, chance())
            elif is_young_role(error):
                delay = ROLE_PATIENCE.delay(tries, waited, chance())
            else:
                delay = None
            if delay is None:
                raise
            if told is not None:
                told(error, delay)
            wait(delay)
            waited += delay


def refusal(error: CallError, where: str) -> SmlaunchError:
    """The error to raise for an answer that ends the command: cause first, then the next step.

    ``where``: the target in words, such as ``eu-west-1`` or ``the local endpoint at http://...``.
    """
    code, said = error.code, error.message.rstrip(".")
    if code == UNREACHABLE:
        if where.startswith("the local endpoint"):
            return EndpointError(
                f"{where} does not answer ({said}); `smlaunch local status` says whether it runs, "
                "`smlaunch local start` starts it"
            )
        return ServiceError(
            f"{error.operation}: {where} does not answer: {said}; check the network and the region"
        )
    if code == UNREADABLE:
        return ServiceError(
            f"{error.operation}: {where} gave no answer that can be read: {said}; a proxy, or whatever else "
            "stands between, may have cut or replaced it"
        )
    if code == NOT_THE_OWNER:
        return AccountError(
            f"{error.operation}: {said}, so that S3 has refused the request; name a bucket of your own, or, "
            "where it is meant to be another account's, that account by bucket_owner (--bucket-owner)"
        )
    if code in (_DAMAGED, _DISK_FULL):
        return EndpointError(error.message)
    if is_transient(error):
        return ServiceError(
            f"{error.operation}: {where} kept answering {code}: {said}; "
            "the same command with the same --name goes on from here"
        )
    if code in _EXPIRED:
        return AccountError(
            f"{error.operation}: your AWS credentials have expired; renew them and run the command again"
        )
    if code in _UNKNOWN_CALLER:
        return AccountError(
            f"{error.operation}: no usable AWS credentials: {said}; set AWS_PROFILE or run `aws configure`, "
            "or add --local to run on this machine without AWS"
        )
    if code in _DENIED:
        return AccountError(f"{error.operation}: refused: {said}; {_right_to_give(error)}")
    if code == "ResourceLimitExceeded":
        return AccountError(_quota_text(said))
    if code in ("NoSuchBucket", "PermanentRedirect", "301"):
        return JobError(
            [Problem("", f"{error.operation}: {said}; the bucket must exist, in the job's region")]
        )
    if code == "BucketAlreadyExists":
        return AccountError(
            f"{error.operation}: another account has taken the name of the bucket ({said}); nothing was sent "
            "there; use another --region, whose default bucket has another name, and tell AWS Support"
        )
    return JobError([Problem("", f"{error.operation}: {where} refused the request: {code}: {said}")])


def _right_to_give(error: CallError) -> str:
    if _NO_TRUST in error.message:
        return "the role's trust policy has to let the service take it: trust.json of the export does"
    if "PassRole" in error.message:
        whose = "machine" if error.operation.endswith("StateMachine") else "job"
        return f"allow the caller iam:PassRole on the {whose}'s role"
    return f"allow the caller {_action(error.operation)}, or use another profile or role"


def _action(operation: str) -> str:
    service = {
        **dict.fromkeys(("HeadObject", "GetObject"), "s3:GetObject"),
        **dict.fromkeys(("ListObjectsV2", "HeadBucket"), "s3:ListBucket"),
        **dict.fromkeys(("PutObject", "CreateMultipartUpload", "UploadPart"), "s3:PutObject"),
        "CompleteMultipartUpload": "s3:PutObject",
        "ListMultipartUploads": "s3:ListBucketMultipartUploads",
        "ListParts": "s3:ListMultipartUploadParts",
        "DeleteObjects": "s3:DeleteObject",
        "GetCallerIdentity": "sts:GetCallerIdentity",
        "CreateBucket": "s3:CreateBucket",
        "GetRole": "iam:GetRole",
        **dict.fromkeys(("GetLogEvents", "DescribeLogStreams"), f"logs:{operation}"),
        **dict.fromkeys(
            ("DescribeStateMachine", "CreateStateMachine", "UpdateStateMachine"), f"states:{operation}"
        ),
    }
    return service.get(operation, f"sagemaker:{operation}")


def _quota_text(said: str) -> str:
    numbers = _QUOTA.search(said)
    if numbers is None:
        return f"quota: {said}; ask for more in the Service Quotas console, or use another --instance-type"
    what, limit, used, delta = numbers["what"], numbers["limit"], numbers["used"], numbers["delta"]
    if float(delta) > float(limit):
        cure = (
            f"the job asks for {delta}: fewer --hosts, another --instance-type, or a raise in Service Quotas"
        )
    else:
        cure = "wait until running jobs end, or stop one (`smlaunch ls`)"
    return f"quota: '{what}' is {limit}, of which {used} are in use; {cure}"
