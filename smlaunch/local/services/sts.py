"""STS: the caller's identity, and temporary credentials for a role."""

from __future__ import annotations

import datetime
import re
import time
from typing import Any

from smlaunch.local.api_errors import ApiError
from smlaunch.local.credentials import Keyring
from smlaunch.local.request_context import ACCOUNT, assumed_role_arn, current_context
from smlaunch.local.services.query_service import required_parameter

NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::(\d{12}):role/(?:[\w+=,.@/-]*/)?[\w+=,.@-]+")


class StsOperations:
    """One method for each operation. Every role of this account can be assumed: the endpoint has one user."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def get_caller_identity(self, params: dict[str, Any]) -> dict[str, Any]:
        arn = current_context().arn
        user = ACCOUNT if arn.endswith(":root") else f"AROASMLAUNCHLOCAL:{arn.rpartition('/')[2]}"
        return {"Arn": arn, "UserId": user, "Account": ACCOUNT}

    def assume_role(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return temporary credentials for a role of this account (AssumeRole). Raises ApiError."""
        role, session = required_parameter(params, "RoleArn"), required_parameter(params, "RoleSessionName")
        match = _ROLE.fullmatch(role)
        if match is None:
            raise ApiError("ValidationError", f"{role} is invalid")
        if match.group(1) != ACCOUNT:
            caller_arn = current_context().arn
            action = f"is not authorized to perform: sts:AssumeRole on resource: {role}"
            message = f"User: {caller_arn} {action}"
            raise ApiError("AccessDenied", message, 403)
        if not re.fullmatch(r"[\w+=,.@-]{2,64}", session, re.ASCII):
            raise ApiError("ValidationError", f"RoleSessionName {session!r} is invalid")
        arn = assumed_role_arn(role, session, current_context().region)
        user = {"AssumedRoleId": f"AROASMLAUNCHLOCAL:{session}", "Arn": arn}
        return {"Credentials": self._issue(arn, params), "AssumedRoleUser": user}

    def get_session_token(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"Credentials": self._issue(current_context().arn, params)}

    def _issue(self, arn: str, params: dict[str, Any]) -> dict[str, Any]:
        text = params.get("DurationSeconds", "3600")
        if not (text.isascii() and text.isdigit() and 900 <= int(text) <= 129_600):
            raise ApiError("ValidationError", f"DurationSeconds {text!r} is not between 900 and 129600")
        issued = self._keyring.issue(arn, int(text), time.time())
        return {
            "AccessKeyId": issued.access_key,
            "SecretAccessKey": issued.secret_key,
            "SessionToken": issued.session_token,
            "Expiration": datetime.datetime.fromtimestamp(issued.expires, datetime.timezone.utc),
        }
