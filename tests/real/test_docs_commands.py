"""Every example command of README.md and docs/ runs, page by page, as a reader would type it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import boto3
import pyarrow
import pyarrow.parquet
import pytest

from tests.conftest import ROOT
from tests.docs.commands import PAGES, DocCommand, block_commands, fenced_blocks

SMLAUNCH = Path(sys.executable).parent / "smlaunch"

RUN_ELSEWHERE = {
    "docs/containers.md": "tests/real/test_containers.py",
    "docs/extending.md": "tests/extending/test_strategy.py",
    "docs/mpi.md": "tests/real/test_mpi_runs.py",
    "docs/ray.md": "tests/real/test_ray.py",
    "docs/spark.md": "tests/real/test_spark.py",
    "docs/tensorflow.md": "tests/real/test_tensorflow.py",
    "docs/xgboost.md": "tests/real/test_xgboost.py",
}
"""Pages whose commands need a component of their own, and the test that runs them with it."""

EXIT_CODES = {"docs/refusals.md": 2}
"""Of commands that are examples of a refusal."""

NOT_RUN = {
    "--from-s3-inventory s3://dest/.../manifest.json": "run by tests/data/test_inventory_report.py",
    "/project/images": "the user's own path; the same command runs with another one",
}
"""Parts of commands that cannot be typed as they are, and why."""

TRAIN = """\
import argparse, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
epochs = parser.parse_args().epochs
for step in range(1, epochs + 1):
    print(f"smlaunch: progress step={step} steps={epochs} loss={1 / step}", flush=True)
pathlib.Path(os.environ["SM_MODEL_DIR"], "weights.txt").write_text(str(epochs))
"""

RESUMABLE = """\
import os
import torch, torch.distributed, torch.distributed.nn
from smlaunch.train import Checkpointer, ResumableOrder

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
if "WORLD_SIZE" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
dataset = torch.utils.data.TensorDataset(torch.randn(64, 2))
order = ResumableOrder(len(dataset), batch_size=4, seed=1)
with Checkpointer(model=model, optimizer=optimizer, order=order, every_steps=4) as run:
    for (x,) in run.batches(order.loader(dataset), epochs=2):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.step(loss=loss)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()  # without it gloo's threads may abort a rank that ends
"""

TOOL = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=int)
parser.add_argument("--drop-empty", action="store_true")
print(parser.parse_args())
"""

COUNT_FILES = """\
import os, pathlib
print(sum(path.is_file() for path in pathlib.Path(os.environ["SM_CHANNEL_TRAIN"]).rglob("*")), "files")
"""

JOB = """\
entry: train.py
strategy: custom
compute: {instance_type: ml.m5.xlarge, price_per_hour: 0.25}
"""

FILES = {
    "train.py": TRAIN,
    "package/__init__.py": "",
    "package/settings.py": "EPOCHS = 2\n",
    "package/train.py": "from .settings import EPOCHS\nprint('epochs', EPOCHS)\n",
    "tool.py": TOOL,
    "clean.py": TOOL,
    "work.py": COUNT_FILES,
    "job.yaml": JOB,
    "wheels/readme.txt": "wheels\n",
}


class Desk:
    """A reader's folder, and the environment of the reader's shell."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = dict(environment)

    def run(self, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    def bash(self, script: str, timeout: float = 900) -> subprocess.CompletedProcess[str]:
        """Run lines as typed into one shell, to the first that fails."""
        return self.run("bash", "-ec", script, timeout=timeout)


@pytest.fixture(scope="module")
def endpoint_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What `smlaunch local env` sets, with the objects that the pages speak of in the bucket `bucket`."""
    home = tmp_path_factory.mktemp("home")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SMLAUNCH_"))
    }
    environment.update(
        SMLAUNCH_HOME=str(home), HOME=str(home), PATH=f"{SMLAUNCH.parent}:{os.environ['PATH']}"
    )
    desk = Desk(home, environment)
    started = desk.run("smlaunch", "local", "start")
    assert started.returncode == 0, started.stderr
    try:
        exported = dict(
            line.removeprefix("export ").partition("=")[::2]
            for line in desk.run("smlaunch", "local", "env").stdout.splitlines()
            if line.startswith("export ")
        )
        environment.update({name: shlex.split(value)[0] for name, value in exported.items()})
        s3 = boto3.client(
            "s3",
            endpoint_url=environment["AWS_ENDPOINT_URL"],
            region_name=environment["AWS_DEFAULT_REGION"],
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        )
        s3.create_bucket(Bucket="bucket")
        for number in range(70):
            for prefix in ("prefix", "raw"):
                s3.put_object(Bucket="bucket", Key=f"{prefix}/{number:03}.txt", Body=b"x" * (100 + number))
        yield environment
    finally:
        desk.run("smlaunch", "local", "stop")


