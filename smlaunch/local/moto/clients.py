"""Clients for what Step Functions calls: through the endpoint's one port, signed as the state machine's role.

So a call of an execution is checked, answered and recorded as everybody else's, and the record says which
role made it.
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

import boto3
from botocore.config import Config

VIA = "smlaunch-via/"
"""In the user agent, before the name of the service that makes a call on somebody's behalf."""
_RENEWED_SECONDS = 300.0
"""Before temporary keys end."""


class _Keys(NamedTuple):
    access_key: str
    secret_key: str
    token: str
    expires: float


class Clients:
    def __init__(self, url: str, access_key: str, secret_key: str) -> None:
        self._url = url
        self._own = _Keys(access_key, secret_key, "", float("inf"))
        self._lock = threading.RLock()
        self._keys: dict[str, _Keys] = {}
        self._clients: dict[tuple[str, str, str, bool, str], Any] = {}

    def of_role(self, role_arn: str, service: str, region: str, patient: bool = False) -> Any:
        """A boto3 client. ``patient`` tries again when it is throttled; others show every error to the state.
        Raises ClientError for a role that cannot be assumed."""
        with self._lock:  # boto3's sessions are not made for several threads
            keys = self._keys_of(role_arn, region)
            place = (role_arn, service, region, patient, keys.access_key)
            if place not in self._clients:
                self._clients[place] = self._client(keys, service, region, patient)
            return self._clients[place]

    def _keys_of(self, role_arn: str, region: str) -> _Keys:
        keys = self._keys.get(role_arn)
        if keys is None or keys.expires < time.time() + _RENEWED_SECONDS:
            sts = self._client(self._own, "sts", region, True)
            given = sts.assume_role(RoleArn=role_arn, RoleSessionName="StepFunctions")["Credentials"]
            keys = _Keys(
                given["AccessKeyId"],
                given["SecretAccessKey"],
                given["SessionToken"],
                given["Expiration"].timestamp(),
            )
            self._keys[role_arn] = keys
        return keys

    def _client(self, keys: _Keys, service: str, region: str, patient: bool) -> Any:
        retries = {"mode": "standard", "total_max_attempts": 10 if patient else 1}
        return boto3.session.Session().client(
            service,
            region_name=region,
            endpoint_url=self._url,
            aws_access_key_id=keys.access_key,
            aws_secret_access_key=keys.secret_key,
            aws_session_token=keys.token or None,
            config=Config(retries=retries, s3={"addressing_style": "path"}, user_agent_extra=f"{VIA}states"),
        )
