"""A third-party validator accepts the definitions: npm's asl-validator."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from smlaunch.export.step_functions import DEFINITION_FILE, export_step_functions
from tests.export.test_sfn_shards import PLAN as PARTS
from tests.export.test_step_functions import JOBS, PLANS
from tests.real.conftest import REAL

VALIDATOR = REAL / "asl-validator" / "node_modules" / ".bin" / "asl-validator"


def run_validator(path: Path) -> subprocess.CompletedProcess[str]:
    if not VALIDATOR.exists():
        pytest.skip("asl-validator is not installed: make test-real")
    command = [VALIDATOR, "--json-path", path]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("job", JOBS)
def test_a_definition_is_valid(job: str, tmp_path: Path) -> None:
    path = tmp_path / DEFINITION_FILE
    path.write_text(export_step_functions(PLANS[job], "train")[DEFINITION_FILE])
    result = run_validator(path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("most_inline", [200, 3], ids=["inline", "distributed"])
def test_a_machine_of_parts_is_valid(most_inline: int, tmp_path: Path) -> None:
    path = tmp_path / DEFINITION_FILE
    path.write_text(export_step_functions(PARTS, "train", max_inline_shards=most_inline)[DEFINITION_FILE])
    result = run_validator(path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_validator_does_refuse(tmp_path: Path) -> None:
    path = tmp_path / DEFINITION_FILE
    text = export_step_functions(PLANS["chain"], "train")[DEFINITION_FILE]
    path.write_text(text.replace('"Next": "Look at the job"', '"Next": "Nowhere"', 1))
    assert run_validator(path).returncode != 0
