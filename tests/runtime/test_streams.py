"""Output of many ranks: lines are intact and complete, and each rank's order is preserved."""

from __future__ import annotations

import collections
import itertools
import os
import random
import time
from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from smlaunch.runtime.log_streams import HostOutput, ProcessOutput
from smlaunch.runtime.redrawn_line import RedrawnLine
from tests.runtime.host import Host

MakeHost = Callable[..., Host]


def pass_through(pieces: list[bytes], prefix: bytes) -> bytes:
    """Return the output for a process that writes these pieces, each of which is read separately."""
    out_read, out_write = os.pipe()
    in_read, in_write = os.pipe()
    output = HostOutput(out_write)
    stream = ProcessOutput(in_read, prefix, output)
    for piece in pieces:
        os.write(in_write, piece)
        stream.forward_block()
    os.close(in_write)
    while stream.forward_block():
        pass
    output.flush(time.monotonic() + 5.0)
    output.close()
    os.close(out_write)
    with os.fdopen(out_read, "rb") as file:
        return file.read()


@given(
    st.lists(
        st.binary(max_size=50).map(lambda data: data.replace(b"\r", b"").replace(b"x", b"\n")), max_size=8
    )
)
def test_lines_are_whole_however_they_are_cut(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    lines = text.split(b"\n")
    last = lines.pop()
    expected = [b"[7] " + line + b"\n" for line in lines] + ([b"[7] " + last + b"\n"] if last else [])
    assert pass_through(pieces, b"[7] ") == b"".join(expected)


@given(st.lists(st.binary(max_size=50).map(lambda data: data.replace(b"\r", b"")), max_size=8))
def test_without_a_prefix_bytes_go_through_untouched(pieces: list[bytes]) -> None:
    assert pass_through(pieces, b"") == b"".join(pieces)


BAR = b"start\r  0%|    |\r 50%|##  |\r100%|####| 4/4\nend\r\n"


@given(st.lists(st.integers(1, len(BAR) - 1), max_size=6), st.sampled_from([b"", b"[0] "]))
@example([43, 44], b"")
def test_a_bar_is_one_line_however_it_is_cut(cuts: list[int], prefix: bytes) -> None:
    """Its last state is in the log, with at most one state before, since a second is longer than this."""
    ends = sorted({*cuts, len(BAR)})
    pieces = [BAR[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    lines = pass_through(pieces, prefix).split(b"\n")
    live_lines = [line for line in lines if line.startswith(prefix + b"smlaunch: live ")]
    other_lines = [line for line in lines if line not in live_lines]
    if not prefix and other_lines[0] in {b"start"[:length] for length in range(1, 6)}:
        del other_lines[0]  # it was forwarded before the first carriage return came
    assert other_lines == [prefix + b"100%|####| 4/4", prefix + b"end", b""]
    assert len(live_lines) <= 1


def test_a_line_end_of_two_bytes_may_be_cut_from_its_line() -> None:
    for pieces in ([b"e", b"nd\r\n"], [b"en", b"d\r", b"\n"], [b"end", b"\r\n"], [b"end", b"\r", b"\n"]):
        assert pass_through(pieces, b"") == b"end\n", pieces
    assert pass_through([b"end", b"\r", b"50%\n"], b"") == b"end\n50%\n"


def test_a_bar_that_nobody_ends() -> None:
    assert pass_through([b"\r 10%|", b"\r 20%|", b"\r      \r"], b"[1] ") == (
        b"[1] smlaunch: live 10%|\n[1]       \n"
    )


def test_states_in_between_become_rarer() -> None:
    now = [0.0]
    line = RedrawnLine(lambda: now[0])
    live_at = []
    for second in range(3600):
        now[0] = float(second)
        if line.take_live_line_if_due(line.drop_earlier_states(b"\rstep %d" % second)):
            live_at.append(second)
    gaps = [after - before for before, after in itertools.pairwise(live_at)]
    assert (live_at[:3], gaps[-1]) == ([0, 1, 2], 10) and gaps == sorted(gaps)


@given(st.lists(st.binary(max_size=20), max_size=5), st.integers(1, 40))
def test_a_traceback_is_noticed_however_it_is_cut(before: list[bytes], cut: int) -> None:
    header = b"Traceback (most recent call last):\n"
    read_end, write_end = os.pipe()
    with open(os.devnull, "wb") as null:
        stream = ProcessOutput(read_end, b"", HostOutput(null.fileno()))
        for piece in [*before, header[:cut], header[cut:]]:
            os.write(write_end, piece)
            stream.forward_block()
        assert stream.traceback_at is not None
        assert stream.tail().endswith(header.decode())
        os.close(write_end)
        stream.close()


def test_eight_ranks_at_once_tear_no_line(make_host: MakeHost) -> None:
    """Each rank writes its lines in pieces of random size, as buffered programs do."""
    train = """
import os, random
rank = int(os.environ["RANK"])
data = b"".join(b"%d:%d:%s\\n" % (rank, n, b"y" * (n % 97)) for n in range(5000))
choose = random.Random(rank)
while data:
    size = choose.choice((1, 7, 100, 5000, 70000))
    data = data[os.write(1, data[:size]):]
"""
    result = make_host(train).run(per_host=8)
    numbers: dict[str, list[int]] = collections.defaultdict(list)
    for line in result.lines:
        prefix, _, rest = line.partition("] ")
        rank, number, filler = rest.split(":")
        assert prefix == "[" + rank
        assert filler == "y" * (int(number) % 97)
        numbers[rank].append(int(number))
    assert numbers == {str(rank): list(range(5000)) for rank in range(8)}


def test_stdout_and_stderr_of_a_rank_keep_their_order(make_host: MakeHost) -> None:
    train = "import sys\nfor n in range(50):\n    print(n, file=(sys.stdout, sys.stderr)[n % 2])\n"
    assert make_host(train).run().lines == [f"[0] {number}" for number in range(50)]


def test_a_line_without_an_end_is_cut_not_kept_for_ever(make_host: MakeHost) -> None:
    result = make_host("import os\nfor _ in range(100): os.write(1, b'x' * 10000)").run()
    assert sum(line.count("x") for line in result.lines) == 1_000_000
    assert 1 < len(result.lines) < 10


def test_what_a_process_says_without_a_newline_is_seen_at_once(make_host: MakeHost) -> None:
    """A single process writes to the output directly: an incomplete line is not delayed."""
    with make_host("import signal\nprint('loading...', end='')\nsignal.pause()").start(
        rendezvous=False
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(10) == "loading..."
        process.terminate()


def test_output_in_any_sizes_arrives_whole() -> None:
    choose = random.Random(1)
    blocks = [bytes([n % 251]) * choose.choice((1, 100, 4096, 4097, 9000)) for n in range(300)]
    read_end, write_end = os.pipe()
    output = HostOutput(write_end)
    received = bytearray()
    for block in blocks:
        output.append(block)
        output.write_available()
        while output.is_full:
            received += os.read(read_end, 1 << 16)
            output.write_available()
    while output.has_pending:
        output.write_available()
        received += os.read(read_end, 1 << 16)
    output.close()
    os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        received += file.read()
    assert bytes(received) == b"".join(blocks)
