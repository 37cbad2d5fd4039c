"""Each workload's plan is what an expert expects of it (expected.yaml): without an account, and with one in
which the data has its size."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from smlaunch.catalog.instances import known_types
from smlaunch.cli.main import run_command
from tests.catalog.test_price_list import offer_file, on_demand, product
from tests.workloads.compare import differences
from tests.workloads.sized_listing import Handler, prefixes

FOLDER = Path(__file__).parent
WORKLOADS: dict[str, dict[str, Any]] = {
    workload["name"]: workload
    for workload in yaml.safe_load((FOLDER / "expected.yaml").read_text("utf-8"))["workloads"]
}
WITH_DATA = [name for name, workload in WORKLOADS.items() if workload["data"]]
ROLE = "arn:aws:iam::111122223333:role/Training"


@pytest.fixture(autouse=True)
def own_state_folder(without_account: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMLAUNCH_HOME", str(tmp_path))


@pytest.fixture
def sized_account(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An account in which the inputs of the workload that the test names have their size."""
    handler = type("SizedHandler", (Handler,), {"known": prefixes(request.getfixturevalue("name"))})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=partial(server.serve_forever, poll_interval=0.01), daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield
        server.shutdown()


def differences_of_plan(
    name: str,
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    **changes: Any,
) -> list[str]:
    """Plan the workload, and return what is not as expected, less what makes the plan poorer only.
    ``changes``: of the expectation."""
    monkeypatch.chdir(FOLDER / name)
    workload = {**WORKLOADS[name], **changes}
    run_command(
        ["plan", "job.yaml", "--region", workload["region"], "--json", *workload["options"], *options]
    )
    all_differences = differences(workload, json.loads(capsys.readouterr().out), sized=bool(options))
    return [difference for difference in all_differences if not difference.startswith("should ")]


@pytest.mark.parametrize("name", WORKLOADS)
def test_plan_without_an_account(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert differences_of_plan(name, [], monkeypatch, capsys) == []


@pytest.mark.usefixtures("sized_account")
@pytest.mark.parametrize("name", WITH_DATA)
def test_plan_of_sized_data(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert differences_of_plan(name, ["--role", ROLE], monkeypatch, capsys) == []


def test_a_cap_in_a_region_whose_prices_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ireland's prices as the expectation has them: those of us-east-1 and 13 %."""
    rows = [
        (product(f"EU-Train:{instance.name}"), on_demand(f"{instance.usd_per_hour * 1.13:.4f}"))
        for instance in known_types().values()
        if instance.usd_per_hour
    ]
    (tmp_path / "list.json").write_text(offer_file(*rows))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    update = ["catalog", "update", "--region", "eu-west-1", "--price-list", str(tmp_path / "list.json")]
    assert run_command(update) == 0
    capsys.readouterr()
    plan_of_ireland = {"outcome": "plan", "must": ["price of eu-west-1"]}
    assert differences_of_plan("10-bert-one-gpu", [], monkeypatch, capsys, **plan_of_ireland) == []
