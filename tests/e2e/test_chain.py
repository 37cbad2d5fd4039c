"""A run of several segments on a real endpoint: driven, killed, stopped, resumed, starved, capped."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.chains import SEGMENTS, TRUE_WEIGHTS, drive_command, kill, kill_clients, start, write_script
from tests.e2e.command import smlaunch


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return write_script(tmp_path / "source")


@pytest.fixture
def background_home(home: Path) -> Iterator[Path]:
    result = smlaunch("local", "start")
    assert result.code == 0, result.text
    yield home
    assert smlaunch("local", "stop").code == 0


def names(run: str, *tasks: str) -> list[str]:
    return [f"{run}-{task}" for task in tasks]


def test_one_lineage_one_log_one_status(home: Path, script: Path) -> None:
    result = smlaunch(*drive_command(script, "whole", "--json"))
    assert result.code == 0, result.text
    document = result.json()
    assert [job["name"] for job in document["jobs"]] == names("whole", *(f"s{n}-a1" for n in range(1, 6)))
    assert (document["status"], document["exit_code"], document["step"]) == ("Completed", 0, 50)
    assert document["model_artifacts"].endswith("/whole-s5-a1/output/model.tar.gz")
    assert "segment 2: from step 10" in result.err
    assert "completed after" in result.err and "in 5 jobs" in result.err
    details = smlaunch("show", "whole", "--local")
    lines = [line.split(maxsplit=1) for line in details.out.splitlines()]
    for row in (["checkpoint", "step 50"], ["whole-s1-a1", "completed"], ["whole-s5-a1", "completed"]):
        assert row in lines
    log = smlaunch("logs", "whole", "--local").out
    assert log.count("begins at step") == SEGMENTS
    assert smlaunch("wait", "whole", "--local").code == 0
    rows = smlaunch("ls", "--local", "--json").json()["runs"]
    assert [row["run"] for row in rows] == ["whole"]
    second_result = smlaunch(*drive_command(script, "whole"))
    assert (
        second_result.code == 0
        and "segment" not in second_result.err.partition("exists already with the same job")[2]
    )


UNTIL_STEP_JOB = """
entry: train.py
limits: {max_runtime: 10m, segment: 2m}
segments:
  - {until_step: 5}
  - {hyperparameters: {q: 2}}
"""
REPORTS_STEPS = """
import os, sys, time
path = "/opt/ml/checkpoints/step.txt"
step = int(open(path).read()) if os.path.exists(path) else 0
print("begins at step", step, sys.argv[1:], flush=True)
while step < 15:
    step += 1
    with open(path + ".new", "w") as file:
        file.write(str(step))
    os.replace(path + ".new", path)
    print(f"smlaunch: progress step={step} steps=15", flush=True)
    time.sleep(0.5)
