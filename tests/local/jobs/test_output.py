from __future__ import annotations

import errno
import os
import resource
import select
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from smlaunch.api.job_kinds import TRAINING
from smlaunch.local.jobs.host_output_log import HostOutputLogger
from smlaunch.local.stores.log_store import LogStore, encode_events
from smlaunch.local.stores.log_writer import LogWriter


@pytest.fixture
def logs(tmp_path: Path) -> LogStore:
    return LogStore(tmp_path / "logs")


def lines(logs: LogStore, label: str) -> list[str]:
    (stream,) = logs.list_streams(TRAINING.log_group, f"job/{label}-")
    return [event.message for event in logs.read_events(TRAINING.log_group, stream.name)]


def pump_lines(logs: LogStore, data: bytes, chunk: int = 7) -> list[str]:
    reader, writer = os.pipe()
    pump = HostOutputLogger("job", ["algo-1"], logs)
    pump.log_to_host("algo-1", "before")
    pump.start({"algo-1": reader})
    for start in range(0, len(data), chunk):
        os.write(writer, data[start : start + chunk])
    os.close(writer)
    pump.finish()
    os.close(reader)
    return lines(logs, "algo-1")


def test_lines_arrive_whole_in_order_and_the_last_needs_no_newline(logs: LogStore) -> None:
    data = "eins\n\nzwei ünïcode 🚀\r\nno end".encode()
    assert pump_lines(logs, data) == ["[smlaunch] before", "eins", "", "zwei ünïcode 🚀", "no end"]


def test_bytes_that_are_no_text_do_not_stop_the_log(logs: LogStore) -> None:
    assert pump_lines(logs, b"a\xffb\nc\n")[1:] == ["a�b", "c"]


def test_a_very_long_line_becomes_several(logs: LogStore) -> None:
    messages = pump_lines(logs, b"x" * 600_000 + b"\nshort\n", chunk=60_000)[1:]
    assert "".join(messages[:-1]) == "x" * 600_000
    assert max(map(len, messages)) <= 260_000
    assert messages[-1] == "short"


def test_a_writer_that_stays_is_given_up(logs: LogStore) -> None:
    reader, writer = os.pipe()
    pump = HostOutputLogger("job", ["algo-1"], logs)
    pump.start({"algo-1": reader})
    os.write(writer, b"whole\nhalf")
    pump.finish(timeout=0.2)
    assert lines(logs, "algo-1") == ["whole", "half"]
    os.close(reader)
    os.close(writer)


class FullLogStore:
    """A log store on a disk that is full while ``room`` is 0."""

    def __init__(self, logs: LogStore) -> None:
        self.logs = logs
        self.room = 0

    def open_writer(self, group: str, stream: str) -> LogWriter:
        def reopen() -> int:
            if self.room == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.logs._open_stream_for_append(group, stream)

        return LogWriter(stream, reopen, encode_events)


def test_lines_that_cannot_be_written_block_nobody_and_come_later(logs: LogStore) -> None:
    full = FullLogStore(logs)
    pump = HostOutputLogger("job", ["algo-1"], full)
    pump.log_to_host("algo-1", "one")
    pump.log_to_host("algo-1", "two")
    full.room = 1
    pump.log_to_host("algo-1", "three")
    pump.finish()
    assert lines(logs, "algo-1") == ["[smlaunch] one", "[smlaunch] two", "[smlaunch] three"]


def test_lines_come_when_the_hosts_files_have_made_room(logs: LogStore) -> None:
    full = FullLogStore(logs)
    pump = HostOutputLogger("job", ["algo-1"], full)
    pump.log_to_host("algo-1", "one")
    pump.finish()
    full.room = 1
    pump.close()
    assert lines(logs, "algo-1") == ["[smlaunch] one"]


