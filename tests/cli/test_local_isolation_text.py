"""How `smlaunch local start` describes the hosts of its endpoint."""

from __future__ import annotations

import pytest

from smlaunch.cli.local import _describe_isolation
from smlaunch.local.endpoint_info import EndpointInfo


@pytest.mark.parametrize(
    ("executor", "isolation", "text"),
    [("processes", "full", "isolation full"), ("containers", "podman", "containers by podman")],
)
def test_the_hosts_are_described(executor: str, isolation: str, text: str) -> None:
    info = EndpointInfo(
        "url", "region", "a", "s", "account", "role", "bucket", 1, isolation, executor, "/home"
    )
    assert _describe_isolation(info) == text
