"""boto3 clients for tasks of Step Functions: they call the endpoint and sign as the state machine's role.

So calls of an execution are verified and logged like all others, and the call log has their role.
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

import boto3
from botocore.config import Config

VIA_PREFIX = "smlaunch-via/"
"""In the user agent, before the name of a service that makes a call on a caller's behalf."""
_RENEW_BEFORE_SECONDS = 300.0
"""Before temporary credentials expire."""


class _AccessKeys(NamedTuple):
    access_key: str
    secret_key: str
    token: str
    expires: float
    """Seconds since the epoch."""


class RoleClients:
    """Clients by role, for many threads. ``access_key``, ``secret_key``: the endpoint's own."""

    def __init__(self, url: str, access_key: str, secret_key: str) -> None:
        self._url = url
        self._endpoint_keys = _AccessKeys(access_key, secret_key, "", float("inf"))
        self._lock = threading.RLock()
        self._keys_by_role: dict[str, _AccessKeys] = {}
        self._client_by_key: dict[tuple[str, str, str, bool, str], Any] = {}

    def client_for_role(self, role_arn: str, service: str, region: str, with_retries: bool = False) -> Any:
        """Return a boto3 client. ``with_retries``: retry throttled calls; otherwise the state gets every
        error. Raises ClientError for a role that cannot be assumed."""
        with self._lock:  # boto3's sessions are not thread-safe
            keys = self._keys_for_role(role_arn, region)
            cache_key = (role_arn, service, region, with_retries, keys.access_key)
            if cache_key not in self._client_by_key:
                self._client_by_key[cache_key] = self._create_client(keys, service, region, with_retries)
            return self._client_by_key[cache_key]

    def _keys_for_role(self, role_arn: str, region: str) -> _AccessKeys:
        keys = self._keys_by_role.get(role_arn)
        if keys is None or keys.expires < time.time() + _RENEW_BEFORE_SECONDS:
            sts = self._create_client(self._endpoint_keys, "sts", region, True)
            credentials = sts.assume_role(RoleArn=role_arn, RoleSessionName="StepFunctions")["Credentials"]
            keys = _AccessKeys(
                credentials["AccessKeyId"],
                credentials["SecretAccessKey"],
                credentials["SessionToken"],
                credentials["Expiration"].timestamp(),
            )
            self._keys_by_role[role_arn] = keys
        return keys

    def _create_client(self, keys: _AccessKeys, service: str, region: str, with_retries: bool) -> Any:
        retry_config = {"mode": "standard", "total_max_attempts": 10 if with_retries else 1}
        return boto3.session.Session().client(
            service,
            region_name=region,
            endpoint_url=self._url,
            aws_access_key_id=keys.access_key,
            aws_secret_access_key=keys.secret_key,
            aws_session_token=keys.token or None,
            config=Config(
                retries=retry_config, s3={"addressing_style": "path"}, user_agent_extra=f"{VIA_PREFIX}states"
            ),
        )
