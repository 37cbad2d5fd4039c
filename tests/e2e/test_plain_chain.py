"""Chains of ordinary scripts: the planned end of a segment is no failure, and reported steps are progress."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e import plain_scripts
from tests.e2e.command import Outcome, smlaunch
from tests.e2e.plain_scripts import SCRIPTS, SEGMENTS, STEPS

NOT_KNOWN = "smlaunch: progress not known: the script reports no step"


def train(folder: Path, script: str, *options: str) -> Outcome:
    path = folder / "source" / "train.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(script)
    limits = ("--max-runtime", "10m", "--segment", "6s")
    return smlaunch("run", path, "--local", "--name", "plain", *limits, *options)


def jobs_of(run: str = "plain") -> list[str]:
    details = smlaunch("show", run, "--local", "--json").json()
    return [job["name"].removeprefix(f"{run}-") for job in details["jobs"]]


def check_whole_chain(result: Outcome) -> None:
    """Checks that every segment but the last reached its planned end, and that every step was trained
    once."""
    assert result.code == 0, result.text
    assert f"final step {STEPS}\n" in result.text
    first_steps = [int(step) for step in re.findall(r"begins at step (\d+)", result.text)]
    assert first_steps == list(range(0, STEPS, STEPS // SEGMENTS))
    assert "Failed" not in result.text
    assert jobs_of() == [f"s{number}-a1" for number in range(1, SEGMENTS + 1)]


def test_a_script_that_reports_its_steps_goes_on_until_it_is_done(home: Path, tmp_path: Path) -> None:
    result = train(tmp_path, SCRIPTS["temp-and-rename"])
    check_whole_chain(result)
    assert "segment 6: the script has reported step 50" in result.err
    assert NOT_KNOWN not in result.text


def test_one_that_reports_none_goes_on_by_its_files_and_the_log_says_so(home: Path, tmp_path: Path) -> None:
    result = train(tmp_path, SCRIPTS["silent-same-size"])
    check_whole_chain(result)
    assert "segment 6: its checkpoint files have changed" in result.err
    log = smlaunch("logs", "plain", "--local").out
    assert log.count(NOT_KNOWN) == SEGMENTS
    for segment in re.split(r"begins at step", log)[1:]:
        assert segment.count(NOT_KNOWN) == 1


@pytest.mark.real
@pytest.mark.parametrize("name", sorted(set(SCRIPTS) - {"temp-and-rename", "silent-same-size"}))
def test_whatever_an_ordinary_script_does(home: Path, tmp_path: Path, name: str) -> None:
    result = train(tmp_path, SCRIPTS[name])
    check_whole_chain(result)
    assert (NOT_KNOWN in result.text) == name.startswith("silent")


def test_one_that_crashes_and_comes_further_each_time_goes_on(home: Path, tmp_path: Path) -> None:
    result = train(tmp_path, plain_scripts.CRASHES)
    assert result.code == 0, result.text
    assert f"final step {STEPS}\n" in result.text
    assert jobs_of() == [f"s1-a{number}" for number in range(1, SEGMENTS + 1)]


def test_one_that_begins_anew_in_every_job_ends(home: Path, tmp_path: Path) -> None:
    result = train(tmp_path, plain_scripts.BEGINS_ANEW)
    assert result.code == 1, result.text
    assert jobs_of() == ["s1-a1", "s2-a1", "s2-a2", "s2-a3"]
    message = "no progress: plain-s2-a1, plain-s2-a2, plain-s2-a3 did not get the run beyond step 10; "
    assert (
        message + "plain-s2-a3 reported steps up to 10, and most of them had been reported before: "
        in result.err
    )
    assert message in result.err
    for command in ("wait", "show"):  # another client, which looks later, says the same
        other = smlaunch(command, "plain", "--local")
        assert message in other.text
        assert command == "show" or other.code == 1


def test_one_that_saves_nothing_and_says_nothing_ends(home: Path, tmp_path: Path) -> None:
    result = train(tmp_path, plain_scripts.SAVES_NOTHING)
    assert result.code == 1, result.text
    assert jobs_of() == ["s1-a1", "s1-a2", "s1-a3"]
    assert "no progress: plain-s1-a1, plain-s1-a2, plain-s1-a3 left no checkpoint; " in result.err


def test_one_that_fails_on_purpose_ends(home: Path, tmp_path: Path) -> None:
    result = train(tmp_path, plain_scripts.FAILS_AT_ONE_STEP)
    assert result.code == 1, result.text
    assert jobs_of() == ["s1-a1", "s1-a2", "s1-a3"]
    assert "RuntimeError: not one step more" in result.err
    assert "tried 3 times without" in result.err


def test_one_that_is_done_in_its_first_segment_has_one(home: Path, tmp_path: Path) -> None:
    result = train(tmp_path, plain_scripts.AT_ONCE)
    assert result.code == 0, result.text
    assert jobs_of() == ["s1-a1"]


UNEVEN = """
import json, os, time
host = os.environ["SM_CURRENT_HOST"]
steps = 8 if host == "algo-1" else 40
path = os.path.join(os.environ["SMLAUNCH_CHECKPOINTS"], f"state-{host}.json")
step = json.load(open(path)) if os.path.exists(path) else 0
while step < steps:
    time.sleep(0.25)
    step += 1
    with open(path + ".new", "w") as file:
        json.dump(step, file)
    os.replace(path + ".new", path)
    print(f"{host} has trained step {step}", flush=True)
