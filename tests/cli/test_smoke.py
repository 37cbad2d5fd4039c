"""`smlaunch smoke` on the local endpoint, where it confirms smlaunch; no region has run it yet."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smlaunch.smoke.checks import Observations, evaluate
from smlaunch.smoke.smoke import PREFIX
from smlaunch.verify.rank_killer import can_kill, kill_rank
from tests.cli.conftest import Shell

NAMES = [
    *("entrypoint", "channel", "live-log", "checkpoint-sync", "stop", "checkpoint-after-stop", "status"),
    "model",
]


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in document["checks"]}


def smoke(shell: Shell, *faults: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    options = ["--local", "--json"]
    if faults:
        (shell.folder / "faults.json").write_text(json.dumps({"faults": faults}))
        options += ["--faults", "faults.json"]
    result = shell("smoke", *options)
    assert result.out, result.err
    return result.code, json.loads(result.out)


def test_all_is_confirmed_and_written(shell: Shell) -> None:
    code, document = smoke(shell)
    assert (code, list(verdicts(document))) == (0, NAMES)
    assert set(verdicts(document).values()) == {"confirmed"}
    (report,) = shell.folder.glob("smlaunch-smoke-local-*T*Z.json")
    assert json.loads(report.read_text()) == document
    text = report.with_suffix(".txt").read_text()
    assert "confirmed   checkpoint-sync" in text and "nothing about AWS" in text
    assert document["is_aws"] is False and document["end"] == "the job is Stopped"


@pytest.mark.parametrize(
    ("fault", "exit_code", "failed", "confirmed"),
    [
        ({"fault": "no-capacity"}, 4, ["entrypoint"], []),
        # The program has waited for its stop for less than the sync of a checkpoint takes.
        ({"fault": "host-lost", "after": 1.0}, 4, [], ["entrypoint", "channel"]),
    ],
)
def test_a_fault_makes_a_check_fail_by_name(
    shell: Shell, fault: dict[str, Any], exit_code: int, failed: list[str], confirmed: list[str]
) -> None:
    code, document = smoke(shell, fault)
    verdict_by_name = verdicts(document)
    assert code == document["exit_code"] == exit_code
    assert [name for name in failed if verdict_by_name[name] != "failed"] == []
    assert [name for name in confirmed if verdict_by_name[name] != "confirmed"] == []
    assert {verdict_by_name["status"], verdict_by_name["model"]} <= {"failed", "not reached"}


@pytest.mark.skipif(not can_kill(), reason="a rank is looked up in /proc, which this system lacks")
def test_a_killed_program_is_no_stop(shell: Shell) -> None:
    process = shell.start("smoke", "--local", "--json")
    assert process.stderr is not None
    run = process.stderr.readline().split()[1].rstrip(":")
    while process.poll() is None and not kill_rank(f"{run}-s1-a1", 0):
        os.sched_yield()
    out, err = process.communicate()
    document = json.loads(out)
    assert process.returncode == document["exit_code"] == 1, err
    assert set(verdicts(document).values()) & {"failed", "not reached"}
    assert verdicts(document)["status"] != "confirmed" and "SIGKILL" in document["end"]


def complete_observations() -> Observations:
    """What the client sees of a service that does all that is checked."""
    observed = Observations("n", hashlib.sha256(b"n").hexdigest())
    lines: list[dict[str, Any]] = [
        {"event": "started", "nonce": "n", "python": "3.12.1", "host": "algo-1"},
        {"event": "channel", "names": ["nonce.txt"], "sha256": [observed.data_sha256]},
        {"event": "waiting"},
    ]
    for line in lines:
        observed.add_line(PREFIX + json.dumps(line))
    observed.synced_seconds, observed.is_stop_requested = 12.0, True
    for event in ("stopped", "saved"):
        observed.add_line(PREFIX + json.dumps({"event": event}))
    observed.status, observed.saved_after_stop, observed.has_model, observed.billable_seconds = (
        "Stopped",
        True,
        True,
        61,
    )
    return observed


def _without(event: str) -> Callable[[Observations], object]:
    return lambda observed: observed.events.pop(event)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("entrypoint", _without("started")),
        ("entrypoint", lambda observed: setattr(observed, "nonce", "other")),
        ("channel", lambda observed: setattr(observed, "data_sha256", "other")),
        ("live-log", lambda observed: observed.live_events.clear()),
        ("checkpoint-sync", lambda observed: setattr(observed, "synced_seconds", None)),
        ("checkpoint-sync", lambda observed: setattr(observed, "is_checkpoint_changed", True)),
        ("stop", _without("stopped")),
        ("stop", _without("saved")),
        ("stop", lambda observed: setattr(observed, "stop_problem", "throttled")),
        ("checkpoint-after-stop", lambda observed: setattr(observed, "saved_after_stop", False)),
        ("status", lambda observed: setattr(observed, "status", "Failed")),
        ("model", lambda observed: setattr(observed, "has_model", False)),
    ],
)
def test_each_check_fails_by_its_name(name: str, change: Callable[[Observations], object]) -> None:
    observed = complete_observations()
    assert {check.verdict for check in evaluate(observed)} == {"confirmed"}
    change(observed)
    failed = [check for check in evaluate(observed) if check.verdict == "failed"]
    assert [check.name for check in failed] == [name] and failed[0].text


def test_lines_that_arrive_after_the_end_are_not_live() -> None:
    observed = Observations("n", "d")
    observed.has_ended = True
    observed.add_line(PREFIX + '{"event": "waiting"}')
    assert not observed.is_waiting
    verdict_by_name = {check.name: check.verdict for check in evaluate(observed)}
    assert (verdict_by_name["live-log"], verdict_by_name["checkpoint-sync"]) == ("failed", "not reached")


@pytest.mark.parametrize("text", ["other", PREFIX + "{", PREFIX + "[]", PREFIX + '{"event": 1}'])
def test_other_lines_say_nothing(text: str) -> None:
    observed = complete_observations()
    before = copy.deepcopy(observed)
    observed.add_line(text)
    assert observed == before


def test_a_folder_of_reports_that_does_not_exist_is_named_before_a_job_runs(
    shell: Shell, tmp_path: Path
) -> None:
    result = shell("smoke", "--local", "--report-dir", tmp_path / "missing")
    assert result.code == 2 and "--report-dir" in result.err and "run smoke" not in result.err
