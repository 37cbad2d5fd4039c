"""Performs the fifty mistakes of tests/ordinary/mistakes.md, and writes what is answered to answers.md there.

    python -m tests.cli.mistakes

A command is first tried as a plan, which writes nothing. If the plan is refused, the command itself is run
too and its answer recorded; otherwise the warnings of the plan are.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from smlaunch.cli.main import run_command
from smlaunch.connection import open_connection
from smlaunch.local.endpoint import Endpoint
from tests.account_environment import environment_without_account

ORDINARY = Path(__file__).parent.parent / "ordinary"
PAGE = ORDINARY / "answers.md"

PLAIN = "print('training')\n"
ARGPARSE = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
print(parser.parse_args().epochs)
"""
SKLEARN = """\
import joblib
from sklearn.linear_model import LogisticRegression
model = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
joblib.dump(model, "model.joblib")
"""
READS_CHANNEL = """\
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--data", default=os.environ["SM_CHANNEL_TRAINING"])
print(os.listdir(parser.parse_args().data))
"""
DIST_BACKEND = """\
import argparse
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--dist-backend", default="nccl")
dist.init_process_group(parser.parse_args().dist_backend)
"""
READS_OUTSIDE = """\
from torchvision import datasets
import torch
data = datasets.MNIST("../data", train=True)
torch.save({}, "mnist_cnn.pt")
"""
SAVES_ELSEWHERE = """\
import os, torch
os.makedirs("/tmp/out", exist_ok=True)
torch.save({"step": 1}, "/tmp/out/model.pt")
torch.save({"step": 1}, "./checkpoints/last.pt")
"""
DDP = """\
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
dist.destroy_process_group()
"""
JOB = "entry: train.py\ncompute:\n  hosts: 2\n"

_IMAGES = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training"
CPU_IMAGE = f"{_IMAGES}:2.5.1-cpu-py311-ubuntu22.04-sagemaker"
GPU_IMAGE = f"{_IMAGES}:2.5.1-gpu-py311-cu124-ubuntu22.04-sagemaker"


@dataclass(frozen=True)
class Mistake:
    """One row of mistakes.md: what is typed, in a folder with these files."""

    number: int
    command: str
    files: Mapping[str, str] = field(default_factory=lambda: {"train.py": PLAIN})
    environment: Mapping[str, str] | None = None
    """Variables of AWS's; None for an account that works."""


NO_ACCOUNT: Mapping[str, str] = {}
DATA = {"train.py": PLAIN, "data/a.csv": "1\n", "a/a.csv": "1\n", "b/b.csv": "1\n"}

