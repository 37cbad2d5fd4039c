"""A processing job by the command line: its plan, its run on the endpoint, its description, and a failure."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.command import smlaunch

SCRIPT = """
import os, sys
print("words", *sys.argv[1:], flush=True)
source, target = os.environ["SM_CHANNEL_RAW"], os.environ["SM_OUTPUT_DATA_DIR"]
for name in os.listdir(source):
    text = open(os.path.join(source, name)).read()
    if "broken" in text:
        raise ValueError("row 1 of " + name)
    with open(os.path.join(target, name), "w") as file:
        file.write(text.upper())
"""


def job(tmp_path: Path, **files: str) -> tuple[Path, tuple[str, ...]]:
    data = tmp_path / "raw"
    data.mkdir()
    for name, text in files.items():
        (data / f"{name}.csv").write_text(text)
    script = tmp_path / "src" / "clean.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    return script, ("--local", "--strategy", "processing", "--input", f"raw={data},split=key")


def test_hosts_clean_their_parts(home: Path, tmp_path: Path) -> None:
    script, options = job(tmp_path, a="one", b="two", c="three")
    result = smlaunch("run", script, *options, "--hosts", "2", "--name", "clean", "--json", "--", "--fast")
    assert result.code == 0, result.text
    details = result.json()
    assert (details["status"], details["exit_code"]) == ("Completed", 0)
    assert details["jobs"][0]["name"] == "clean-s1-a1"
    assert ":processing-job/" in details["jobs"][0]["arn"]
    (output,) = home.glob("s3/*/smlaunch/clean/output/clean-s1-a1/output")
    assert {path.name: path.read_text() for path in output.iterdir()} == {
        "a.csv": "ONE",
        "b.csv": "TWO",
        "c.csv": "THREE",
    }
    assert smlaunch("show", "clean", "--local", "--json").json()["status"] == "Completed"
    assert smlaunch("logs", "clean", "--local").out.count("words --fast") == 2
    assert "clean" in smlaunch("ls", "--local").out


def test_shards_of_a_processing_run_are_one_run(home: Path, tmp_path: Path) -> None:
    """``split: bytes`` makes a processing job for each part of the data."""
    script, (*options, _) = job(tmp_path, a="one", b="broken")
    shards = (*options, f"raw={tmp_path / 'raw'},split=bytes", "--hosts", "2", "--name", "parts")
    result = smlaunch("run", script, *shards, "--attempts", "1")
    assert result.code == 1, result.text
    assert "1 of 2 shards have completed" in result.err
    details = smlaunch("show", "parts", "--local", "--json").json()
    assert (details["status"], details["exit_code"], len(details["jobs"])) == ("Failed", 1, 2)
    assert "words" in smlaunch("logs", "parts", "--local").out
    for command in ("wait", "resume"):
        assert smlaunch(command, "parts", "--local").code == 1
    assert "parts-p" in smlaunch("stop", "parts", "--local", "--json").text


def test_a_failure_names_rank_and_cause(home: Path, tmp_path: Path) -> None:
    script, options = job(tmp_path, a="broken")
    result = smlaunch("run", script, *options, "--name", "dirty", "--json")
    assert result.code == 1, result.text
    failure = result.json()["jobs"][0]["failure"]
    assert (failure["host"], failure["exit_code"]) == ("algo-1", 1)
    assert failure["cause"] == "ValueError: row 1 of a.csv"


def test_what_a_processing_job_has_not_is_refused_by_its_field(home: Path, tmp_path: Path) -> None:
    script, options = job(tmp_path, a="one")
    refusal = smlaunch("plan", script, *options, "--hp", "lr=1", "--spot", "--max-runtime", "10d")
    assert refusal.code == 2
    for part in ("hyperparameters: a processing job has none", "compute.spot: ", "limits.max_runtime: "):
        assert part in refusal.text, refusal.text
