"""Calls a method of a botocore client; every way in which that can fail becomes a CallError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import botocore.exceptions
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigNotFound,
    ConfigParseError,
    ConnectionClosedError,
    CredentialRetrievalError,
    IncompleteReadError,
    InvalidConfigError,
    MissingDependencyException,
    NoAuthTokenError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    RefreshWithMFAUnsupportedError,
    ResponseStreamingError,
    SSOError,
    SSOTokenLoadError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
    UnknownCredentialError,
)
from botocore.parsers import ResponseParserError

from smlaunch.aws.interfaces import (
    INVALID_CONFIGURATION,
    NO_CREDENTIALS,
    UNREACHABLE,
    UNREADABLE,
    UNUSABLE_CREDENTIALS,
    CallError,
)

_RESPONSE_LOST_ERRORS = (ConnectionClosedError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError)
"""The request was sent and may have been carried out; botocore's other errors come before that."""

_CONFIGURATION_ERRORS = (
    *(ConfigNotFound, ConfigParseError, InvalidConfigError, ProfileNotFound, PartialCredentialsError),
    *(MissingDependencyException, NoRegionError, UnknownCredentialError),
)
_CREDENTIAL_ERRORS = (
    *(CredentialRetrievalError, NoAuthTokenError, RefreshWithMFAUnsupportedError, SSOError),
    TokenRetrievalError,
    *((botocore.exceptions.LoginError,) if hasattr(botocore.exceptions, "LoginError") else ()),
)
"""botocore could not get the configured credentials. Nothing was sent to the service."""

_CREDENTIAL_OPERATIONS = (
    *("AssumeRole", "AssumeRoleWithWebIdentity"),  # of STS
    *("GetRoleCredentials", "CreateToken", "CreateOAuth2Token"),  # of single sign-on and `aws login`
)
"""Operations that botocore calls for credentials, before the one that was asked for."""


class _Response(dict[str, Any]):
    """A response in which a missing member raises a CallError: a proxy or an endpoint may leave one out."""

    def __init__(self, operation: str, members: Mapping[str, Any]) -> None:
        super().__init__(members)
        self._operation = operation

    def __missing__(self, member: str) -> Any:
        raise CallError(self._operation, UNREADABLE, f"the answer has no {member}")


def call_api(operation: str, client_method: Callable[..., Any], **params: Any) -> Any:
    """Call a method of a botocore client with these parameters, and return its response, in which a missing
    member raises a CallError too. Every way in which the call can fail becomes a CallError. Its code is the
    service's, or ours: NO_CREDENTIALS, UNUSABLE_CREDENTIALS and INVALID_CONFIGURATION; UNREADABLE if the
    response was lost or is not the service's; UNREACHABLE without a connection. ``operation`` is the API's
    name of the method, for the error."""
    try:
        response = client_method(**params)
    except ClientError as error:
        raise _to_call_error(operation, error) from error
    except NoCredentialsError as error:
        raise CallError(operation, NO_CREDENTIALS, str(error)) from error
    except _CONFIGURATION_ERRORS as error:
        raise CallError(operation, INVALID_CONFIGURATION, str(error).splitlines()[0]) from error
    except _CREDENTIAL_ERRORS as error:
        raise CallError(operation, UNUSABLE_CREDENTIALS, _describe_credential_error(error)) from error
    except ParamValidationError as error:
        raise CallError(operation, "ValidationException", str(error)) from error
    except (ResponseParserError, *_RESPONSE_LOST_ERRORS) as error:
        raise CallError(operation, UNREADABLE, str(error).splitlines()[0]) from error
    except BotoCoreError as error:  # the base class of all but ClientError, so it comes last
        raise CallError(operation, UNREACHABLE, str(error)) from error
    # A dict whose missing members raise CallError.
    return _Response(operation, response) if isinstance(response, dict) else response


def _to_call_error(operation: str, error: ClientError) -> CallError:
    """Return the error of the service's error response. ``operation``: the one that was asked for; botocore's
    own call for credentials before it may be what failed."""
    service_error = error.response.get("Error", {})
    metadata = error.response.get("ResponseMetadata", {})
    code = str(service_error.get("Code", "Unknown"))
    message = str(service_error.get("Message", "")) or code
    has_credential_call_failed = error.operation_name in _CREDENTIAL_OPERATIONS
    return CallError(
        error.operation_name if has_credential_call_failed else operation,
        code,
        message,
        int(metadata.get("HTTPStatusCode", 0)),
        int(metadata.get("RetryAttempts", 0)),
    )


def _describe_credential_error(error: BotoCoreError) -> str:
    """Return the cause as a clause, without botocore's advice, which cannot name the profile."""
    if isinstance(error, SSOTokenLoadError):
        return "there is no SSO login for it on this machine"
    if isinstance(error, (UnauthorizedSSOTokenError, TokenRetrievalError)):
        return "its SSO login has expired or is no longer valid"
    return str(error).splitlines()[0].rstrip(".")
