"""How a worker or a triggerer reaches the place where a task's run is: a value that a trigger carries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from smlaunch.errors import AccountError, EndpointError, JobError, Problem
from smlaunch.place import standing_endpoint, target_of
from smlaunch.runs.target import Target

_ON_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Reach:
    """``aws_conn_id``: an Airflow connection; None leaves it to boto3. ``endpoint_url``: a local endpoint, by
    default the connection's or AWS_ENDPOINT_URL. ``local``: the standing endpoint of SMLAUNCH_HOME."""

    aws_conn_id: str | None = "aws_default"
    region_name: str | None = None
    endpoint_url: str | None = None
    local: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Reach:
        return cls(**document)

    def target(self) -> Target:
        """Made anew in every process. Raises AccountError, EndpointError or JobError (there is no such
        connection, or its endpoint is on another machine). Asks the network nothing but what the connection's
        own credentials need (a role to assume, say)."""
        standing = _standing()
        if self.local:
            if standing is None:
                raise EndpointError(
                    "no local endpoint stands on this worker; `smlaunch local start` starts one"
                )
            return target_of(standing, self.region_name)
        session, of_connection = _session(self.aws_conn_id, self.region_name)
        url = self.endpoint_url or of_connection or os.environ.get("AWS_ENDPOINT_URL")
        if url and urlsplit(url).hostname in _ON_THIS_MACHINE:
            if standing is not None and standing.url.rstrip("/") == url.rstrip("/"):
                return target_of(standing, self.region_name)
            return _endpoint(url, session, self.region_name)
        if self.endpoint_url or of_connection:
            whose = "endpoint_url" if self.endpoint_url else f"connection {self.aws_conn_id}: endpoint_url"
            why = f"{url} is not on this machine; name a service's own endpoint by AWS_ENDPOINT_URL_SAGEMAKER"
            raise JobError([Problem(whose, why)])
        return Target.region(self.region_name, session=session)


def _standing() -> Any:
    from smlaunch.local.state_dir import default_root

    return standing_endpoint(default_root())


def _session(aws_conn_id: str | None, region: str | None) -> tuple[Any, str | None]:
    """A boto3 session with the connection's credentials, and the endpoint that the connection names."""
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
    from airflow.providers.common.compat.sdk import AirflowNotFoundException

    hook = AwsBaseHook(aws_conn_id=aws_conn_id, region_name=region, client_type="sagemaker")
    if aws_conn_id and aws_conn_id != AwsBaseHook.default_conn_name:
        # The hook would warn, and go on with whatever credentials the worker has.
        try:
            hook.get_connection(aws_conn_id)
        except AirflowNotFoundException:
            text = (
                f"there is no Airflow connection {aws_conn_id!r}; make it (`airflow connections add "
                f"{aws_conn_id} --conn-type aws ...`), or give None to leave it to boto3"
            )
            raise JobError([Problem("aws_conn_id", text)]) from None
    return hook.get_session(region_name=region), hook.conn_config.endpoint_url


def _endpoint(url: str, session: Any, region: str | None) -> Target:
    found = session.get_credentials()
    name = region or session.region_name or os.environ.get("AWS_REGION")
    if found is None or not name:
        missing = "no credentials are known" if found is None else "no region is named"
        raise AccountError(f"{missing} for {url}: give the worker what `smlaunch local env` prints")
    keys = found.get_frozen_credentials()
    target = Target.endpoint(url, str(name), keys.access_key, keys.secret_key)
    return replace(target, environment=dict(os.environ))  # the role, as for a region
