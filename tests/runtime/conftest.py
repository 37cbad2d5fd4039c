"""A fixture that makes hosts below the test's temporary directory."""

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
