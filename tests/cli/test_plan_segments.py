"""``smlaunch plan`` for a run of several jobs: its options, its document, its simulation."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Shell

RESUMABLE = "import smlaunch.train\n"


def test_a_chain_is_planned_and_simulated(shell: Shell) -> None:
    (shell.folder / "resumable.py").write_text(RESUMABLE)
    arguments = (
        "plan",
        "resumable.py",
        "--local",
        "--name",
        "long",
        "--max-runtime",
        "60d",
        "--segment",
        "24h",
    )
    options = ("--attempts", "5", "--checkpoint-interval", "20m", "--deterministic", "--simulate", "--json")
    plan_result = shell(*arguments, *options)
    assert plan_result.code == 0, plan_result.err
    document = json.loads(plan_result.out)
    assert len(document["segments"]) == 61
    assert document["checkpoints"]["interval_seconds"] == 1200.0
    simulation = document["simulation"]
    assert simulation["runs"] == 200
    makespan = simulation["makespan"]
    assert abs(makespan["mean"] / makespan["closed_form"] - 1) < 0.01
    second_simulation = json.loads(shell(*arguments, *options).out)["simulation"]
    assert second_simulation == simulation, "the same seed, the same failures"
    other = json.loads(shell(*arguments, *options, "--seed", "1").out)["simulation"]
    assert other != simulation


def test_one_job_has_nothing_to_simulate(shell: Shell) -> None:
    (shell.folder / "resumable.py").write_text(RESUMABLE)
    result = shell("plan", "resumable.py", "--local", "--simulate")
    assert (result.code, result.out) == (2, "")
    assert "--simulate: the run is a single job" in result.err


def test_a_script_that_does_nothing_is_told_what_would_help(shell: Shell) -> None:
    Path(shell.folder / "plain.py").write_text("print('hello')\n")
    result = shell("plan", "plain.py", "--local", "--max-runtime", "60d", "--attempts", "none")
    assert result.code == 2
    assert "limits.attempts: a whole number is needed, not 'none'" in result.err
    result = shell("plan", "plain.py", "--local", "--max-runtime", "60d")
    assert "limits.max_runtime: 60d is longer than the 28d a training job may run" in result.err
    assert "DMTCP" in result.err
