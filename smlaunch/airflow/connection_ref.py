"""How a worker or a triggerer connects to a task's target. A trigger stores this value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from smlaunch.connection.open_connection import find_background_endpoint, target_of_endpoint
from smlaunch.errors import AccountError, EndpointError, JobError, Problem
from smlaunch.runs.launch_target import Target

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
        """Return the region or local endpoint to which the Airflow connection and the operator's arguments
        refer. Called again in every process. Makes no request but those for the connection's own credentials.
        Raises AccountError, EndpointError or JobError: there is no such connection, or its endpoint is on
        another machine."""
        background_endpoint = _background_endpoint()  # of this machine; None if none runs
        if self.local:
            if background_endpoint is None:
                raise EndpointError(
                    "no local endpoint runs on this worker; `smlaunch local start` starts one"
                )
            return target_of_endpoint(background_endpoint, self.region_name)
        session, connection_url = _open_session(self.aws_conn_id, self.region_name)
        explicit_url = self.endpoint_url or connection_url  # the operator's, or the Airflow connection's
        url = explicit_url or os.environ.get("AWS_ENDPOINT_URL")
        if url and urlsplit(url).hostname in _LOOPBACK_HOSTS:
            if background_endpoint is not None and background_endpoint.url.rstrip("/") == url.rstrip("/"):
                return target_of_endpoint(background_endpoint, self.region_name)
            # One that this worker does not know: its credentials are those of the session.
            return _open_other_endpoint(url, session, self.region_name)
        if explicit_url:
            raise JobError([self._remote_endpoint_problem(explicit_url)])
        # boto3 reads AWS_ENDPOINT_URL itself.
        return Target.region(self.region_name, session=session)

    def _remote_endpoint_problem(self, url: str) -> Problem:
        """Return the problem of an endpoint on another machine."""
        field_name = "endpoint_url" if self.endpoint_url else f"connection {self.aws_conn_id}: endpoint_url"
        problem_text = (
            f"{url} is not on this machine; name a service's own endpoint by AWS_ENDPOINT_URL_SAGEMAKER"
        )
        return Problem(field_name, problem_text)


def _background_endpoint() -> Any:
    from smlaunch.local.state_dir import default_root

    return find_background_endpoint(default_root())


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


def _open_other_endpoint(url: str, session: Any, region: str | None) -> Target:
    """Return a local endpoint that this worker does not know, with the session's credentials. Raises
    AccountError without credentials or a region."""
    credentials = session.get_credentials()
    region_name = region or session.region_name or os.environ.get("AWS_REGION")
    if credentials is None or not region_name:
        missing = "no credentials are known" if credentials is None else "no region is named"
        raise AccountError(f"{missing} for {url}: give the worker what `smlaunch local env` prints")
    keys = credentials.get_frozen_credentials()
    target = Target.endpoint(url, str(region_name), keys.access_key, keys.secret_key)
    # The execution role may be in the environment, as for a region.
    return replace(target, environment=dict(os.environ))
