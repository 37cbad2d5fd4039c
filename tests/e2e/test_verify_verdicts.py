"""The verdict on scripts as ordinary people write them, each really run, cut and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, get_args

import pytest

from smlaunch.connection.open_connection import target_of_endpoint
from smlaunch.errors import JobError
from smlaunch.job.model import Job
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_settings import Settings
from smlaunch.runs.launch_target import Target
from smlaunch.verify.resume_verification import VerifyReport, verify_resume
from smlaunch.verify.trial_runner import CutSignal, draw_cuts
from tests.e2e.resume_scripts import CUT, PACE, RIGHT, STEPS, WITH_TORCH, WRONG, Script

SIGNALS: tuple[CutSignal, ...] = get_args(CutSignal)


@pytest.fixture(scope="module")
def places() -> Iterator[tuple[Target, Path]]:
    """Yields an endpoint for all tests and a directory that its hosts share."""
    settings = Settings(close_grace_seconds=1.0, checkpoint_sync_seconds=0.2)
    with TemporaryDirectory(prefix="smlaunch-verdicts-", dir="/var/tmp") as folder:
        (Path(folder) / "traces").mkdir()
        with Endpoint(Path(folder) / "home", settings=settings) as info:
            yield target_of_endpoint(info), Path(folder) / "traces"


def seed_for(signal: CutSignal) -> int:
    """Returns the seed with which the only cut comes after step CUT."""
    return next(
        seed
        for seed in count()
        if draw_cuts(signal, 1, STEPS, 1, Random(f"{seed}/{signal}"))[0].after_step == CUT
    )


def run_verify(script: Script, folder: Path, places: tuple[Target, Path]) -> VerifyReport:
    (folder / "pace.py").write_text(PACE.replace("CUT", str(CUT)))
    (folder / "train.py").write_text(script.text)
    (signal,) = [name for name in SIGNALS if name == script.signal]
    environment: dict[str, Any] = {"OMP_NUM_THREADS": "1"}
    job = Job(entry=str(folder / "train.py"), environment=environment)
    target, traces = places
    return verify_resume(
        job,
        target,
        traces,
        cut_count=1,
        signals=[signal],
        seed=seed_for(signal),
        on_message=lambda text: None,
    )


def check(script: Script, folder: Path, places: tuple[Target, Path]) -> None:
    if script.code == 2:
        with pytest.raises(JobError) as caught:
            run_verify(script, folder, places)
        for text in script.says:
            assert text in str(caught.value)
        return
    document = run_verify(script, folder, places).to_dict()
    assert document["identical"] is (script.code == 0), document
    assert document["repeats"] is script.repeats, document
    (trial,) = document["trials"]
    for texts, lines in (
        (script.says, trial["differences"] + trial["causes"]),
        (script.compared, document["compared"]),
        (script.not_compared, document["not_compared"]),
    ):
        for text in texts:
            assert any(text in line for line in lines), (text, document)
    if script.code == 0:
        (cut,) = trial["cuts"]
        assert 1 < cut["resumed"] <= STEPS


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_script_passes(name: str, tmp_path: Path, places: tuple[Target, Path]) -> None:
    pytest.importorskip("numpy")
    check(RIGHT[name], tmp_path, places)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_script_does_not_pass(name: str, tmp_path: Path, places: tuple[Target, Path]) -> None:
    pytest.importorskip("numpy")
    check(WRONG[name], tmp_path, places)


@pytest.mark.torch
@pytest.mark.parametrize("name", WITH_TORCH)
def test_scripts_with_pytorch(name: str, tmp_path: Path, places: tuple[Target, Path]) -> None:
    pytest.importorskip("torch")
    check(WITH_TORCH[name], tmp_path, places)
