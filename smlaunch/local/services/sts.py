"""STS: the caller's identity, and temporary credentials for a role."""

from __future__ import annotations

import re
import time

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.credentials import Keyring
from smlaunch.local.front.request_context import ACCOUNT, assumed_role_arn, current_request_context
from smlaunch.local.json_types import JsonObject
from smlaunch.local.services.query_service import required_parameter
from smlaunch.local.services.timestamp import Timestamp

NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"
_ROLE_ARN_PATTERN = re.compile(r"arn:aws[a-z-]*:iam::(\d{12}):role/(?:[\w+=,.@/-]*/)?[\w+=,.@-]+")


class StsOperations:
    """One method for each operation. Every role of this account can be assumed: the endpoint has one user."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def get_caller_identity(self, params: JsonObject) -> JsonObject:
        arn = current_request_context().arn
        user = ACCOUNT if arn.endswith(":root") else f"AROASMLAUNCHLOCAL:{arn.rpartition('/')[2]}"
        return {"Arn": arn, "UserId": user, "Account": ACCOUNT}

    def assume_role(self, params: JsonObject) -> JsonObject:
        """Respond to AssumeRole: temporary credentials for any role of the endpoint's account, which has no
        trust policies. Raises ApiError for a role of another account."""
        role_arn = required_parameter(params, "RoleArn")
        session_name = required_parameter(params, "RoleSessionName")
        role_arn_match = _ROLE_ARN_PATTERN.fullmatch(role_arn)
        if role_arn_match is None:
            raise ApiError("ValidationError", f"{role_arn} is invalid")
        role_account = role_arn_match.group(1)
        if role_account != ACCOUNT:  # the one account of the endpoint, a server that imitates AWS locally
            message = (
                f"User: {current_request_context().arn} is not authorized to perform: sts:AssumeRole on "
                f"resource: {role_arn}"
            )
            raise ApiError("AccessDenied", message, 403)
        if not re.fullmatch(r"[\w+=,.@-]{2,64}", session_name, re.ASCII):
            raise ApiError("ValidationError", f"RoleSessionName {session_name!r} is invalid")
        assumed_arn = assumed_role_arn(role_arn, session_name, current_request_context().region)
        # AROA... is the form of a role's unique id; here all roles have the same one.
        assumed_role_user = {"AssumedRoleId": f"AROASMLAUNCHLOCAL:{session_name}", "Arn": assumed_arn}
        return {
            "Credentials": self._issue_credentials(assumed_arn, params),
            "AssumedRoleUser": assumed_role_user,
        }

    def get_session_token(self, params: JsonObject) -> JsonObject:
        return {"Credentials": self._issue_credentials(current_request_context().arn, params)}

    def _issue_credentials(self, arn: str, params: JsonObject) -> JsonObject:
        """Return new temporary credentials for a role's session or a user, for as long as the request says.
        Raises ApiError."""
        duration_text = params.get("DurationSeconds", "3600")
        is_number = duration_text.isascii() and duration_text.isdigit()
        if not is_number or not 900 <= int(duration_text) <= 129_600:
            message = f"DurationSeconds {duration_text!r} is not between 900 and 129600"
            raise ApiError("ValidationError", message)
        credentials = self._keyring.issue_temporary_credentials(arn, int(duration_text), time.time())
        return {
            "AccessKeyId": credentials.access_key,
            "SecretAccessKey": credentials.secret_key,
            "SessionToken": credentials.session_token,
            "Expiration": Timestamp(credentials.expires),
        }
