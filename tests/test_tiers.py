"""A unit test is refused what belongs to another tier, and tests/tiers.py lists no test that has gone."""

from __future__ import annotations

import os
import socket
import subprocess
import threading

import pytest

from tests import tiers
from tests.conftest import TESTS
from tests.tables import table


@table(
    ("event", "act"),
    [
        ("socket.__new__", socket.socket),
        ("socket.getaddrinfo", lambda: socket.getaddrinfo("localhost", 80)),
        ("subprocess.Popen", lambda: subprocess.run(["true"])),
        ("os.fork", lambda: os.fork() or os._exit(1)),
        ("os.system", lambda: os.system("true")),
        ("os.posix_spawn", lambda: os.posix_spawn("/bin/true", ["true"], {})),
    ],
)
def test_a_unit_test_opens_no_socket_and_starts_no_process(event: str, act: object) -> None:
    assert callable(act)
    with pytest.raises(tiers.Refused, match=f"^{event} in a unit test: tests/test_tiers.py::"):
        act()


def test_nor_does_a_thread_of_its_own() -> None:
    refusals: list[tiers.Refused] = []

    def open_socket() -> None:
        try:
            socket.socket()
        except tiers.Refused as error:
            refusals.append(error)

    thread = threading.Thread(target=open_socket)
    thread.start()
    thread.join()
    assert len(refusals) == 1


@table("name", tiers.FILES)
def test_what_is_listed_exists(name: str) -> None:
    file, _, test = name.partition("::")
    text = (TESTS / file).read_text()
    assert not test or f"def {test}(" in text


def test_a_table_names_every_row_that_fails() -> None:
    @table(("left", "right"), [(1, 1), (1, 2), ("a", "b")])
    def rows(left: object, right: object) -> None:
        assert left == right, "differ"

    with pytest.raises(AssertionError) as caught:
        rows()
    first, *lines = str(caught.value).split("\n\n")
    assert first == "2 of 3 rows fail"
    assert [line.partition(":")[0] for line in lines] == ["left=1, right=2", "left='a', right='b'"]