@pytest.fixture
def desk(tmp_path: Path, endpoint_environment: dict[str, str]) -> Desk:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in ("images", "folder"):
        (tmp_path / folder).mkdir()
        for number in range(40):
            (tmp_path / folder / f"{number:02}.jpg").write_bytes(bytes([number]) * 500)
    return Desk(tmp_path, endpoint_environment)


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


SINGLE_COMMAND_PAGES = [
    page
    for page in PAGES
    if page_name(page) not in (*RUN_ELSEWHERE, "docs/tutorial.md")
    and any(command.is_example for command in block_commands(page))
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", SINGLE_COMMAND_PAGES, ids=page_name)
def test_the_commands_of_a_page_run(page: Path, desk: Desk) -> None:
    prepare(page_name(page), desk)
    failures = []
    for command in block_commands(page):
        text = shlex.join(command.words)
        if not command.is_example or any(part in text for part in NOT_RUN) or needs_a_region(command):
            continue
        ran = run_command(command, desk)
        if ran.returncode != EXIT_CODES.get(command.page, 0):
            failures.append(
                f"{command.page}:{command.line}: {text}: exit code {ran.returncode}\n{ran.stdout}{ran.stderr}"
            )
    assert not failures, "\n\n".join(failures)


def needs_a_region(command: DocCommand) -> bool:
    """Whether nothing of the command can be shown here: it follows or ends a run of a region."""
    return "--region" in command.words and command.words[1] not in ("run", "plan")


def prepare(page: str, desk: Desk) -> None:
    """Bring about what the page presupposes."""
    if page == "README.md":
        (desk.folder / "first").mkdir()
    elif page == "docs/refusals.md":
        (desk.folder / "job.yaml").write_text("entry: no-such.py\n")
    elif page == "docs/verify-resume.md":
        (desk.folder / "train.py").write_text(RESUMABLE)
    elif page == "docs/checkpoints.md":
        (desk.folder / "train.py").write_text(RESUMABLE)
        ran = desk.run("smlaunch", "run", "train.py", "--checkpoints", "s3://bucket/big/", "--name", "big")
        assert ran.returncode == 0, ran.stderr
    elif page == "docs/data.md":
        rows = pyarrow.table(
            {"key": [f"{n:02}.jpg" for n in range(40)], "size": [500] * 40, "samples": range(40)}
        )
        pyarrow.parquet.write_table(rows, desk.folder / "samples.parquet")
    elif page == "docs/step-functions.md":
        (desk.folder / "train.py").write_text(RESUMABLE)


def run_command(command: DocCommand, desk: Desk) -> subprocess.CompletedProcess[str]:
    """Run it on the local endpoint; what names a region is planned, since nothing here reaches one."""
    words = command.words
    if "--region" in words:
        words = ("smlaunch", "plan", *words[2:])
        without_account = {
            key: value for key, value in desk.environment.items() if not key.startswith("AWS_")
        }
        return Desk(desk.folder, without_account).run(*words)
    return desk.run(*words)


def test_pages_run_elsewhere_have_their_test() -> None:
    for page, test in RUN_ELSEWHERE.items():
        assert (ROOT / page).is_file()
        assert (ROOT / test).is_file(), f"{page} is said to be run by {test}"


@pytest.mark.timeout(900)
def test_the_tutorial(tmp_path: Path, endpoint_environment: dict[str, str]) -> None:
    """Its blocks in one shell, after the installation, which this environment has; its script as written."""
    page = ROOT / "docs" / "tutorial.md"
    folder = tmp_path / "tutorial"
    folder.mkdir()
    lines = ["set -x"]
    for language, _, block in fenced_blocks(page):
        if language == "python":
            lines += ["cat > train_long.py <<'END_OF_SCRIPT'", *block, "END_OF_SCRIPT"]
        elif not language and not any("pip install" in line for line in block):
            lines += block
    environment = {key: value for key, value in endpoint_environment.items() if not key.startswith("AWS_")}
    environment["SMLAUNCH_HOME"] = str(tmp_path / "home")
    ran = Desk(folder, environment).bash("\n".join(lines))
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    assert "held_out_accuracy" in ran.stdout + ran.stderr
    assert len(set(re.findall(r"long-s(\d+)-a1", ran.stdout + ran.stderr))) >= 2, "no chain"
    assert "identical" in ran.stdout
