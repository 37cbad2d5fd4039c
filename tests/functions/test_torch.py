"""A function that trains by PyTorch's DistributedDataParallel, on two hosts with two ranks each."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.torch
def test_the_example_trains_on_two_hosts_and_returns_its_weights(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, str(ROOT / "entrypoints" / "submit_functions.py"), "--local"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    match = re.search(r"rate ([\d.]+) on 4 ranks: loss ([\d.]+), accuracy ([\d.]+)", result.stdout)
    assert match is not None, result.stdout
    # The weights that came back decide more points than a guess, which is right for 61 % of them.
    assert float(match[3]) > 0.8


TORCHRUN = """
import os
import smlaunch

def rank_and_ranks():
    return os.environ["RANK"], os.environ["WORLD_SIZE"], "TORCHELASTIC_RUN_ID" in os.environ

if __name__ == "__main__":
    job = smlaunch.Job(compute=smlaunch.Compute(hosts=2, processes_per_host=2), launcher="torchrun")
    job = job.with_changes(strategy="ddp")
    print(smlaunch.submit(rank_and_ranks, job=job, target=smlaunch.local_target()).result())
"""


@pytest.mark.torch
def test_ranks_that_torchrun_starts_call_it_too(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "source").mkdir()
    script = tmp_path / "source" / "main.py"
    script.write_text(TORCHRUN)
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "('0', '4', True)"


@pytest.mark.torch
def test_an_error_of_every_rank_arrives_as_itself(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, str(ROOT / "entrypoints" / "submit_functions.py"), "--local"]
    result = subprocess.run(
        [*command, "--rates", "-1", "--hosts", "1"], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 1
    assert "RemoteTraceback" in result.stderr
    assert result.stderr.rstrip().splitlines()[-1].startswith("ValueError: Invalid learning rate: -1")
