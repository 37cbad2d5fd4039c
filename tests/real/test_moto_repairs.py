"""moto's faults: each exists without its patch (else the patch can be removed), and not with it."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.real.moto_endpoint import moto_python


def run_case(case: str, is_patched: bool) -> Any:
    """Runs a case in a process of its own: moto hooks into botocore, and patches apply to a whole process."""
    command = [moto_python(), "-m", "tests.real.moto_repairs", case, "yes" if is_patched else "no"]
    variables = {"PATH": "/usr/bin:/bin", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    result = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, timeout=150, check=True)
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("case", "fault", "patched_value"),
    [
        ("index", {}, {"one": 1, "all": [1]}),
        ("escapes", "it\\\\", "it's {say \"{}\"} \\ a'b{"),
        ("unnamed", "ExecutionAlreadyExists", "started"),
        ("stopping", [False, None, None], [True, "E", "C"]),
        ("stopped-map", "FAILED", "ABORTED"),
        ("waiting", "RUNNING", "ABORTED"),
        ("tolerated", ["SUCCEEDED", [1, None, 3], [1, None, 3]], ["FAILED", [1, None, 3], {}]),
        ("members", ["FAILED", None], ["SUCCEEDED", 1]),
        ("error-names", "s3.NoSuchKeyException", "S3.NoSuchKeyException"),
        ("output", "yes", '"yes"'),
        ("error-codes", "", "InvalidDefinition"),
        ("callback", "FAILED", "SUCCEEDED"),
        ("calls", "http://localhost:5000", "http://127.0.0.1:9"),
    ],
)
def test_a_fault_is_there_and_repaired(case: str, fault: Any, patched_value: Any) -> None:
    assert run_case(case, False) == fault
    assert run_case(case, True) == patched_value