with open(os.path.join(os.environ["SM_MODEL_DIR"], host), "w") as file:
    file.write(str(step))
"""


def test_hosts_that_train_independently_go_on_until_all_have_finished(home: Path, tmp_path: Path) -> None:
    """The leader has the smaller shard: it finishes in the first segment, and at once in the later ones."""
    result = train(tmp_path, UNEVEN, "--strategy", "custom", "--hosts", "2")
    assert result.code == 0, result.text
    steps = [int(step) for step in re.findall(r"algo-2 has trained step (\d+)", result.text)]
    assert steps == sorted(steps) and set(steps) == set(range(1, 41))
    assert len(jobs_of()) > 1


CLEANS_UP = """
import json, os, time
own = os.environ["SM_CURRENT_HOST"]
needed = 2 if own == "algo-1" else 3
path = os.path.join(os.environ["SMLAUNCH_CHECKPOINTS"], f"state-{own}.json")
trained = json.load(open(path)) + 1 if os.path.exists(path) else 1
print(f"smlaunch: progress step={trained} steps={needed}", flush=True)
if trained < needed:
    with open(path + ".new", "w") as file:
        json.dump(trained, file)
    os.replace(path + ".new", path)
    while not os.path.exists(os.environ["SMLAUNCH_STOP_FILE"]):
        time.sleep(0.1)
else:
    with open(os.path.join(os.environ["SM_MODEL_DIR"], own), "w") as file:
        file.write(str(trained))
    os.unlink(path)
    print(f"{own} has finished", flush=True)
"""
"""Hosts that need two and three segments."""


def test_hosts_that_delete_their_checkpoints_may_end_at_different_times(home: Path, tmp_path: Path) -> None:
    """algo-1 finishes in the second segment, and begins again in the third: its first end counts."""
    shards = tmp_path / "data"
    shards.mkdir()
    for number in range(4):
        (shards / f"{number}.csv").write_text(str(number))
    split = ("--input", f"train={shards},split=key")
    done = train(tmp_path, CLEANS_UP, "--strategy", "share-nothing", "--hosts", "2", *split)
    assert done.code == 0, done.text
    assert "algo-2 has finished" in done.text
    # A host that starts late on a busy machine may need another attempt.
    assert re.search(r"whose archives have their results: plain-s2-a\d, plain-s3-a\d", done.err), done.text
    description = smlaunch("show", "plain", "--local", "--json").json()
    assert description["status"] == "Completed"
