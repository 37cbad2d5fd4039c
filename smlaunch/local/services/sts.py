"""STS: who am I, and temporary keys for a role."""

from __future__ import annotations

import datetime
import re
import time
from typing import Any

from smlaunch.local.caller import ACCOUNT, assumed, current
from smlaunch.local.credentials import Keyring
from smlaunch.local.errors import ApiError
from smlaunch.local.services.query_service import required

NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::(\d{12}):role/(?:[\w+=,.@/-]*/)?[\w+=,.@-]+")


class Sts:
    """Any role of this account can be assumed: there is nobody here to be protected from its own user."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def get_caller_identity(self, params: dict[str, Any]) -> dict[str, Any]:
        arn = current().arn
        user = ACCOUNT if arn.endswith(":root") else f"AROASMLAUNCHLOCAL:{arn.rpartition('/')[2]}"
        return {"Arn": arn, "UserId": user, "Account": ACCOUNT}

    def assume_role(self, params: dict[str, Any]) -> dict[str, Any]:
        role, session = required(params, "RoleArn"), required(params, "RoleSessionName")
        found = _ROLE.fullmatch(role)
        if found is None:
            raise ApiError("ValidationError", f"{role} is invalid")
        if found.group(1) != ACCOUNT:
            text = f"User: {current().arn} is not authorized to perform: sts:AssumeRole on resource: {role}"
            raise ApiError("AccessDenied", text, 403)
        if not re.fullmatch(r"[\w+=,.@-]{2,64}", session, re.ASCII):
            raise ApiError("ValidationError", f"RoleSessionName {session!r} is invalid")
        arn = assumed(role, session, current().region)
        user = {"AssumedRoleId": f"AROASMLAUNCHLOCAL:{session}", "Arn": arn}
        return {"Credentials": self._issue(arn, params), "AssumedRoleUser": user}

    def get_session_token(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"Credentials": self._issue(current().arn, params)}

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