def test_more_than_can_wait_is_told_by_its_number(logs: LogStore) -> None:
    full = FullLogStore(logs)
    pump = HostOutputLogger("job", ["algo-1"], full)
    for number in range(100):
        pump.log_to_host("algo-1", f"{number} " + "x" * 200_000)
    full.room = 1
    pump.log_to_host("algo-1", "after")
    pump.finish()
    *before, loss_note, after = lines(logs, "algo-1")
    assert [int(line.split()[1]) for line in before] == list(range(len(before)))
    cause = "the log could not be written (No space left on device)"
    assert loss_note == f"[smlaunch] {100 - len(before)} lines were lost: {cause}"
    assert after == "[smlaunch] after"
    assert 8_000_000 < sum(map(len, before)) < 9_000_000


def test_what_never_reached_the_log_is_told_by_the_endpoint(
    logs: LogStore, caplog: pytest.LogCaptureFixture
) -> None:
    pump = HostOutputLogger("job", ["algo-1"], FullLogStore(logs))
    pump.log_to_host("algo-1", "one")
    pump.log_to_host("algo-1", "two")
    pump.finish()
    pump.close(timeout=0.01)
    assert "2 lines of job/algo-1-" in caplog.text
    assert "No space left on device" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="a file's size limit ends in a signal elsewhere")
def test_a_line_that_was_cut_by_a_full_disk_goes_on_where_it_was_cut(logs: LogStore) -> None:
    """RLIMIT_FSIZE simulates a full disk: the kernel writes the bytes that fit, then fails."""
    program = """
import pathlib, resource, signal, sys
from smlaunch.local.stores.log_store import LogStore
from smlaunch.local.stores.log_writer import LogWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = LogStore(pathlib.Path(sys.argv[1])).open_writer("g", "s")
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
writer.append_events([(0, "first")])
resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
for number in range(5):
    writer.append_events([(number, f"line {number} " + "x" * 60)])
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
writer.append_events([(9, "last")])
"""
    subprocess.run([sys.executable, "-c", program, str(logs.root)], check=True)
    messages = [event.message for event in logs.read_events("g", "s")]
    assert messages == ["first", *(f"line {number} " + "x" * 60 for number in range(5)), "last"]


def test_a_writer_keeps_its_descriptor_and_notices_that_its_stream_was_deleted(logs: LogStore) -> None:
    writer = logs.open_writer("g", "s")
    writer.append_events([(1, "one")])
    descriptors = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 20, hard))
    try:
        with suppress(OSError):
            while True:
                descriptors.append(os.open(os.devnull, os.O_RDONLY))
        writer.append_events([(2, "two")])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [event.message for event in logs.read_events("g", "s")] == ["one", "two"]
    logs.delete_stream("g", "s")
    writer.append_events([(3, "three")])
    assert [event.message for event in logs.read_events("g", "s")] == ["three"]
    writer.flush()


def test_numbers_that_cannot_be_stored_do_not_stop_the_log(logs: LogStore) -> None:
    """Otherwise the hosts' pipes would not be read any more, and the hosts would wait for ever."""

    def full(events: Sequence[tuple[int, str]]) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    reader, writer = os.pipe()
    pump = HostOutputLogger("job", ["algo-1"], logs, full)
    pump.start({"algo-1": reader})
    os.write(writer, b"one\n")
    os.write(writer, b"two\n")
    os.close(writer)
    pump.finish()
    assert lines(logs, "algo-1") == ["one", "two"]
    os.close(reader)


def test_a_program_that_reads_its_own_output_holds_nobody_up(logs: LogStore) -> None:
    reader, writer = os.pipe()
    pump = HostOutputLogger("job", ["algo-1"], logs)
    pump.start({"algo-1": reader})
    stop = threading.Event()
    thief = os.open(f"/proc/self/fd/{reader}", os.O_RDONLY | os.O_NONBLOCK)

    def steal() -> None:
        while not stop.is_set():
            if select.select([thief], [], [], 0.05)[0]:
                with suppress(BlockingIOError):
                    os.read(thief, 100)

    thread = threading.Thread(target=steal)
    thread.start()
    for _ in range(3000):
        os.write(writer, b"line\n")
    finished = threading.Thread(target=pump.finish, args=(0.1,), daemon=True)
    finished.start()
    finished.join(20)
    assert not finished.is_alive()
    stop.set()
    thread.join()
    for descriptor in (reader, writer, thief):
        os.close(descriptor)
