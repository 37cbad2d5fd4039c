"""A maker of hosts whose trees go away with the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.host import Host


@pytest.fixture
def make_host(tmp_path: Path) -> Callable[..., Host]:
    def make(train: str = "", name: str = "ml", **settings: Any) -> Host:
        return Host(tmp_path / name, train, **settings)

    return make
