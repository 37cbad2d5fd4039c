"""Hugging Face's Trainer and accelerate over two hosts, without accelerate's launcher: the very weights of
the same two ranks on one host."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.command import ENTRYPOINTS, weights_hash
from tests.real.frameworks import smlaunch_of

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("script", ["train_hf.py", "train_accelerate.py"])
def test_two_hosts_train_what_one_host_of_two_ranks_trains(home: Path, script: str) -> None:
    results = []
    for hosts, per_host in (("2", "1"), ("1", "2")):
        result = smlaunch_of(
            *("trainers", home, "run", ENTRYPOINTS / script, "--local"),
            *("--hosts", hosts, "--processes-per-host", per_host),
            # Else the number of threads would follow from the ranks of a host, and with it the last bit.
            *("--env", "OMP_NUM_THREADS=1", "--hp", "samples=256", "--hp", "epochs=1"),
        )
        assert result.code == 0, result.text
        assert "strategy huggingface" in result.err, result.text
        losses = re.findall(r"evaluated 1.0 (\S+)", result.text)
        results.append((weights_hash(result.text), losses))
    assert results[0] == results[1]
    assert len(results[0][1]) == (1 if script == "train_hf.py" else 0)