"""


def test_a_segment_of_a_script_without_smlaunch_train_ends_at_its_step(home: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(REPORTS_STEPS)
    (tmp_path / "job.yaml").write_text(UNTIL_STEP_JOB)
    result = smlaunch("run", tmp_path / "job.yaml", "--local", "--name", "until")
    assert result.code == 0 and "in 2 jobs" in result.err, result.text
    log = smlaunch("logs", "until", "--local").out
    first, second = [line for line in log.splitlines() if "begins at step" in line]
    assert "begins at step 0 []" in first and "['-q', '2']" in second
    assert 5 <= int(second.split()[3]) < 15


def test_a_training_past_the_step_of_its_settings_has_failed(home: Path, tmp_path: Path) -> None:
    ignores = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)" + REPORTS_STEPS
    (tmp_path / "train.py").write_text(ignores.replace("0.5", "0.01"))
    (tmp_path / "job.yaml").write_text(UNTIL_STEP_JOB)
    result = smlaunch("run", tmp_path / "job.yaml", "--local", "--name", "past")
    assert result.code == 1 and "past-s1-a1 trained to its end, step 15" in result.err, result.text
    assert "smlaunch resume" not in result.err


def test_a_client_killed_at_random_points_is_followed_by_another(background_home: Path, script: Path) -> None:
    assert kill_clients(background_home, script, seed=5, kills=6, pause="0.05") == 6


@pytest.mark.real
def test_an_embedded_run_goes_on_after_its_endpoint_was_killed(home: Path, script: Path) -> None:
    """The running job is lost with the endpoint; committed checkpoints are not."""
    client = start(*drive_command(script, "lost", "--env", "TEST_PAUSE=0.05"))
    assert client.stdout is not None
    for line in client.stdout:
        if "begins at step 20" in line:
            break
    kill(client)
    result = smlaunch("resume", "lost", "--local", "--json")
    assert result.code == 0, result.text
    jobs = [job["name"] for job in result.json()["jobs"]]
    assert jobs == names("lost", "s1-a1", "s2-a1", "s3-a1", "s3-a2", "s4-a1", "s5-a1")
    assert f"weights {TRUE_WEIGHTS}" in smlaunch("logs", "lost", "--local").out


@pytest.mark.real
def test_ctrl_c_stops_at_a_checkpoint_and_resume_goes_on(home: Path, script: Path) -> None:
    client = start(*drive_command(script, "left", "--env", "TEST_PAUSE=0.05"))
    assert client.stdout is not None
    for line in client.stdout:
        if "begins at step 10" in line:
            client.send_signal(signal.SIGINT)
            break
    remaining_output = client.stdout.read()
    assert client.wait() == 5, remaining_output
    assert "to continue it: smlaunch resume left --local" in remaining_output
    details = smlaunch("show", "left", "--local", "--json").json()
    assert (details["status"], details["exit_code"]) == ("Stopped", 5)
    assert 10 <= details["step"] < 20, "it left at a checkpoint of its own"
    result = smlaunch("resume", "left", "--local")
    assert result.code == 0, result.text
    assert f"weights {TRUE_WEIGHTS}" in result.out
    assert smlaunch("show", "left", "--local", "--json").json()["exit_code"] == 0


@pytest.mark.real
def test_stop_from_elsewhere_ends_the_driver_too(background_home: Path, script: Path) -> None:
    client = start(*drive_command(script, "halted", "--env", "TEST_PAUSE=0.2"))
    assert client.stdout is not None
    for line in client.stdout:
        if "begins at step 10" in line:
            break
    assert smlaunch("stop", "halted", "--local").code == 0
    remaining_output = client.stdout.read()
    assert client.wait() == 5, remaining_output
    details = smlaunch("show", "halted", "--local", "--json").json()
    assert details["step"] < 50 and len(details["jobs"]) < SEGMENTS
    assert smlaunch("logs", "halted", "-f", "--local").code == 5


@pytest.mark.real
def test_detached_and_driven_on_by_another(background_home: Path, script: Path) -> None:
    first = smlaunch(*drive_command(script, "handed", "--detach"))
    assert first.code == 0 and first.out == "handed\n"
    assert "continue it after its first segment: smlaunch resume handed --local" in first.err
    result = smlaunch("resume", "handed", "--local", "--json")
    assert result.code == 0, result.text
    assert len(result.json()["jobs"]) == SEGMENTS


def faults(folder: Path, *rows: Mapping[str, object]) -> Path:
    path = folder / "faults.json"
    path.write_text(json.dumps({"seed": 3, "faults": list(rows)}))
    return path


@pytest.mark.real
def test_spot_notices_at_random_times(home: Path, script: Path, tmp_path: Path) -> None:
    """A job loses its hosts while it trains; the same job restarts from its checkpoint."""
    row = {"fault": "spot-interruption", "after": [0.1, 0.4], "attempts": [1, 2], "away": 0.1}
    options = ("--spot", "--faults", str(faults(tmp_path, row)), "--env", "TEST_PAUSE=0.03")
    result = smlaunch(*drive_command(script, "noticed", *options, "--json"))
    assert result.code == 0, result.text
    jobs = [job["name"] for job in result.json()["jobs"]]
    assert jobs == names("noticed", *(f"s{number}-a1" for number in range(1, len(jobs) + 1)))
    assert result.err.count("Interrupted") >= 2
    assert f"weights {TRUE_WEIGHTS}" in result.err


@pytest.mark.real
def test_starved_spot_falls_back_to_on_demand_when_asked(home: Path, script: Path, tmp_path: Path) -> None:
    row = {"fault": "no-capacity", "jobs": "starved*-s2-a1"}
    options = ("--spot", "--max-wait", "6s", "--faults", str(faults(tmp_path, row)), "--segment", "5s")
    result = smlaunch(*drive_command(script, "starved", *options, "--on-demand-fallback", "--json"))
    assert result.code == 0, result.text
    jobs = [job["name"] for job in result.json()["jobs"]]
    assert jobs == names("starved", "s1-a1", "s2-a1", "s2-a2", "s3-a1", "s4-a1", "s5-a1")
    assert "on demand now" in result.err


@pytest.mark.real
def test_no_progress_ends_it_with_a_diagnosis(home: Path, script: Path) -> None:
    """Every segment ends before it has trained a step."""
    script.write_text(
        script.read_text().replace("if received_signals or", "if first_step >= 10 or received_signals or")
    )
    result = smlaunch(*drive_command(script, "idle"))
    assert result.code == 1, result.text
    assert "no progress: idle-s2-a1, idle-s2-a2, idle-s2-a3 left nothing newer than step 10" in result.err
    assert smlaunch("wait", "idle", "--local").code == 1


def test_faults_are_for_an_endpoint_of_its_own(background_home: Path, script: Path, tmp_path: Path) -> None:
    plan = faults(tmp_path)
    result = smlaunch("run", script, "--local", "--faults", plan)
    assert result.code == 2 and "the background endpoint has a fault plan of its own" in result.err
    region = smlaunch("run", script, "--region", "eu-west-1", "--faults", plan)
    assert region.code == 2 and "it goes with --local only" in region.err
