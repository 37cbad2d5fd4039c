"""A language model on a real text, trained over four segments: one curve, and the unsplit run's weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.e2e.command import ENTRYPOINTS, smlaunch, weights_hash
from tools.loss_curve import draw, gaps, points

pytest.importorskip("torch")

STEPS = 160


def job(folder: Path, hosts: int, *cuts: int) -> Path:
    """Writes a job of four ranks on any number of hosts."""
    document = {
        "entry": str(ENTRYPOINTS / "train_gpt.py"),
        "source": str(ENTRYPOINTS),
        "strategy": "ddp",
        "compute": {"hosts": hosts, "processes_per_host": 4 // hosts},
        "environment": {"OMP_NUM_THREADS": "1"},
        "hyperparameters": {"steps": STEPS},
        "limits": {"max_runtime": "60m", **({"segment": "12m"} if cuts else {})},
        "segments": [*({"until_step": cut} for cut in cuts), {}] if cuts else [],
    }
    path = folder / f"job-{len(cuts)}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.real
@pytest.mark.torch
@pytest.mark.timeout(600)
def test_four_segments_are_one_training(home: Path, tmp_path: Path) -> None:
    single_job = smlaunch("run", job(tmp_path, 1), "--local", "--name", "whole", timeout=300)
    assert single_job.code == 0, single_job.text
    chain = smlaunch("run", job(tmp_path, 2, 40, 80, 120), "--local", "--name", "chain", timeout=300)
    assert chain.code == 0, chain.text
    assert weights_hash(chain.text) == weights_hash(single_job.text)
    details = smlaunch("show", "chain", "--local", "--json").json()
    assert [row["name"] for row in details["jobs"]] == [f"chain-s{number}-a1" for number in (1, 2, 3, 4)]

    curves = {}
    for run in ("whole", "chain"):
        curves[run] = points(smlaunch("logs", run, "--local", "--json").json()["lines"])
        assert gaps(curves[run]) == []
    assert [point.loss for point in curves["chain"]] == [point.loss for point in curves["whole"]]
    assert len({point.job for point in curves["chain"]}) == 4
    assert curves["chain"][-1].loss < curves["chain"][0].loss - 2

    picture = tmp_path / "loss.svg"
    draw(curves["chain"], picture, "chain")
    assert picture.read_text().count("<path") > 4