MISTAKES = (
    Mistake(1, "run train.py --host 2"),
    Mistake(2, "run train.py --instance_type ml.g5.xlarge"),
    Mistake(3, "plna train.py"),
    Mistake(4, "launch job.yaml", {"train.py": PLAIN, "job.yaml": JOB}),
    Mistake(5, "run trian.py"),
    Mistake(6, "run src/", {"src/train.py": PLAIN}),
    Mistake(7, "run"),
    Mistake(8, "run -m trainer.task", {"trainer/__init__.py": "", "trainer/task.py": PLAIN}),
    Mistake(9, "run train.ipynb", {"train.ipynb": '{"cells": []}'}),
    Mistake(10, "run run_ds.sh", {"run_ds.sh": "deepspeed train.py --deepspeed\n", "train.py": PLAIN}),
    Mistake(11, "run train.py", {"train.py": "import os\nprint(os.listdir('.')\nprint('end')\n"}),
    Mistake(12, "run train.py --hosts 0"),
    Mistake(13, "run train.py --hosts two"),
    Mistake(14, "run train.py --hosts 1.5"),
    Mistake(15, "run train.py --hosts 2000", {"train.py": DDP}),
    Mistake(16, "run train.py --strategy pytorch-ddp"),
    Mistake(17, "run train.py --strategy DDP", {"train.py": DDP}),
    Mistake(18, "run sklearn_train.py --strategy ddp --hosts 4", {"sklearn_train.py": SKLEARN}),
    Mistake(19, "run main.py --hosts 4", {"main.py": PLAIN}),
    Mistake(20, "run train.py --instance-type g5.12xlarge"),
    Mistake(21, "run train.py --instance-type ml.g5.12xlagre"),
    Mistake(22, "run train.py --instance-type ml.p5.48xlarge --region eu-south-1"),
    Mistake(23, f"run train.py --instance-type ml.g5.xlarge --image {CPU_IMAGE}"),
    Mistake(24, f"run train.py --instance-type ml.m5.xlarge --image {GPU_IMAGE}"),
    Mistake(
        25,
        "run imagenet.py --instance-type ml.c5.xlarge -- --dist-backend nccl",
        {"imagenet.py": DIST_BACKEND},
    ),
    Mistake(26, "run train.py --region eu-west1"),
    Mistake(27, "run train.py", environment=NO_ACCOUNT),
    Mistake(
        28,
        "run train.py",
        environment={"AWS_REGION": "eu-west-1", "AWS_PROFILE": "work", "AWS_CONFIG_FILE": "aws-config"},
        files={
            "train.py": PLAIN,
            "aws-config": "[profile work]\nsso_session = work\nsso_account_id = 123456789012\n"
            "sso_role_name = Trainer\nregion = eu-west-1\n[sso-session work]\n"
            "sso_start_url = https://example.awsapps.com/start\nsso_region = eu-west-1\n",
        },
    ),
    Mistake(
        29,
        "run train.py --profile porduction",
        environment={"AWS_CONFIG_FILE": "aws-config"},
        files={"train.py": PLAIN, "aws-config": "[profile production]\nregion = eu-west-1\n"},
    ),
    Mistake(30, "run train.py --role MyRole"),
    Mistake(31, "run train.py --input train=s3://"),
    Mistake(32, "run train.py --input train=s3:/bucket/data"),
    Mistake(33, "run train.py --input train=https://bucket.s3.amazonaws.com/data"),
    Mistake(34, "run train.py --input ./data", DATA),
    Mistake(35, "run train.py --input train=./dta", DATA),
    Mistake(36, "run train.py --input train=./a,test=./b", DATA),
    Mistake(37, "run train.py --input data=./a --input data=./b", DATA),
    Mistake(38, 'run train.py --input "my data=./a"', DATA),
    Mistake(39, "run mnist.py --input train=./data", {"mnist.py": READS_CHANNEL, "data/a.csv": "1\n"}),
    Mistake(40, "run train.py --input train=./data", {"train.py": PLAIN, "data/": ""}),
    Mistake(41, "run mnist/main.py", {"mnist/main.py": READS_OUTSIDE, "data/a.csv": "1\n"}),
    Mistake(42, "run train.py", {"train.py": SAVES_ELSEWHERE}),
    Mistake(43, "run train.py --hp lr 0.1"),
    Mistake(44, "run train.py --hp epoch=3", {"train.py": ARGPARSE}),
    Mistake(45, "run train.py --epochs 3", {"train.py": ARGPARSE}),
    Mistake(46, "run train.py --max-runtime 2hours"),
    Mistake(47, "run train.py --max-runtime 7200"),
    Mistake(
        48,
        "plan job.yaml",
        {"train.py": PLAIN, "job.yaml": "entry: train.py\ncompute:\n  hosts: 2\n\tspot: true\n"},
    ),
    Mistake(
        49,
        "plan job.yaml",
        {"train.py": PLAIN, "job.yaml": 'entry: train.py\ncompute:\n  host: 2\n  hosts: "2"\n'},
    ),
    Mistake(50, "run train.py --local --instance-type ml.p4d.24xlarge --hosts 64", {"train.py": DDP}),
)


@dataclass(frozen=True)
class Answer:
    exit_code: int
    lines: tuple[str, ...]
    """Errors and warnings; paths, ports and the like replaced."""


