"""docs/first-aws-job.md: its policies allow what its commands call of an endpoint in a region's place."""

from __future__ import annotations

import json
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from smlaunch.account.account_setup import AccountSetup
from smlaunch.account.policies import OPTIONAL_CALLER_ACTIONS, caller_policy, execution_policy, trust_policy
from smlaunch.local.endpoint_settings import CALL_LOG_VARIABLE
from smlaunch.local.front.call_log import read_call_log
from tests import warm
from tests.cli.conftest import SCRIPT, Shell
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "first-aws-job.md"

_WITHOUT_PERMISSION = {"sts:GetCallerIdentity"}
"""AWS allows it to everybody."""


def policies() -> dict[str, dict[str, Any]]:
    blocks = re.findall(r"<!-- policy: (\w+) -->\n```json\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return {name: json.loads(text) for name, text in blocks}


_CONTEXT = {"s3:ResourceAccount": "123456789012", "iam:PassedToService": "sagemaker.amazonaws.com"}


def is_allowed(policy: dict[str, Any], action: str, resource: str) -> bool:
    """Whether a statement allows the action, for the page's region, account and role."""
    resource = resource.replace("us-east-1", "eu-west-1").replace("000000000000", "123456789012")
    for statement in policy["Statement"]:
        resources = statement["Resource"] if isinstance(statement["Resource"], list) else ["*"]
        if (
            action in statement["Action"]
            and any(fnmatchcase(resource, pattern) for pattern in resources)
            and statement.get("Condition", {}).get("StringEquals", {}).items() <= _CONTEXT.items()
        ):
            return True
    return False


def test_the_callers_policy_allows_what_the_commands_call(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("a")
    log = tmp_path / "calls.jsonl"
    shell = Shell(tmp_path, tmp_path / "home")
    shell.environment[CALL_LOG_VARIABLE] = str(log)
    assert shell("local", "start").code == 0
    try:
        settings = json.loads(shell("local", "env", "--json").out)
        region = {**os.environ, **settings, "SMLAUNCH_HOME": str(tmp_path / "elsewhere")}
        role = "arn:aws:iam::000000000000:role/smlaunch-training"
        first = (
            "run",
            "train.py",
            "--name",
            "first",
            "--input",
            "train=data/",
            "--instance-type",
            "ml.g5.xlarge",
        )
        chain = (
            "--max-runtime",
            "2h",
            "--segment",
            "1h",
            "--checkpoints",
            "s3://sagemaker-us-east-1-000000000000/c/",
        )
        for command in (
            first,
            ("run", "train.py", "--name", "second", *chain),
            *((word,) for word in ("ls",)),
            *((word, "first") for word in ("show", "logs", "wait", "stop")),
            ("resume", "second"),
        ):
            option = ("--role", role) if command[0] == "run" else ()
            result = warm.run([*command, *option], env=region, cwd=tmp_path, timeout=110)
            assert result.returncode == 0, (command, result.stderr)
    finally:
        assert shell("local", "stop").code == 0
    needed = {(need.action, need.resource) for call in read_call_log(log) for need in call.needs}
    policy = policies()["caller"]
    assert len(needed) > 10
    assert [
        need
        for need in sorted(needed)
        if need[0] not in _WITHOUT_PERMISSION and not is_allowed(policy, *need)
    ] == []
    allowed = {action for statement in policy["Statement"] for action in statement["Action"]}
    # Of a region only, and of a stop before the end of the job.
    unused = allowed - {action for action, _ in needed} - {"sagemaker:StopTrainingJob"}
    assert unused <= set(OPTIONAL_CALLER_ACTIONS)


def test_the_page_has_the_policies_that_the_command_prints() -> None:
    setup = AccountSetup("123456789012", "eu-west-1", data_buckets=("my-data",))
    trust, execution, caller = trust_policy(), execution_policy(setup), caller_policy(setup)
    assert policies() == {"trust": trust, "execution": execution, "caller": caller}


def test_the_execution_roles_policies_are_whole() -> None:
    trust, execution = policies()["trust"], policies()["execution"]
    assert trust["Statement"][0]["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    actions = {action for statement in execution["Statement"] for action in statement["Action"]}
    assert {
        "s3:GetObject",
        "s3:PutObject",
        "s3:ListBucket",
        "logs:PutLogEvents",
        "ecr:BatchGetImage",
    } <= actions
    for statement in (*trust["Statement"], *execution["Statement"]):
        assert statement["Effect"] == "Allow" and "*" not in statement["Action"]
