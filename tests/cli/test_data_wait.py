"""A script reports how long it waits for its data, without importing smlaunch. What hosts warn of is said
last."""

from __future__ import annotations

import json

from tests.cli.conftest import Shell

SCRIPT = """\
import os
share = 0.43 if os.environ["RANK"] == "1" else 0.02
print("smlaunch: warning: the disk is slow", flush=True)
print("smlaunch: metric data_wait_share={}".format(share), flush=True)
"""


def test_the_end_of_a_run_and_show_say_that_it_is_input_bound(endpoint_shell: Shell) -> None:
    (endpoint_shell.folder / "waits.py").write_text(SCRIPT)
    (endpoint_shell.folder / "x").mkdir()
    (endpoint_shell.folder / "x" / "a.txt").write_text("a")
    ranks = ("--strategy", "ddp", "--processes-per-host", "2")
    options = (*ranks, "--local", "--input", f"train={endpoint_shell.folder / 'x'},mode=FastFile")
    result = endpoint_shell("run", "waits.py", "--name", "waits", *options)
    assert result.code == 0, result.err
    assert result.err.splitlines()[-1] == "warning: the disk is slow"
    details = endpoint_shell("show", "waits", "--local").out
    for text in (result.out, details):
        lines = text.splitlines()
        first_line = lines.index("input bound: 43% of step time")
        assert lines[first_line + 1].startswith("  train comes from S3 in every epoch")
    assert "warning    the disk is slow" in details
    document = json.loads(endpoint_shell("show", "waits", "--local", "--json").out)
    assert document["warnings"] == ["the disk is slow"]
    data_wait = document["data_wait"]
    assert (data_wait["share"], data_wait["input_bound"]) == (0.43, True)
