"""``smlaunch data split`` as it is typed."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Shell

pytest.importorskip("pyarrow")


def test_the_command_on_a_folder(shell: Shell) -> None:
    data = shell.folder / "data"
    (data / "sub").mkdir(parents=True)
    for place in range(9):
        (data / "sub" / f"{place}.bin").write_bytes(b"x" * (place + 1) * 1000)
    (data / "link").symlink_to("/etc/passwd")
    done = shell("data", "split", "data", "--hosts", "3", "--json", "--out", "out")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["imbalance"] == 1.0 < told["by_count"]["imbalance"]
    assert [(one["host"], one["bytes"], one["keys"]) for one in told["parts"]] == [
        (host, 15_000, told["parts"][host]["keys"]) for host in range(3)
    ]
    names = []
    for one in told["parts"]:
        assert one["manifest"] is None
        names += [json.loads(line) for line in (shell.folder / "out" / one["list"]).read_text().splitlines()]
    assert sorted(names) == [f"sub/{place}.bin" for place in range(9)]
    again = shell("data", "split", "data", "--hosts", "3", "--previous", "out")
    assert again.code == 0, again.err
    assert "0 keys have another host than before" in again.out
    assert again.out.splitlines()[0] == "9 keys, 45.0 kB over 3 hosts: as before, what is new largest first"
    missing = shell("data", "split", "nowhere", "--hosts", "3")
    assert missing.code == 2
    assert "nowhere" in missing.err
    none = shell("data", "split", "data", "--hosts", "0")
    assert none.code == 2
