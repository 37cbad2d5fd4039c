"""`smlaunch catalog update`, and what plans of the region make of it. The service's answers are built from
botocore's model and AWS's pages; no account has given them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from smlaunch.cli.main import run_command
from tests.catalog.test_price_list import offer_file, on_demand, product

ACCOUNT = "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/train"
PLAN = ["plan", "train.py", "--region", "eu-west-1", "--role", ROLE, "--json"]


class Services(BaseHTTPRequestHandler):
    """STS, Service Quotas and the Price List API, with two pages each."""

    denied: frozenset[str] = frozenset()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        if "Action=GetCallerIdentity" in body:
            result = (
                f"<Arn>arn:aws:iam::{ACCOUNT}:user/ada</Arn><UserId>U</UserId><Account>{ACCOUNT}</Account>"
            )
            self.answer(
                f"<GetCallerIdentityResponse><GetCallerIdentityResult>{result}</GetCallerIdentityResult>"
                "</GetCallerIdentityResponse>",
                kind="text/xml",
            )
        elif operation in self.denied:
            self.answer(json.dumps({"__type": "AccessDeniedException", "Message": "not allowed"}), 400)
        elif operation == "GetProducts":
            request = json.loads(body)
            assert request["Filters"] == [{"Type": "TERM_MATCH", "Field": "regionCode", "Value": "eu-west-1"}]
            is_first = "NextToken" not in request
            name, price = ("EU-Train:ml.m5.large", "0.129") if is_first else ("EU-Train:ml.g5.xlarge", "1.57")
            row = {"product": product(name), "terms": {"OnDemand": on_demand(price)}, "version": "1"}
            more = {"NextToken": "2"} if is_first else {}
            self.answer(json.dumps({"FormatVersion": "aws_v1", "PriceList": [json.dumps(row)], **more}))
        elif operation == "ListServiceQuotas":
            is_first = "NextToken" not in json.loads(body)
            name, value = ("ml.g5.xlarge for training job usage", 1.0) if is_first else ("Other", 7.0)
            more = {"NextToken": "2"} if is_first else {}
            self.answer(json.dumps({"Quotas": [{"QuotaName": name, "Value": value}], **more}))

    def answer(self, text: str, status: int = 200, kind: str = "application/x-amz-json-1.1") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def machine(
    without_account: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[Services]]:
    """A folder with a script, a cache of its own, and the three services."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('training')\n")
    handler = type("Handler", (Services,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        yield handler
        server.shutdown()


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run_command(list(arguments))
    output = capsys.readouterr()
    return code, " ".join((output.out + output.err).split())


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    run_command([*PLAN, *arguments])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.usefixtures("machine")
def test_a_file_of_prices_needs_no_account(capsys: pytest.CaptureFixture[str]) -> None:
    row = ["--instance-type", "ml.m5.large", "--max-runtime", "2h"]
    assert "`smlaunch catalog update` reads the region's prices" in plan(capsys, *row)["cost"]["note"]
    rows = (product(), on_demand()), (product("EU-Processing:ml.m5.large"), on_demand("9"))
    Path("index.json").write_text(offer_file(*rows))
    update = ["catalog", "update", "--region", "eu-west-1", "--price-list", "index.json"]
    code, text = command(capsys, *update)
    assert code == 0 and "AWS's price list of 2026-11-18" in text and "training types 1" in text
    assert "None" not in text  # the list is of no account
    cost = plan(capsys, *row, "--max-cost", "1")["cost"]
    assert (cost["known"], cost["per_hour"]) == (True, 0.129)
    assert cost["note"] == "on-demand price of eu-west-1, by AWS's price list of 2026-11-18"
    missing = plan(capsys, "--instance-type", "ml.m5.xlarge")
    text = "AWS's price list of 2026-11-18 has no price of ml.m5.xlarge in eu-west-1"
    assert missing["cost"]["note"].startswith(text)
    assert any(text in warning for warning in missing["warnings"])
    # Another region, or a folder that others may write, knows nothing of it.
    assert not plan(capsys, *row, "--region", "eu-west-3")["cost"]["known"]
    (entry,) = Path("cache/smlaunch").glob("catalog-eu-west-1-*")
    entry.chmod(0o666)
    assert not plan(capsys, *row)["cost"]["known"]


@pytest.mark.usefixtures("machine")
def test_without_credentials_it_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = command(capsys, "catalog", "update", "--region", "eu-west-1")
    assert code == 3 and text.count("no AWS credentials were found") == 1 and "--price-list FILE" in text
    assert "training types" not in text
    assert not list(Path("cache").glob("smlaunch/catalog-*"))


def test_prices_and_quotas_of_an_account(
    machine: type[Services], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    code, text = command(capsys, "catalog", "update", "--region", "eu-west-1")
    assert code == 0 and "training types 2" in text and "quotas 2" in text and ACCOUNT in text
    # Later, without an account.
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    two_hosts = ["--instance-type", "ml.g5.xlarge", "--hosts", "2", "--max-runtime", "1h"]
    document = plan(capsys, *two_hosts)
    assert document["cost"]["per_hour"] == 3.14
    quota = "compute.hosts: the quota 'ml.g5.xlarge for training job usage' of account 123456789012 was 1 on "
    assert any(warning.startswith(quota) for warning in document["warnings"])
    other_role = ROLE.replace(ACCOUNT, "999999999999")
    assert not any(
        warning.startswith(quota) for warning in plan(capsys, *two_hosts, "--role", other_role)["warnings"]
    )
    # What can be read is stored; the rest stays, and is said.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    machine.denied = frozenset(("GetProducts",))
    code, text = command(capsys, "catalog", "update", "--region", "eu-west-1")
    assert code == 3 and "allow the caller pricing:GetProducts" in text and "training types 2" in text
    machine.denied = frozenset(("GetProducts", "ListServiceQuotas"))
    code, text = command(capsys, "catalog", "update", "--region", "eu-west-1")
    assert code == 3 and "pricing:GetProducts" in text and "servicequotas:ListServiceQuotas" in text


@pytest.mark.usefixtures("machine")
def test_a_file_that_has_no_prices_of_the_region(capsys: pytest.CaptureFixture[str]) -> None:
    for content, text in (
        (offer_file((product(region="us-east-1"), on_demand())), "it has those of us-east-1"),
        (offer_file((product(), on_demand(currency="CNY"))), "its prices are in CNY"),
        ("{}", "index.json: it is no offer file of AmazonSageMaker"),
    ):
        Path("index.json").write_text(content)
        code, output = command(
            capsys, "catalog", "update", "--region", "eu-west-1", "--price-list", "index.json"
        )
        assert code == 2 and text in output, output
    os.mkfifo("pipe")
    code, output = command(capsys, "catalog", "update", "--region", "eu-west-1", "--price-list", "pipe")
    assert code == 2 and "pipe is no regular file" in output
