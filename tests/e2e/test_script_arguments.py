"""Arguments that smlaunch adds reach every rank of a script; what the script rejects starts nothing."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from tests.e2e.command import smlaunch

SCRIPT = """
import argparse, json, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--dist-url", default="tcp://127.0.0.1:23456")
parser.add_argument("--rank", type=int, default=-1)
parser.add_argument("--world-size", type=int, default=-1)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--fused", action="store_true")
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()
print("received", json.dumps(vars(args)), flush=True)
"""


def test_every_rank_gets_its_own_and_flags_arrive_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    options = ["--strategy", "ddp", "--hosts", "2", "--processes-per-host", "2", "--isolation", "plain"]
    hyperparameters = ["--hp", "amp=true", "--hp", "fused=false", "--hp", "epochs=3"]
    result = smlaunch("run", tmp_path / "train.py", "--local", *options, *hyperparameters)
    assert result.code == 0, result.text
    lines = [line.partition("received ")[2] for line in result.out.splitlines() if "received {" in line]
    received = sorted(map(json.loads, lines), key=lambda values: values["rank"])
    common = {"dist_url": "env://", "world_size": 4, "amp": True, "fused": False, "epochs": 3}
    assert received == [{**common, "rank": rank, "local_rank": rank % 2} for rank in range(4)]


def test_what_the_script_rejects_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    options = ["--strategy", "ddp", "--hosts", "2", "--json"]
    arguments = ["--rank", "0", "--dist-url", "tcp://localhost:1", "--epohcs", "3"]
    result = smlaunch("run", tmp_path / "train.py", "--local", *options, "--", *arguments)
    assert result.code == 2
    messages = [problem["message"] for problem in result.json()["error"]["problems"]]
    assert any("no argument --epohcs" in message and "'--epochs'" in message for message in messages)
    assert any("--dist-url tcp://localhost:1 is each host itself" in message for message in messages)
    assert "received" not in result.text
