"""How a worker or a triggerer connects to a task's target. A trigger stores this value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from smlaunch.connection.connect import background_endpoint, endpoint_target
from smlaunch.errors import AccountError, EndpointError, JobError, Problem
from smlaunch.runs.target import Target

_LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ConnectionRef:
    """Reference to a target."""

    aws_conn_id: str | None = "aws_default"
    """An Airflow connection; None uses boto3's own credentials."""
    region_name: str | None = None
    endpoint_url: str | None = None
    """A local endpoint; the default is the connection's, else AWS_ENDPOINT_URL."""
    local: bool = False
    """Use the background endpoint of SMLAUNCH_HOME."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> ConnectionRef:
        return cls(**document)

    def open_target(self) -> Target:
        """Open the target. Called again in every process.

        Makes no request but those for the connection's own credentials (a role to assume, for example).
        Raises AccountError, EndpointError or JobError: there is no such connection, or its endpoint is on
        another machine.
        """
        endpoint = _background_endpoint()
        if self.local:
            if endpoint is None:
                raise EndpointError(
                    "no local endpoint runs on this worker; `smlaunch local start` starts one"
                )
            return endpoint_target(endpoint, self.region_name)
        session, connection_url = _open_session(self.aws_conn_id, self.region_name)
        url = self.endpoint_url or connection_url or os.environ.get("AWS_ENDPOINT_URL")
        if url and urlsplit(url).hostname in _LOOPBACK_HOSTS:
            if endpoint is not None and endpoint.url.rstrip("/") == url.rstrip("/"):
                return endpoint_target(endpoint, self.region_name)
            return _endpoint_target(url, session, self.region_name)
        if self.endpoint_url or connection_url:
            field = "endpoint_url" if self.endpoint_url else f"connection {self.aws_conn_id}: endpoint_url"
            problem = (
                f"{url} is not on this machine; name a service's own endpoint by AWS_ENDPOINT_URL_SAGEMAKER"
            )
            raise JobError([Problem(field, problem)])
        return Target.region(self.region_name, session=session)


def _background_endpoint() -> Any:
    from smlaunch.local.state_dir import default_root

    return background_endpoint(default_root())


def _open_session(aws_conn_id: str | None, region: str | None) -> tuple[Any, str | None]:
    """Return a boto3 session with the connection's credentials, and the endpoint that the connection
    names."""
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
    from airflow.providers.common.compat.sdk import AirflowNotFoundException

    hook = AwsBaseHook(aws_conn_id=aws_conn_id, region_name=region, client_type="sagemaker")
    if aws_conn_id and aws_conn_id != AwsBaseHook.default_conn_name:
        # Without this check the hook would warn and use the worker's own credentials.
        try:
            hook.get_connection(aws_conn_id)
        except AirflowNotFoundException:
            text = (
                f"there is no Airflow connection {aws_conn_id!r}; make it (`airflow connections add "
                f"{aws_conn_id} --conn-type aws ...`), or give None to leave it to boto3"
            )
            raise JobError([Problem("aws_conn_id", text)]) from None
    return hook.get_session(region_name=region), hook.conn_config.endpoint_url


def _endpoint_target(url: str, session: Any, region: str | None) -> Target:
    credentials = session.get_credentials()
    region_name = region or session.region_name or os.environ.get("AWS_REGION")
    if credentials is None or not region_name:
        missing = "no credentials are known" if credentials is None else "no region is named"
        raise AccountError(f"{missing} for {url}: give the worker what `smlaunch local env` prints")
    keys = credentials.get_frozen_credentials()
    target = Target.endpoint(url, str(region_name), keys.access_key, keys.secret_key)
    return replace(target, environment=dict(os.environ))  # the role, as for a region
