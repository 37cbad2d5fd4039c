"""A client is killed at a hundred random points of chains of five segments, and another one goes on: no job
is made twice, none is left out, and the weights are those of the unsplit run.

A seed that failed is run again by SMLAUNCH_CHAOS_SEED=N.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.e2e.chains import kill_clients, write_script
from tests.e2e.command import smlaunch

KILLS = 100


@pytest.mark.chaos
def test_a_hundred_kills(home: Path, tmp_path: Path) -> None:
    seed = int(os.environ.get("SMLAUNCH_CHAOS_SEED") or random.randrange(10**6))
    print("seed", seed)
    script = write_script(tmp_path / "source")
    assert smlaunch("local", "start").code == 0
    try:
        assert kill_clients(home, script, seed=seed, kills=KILLS, pause="0.03") >= KILLS
    finally:
        smlaunch("local", "stop")
