"""The log store: messages are read back unchanged and in order, also after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.local.stores.log_store import LogStore, NoSuchLog

GROUP = "/aws/sagemaker/TrainingJobs"
STREAM = "a-job/algo-1-1700000000000"
events = st.lists(
    st.tuples(st.integers(0, 2**41), st.text(st.characters(exclude_categories=["Cs"]))), max_size=20
)


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return LogStore(tmp_path)


@given(st.lists(events, max_size=4))
@settings(max_examples=50, deadline=None)
def test_events_round_trip(batches: list[list[tuple[int, str]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = LogStore(Path(folder))
        store.create_group(GROUP)
        store.create_stream(GROUP, STREAM)
        for batch in batches:
            store.append_events(GROUP, STREAM, batch)
        expected = [event for batch in batches for event in batch]
        read = list(store.read_events(GROUP, STREAM))
        assert [(event.timestamp, event.message) for event in read] == expected
        backwards = list(store.read_events_backward(GROUP, STREAM, store.stream_size_bytes(GROUP, STREAM)))
        assert backwards == read[::-1]
        for event in read:
            assert [later.start for later in store.read_events(GROUP, STREAM, event.end)][:1] in (
                [],
                [event.end],
            )


def test_read_backward_across_block_boundaries(store: LogStore) -> None:
    lengths = [0, 1, 65_535, 65_536, 65_537, 200_000, 3]
    store.append_events(GROUP, STREAM, [(number, "x" * length) for number, length in enumerate(lengths)])
    end = store.stream_size_bytes(GROUP, STREAM)
    assert [len(event.message) for event in store.read_events_backward(GROUP, STREAM, end)] == lengths[::-1]


def test_a_line_that_was_cut_by_a_kill(store: LogStore) -> None:
    store.append_events(GROUP, STREAM, [(1, "one")])
    path = next(store.root.glob("*/*.log"))
    with path.open("ab") as file:
        file.write(b"2\t2\thalf")
    assert [event.message for event in store.read_events(GROUP, STREAM)] == ["one"]
    store.append_events(GROUP, STREAM, [(3, "three")])
    assert [event.message for event in store.read_events(GROUP, STREAM)] == ["one", "half", "three"]
    assert (
        next(store.read_events_backward(GROUP, STREAM, store.stream_size_bytes(GROUP, STREAM))).message
        == "three"
    )


def test_appended_events_survive_kill(store: LogStore) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from smlaunch.local.stores.log_store import LogStore
store = LogStore(Path(sys.argv[1]))
for number in range(100):
    store.append_events("group", "stream", [(number, "x" * 100)] * 10)
os.kill(os.getpid(), signal.SIGKILL)
"""
    result = subprocess.run([sys.executable, "-c", code, str(store.root)])
    assert result.returncode == -signal.SIGKILL
    assert sum(1 for _ in store.read_events("group", "stream")) == 1000


def test_group_and_stream_names_with_special_characters(store: LogStore) -> None:
    names = ["..", ".", "a/b", "a b", "x" * 512, "x" * 511 + "y", "$LATEST", "é%2F"]
    for name in names:
        store.append_events(name, name, [(1, name)])
    for name in names:
        assert [event.message for event in store.read_events(name, name)] == [name]
        assert [info.name for info in store.list_streams(name, name[:200])] == [name]
    assert [name for name, _ in store.list_groups()] == sorted(names)
    assert all(path.parent.parent == store.root for path in store.root.rglob("*.log"))


def test_stream_info_has_event_times(store: LogStore) -> None:
    assert store.create_group(GROUP)
    assert not store.create_group(GROUP)
    assert store.create_stream(GROUP, "empty")
    assert not store.create_stream(GROUP, "empty")
    store.append_events(GROUP, "full", [(5, "a"), (9, "b")])
    empty, full = store.list_streams(GROUP)
    assert (empty.first_timestamp, empty.last_timestamp) == (None, None)
    assert (full.first_timestamp, full.last_timestamp) == (5, 9)
    store.delete_stream(GROUP, "empty")
    assert [info.name for info in store.list_streams(GROUP)] == ["full"]
    store.delete_group(GROUP)
    with pytest.raises(NoSuchLog):
        list(store.list_streams(GROUP))
    with pytest.raises(KeyError):
        store.create_stream(GROUP, "x")


def test_a_prefix_that_no_name_can_have_matches_no_stream(store: LogStore) -> None:
    store.create_group("empty")
    assert list(store.list_streams("empty", "\ud800")) == []
    with pytest.raises(NoSuchLog):
        list(store.list_streams("absent", "\ud800"))
