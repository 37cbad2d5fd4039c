"""``smlaunch checkpoints`` on a run that kept some, one of them spoilt in S3."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli.conftest import Shell

SAVES = """\
import os
from smlaunch.train.parts import encode
from smlaunch.train.store import Store
store = Store(os.environ["SMLAUNCH_CHECKPOINTS"], 0, 1, job=os.environ["SMLAUNCH_JOB"])
for step in (10, 20):
    part = store.write(step, encode({"step": step}).chunks())
    store.commit(step, [part], samples=step * 2)
store.write(30, encode({"step": 30}).chunks())
"""


def test_list_and_verify(standing: Shell) -> None:
    script = standing.folder / "saves.py"
    script.write_text(SAVES)
    uri = "s3://keeps/ckpt/"
    done = standing("run", script, "--local", "--name", "keeps", "--checkpoints", uri, "--json")
    assert done.code == 0, done.err
    listed = standing("checkpoints", "ls", "keeps", "--local")
    head, *rows = [re.split(r"\s{2,}", line) for line in listed.out.splitlines()]
    assert head == ["STEP", "RANKS", "SIZE", "SAMPLES", "JOB", "STATE"]
    assert [(row[0], row[-1]) for row in rows] == [("30", "not committed"), ("20", "whole"), ("10", "whole")]
    assert rows[1][1] == "1" and rows[1][3:5] == ["40", "keeps-s1-a1"]
    assert "keeps-s1-a1: finished" in listed.err
    assert standing("checkpoints", "verify", "keeps", "--local").out.splitlines() == [
        "step 20: verified",
        "step 10: verified",
    ]

    home = Path(standing.environment["SMLAUNCH_HOME"])
    (part,) = (home / "s3" / "keeps" / "ckpt").glob("step-000000000020/rank-*")
    part.write_bytes(b"x" + part.read_bytes()[1:])
    assert standing("checkpoints", "verify", uri, "--local", "--step", "10").code == 0
    spoilt = standing("checkpoints", "verify", uri, "--local", "--json")
    assert spoilt.code == 1
    found = {row["step"]: row for row in json.loads(spoilt.out)["checkpoints"]}
    assert found[10]["whole"] and not found[20]["whole"]
    assert found[20]["problems"] == [f"{part.name}: its content is not what the manifest says"]
    uncommitted = standing("checkpoints", "verify", uri, "--local", "--step", "30")
    assert (uncommitted.code, uncommitted.out) == (0, "step 30: not committed\n")

    document = json.loads(standing("checkpoints", "ls", uri, "--local", "--json").out)
    assert [row["step"] for row in document["checkpoints"]] == [30, 20, 10]
    assert document["outcome"]["result"] == "finished"


def test_what_cannot_be_found(standing: Shell) -> None:
    missing = standing("checkpoints", "verify", "s3://nowhere/here", "--local", "--step", "3")
    assert missing.code == 2 and "3 is not below s3://nowhere/here/; there are: none" in missing.err
    empty = standing("checkpoints", "ls", "s3://nowhere/here", "--local")
    assert (empty.code, empty.out) == (0, "") and "no checkpoints below" in empty.err
    assert standing("checkpoints", "ls", "no-such-run", "--local").code == 2
