"""``smlaunch plan`` for a run of several jobs: its options, its document, its simulation."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Shell

RESUMABLE = "import smlaunch.train\n"


def test_a_chain_is_planned_and_simulated(shell: Shell) -> None:
    (shell.folder / "resumable.py").write_text(RESUMABLE)
    words = ("plan", "resumable.py", "--local", "--name", "long", "--max-runtime", "60d", "--segment", "24h")
    more = ("--attempts", "5", "--checkpoint-interval", "20m", "--deterministic", "--simulate", "--json")
    planned = shell(*words, *more)
    assert planned.code == 0, planned.err
    document = json.loads(planned.out)
    assert len(document["segments"]) == 61
    assert document["checkpoints"]["interval_seconds"] == 1200.0
    simulation = document["simulation"]
    assert simulation["runs"] == 200
    makespan = simulation["makespan"]
    assert abs(makespan["mean"] / makespan["closed_form"] - 1) < 0.01
    again = json.loads(shell(*words, *more).out)["simulation"]
    assert again == simulation, "the same seed, the same failures"
    other = json.loads(shell(*words, *more, "--seed", "1").out)["simulation"]
    assert other != simulation


def test_one_job_has_nothing_to_simulate(shell: Shell) -> None:
    (shell.folder / "resumable.py").write_text(RESUMABLE)
    done = shell("plan", "resumable.py", "--local", "--simulate")
    assert (done.code, done.out) == (2, "")
    assert "--simulate: the run is a single job" in done.err


def test_a_script_that_does_nothing_is_told_what_would_help(shell: Shell) -> None:
    Path(shell.folder / "plain.py").write_text("print('hello')\n")
    done = shell("plan", "plain.py", "--local", "--max-runtime", "60d", "--attempts", "none")
    assert done.code == 2
    assert "limits.attempts: a whole number is needed, not 'none'" in done.err
    done = shell("plan", "plain.py", "--local", "--max-runtime", "60d")
    assert "limits.max_runtime: 60d is longer than the 28d a training job may run" in done.err
    assert "DMTCP" in done.err
