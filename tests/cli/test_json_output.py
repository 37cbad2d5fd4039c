"""The document of ``--json``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from smlaunch.cli import json_output
from smlaunch.cli.json_output import print_json


class Row(NamedTuple):
    loss: float


def refuse(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def test_numbers_that_json_lacks_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = MappingProxyType({"loss": math.nan, "best": -math.inf, "step": 3, "rate": 0.5})
    print_json({"metrics": metrics, "rows": [Row(math.inf), (1.5, None, "NaN", True)]})
    assert json.loads(capsys.readouterr().out, parse_constant=refuse) == {
        "metrics": {"loss": None, "best": None, "step": 3, "rate": 0.5},
        "rows": [[None], [1.5, None, "NaN", True]],
    }


def test_no_command_prints_json_in_another_way() -> None:
    module = Path(json_output.__file__)
    others = [path for path in module.parent.glob("*.py") if path != module]
    assert not [path.name for path in others if "json.dump" in path.read_text()]
