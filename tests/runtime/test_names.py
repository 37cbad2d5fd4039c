"""Resolution of the leader's name, which may take time or fail."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.name_lookup import NameLookup
from tests.runtime.host import Host, finish

MakeHost = Callable[..., Host]

MOUNT_HOSTS_FILE = (
    "import os, subprocess, sys\n"
    "subprocess.run(['mount', '--bind', sys.argv[1], '/etc/hosts'], check=True)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)
PRINT_LEADER_ADDRESS = (
    "import os, socket\nprint(os.environ['MASTER_ADDR'], socket.gethostbyname(os.environ['MASTER_ADDR']))"
)


@pytest.mark.root
def test_a_name_that_comes_late_is_waited_for(make_host: MakeHost, tmp_path: Path) -> None:
    hosts_file = tmp_path / "hosts"
    hosts_file.write_text("127.0.0.1 localhost\n")
    wrapper = ("unshare", "--mount", sys.executable, "-c", MOUNT_HOSTS_FILE, str(hosts_file))
    names = ["late-1.invalid", "late-2.invalid"]
    host = make_host(PRINT_LEADER_ADDRESS, hosts=names, current=names[1], wrapper=wrapper)
    with host.start() as process:
        unpacked = Path(host.paths.code) / "train.py"
        never = threading.Event()
        while not unpacked.exists():
            never.wait(0.01)
        never.wait(0.2)  # at least one lookup fails
        with hosts_file.open("a") as file:
            file.write("127.0.7.1 late-1.invalid\n")
        result = finish(process)
    assert (result.exit_code, result.stdout) == (0, "[1] late-1.invalid 127.0.7.1\n"), result.stderr


def test_a_name_that_never_comes_is_named() -> None:
    with pytest.raises(SetupError, match=r"nobody\.invalid: the leader's name did not resolve within 0 s"):
        NameLookup("nobody.invalid", timeout_seconds=0.1).wait()


def test_a_name_that_is_none_is_named() -> None:
    with pytest.raises(SetupError, match="did not resolve"):
        NameLookup("a" * 70 + ".x", timeout_seconds=0.1).wait()


def test_one_host_asks_for_no_name(make_host: MakeHost) -> None:
    names = ["nobody.invalid"]
    result = make_host(PRINT_LEADER_ADDRESS, hosts=names, current=names[0]).run()
    assert result.stdout == "[0] 127.0.0.1 127.0.0.1\n"


def test_hosts_that_find_their_peers_themselves_ask_for_no_name(make_host: MakeHost) -> None:
    names = ["nobody-1.invalid", "nobody-2.invalid"]
    assert make_host("print('here')", hosts=names, current=names[1]).run(rendezvous=False).stdout == "here\n"
