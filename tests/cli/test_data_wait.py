"""A script that says how long it waits for its data, without importing anything."""

from __future__ import annotations

import json

from tests.cli.conftest import Shell

SCRIPT = """\
import os
share = 0.43 if os.environ["RANK"] == "1" else 0.02
print("smlaunch: metric data_wait_share={}".format(share), flush=True)
"""


def test_the_end_of_a_run_and_show_say_that_it_is_input_bound(standing: Shell) -> None:
    (standing.folder / "waits.py").write_text(SCRIPT)
    (standing.folder / "x").mkdir()
    (standing.folder / "x" / "a.txt").write_text("a")
    ranks = ("--strategy", "ddp", "--processes-per-host", "2")
    options = (*ranks, "--local", "--input", f"train={standing.folder / 'x'},mode=FastFile")
    done = standing("run", "waits.py", "--name", "waits", *options)
    assert done.code == 0, done.err
    shown = standing("show", "waits", "--local").out
    for said in (done.out, shown):
        lines = said.splitlines()
        at = lines.index("input bound: 43% of step time")
        assert lines[at + 1].startswith("  train comes from S3 in every epoch")
    told = json.loads(standing("show", "waits", "--local", "--json").out)["data_wait"]
    assert (told["share"], told["input_bound"]) == (0.43, True)
