"""Services that moto simulates, behind the endpoint's one address, in a process that ends with the
endpoint."""

from __future__ import annotations

import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from smlaunch.local.front.call_log import IamPermission, read_call_log
from tests.real.moto_endpoint import StepFunctions, endpoint, processes_of_moto, wait_until


@pytest.fixture(scope="module")
def moto_and_calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StepFunctions, Path]]:
    home = tmp_path_factory.mktemp("moto") / "home"
    calls = home.parent / "calls.jsonl"
    with endpoint(home, {"call_log": str(calls)}) as info:
        yield StepFunctions(info), calls


def test_a_service_of_moto_s_has_our_account_and_the_signed_region(
    moto_and_calls: tuple[StepFunctions, Path],
) -> None:
    user, calls = moto_and_calls
    secrets = user.client("secretsmanager")
    arn = secrets.create_secret(Name="token", SecretString="abc")["ARN"]
    assert arn.startswith(f"arn:aws:secretsmanager:us-east-1:{user.info.account}:secret:token-")
    assert secrets.get_secret_value(SecretId="token")["SecretString"] == "abc"
    call = read_call_log(calls)[-1]
    assert (call.service, call.operation, call.status) == ("secretsmanager", "GetSecretValue", 200)
    resource = f"arn:aws:secretsmanager:us-east-1:{user.info.account}:secret:token"
    assert call.needs == (IamPermission("secretsmanager:GetSecretValue", resource),)
    with pytest.raises(secrets.exceptions.ResourceNotFoundException):
        secrets.get_secret_value(SecretId="none")
    assert read_call_log(calls)[-1].error == "ResourceNotFoundException"


def _elsewhere(user: StepFunctions, service: str, secret: str | None = None) -> Any:
    session = boto3.Session(user.info.access_key, secret or user.info.secret_key, region_name="eu-west-1")
    return session.client(
        service, endpoint_url=user.info.url, config=Config(retries={"total_max_attempts": 1})
    )


def test_the_region_is_the_signed_one(moto_and_calls: tuple[StepFunctions, Path]) -> None:
    arn = _elsewhere(moto_and_calls[0], "secretsmanager").create_secret(Name="there", SecretString="x")["ARN"]
    assert ":eu-west-1:" in arn


def test_a_wrong_key_is_refused_as_everywhere(moto_and_calls: tuple[StepFunctions, Path]) -> None:
    with pytest.raises(ClientError) as error:
        _elsewhere(moto_and_calls[0], "secretsmanager", "wrong").list_secrets()
    assert error.value.response["Error"]["Code"] == "InvalidSignatureException"


@pytest.mark.parametrize(
    ("service", "operation", "arguments", "message"),
    [
        ("braket", "get_job", {"jobArn": "x"}, "has the service 'braket'"),
        ("xray", "get_groups", {}, "needs aws_xray_sdk"),
        ("secretsmanager", "validate_resource_policy", {"ResourcePolicy": "{}"}, "does not have"),
    ],
)
def test_what_moto_does_not_have_is_said(
    moto_and_calls: tuple[StepFunctions, Path],
    service: str,
    operation: str,
    arguments: dict[str, str],
    message: str,
) -> None:
    with pytest.raises(ClientError, match=message) as error:
        getattr(moto_and_calls[0].client(service), operation)(**arguments)
    assert error.value.response["Error"]["Code"] == "UnknownOperationException"


@pytest.mark.parametrize("path", ["/moto-api/data.json", "/moto-api/reset", "/latest/meta-data/"])
def test_moto_s_own_doors_are_closed(moto_and_calls: tuple[StepFunctions, Path], path: str) -> None:
    """moto's own addresses refuse requests without a signature, and with one."""
    user, _ = moto_and_calls
    with pytest.raises(urllib.error.HTTPError) as plain:
        urllib.request.urlopen(user.info.url + path)
    assert plain.value.code == 403
    secrets = user.client("secretsmanager")
    secrets.meta.events.register(
        "before-sign.secretsmanager", lambda request, **_: setattr(request, "url", user.info.url + path)
    )
    with pytest.raises(ClientError, match="There is no") as signed:
        secrets.list_secrets()
    assert signed.value.response["Error"]["Code"] == "UnknownOperationException"


def test_moto_is_loaded_when_it_is_needed_and_ends_with_a_killed_endpoint(tmp_path: Path) -> None:
    with endpoint(tmp_path / "home", {}) as info:
        user = StepFunctions(info)
        assert user.sagemaker.list_training_jobs()["TrainingJobSummaries"] == []
        assert processes_of_moto(info.pid) == []
        user.client("secretsmanager").list_secrets()
        (process,) = processes_of_moto(info.pid)
        os.kill(info.pid, signal.SIGKILL)
        assert wait_until(lambda: not Path(f"/proc/{process}").exists())


def test_moto_s_process_is_started_again_when_it_died(tmp_path: Path) -> None:
    """The new process is empty: its state is in memory."""
    with endpoint(tmp_path / "home", {}) as info:
        # As many attempts as a client has by default: one that comes while the process dies is answered 503.
        secrets = StepFunctions(info).client("secretsmanager", attempts=5)
        secrets.create_secret(Name="token", SecretString="abc")
        (process,) = processes_of_moto(info.pid)
        os.kill(process, signal.SIGKILL)
        assert wait_until(lambda: processes_of_moto(info.pid) == [])
        assert secrets.list_secrets()["SecretList"] == []
        assert len(processes_of_moto(info.pid)) == 1
