"""The end of a process's output that is kept for its traceback."""

from __future__ import annotations

import os

from smlaunch.runtime.log_streams import HostOutput, ProcessOutput

TAIL_BYTES = 1 << 16


def test_the_kept_end_begins_with_a_block_and_has_at_least_64_kib() -> None:
    """A block that would leave exactly 64 KiB goes."""
    read_end, write_end = os.pipe()
    output = ProcessOutput(read_end, b"", HostOutput(write_end))
    try:
        output._remember_tail(b"old\n")
        output._remember_tail(b"x" * (TAIL_BYTES - 1))
        assert output.tail().startswith("old")
        output._remember_tail(b"y")
        assert output.tail() == "x" * (TAIL_BYTES - 1) + "y"
    finally:
        os.close(read_end)
        os.close(write_end)
