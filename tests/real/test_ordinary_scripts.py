"""Twenty training scripts that were written after public tutorials (tests/ordinary), untouched on two hosts.

A newcomer replaces the launcher of the tutorial's command by ``smlaunch run --hosts 2 --local`` and keeps the
script, its arguments and the folder. Where that cannot work, the plan prints one line to change; with exactly
this line the script runs. The suite runs some of the twenty, tools/ordinary_scripts.py all.
"""

from __future__ import annotations

import fnmatch
import json
import os
import random
import re
import resource
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import ROOT
from tests.e2e.command import Outcome
from tests.real.conftest import REAL, program

SCRIPTS = ROOT / "tests" / "ordinary" / "scripts"
_COMMAND = "from smlaunch.cli.main import main; main()"
_TIMEOUT_SECONDS = 900


class Case(NamedTuple):
    """One of the twenty. ``program``: what stands for the script on smlaunch's command line; ``arguments``:
    what follows ``--``, all of them from the tutorial's command."""

    name: str
    program: str
    arguments: str = ""
    environment: str = "ordinary"
    has_line_to_change: bool = False


CASES = (
    Case("01_mnist_basic", "main.py", "--save-model"),
    Case("02_word_language_model", "main.py", "--tied"),
    Case("03_ddp_series_multinode", "multinode.py", "50 10"),
    Case(
        "04_torchvision_references",
        "train.py",
        "--model resnet18 --data-path imagenet --device cpu --batch-size 4 --epochs 1 --workers 1 --lr 0.01",
    ),
    Case("05_resnet_local_rank", "resnet_ddp.py"),
    Case(
        "06_imagenet_spawn",
        "main.py",
        "-a resnet18 --dist-url tcp://127.0.0.1:29511 --dist-backend gloo --epochs 1 -b 8 -j 1 "
        "--multiprocessing-distributed --world-size 1 --rank 0 imagenet",
        has_line_to_change=True,
    ),
    Case("07_fsdp2", "train.py", "--dcp-api"),
    Case("08_lightning_cluster", "train.py"),
    Case("09_lightning_cli", "main.py", "fit --config config.yaml"),
    Case("10_accelerate_nlp", "complete_nlp_example.py", "--checkpointing_steps epoch --output_dir output"),
    Case(
        "11_hf_trainer_clm",
        "run_clm.py",
        '--model_type gpt2 --config_overrides="n_embd=64,n_layer=2,n_head=2" --tokenizer_name ./gpt2-words '
        "--train_file data/train.txt --validation_file data/valid.txt --do_train --do_eval "
        "--per_device_train_batch_size 8 --learning_rate 2e-3 --num_train_epochs 5 "
        "--output_dir /tmp/test-clm",
    ),
    Case("12_tf_multiworker", "main.py", environment="tensorflow215"),
    Case("13_keras_engineers", "intro_to_keras_for_engineers.py"),
    Case("14_trainer_package", "-m trainer.task", "--job-dir=output/"),
    Case("15_mingpt_hydra", "main.py"),
    Case("16_churn_typer", "-m churn.modeling.train", has_line_to_change=True),
    Case("17_lightgbm", "simple_example.py", has_line_to_change=True),
    Case("18_sagemaker_mnist", "mnist.py --hp epochs=1 --hp backend=gloo --input training=data"),
    Case("19_mpi4py_sgd", "train_dist.py"),
    Case("20_deepspeed_cifar", "", "bash run_ds.sh", has_line_to_change=True),
)


ALL_CASES = "SMLAUNCH_TEST_ALL_ORDINARY_SCRIPTS"
"""Variable with which all of them run: tools/ordinary_scripts.py."""

SEED = 1
UNTOUCHED_CASES_OF_A_SUITE = 7


def chosen_cases() -> list[Case]:
    """Returns all cases, or those that the suite has the time for: with a line to change, and some others."""
    if os.environ.get(ALL_CASES):
        return list(CASES)
    untouched = [case for case in CASES if not case.has_line_to_change]
    sample = random.Random(SEED).sample(untouched, UNTOUCHED_CASES_OF_A_SUITE)
    return [case for case in CASES if case.has_line_to_change or case in sample]


def read_case(case: Case) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((SCRIPTS / case.name / "case.json").read_text("utf-8"))
    return document


