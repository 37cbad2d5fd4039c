"""XGBoost's own collective over two hosts of the endpoint: together they learn what one learns alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.e2e.command import ENTRYPOINTS
from tests.real.frameworks import smlaunch_of, write_digits

SCRIPT = ENTRYPOINTS / "train_xgboost.py"


def test_two_hosts_learn_what_one_learns_from_all_rows(home: Path, tmp_path: Path) -> None:
    """The script compares the probabilities itself; the test reads the result."""
    digits = write_digits(tmp_path / "digits")
    inputs = ("--input", f"train={digits / 'train'}", "--input", f"test={digits / 'test'}")
    result = smlaunch_of(
        "frameworks", home, "run", SCRIPT, "--hosts", "2", *inputs, "--local", "--name", "boosted"
    )
    assert result.code == 0, result.text
    assert "strategy xgboost" in result.err
    assert "algo-1 worker 0 of 2 trained on 719 of 1438 rows" in result.out
    assert "algo-2 worker 1 of 2 trained on 719 of 1438 rows" in result.out
    match = re.search(
        r"probabilities off by (\S+) at most from those of one worker with all rows", result.out
    )
    assert match is not None
    assert float(match.group(1)) < 1e-4
    accuracy = re.search(r"held-out accuracy (\S+)", result.out)
    assert accuracy is not None
    assert float(accuracy.group(1)) > 0.95


def test_a_worker_that_fails_is_named_and_not_the_tracker(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "source" / "train.py"
    script.parent.mkdir()
    script.write_text(
        "import os, numpy as np, xgboost\n"
        "from xgboost import collective\n"
        "words = {'dmlc_' + n.lower(): os.environ['DMLC_' + n] for n in ('TRACKER_URI', 'TASK_ID')}\n"
        "collective.init(dmlc_tracker_port=int(os.environ['DMLC_TRACKER_PORT']), **words)\n"
        "if collective.get_rank() == 1:\n"
        "    raise ValueError('no rows here')\n"
        "collective.allreduce(np.ones(3), collective.Op.SUM)\n"
    )
    result = smlaunch_of(
        "frameworks", home, "run", script, "--hosts", "2", "--local", "--name", "fails", "--json"
    )
    assert result.code == 1, result.text
    (job,) = json.loads(result.out)["jobs"]
    assert job["failure"]["host"] == "algo-2", result.text
    assert "ValueError: no rows here" in job["failure"]["cause"]
