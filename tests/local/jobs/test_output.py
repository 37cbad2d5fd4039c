from __future__ import annotations

import contextlib
import os
import select
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from smlaunch.local.jobs.output import GROUP, OutputPump
from smlaunch.local.log_store import LogStore


@pytest.fixture
def logs(tmp_path: Path) -> LogStore:
    return LogStore(tmp_path / "logs")


def lines(logs: LogStore, label: str) -> list[str]:
    (stream,) = logs.streams(GROUP, f"job/{label}-")
    return [event.message for event in logs.read(GROUP, stream.name)]


def pumped(logs: LogStore, data: bytes, chunk: int = 7) -> list[str]:
    reader, writer = os.pipe()
    pump = OutputPump("job", ["algo-1"], logs)
    pump.note("algo-1", "before")
    pump.start({"algo-1": reader})
    for start in range(0, len(data), chunk):
        os.write(writer, data[start : start + chunk])
    os.close(writer)
    pump.finish()
    os.close(reader)
    return lines(logs, "algo-1")


def test_lines_arrive_whole_in_order_and_the_last_needs_no_newline(logs: LogStore) -> None:
    data = "eins\n\nzwei ünïcode 🚀\r\nno end".encode()
    assert pumped(logs, data) == ["[smlaunch] before", "eins", "", "zwei ünïcode 🚀", "no end"]


def test_bytes_that_are_no_text_do_not_stop_the_log(logs: LogStore) -> None:
    assert pumped(logs, b"a\xffb\nc\n")[1:] == ["a�b", "c"]


def test_a_very_long_line_becomes_several(logs: LogStore) -> None:
    found = pumped(logs, b"x" * 600_000 + b"\nshort\n", chunk=60_000)[1:]
    assert "".join(found[:-1]) == "x" * 600_000
    assert max(map(len, found)) <= 260_000
    assert found[-1] == "short"


def test_a_writer_that_stays_is_given_up(logs: LogStore) -> None:
    reader, writer = os.pipe()
    pump = OutputPump("job", ["algo-1"], logs)
    pump.start({"algo-1": reader})
    os.write(writer, b"whole\nhalf")
    pump.finish(patience=0.2)
    assert lines(logs, "algo-1") == ["whole", "half"]
    os.close(reader)
    os.close(writer)


def test_a_log_that_cannot_be_written_blocks_nobody_and_is_told(logs: LogStore) -> None:
    class Full:
        full = True

        def append(self, group: str, stream: str, events: Sequence[tuple[int, str]]) -> None:
            if self.full:
                raise OSError(28, "No space left on device")
            logs.append(group, stream, events)

    full = Full()
    pump = OutputPump("job", ["algo-1"], full)
    pump.note("algo-1", "lost")
    pump.note("algo-1", "lost too")
    full.full = False
    pump.note("algo-1", "seen")
    pump.finish()
    assert lines(logs, "algo-1") == [
        "[smlaunch] 2 lines were lost: the log could not be written",
        "[smlaunch] seen",
    ]


def test_numbers_that_cannot_be_stored_do_not_stop_the_log(logs: LogStore) -> None:
    """Nobody would read the hosts' pipes any more, and they would wait for ever."""

    def full(events: Sequence[tuple[int, str]]) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    reader, writer = os.pipe()
    pump = OutputPump("job", ["algo-1"], logs, full)
    pump.start({"algo-1": reader})
    os.write(writer, b"one\n")
    os.write(writer, b"two\n")
    os.close(writer)
    pump.finish()
    assert lines(logs, "algo-1") == ["one", "two"]
    os.close(reader)


def test_a_program_that_reads_its_own_output_holds_nobody_up(logs: LogStore) -> None:
    reader, writer = os.pipe()
    pump = OutputPump("job", ["algo-1"], logs)
    pump.start({"algo-1": reader})
    done = threading.Event()
    thief = os.open(f"/proc/self/fd/{reader}", os.O_RDONLY | os.O_NONBLOCK)

    def steal() -> None:
        while not done.is_set():
            if select.select([thief], [], [], 0.05)[0]:
                with contextlib.suppress(BlockingIOError):
                    os.read(thief, 100)

    thread = threading.Thread(target=steal)
    thread.start()
    for _ in range(3000):
        os.write(writer, b"line\n")
    finished = threading.Thread(target=pump.finish, args=(0.1,), daemon=True)
    finished.start()
    finished.join(20)
    assert not finished.is_alive()
    done.set()
    thread.join()
    for descriptor in (reader, writer, thief):
        os.close(descriptor)