def run_case(case: Case, folder: Path, home: Path, options: list[str]) -> Outcome:
    """Runs the case's command in ``folder`` by an environment that has the libraries of the tutorials."""
    python = program(case.environment, "python")
    command = ["run", *shlex.split(case.program), *options, "--local"]
    if case.arguments:
        command += ["--", *shlex.split(case.arguments)]
    search_path = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", os.defpath)])
    # A home of its own: DeepSpeed compiles into it, and waits for ever for one that was killed while it did.
    user_home = home.with_name("user")
    user_home.mkdir(exist_ok=True)
    environment = {
        "PATH": search_path,
        "HOME": str(user_home),
        "SMLAUNCH_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
    }
    result = subprocess.run(
        [python, "-c", _COMMAND, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
    )
    return Outcome(result.returncode, result.stdout, result.stderr)


def lines_to_change(outcome: Outcome) -> list[str]:
    return re.findall(r"^\s*change: (.+)$", outcome.text, re.MULTILINE)


def apply_line(line: str, case: Case, folder: Path, options: list[str]) -> tuple[Case, list[str]]:
    """Changes the line of a file in ``folder``, or the options or the arguments of the command; returns the
    case and the options after it."""
    edit = re.fullmatch(r"(?P<file>[^\s:]+):(?P<number>\d+): (?P<text>.*)", line)
    if edit is not None:
        path = folder / edit["file"]
        lines = path.read_text("utf-8").splitlines()
        index = int(edit["number"]) - 1
        indentation = lines[index][: len(lines[index]) - len(lines[index].lstrip())]
        lines[index] = indentation + edit["text"].strip()
        path.write_text("\n".join(lines) + "\n", "utf-8")
        return case, options
    if line.startswith("-- "):
        return case._replace(arguments=line.removeprefix("-- ")), options
    changed = shlex.split(line)
    is_same_option = changed[0] == options[0]  # another number of hosts
    return case, changed if is_same_option else [*options, *changed]


def unmet_expectations(case: Case, outcome: Outcome) -> list[str]:
    """What the case's author expects of a run, and this one has not printed or written."""
    document = read_case(case)
    expected, script_folder = document["expected"], document["folder"].rstrip("/") + "/"
    written = set(re.findall(r"written: (\S+)", outcome.out))
    patterns = [pattern.removeprefix(script_folder) for pattern in expected["writes"]]
    problems = [f"does not print {text!r}" for text in expected["prints"] if text not in outcome.out]
    problems += [
        f"does not write {pattern}"
        for pattern in patterns
        if not any(fnmatch.fnmatch(name, pattern) or name.startswith(f"{pattern}/") for name in written)
    ]
    if outcome.code != 0:
        problems.insert(0, f"exit code {outcome.code}")
    return problems


def watch_written_files(environment: str) -> None:
    """Makes Python processes of the environment print what they write."""
    (site_packages,) = (REAL / environment / "lib").glob("python*/site-packages")
    shutil.copy(Path(__file__).with_name("written_files.py"), site_packages)
    (site_packages / "written_files.pth").write_text("import written_files\n")


@pytest.mark.timeout(2 * _TIMEOUT_SECONDS)
@pytest.mark.parametrize("case", chosen_cases(), ids=lambda case: str(case.name))
def test_it_runs_on_two_hosts(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(case.environment, "python")  # skips without the environment
    watch_written_files(case.environment)
    copy = tmp_path / "case"
    shutil.copytree(SCRIPTS / case.name, copy)
    folder = copy / read_case(case)["folder"]
    options = ["--hosts", "2"]
    used_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome = run_case(case, folder, tmp_path / "home", options)
    if case.has_line_to_change:
        assert outcome.code == 2, outcome.text
        (line,) = lines_to_change(outcome)
        case, options = apply_line(line, case, folder, options)
        outcome = run_case(case, folder, tmp_path / "home", options)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime - used_before.ru_utime - used_before.ru_stime
    with capsys.disabled():
        print(f"\n{case.name}: {seconds:.0f} s of CPU time")
    assert unmet_expectations(case, outcome) == [], outcome.text


def test_at_most_four_of_twenty_need_a_line() -> None:
    assert {case.name for case in CASES} == {path.name for path in SCRIPTS.iterdir()}
    assert sum(case.has_line_to_change for case in CASES) <= 4


def test_every_argument_is_of_the_tutorials_command() -> None:
    """Except the port, which the tutorial leaves open, and the backend for machines without GPUs."""
    for case in CASES:
        document = read_case(case)
        tutorial = " ".join([*document["usual_command"].values(), document.get("ran_as", "")])
        words = [*shlex.split(case.program)[:1], *shlex.split(case.arguments)]
        unknown = [
            word for word in words if word.replace("29511", "FREEPORT") not in tutorial.replace('"', "")
        ]
        assert unknown == [], case.name
