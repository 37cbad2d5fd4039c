"""Checkpoints of hosts that train apart from each other, which share one prefix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from smlaunch.errors import JobError
from tests.planner.test_script_rules import plan_of

APART: dict[str, Any] = {
    "strategy": "share-nothing",
    "compute": {"hosts": 2},
    "inputs": {"train": {"uri": "s3://b/d/", "split": "key"}},
    "checkpoints": "s3://b/kept/",
}
FIXED_NAMES = {
    "one_text": "open('/opt/ml/checkpoints/state.json')",
    "joined": "import os\nopen(os.path.join('/opt/ml/checkpoints', 'state.json'))",
    "variable": "import os\nd = os.environ['SMLAUNCH_CHECKPOINTS']\nprint(open(d + '/state.json'))",
    "default": (
        "import os\nd = os.environ.get('SMLAUNCH_CHECKPOINTS', '/opt/ml/checkpoints')\n"
        "state = f'{d}/state.json'\nopen(state)"
    ),
    "path": "import pathlib\nd = pathlib.Path('/opt/ml/checkpoints')\nopen(d.joinpath('sub') / 'state.json')",
    "option": (
        "import argparse, os\np = argparse.ArgumentParser()\n"
        "p.add_argument('--dir', default='/opt/ml/checkpoints')\na = p.parse_args()\n"
        "open(os.path.join(a.dir, 'state.json'))"
    ),
    "printed_host": (
        "import os, pathlib\nprint(os.environ['SM_CURRENT_HOST'])\n"
        "pathlib.Path('/opt/ml/checkpoints/state.json').exists()"
    ),
    "checkpointer": (
        "import os\nfrom smlaunch.train import Checkpointer\nprint('state.json')\n"
        "with Checkpointer(host=os.environ['SM_CURRENT_HOST']): pass"
    ),
    "own_files": (
        "from smlaunch.train import shard_files\nfor file in shard_files('train'): pass\n"
        "open('/opt/ml/checkpoints/state.json')"
    ),
}
NAMES_BY_HOST = {
    "text": "import os\nh = os.environ['SM_CURRENT_HOST']\nopen(f'/opt/ml/checkpoints/{h}.json')",
    "behind_a_file": (
        "import os\nd = '/opt/ml/checkpoints/v.a'\nopen(os.path.join(d, os.environ['SM_CURRENT_HOST']))"
    ),
    "before_it": (
        "import os, pathlib\nh = os.environ['RANK']\nopen(pathlib.Path('/opt/ml/checkpoints', h, 'a.json'))"
    ),
    "added": "import os\nopen('/opt/ml/checkpoints/a.json' + os.environ['SM_CURRENT_HOST'])",
    "gethostname": "import socket\nopen('/opt/ml/checkpoints/' + socket.gethostname() + '.json')",
    "own_directory": (
        "import os\nfrom smlaunch.train import Checkpointer\n"
        "Checkpointer(directory='/opt/ml/checkpoints/' + os.environ['SM_CURRENT_HOST'])"
    ),
}


@pytest.mark.parametrize("text", FIXED_NAMES.values(), ids=FIXED_NAMES)
def test_independent_hosts_may_not_continue_from_one_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        JobError, match=r"(state\.json|smlaunch), and all 2 hosts share one checkpoint prefix"
    ):
        plan_of(tmp_path, text, APART)
    allowed = plan_of(tmp_path, text, {**APART, "allow": ["checkpoints.shared-by-hosts"]})
    assert any("all 2 hosts share one checkpoint prefix" in warning for warning in allowed.warnings)


@pytest.mark.parametrize("text", NAMES_BY_HOST.values(), ids=NAMES_BY_HOST)
def test_files_with_the_hosts_names_are_those_of_one_host(tmp_path: Path, text: str) -> None:
    assert "share one checkpoint prefix" not in " ".join(plan_of(tmp_path, text, APART).warnings)


def test_one_checkpoint_file_is_that_of_one_training(tmp_path: Path) -> None:
    """Of a single host, of hosts that train together, and of a job that is not continued."""
    text = "import os, torch.distributed\nos.environ['SM_HOSTS']\nopen('/opt/ml/checkpoints/state.json')"
    without_checkpoints = {key: value for key, value in APART.items() if key != "checkpoints"}
    for job in (
        {**APART, "compute": {"hosts": 1}},
        {**APART, "strategy": "ddp"},
        {**APART, "strategy": "custom"},  # it reads the names of the others
        without_checkpoints,
    ):
        assert "share one checkpoint prefix" not in " ".join(plan_of(tmp_path, text, job).warnings)


def test_a_program_that_cannot_be_read_may_share_its_checkpoints(tmp_path: Path) -> None:
    warnings = plan_of(tmp_path, "print(1)", APART).warnings
    assert any("saves checkpoints of its own, put the host into the name" in warning for warning in warnings)


def test_the_ranks_of_one_host_share_its_files_too(tmp_path: Path) -> None:
    job = {**APART, "compute": {"hosts": 1, "processes_per_host": 2}}
    by_host = "import os\nopen('/opt/ml/checkpoints/' + os.environ['SM_CURRENT_HOST'])"
    with pytest.raises(JobError, match="tells its rank from the others, and all ranks share"):
        plan_of(tmp_path, by_host, job)
    by_rank = by_host.replace("SM_CURRENT_HOST", "RANK")
    assert "share one checkpoint prefix" not in " ".join(plan_of(tmp_path, by_rank, job).warnings)


def test_hosts_with_shares_of_an_input_train_apart_without_a_strategy_too(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"train\.py:1 uses /opt/ml/checkpoints/state\.json"):
        plan_of(tmp_path, "open('/opt/ml/checkpoints/state.json')", {**APART, "strategy": "custom"})
