"""Scripts of Lightning, Hugging Face's Trainer and accelerate: cut where it is hardest, ended by SIGTERM,
killed, stopped by the host, and together the very run that was never cut."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.real.conftest import program

RANKS = 2
STEPS_PER_EPOCH = 8
EPOCHS = 3
STEPS = EPOCHS * STEPS_PER_EPOCH
SAMPLES = 240

SCRIPTS = {
    # 15 batches of an epoch make 8 steps of the optimizer, the last of one batch.
    "train_lightning.py": ["--batch-size=16", "--accumulate=2", "--workers=1"],
    "train_hf.py": ["--batch-size=8", "--accumulate=2", "--workers=1"],
    "train_accelerate.py": ["--batch-size=30", "--workers=1"],
}


class Server:
    """The process described in trainer_ranks.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [program("trainers", "python"), "-m", "tests.real.trainer_ranks"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={
                **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "false",
            },
        )

    def send_order(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self) -> list[int]:
        assert self._process.stdout is not None
        numbers: list[int] = json.loads(self._process.stdout.readline())
        return numbers

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)  # ranks that wait for one another, too
            self._process.wait()
            raise


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    new_server = Server()
    yield new_server
    new_server.close()


class Lineage:
    """One training over any number of jobs. ``lines_by_job``: rank 0's lines of each job."""

    def __init__(self, server: Server, script: str, folder: Path) -> None:
        self._server = server
        self._script = script
        self._folder = folder
        self.lines_by_job: list[list[str]] = []

    def job(self, last_step: int | None = None) -> None:
        assert (
            self._run({} if last_step is None else {"SMLAUNCH_UNTIL_STEP": str(last_step)}) == [0] * RANKS
        ), self.text

    def run_and_signal(self, step: int, number: int, ranks: range) -> list[int]:
        def send_signals(pids: list[int]) -> None:
            for rank in ranks:
                os.kill(pids[rank], number)

        return self._run({}, send_signals, step)

    def run_and_stop(self, step: int) -> None:
        file = self._folder / "stop"
        codes = self._run({"SMLAUNCH_STOP_FILE": str(file)}, lambda pids: file.touch(), step)
        assert codes == [0] * RANKS, self.text

    def _run(self, variables: dict[str, str], act: Any = None, step: int | None = None) -> list[int]:
        """Returns the ranks' exit codes. ``act`` is called with their ids when rank 0 has reported the
        step."""
        number = len(self.lines_by_job) + 1
        folder = self._folder / f"job-{number}"
        folder.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        common = {
            "WORLD_SIZE": str(RANKS),
            "LOCAL_WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "SM_MODEL_DIR": str(self._folder / "model"),
            "SMLAUNCH_RUN": "lineage",
            "SMLAUNCH_JOB": f"lineage-s{number}-a1",
            "SMLAUNCH_CHECKPOINTS": str(self._folder / "checkpoints"),
            **variables,
        }
        outputs = [str(folder / f"out-{rank}") for rank in range(RANKS)]
        os.mkfifo(outputs[0])
        self._server.send_order(
            script=str(ROOT / "entrypoints" / self._script),
            arguments=[
                f"--samples={SAMPLES}",
                f"--epochs={EPOCHS}",
                "--every-steps=3",
                *SCRIPTS[self._script],
            ],
            environments=[{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(RANKS)],
            outputs=outputs,
        )
        pids = self._server.answer()
        lines: list[str] = []
        self.lines_by_job.append(lines)
        with open(outputs[0]) as rank_0:
            for line in rank_0:
                lines.append(line.rstrip("\n"))
                if act is not None and f" step={step} " in line:
                    act(pids)
                    act = None
        assert act is None, f"step {step} was never told:\n{self.text}"
        return self._server.answer()

    @property
    def text(self) -> str:
        return "\n".join(self.lines_by_job[-1])

    @property
    def outcome(self) -> tuple[str, int]:
        document = json.loads(
            (self._folder / "checkpoints" / "smlaunch" / "outcome-lineage-s1-a1.json").read_text()
        )
        return document["result"], document["step"]

    @property
    def steps(self) -> dict[int, str]:
        """Returns the progress line of each step of all jobs; a step done twice has the same line."""
        lines_by_step: dict[int, str] = {}
        for line in [line for lines in self.lines_by_job for line in lines]:
            match = re.search(r"smlaunch: progress step=(\d+) .*loss=\S+", line)
            if match:
                step = int(match.group(1))
                assert lines_by_step.setdefault(step, match.group()) == match.group(), (
                    lines_by_step[step],
                    line,
                )
        return lines_by_step

    @property
    def validations(self) -> dict[str, str]:
        """Returns the validations of all jobs by epoch."""
        values: dict[str, str] = {}
        for line in [line for lines in self.lines_by_job for line in lines]:
            match = re.search(r"smlaunch: metric epoch=(\S+) val_loss=(\S+)", line)
            if match:
                assert values.setdefault(match.group(1), match.group(2)) == match.group(2)
        return values

    @property
    def results(self) -> list[str]:
        """Returns what the last job prints about the whole training."""
        return [
            line
            for line in self.lines_by_job[-1]
            if re.match(r"(weights sha256|evaluated|best val_loss) ", line)
        ]


@pytest.mark.torch
@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_cut_ended_killed_and_stopped_it_is_the_run_that_never_was(
    server: Server, script: str, tmp_path: Path
) -> None:
    uncut = Lineage(server, script, tmp_path / "whole")
    uncut.job()
    assert sorted(uncut.steps) == list(range(1, STEPS + 1))
    assert any("weights sha256" in line for line in uncut.results), uncut.text
    assert len(uncut.validations) == (EPOCHS if script == "train_lightning.py" else 0)

    cut = Lineage(server, script, tmp_path / "cut")
    cut.job(last_step=STEPS_PER_EPOCH)  # the end of an epoch, with the validation that is due
    assert cut.outcome == ("continue", STEPS_PER_EPOCH)
    assert cut.results == []

    assert cut.run_and_signal(11, signal.SIGTERM, range(1, 2)) == [0, 0], cut.text  # one rank hears of it
    outcome_kind, last_step = cut.outcome
    assert outcome_kind == "continue"
    assert 11 <= last_step < 16

    codes = cut.run_and_signal(last_step + 4, signal.SIGKILL, range(RANKS))
    assert codes == [-signal.SIGKILL] * RANKS
    cut.run_and_stop(last_step + 5)
    assert cut.outcome[0] == "continue"
    cut.job()

    assert cut.outcome == ("finished", STEPS)
    assert cut.steps == uncut.steps
    assert cut.results == uncut.results
    assert cut.validations == uncut.validations
