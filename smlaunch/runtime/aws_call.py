"""Calls of AWS's JSON services with the credentials of the job's role: HTTPS and Signature Version 4 by the
standard library alone, because an image may have no SDK."""

import datetime
import hashlib
import hmac
import json
import os
import time
import urllib.error
import urllib.request
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

_ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 0.5
_TIMEOUT_SECONDS = 10
_CONTAINER_CREDENTIALS_HOST = "http://169.254.170.2"
"""Where a container of ECS, as SageMaker's are, asks for its role's credentials."""

_RETRIED_CODES = ("ThrottlingException", "TooManyRequestsException", "RequestLimitExceeded")


class AwsCallError(Exception):
    """A call that has failed for good. The message says why."""

    def __init__(self, message: str, code: str = "") -> None:
        """``code``: of the service's answer; empty without one."""
        super().__init__(message)
        self.code = code


class _Credentials(NamedTuple):
    access_key: str
    secret_key: str
    token: Optional[str]


def call_json_service(
    service: str,
    target: str,
    parameters: Mapping[str, Any],
    region: Optional[str],
    environ: Mapping[str, str],
) -> Dict[str, Any]:
    """Call an operation and return its answer. Failures of the network and of the service are tried again.
    Raises AwsCallError.

    ``target``: prefix and name of the operation, such as ``AmazonSSM.GetParameter``. ``region``: None for
    that of the host. ``environ``: has credentials and addresses, under the names that AWS's SDKs read.
    """
    region = region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise AwsCallError("this host does not know its region: AWS_REGION is not set")
    url = _endpoint_url(service, region, environ)
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": target}
    body = json.dumps(parameters).encode()
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
        credentials = _read_credentials(environ)
        signed_headers = sign_request(url, headers, body, service, region, credentials, time.time())
        is_last = attempt == _ATTEMPTS - 1
        try:
            request = urllib.request.Request(url, data=body, headers=signed_headers)  # noqa: S310
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310
                answer = json.loads(response.read())
            return answer if isinstance(answer, dict) else {}
        except urllib.error.HTTPError as error:
            code, message = _error_of(error)
            if is_last or not (error.code >= 500 or error.code == 429 or code in _RETRIED_CODES):
                raise AwsCallError("{}: {}".format(code, message), code) from None
        except (OSError, ValueError) as error:  # URLError is an OSError
            if is_last:
                reason = getattr(error, "reason", error)
                text = "{} cannot be reached: {}; hosts in subnets need a NAT gateway, or its VPC endpoint"
                raise AwsCallError(text.format(url, reason)) from None
    raise AssertionError("the last attempt returns or raises")


def _endpoint_url(service: str, region: str, environ: Mapping[str, str]) -> str:
    own_variable = {"secretsmanager": "AWS_ENDPOINT_URL_SECRETS_MANAGER", "ssm": "AWS_ENDPOINT_URL_SSM"}[
        service
    ]
    stated_url = environ.get(own_variable) or environ.get("AWS_ENDPOINT_URL")
    if stated_url:
        return stated_url.rstrip("/") + "/"
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return "https://{}.{}.{}/".format(service, region, suffix)


def _error_of(error: urllib.error.HTTPError) -> Tuple[str, str]:
    """Return code and message of an error in the JSON protocol."""
    try:
        document = json.loads(error.read())
    except (OSError, ValueError):
        document = {}
    if not isinstance(document, dict):
        document = {}
    code = str(document.get("__type") or "HTTP {}".format(error.code)).rpartition("#")[2]
    return code, str(document.get("message") or document.get("Message") or error.reason)


# ---- credentials -----------------------------------------------------------------------------------------


def _read_credentials(environ: Mapping[str, str]) -> _Credentials:
    """Return the credentials of the environment, or those of the role, which the platform hands out. Raises
    AwsCallError."""
    access_key, secret_key = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
    if access_key and secret_key:
        return _Credentials(access_key, secret_key, environ.get("AWS_SESSION_TOKEN") or None)
    relative_uri = environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    url = environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if relative_uri:
        url = _CONTAINER_CREDENTIALS_HOST + relative_uri
    if not url:
        raise AwsCallError(
            "this host has no credentials of the job's role (neither AWS_CONTAINER_CREDENTIALS_RELATIVE_URI "
            "nor AWS_ACCESS_KEY_ID is set)"
        )
    try:
        request = urllib.request.Request(url, headers=_authorization_headers(environ))  # noqa: S310
        # Not through a proxy: the address is one of this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
            document = json.loads(response.read())
        return _Credentials(document["AccessKeyId"], document["SecretAccessKey"], document.get("Token"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = "the credentials of the job's role cannot be read: {}: {}".format(type(error).__name__, error)
        raise AwsCallError(text) from None


def _authorization_headers(environ: Mapping[str, str]) -> Dict[str, str]:
    token_file = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    token = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
    if token_file and os.path.isfile(token_file):
        with open(token_file, encoding="utf-8") as file:
            token = file.read().strip()
    return {"Authorization": token} if token else {}


# ---- Signature Version 4 ---------------------------------------------------------------------------------


def sign_request(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    service: str,
    region: str,
    credentials: _Credentials,
    now: float,
) -> Dict[str, str]:
    """Return the headers of a POST to the root of a service, with its signature. ``now``: in seconds since
    the epoch."""
    moment = datetime.datetime.fromtimestamp(now, datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    host = url.partition("://")[2].rstrip("/")
    signed = {**headers, "host": host, "x-amz-date": moment}
    if credentials.token:
        signed["x-amz-security-token"] = credentials.token
    names = sorted(signed)
    canonical_request = "\n".join(
        [
            *("POST", "/", ""),
            *("{}:{}".format(name, signed[name]) for name in names),
            *("", ";".join(names), hashlib.sha256(body).hexdigest()),
        ]
    )
    scope = "/".join((moment[:8], region, service, "aws4_request"))
    request_digest = hashlib.sha256(canonical_request.encode()).hexdigest()
    text_to_sign = "\n".join(("AWS4-HMAC-SHA256", moment, scope, request_digest))
    key = b"AWS4" + credentials.secret_key.encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text_to_sign.encode(), hashlib.sha256).hexdigest()
    authorization = "AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}".format(
        credentials.access_key, scope, ";".join(names), signature
    )
    return {**signed, "Authorization": authorization}