def answer(mistake: Mistake, account: Mapping[str, str], scratch: Path) -> Answer:
    """Make a mistake in a new folder below ``scratch``. ``account``: variables of an account that works."""
    folder = scratch / f"case{mistake.number:02}"
    for name, content in mistake.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_text(content)
    with _process_state(folder, account if mistake.environment is None else mistake.environment, scratch):
        arguments = shlex.split(mistake.command)
        if arguments[0] == "run":  # a plan changes nothing, whatever it answers
            code, out, _ = _run_cli("plan", "--json", *arguments[1:])
            if code == 0:
                return Answer(0, tuple(_clean(text, folder) for text in json.loads(out)["warnings"]))
        code, _, err = _run_cli(*arguments)
    return Answer(code, tuple(_clean(line.strip(), folder) for line in err.splitlines()))


def _run_cli(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command(list(arguments))
    return code, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def _process_state(folder: Path, account: Mapping[str, str], scratch: Path) -> Iterator[None]:
    """This process in another folder, and with no other variables of AWS's and smlaunch's."""
    before, directory = dict(os.environ), Path.cwd()
    environment = {**environment_without_account(), "SMLAUNCH_HOME": str(scratch / "home"), **account}
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(before)


def _clean(text: str, folder: Path) -> str:
    """Replace what differs between machines."""
    text = text.replace(str(folder), "FOLDER").replace(str(folder.parent), "SCRATCH")
    text = re.sub(r"http://127\.0\.0\.1:\d+", "http://127.0.0.1:PORT", text)
    return re.sub(r"\b[\w-]+-\d{4}-\d{4}-[a-z0-9]{4}\b", "RUN", text)


def all_answers() -> dict[int, Answer]:
    scratch = Path(tempfile.mkdtemp(prefix="mistakes-"))
    endpoint, count_cpus = Endpoint(scratch / "state"), open_connection.count_cpus
    try:
        open_connection.count_cpus = lambda: 2  # of this machine: the answers are the same on each
        info = endpoint.start()
        account = {**info.environment(), "SMLAUNCH_ROLE": info.role_arn}
        answers = {mistake.number: answer(mistake, account, scratch) for mistake in MISTAKES}
        stored = [path for path in (scratch / "state" / "s3").glob("[!_]*/**/*") if path.is_file()]
        assert stored == [], f"a mistake has uploaded files: {stored}"
        return answers
    finally:
        open_connection.count_cpus = count_cpus
        endpoint.close()
        shutil.rmtree(scratch, ignore_errors=True)


def page(answers: Mapping[int, Answer]) -> str:
    """Return the page with all answers."""
    lines = [
        "# What is answered to the fifty mistakes",
        "",
        "The mistakes are those of [mistakes.md](mistakes.md), each made in a folder of its own with small",
        "files, against the local endpoint as a region, or without an account where the mistake is of the",
        "account. The exit codes: 2, the job is invalid; 3, refused by the account; 4, the service does not",
        "answer; 0, the job is launched, and what is quoted are the warnings before it. `FOLDER` is the",
        "present folder. A test compares this page with the commands; `python -m tests.cli.mistakes` writes",
        "it.",
        "",
        "| # | What is typed | Exit code | Answer |",
        "|---|---|---|---|",
    ]
    for mistake in MISTAKES:
        reply = answers[mistake.number]
        text = "<br>".join(_cell(line) for line in reply.lines) or "(no warning)"
        lines.append(
            f"| {mistake.number} | `smlaunch {_shorten(mistake.command)}` | {reply.exit_code} | {text} |"
        )
    return "\n".join(lines) + "\n"


def _shorten(command: str) -> str:
    return command.replace(CPU_IMAGE, "CPU_IMAGE").replace(GPU_IMAGE, "GPU_IMAGE").replace("|", "\\|")


def _cell(line: str) -> str:
    return line.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(page(all_answers()))
