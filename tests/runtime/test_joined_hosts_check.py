"""A rank says that its host trains separately, by torch's own optimizers and process groups."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smlaunch.runtime import joined_hosts_check, runtime_dir
from tests.tables import table

pytestmark = pytest.mark.torch

HOSTS = ["127.9.9.1", "127.9.9.2"]


class Rank:
    """This process as a rank of the second host, of two ranks."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.check = joined_hosts_check.JoinCheck(torch)
        self.sockets: list[socket.socket] = []

    def step(self) -> None:
        parameter = self.torch.nn.Parameter(self.torch.zeros(1))
        parameter.grad = self.torch.ones(1)
        self.torch.optim.SGD([parameter], 0.1).step()

    def make_own_group(self) -> None:
        self.torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:0", rank=0, world_size=1)

    def make_group_of_hosts(self) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        self.torch.distributed.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)

    def end_group(self) -> None:
        self.torch.distributed.destroy_process_group()

    def connect_to(self, host: str) -> None:
        server = socket.create_server((host, 0))
        self.sockets += [server, socket.create_connection(server.getsockname()), server.accept()[0]]


@pytest.fixture
def make_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Rank]]:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    monkeypatch.setenv("SM_HOSTS", json.dumps(HOSTS))
    monkeypatch.setenv("SM_CURRENT_HOST", HOSTS[1])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    ends: list[Callable[[], Any]] = []

    def end() -> None:
        for each in ends:
            each()
        ends.clear()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        torch.distributed.distributed_c10d._default_pg_init_method = None

    def make() -> Rank:
        end()
        rank = Rank(torch)
        ends.append(register_optimizer_step_post_hook(rank.check.after_step).remove)
        ends.append(lambda: [each.close() for each in rank.sockets])
        return rank

    yield make
    end()


SEPARATE = "hosts trained separately: an optimizer took steps while "


@table(
    ("actions", "expected"),
    [
        ("step", SEPARATE + "torch.distributed had no process group, and no connection led"),
        ("make_own_group step", SEPARATE + "the process group had world size 1, and no connection led"),
        ("make_own_group step end_group step", "the process group had world size 1"),
        ("", ""),
        ("make_own_group", ""),
        ("make_group_of_hosts step", ""),
        ("make_group_of_hosts step end_group step", ""),
        ("step make_group_of_hosts step", ""),
        ("make_own_group end_group step", ""),  # the group may have been of all hosts
        ("connect_to:127.9.9.1 step", ""),
        ("step step step connect_to:127.9.9.1 step", ""),
        ("connect_to:127.9.9.2 step", SEPARATE),  # this host's own
    ],
)
def test_a_rank_that_steps_alone_says_so_at_its_end(
    actions: str, expected: str, make_rank: Callable[[], Rank], capfd: pytest.CaptureFixture[str]
) -> None:
    rank = make_rank()
    for action in actions.split():
        name, _, argument = action.partition(":")
        getattr(rank, name)(*filter(None, [argument]))
    rank.check.at_exit()
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("smlaunch: ")]
    assert len(lines) == bool(expected)
    assert all(line.startswith("smlaunch: warning: ") and expected in line for line in lines)


def test_a_long_training_is_warned_of_while_it_runs(
    make_rank: Callable[[], Rank], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined_hosts_check, "_SECONDS_TO_JOIN", 0)
    rank = make_rank()
    for _ in range(5):
        rank.step()
    assert capfd.readouterr().err.count(SEPARATE) == 1


def test_import_torch_installs_the_check(tmp_path: Path) -> None:
    runtime_dir.write_torch_extension(str(tmp_path))
    script = (
        "import torch; p = torch.nn.Parameter(torch.ones(1)); p.grad = p.data; torch.optim.SGD([p]).step()"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "SM_HOSTS": json.dumps(HOSTS),
        "SM_CURRENT_HOST": HOSTS[0],
    }
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stderr.count(SEPARATE)) == (0, 1), result.stderr
