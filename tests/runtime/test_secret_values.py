"""Secrets that the runtime reads on a host: signed calls, credentials, failures, and where values may be."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from smlaunch.runtime import aws_call, secret_values
from smlaunch.runtime.errors import SetupError
from tests.runtime.host import Host

MakeHost = Callable[..., Host]

KEY, SECRET, TOKEN = "AKIA0123456789ABCDEF", "a/secret+key", "session/token=="
DENIED = (400, {"__type": "AccessDeniedException", "Message": "no identity-based policy allows it"})


class Service(ThreadingHTTPServer):
    """Secrets Manager and Parameter Store on loopback, which accept what botocore signs the same way."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.calls: list[tuple[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        """The credentials of the role."""
        assert self.headers["Authorization"] == "pod-token"
        self._answer(200, {"AccessKeyId": KEY, "SecretAccessKey": SECRET, "Token": TOKEN})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        target, authorization = self.headers["X-Amz-Target"], self.headers["Authorization"]
        service, region = authorization.split("/")[3], authorization.split("/")[2]
        signed = {name: self.headers[name] for name in ("Content-Type", "X-Amz-Target", "X-Amz-Date")}
        request = AWSRequest("POST", f"http://{self.headers['Host']}/", signed, body)
        request.context["timestamp"] = self.headers["X-Amz-Date"]
        token = self.headers["X-Amz-Security-Token"]
        if token:
            request.headers["X-Amz-Security-Token"] = token
        auth = SigV4Auth(Credentials(KEY, SECRET, token), service, region)
        text = auth.string_to_sign(request, auth.canonical_request(request))
        assert authorization.endswith("Signature=" + auth.signature(text, request))
        parameters = json.loads(body)
        self.server.calls.append((target, parameters))
        secret_id = parameters.get("SecretId") or parameters["Name"]
        answers = self.server.answers[secret_id]
        self._answer(*(answers.pop(0) if len(answers) > 1 else answers[0]))

    def _answer(self, status: int, document: Any) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def environment(service: Service, **others: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": service.url,
        "AWS_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        **others,
    }


REFERENCES = (("HF_TOKEN", "secretsmanager:hub/token"), ("WANDB_API_KEY", "ssm:/research/wandb"))


def test_values_come_from_both_services(service: Service) -> None:
    service.answers = {
        "hub/token": [(200, {"SecretString": "hf-value"})],
        "/research/wandb": [(200, {"Parameter": {"Value": "wandb-value"}})],
    }
    values = secret_values.fetch_secrets(REFERENCES, environment(service, AWS_SESSION_TOKEN=TOKEN))
    assert values == {"HF_TOKEN": "hf-value", "WANDB_API_KEY": "wandb-value"}
    assert service.calls == [
        ("secretsmanager.GetSecretValue", {"SecretId": "hub/token"}),
        ("AmazonSSM.GetParameter", {"Name": "/research/wandb", "WithDecryption": True}),
    ]
    assert secret_values.mask_fetched_values("it is hf-value.") == "it is ****."


def test_the_roles_own_credentials_are_used(service: Service, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("pod-token\n")
    service.answers = {"hub/token": [(200, {"SecretBinary": base64.b64encode("bytes-ä".encode()).decode()})]}
    environ = {
        "AWS_ENDPOINT_URL_SECRETS_MANAGER": service.url,
        "AWS_DEFAULT_REGION": "cn-north-1",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": service.url + "/role",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
    }
    assert secret_values.fetch_secrets(REFERENCES[:1], environ) == {"HF_TOKEN": "bytes-ä"}


def test_a_busy_service_is_asked_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(aws_call.time, "sleep", pauses.append)
    busy = [(500, {}), (400, {"__type": "ThrottlingException", "message": "Rate exceeded"})]
    service.answers = {"hub/token": [*busy, (200, {"SecretString": "value"})]}
    assert secret_values.fetch_secrets(REFERENCES[:1], environment(service)) == {"HF_TOKEN": "value"}
    assert pauses == [0.5, 1.0]


def test_a_refusal_names_the_secret_the_cause_and_the_permission(service: Service) -> None:
    service.answers = {"hub/token": [DENIED]}
    with pytest.raises(SetupError) as caught:
        secret_values.fetch_secrets(REFERENCES, environment(service))
    assert str(caught.value) == (
        "secrets.HF_TOKEN: secretsmanager:hub/token cannot be read: AccessDeniedException: no identity-based "
        "policy allows it; the job's role needs secretsmanager:GetSecretValue for it"
    )
    assert len(service.calls) == 1


def test_no_credentials_and_no_network_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws_call.time, "sleep", lambda _: None)
    with pytest.raises(SetupError, match="no credentials of the job's role"):
        secret_values.fetch_secrets(REFERENCES, {"AWS_REGION": "eu-west-1"})
    nowhere = {"AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    with pytest.raises(SetupError, match="cannot be reached"):
        secret_values.fetch_secrets(REFERENCES, {**nowhere, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"})


FAIL_WITH_VALUE = "import os\nraise ValueError('wrong token ' + os.environ['HF_TOKEN'])"


def test_ranks_get_the_value_and_a_failure_does_not_show_it(make_host: MakeHost, service: Service) -> None:
    service.answers = {"hub/token": [(200, {"SecretString": "hf-very-secret"})]}
    host = make_host(FAIL_WITH_VALUE, environ=environment(service))
    result = host.run(secrets=REFERENCES[:1])
    assert result.exit_code == 1
    failure = host.failure
    assert "ValueError: wrong token ****" in failure
    assert "hf-very-secret" not in failure
    own_lines = [line for line in result.stderr.splitlines() if line.startswith("smlaunch:")]
    assert own_lines and not any("hf-very-secret" in line for line in own_lines)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("hf-very-secret\n", "'wrong token ' + value"),  # as an editor saves it
        ("hf-very-secret\r\nhf-other-secret\r\n", "'wrong token ' + value"),
        ("hf-very-secret\n  hf-other-secret\nabc\n", "'wrong key', value"),  # quoted, as of a KeyError
        ('hf-very\\"-secret', "'wrong key', value"),
        ("hf-very\u2028secret", "'wrong token ' + value"),
        ("hf-very-secret", "'wrong token ' + 'x' * 845 + value + 'y' * 80"),  # across the end of the reason
        ("hf-very-secret", "value + 'x' * 845 + value * 40"),
    ],
)
def test_no_part_of_a_value_is_in_a_failure(
    make_host: MakeHost, service: Service, value: str, message: str
) -> None:
    service.answers = {"hub/token": [(200, {"SecretString": value})]}
    script = f"import os\nvalue = os.environ['HF_TOKEN']\nraise ValueError({message})"
    host = make_host(script, environ=environment(service))
    result = host.run(secrets=REFERENCES[:1])
    assert result.exit_code == 1
    own_lines = [line for line in result.stderr.splitlines() if line.startswith("smlaunch:")]
    report = "\n".join([host.failure, *own_lines])
    assert "ValueError: " in report and "****" in report
    assert not re.search("hf-|very|-sec|cret|abc", report)


def test_a_secret_that_cannot_be_read_fails_the_host(make_host: MakeHost, service: Service) -> None:
    service.answers = {"hub/token": [DENIED]}
    host = make_host("print('never')", environ=environment(service))
    result = host.run(secrets=REFERENCES[:1])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "AccessDeniedException" in host.failure
