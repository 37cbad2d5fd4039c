"""A full disk below the endpoint: the error names the folder, and no operation is half done."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from smlaunch.cli.main import run_command
from smlaunch.errors import DISK_FULL, EXIT_MACHINE
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.stores import object_bodies
from smlaunch.local.stores.sqlite_database import Database
from tests.conftest import ROOT
from tests.local.client import EndpointClient

SCRIPT = """
import os
last = os.environ.get("SMLAUNCH_ML_ROOT", "/opt/ml") + "/checkpoints/last.json"
print("goes on" if os.path.exists(last) else "begins", flush=True)
open(last, "w").write("{}")
print("smlaunch: progress step=1 steps=1", flush=True)
"""
CHAIN = "--name full --max-runtime 2m --segment 1m --checkpoints s3://sagemaker-us-east-1-000000000000/kept/"


class PageLimit:
    """A limit of pages for the databases' connections that are opened from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_exhausted = False
        self._connections: list[sqlite3.Connection] = []
        connect = Database._connect

        def connect_with_limit(database: Database) -> sqlite3.Connection:
            connection = connect(database)
            self._connections.append(connection)
            self._set(connection)
            return connection

        monkeypatch.setattr(Database, "_connect", connect_with_limit)

    def exhaust(self, is_exhausted: bool = True) -> None:
        self.is_exhausted = is_exhausted
        for connection in self._connections:
            self._set(connection)

    def _set(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA max_page_count = {1 if self.is_exhausted else 1 << 30}")


@pytest.fixture
def page_limit(monkeypatch: pytest.MonkeyPatch) -> PageLimit:
    return PageLimit(monkeypatch)


def test_an_upload_when_the_index_is_full(tmp_path: Path, page_limit: PageLimit) -> None:
    with Endpoint(tmp_path / "home", isolation="plain") as info:
        client = EndpointClient(info)
        client.put("before", b"old")
        page_limit.exhaust()
        with pytest.raises(ClientError) as refused:
            for number in range(2000):
                client.put(f"new-{number}", bytes(10))
        error = refused.value.response["Error"]
        assert error["Code"] == "EndpointDiskFull"
        assert error["Message"].startswith(DISK_FULL)
        assert str(tmp_path / "home") in error["Message"]
        assert refused.value.response["ResponseMetadata"]["RetryAttempts"] == 0
        page_limit.exhaust(False)
        client.put("after", b"x")
        assert list((tmp_path / "home/s3/_store/incoming").iterdir()) == []


def test_an_upload_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full fails as a full disk does."""
    with Endpoint(tmp_path / "home", isolation="plain") as info:
        client = EndpointClient(info)
        client.put("key", b"old")
        full = os.open("/dev/full", os.O_WRONLY)
        from smlaunch.local.services.s3 import object_transfers

        monkeypatch.setattr(
            object_transfers, "write_all", lambda writer, block: object_bodies.write_all(full, block)
        )
        with pytest.raises(ClientError, match="EndpointDiskFull"):
            client.put("key", b"new")
        monkeypatch.undo()
        os.close(full)
        assert client.s3.get_object(Bucket="tests", Key="key")["Body"].read() == b"old"
        assert list((tmp_path / "home/s3/_store/incoming").iterdir()) == []


def test_a_job_whose_input_does_not_fit_fails_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A chain whose runtime cannot be written to the host."""
    home = tmp_path / "home"
    monkeypatch.setenv("SMLAUNCH_HOME", str(home))
    (tmp_path / "train.py").write_text(SCRIPT)
    from smlaunch.local.jobs import file_copy

    full = os.open("/dev/full", os.O_WRONLY)
    write = file_copy._write_all
    monkeypatch.setattr(file_copy, "_write_all", lambda writer, block: write(full, block))
    words = ["run", str(tmp_path / "train.py"), "--local", "--isolation", "plain", "--strategy", "custom"]
    code = run_command([*words, *CHAIN.split()])
    output = capsys.readouterr()
    assert code == EXIT_MACHINE, output
    assert DISK_FULL in output.err
    assert str(home) in output.err
    assert "Traceback" not in output.err
    monkeypatch.setattr(file_copy, "_write_all", write)
    os.close(full)
    assert run_command(["resume", "full", "--local"]) == 0, capsys.readouterr()


SMALL_DISK_SCRIPT = """
mount -t tmpfs -o size=8m tmpfs "$DISK" || exit 77
smlaunch() { "$PYTHON" -m smlaunch.cli.main "$@"; echo "exit code $?"; }
mkdir -m 700 "$SMLAUNCH_HOME"
smlaunch ls --local
head -c 16M /dev/zero > "$DISK/filler" 2>/dev/null
smlaunch run "$SCRIPT" --local --strategy custom $CHAIN
smlaunch ls --local
rm "$DISK/filler"
smlaunch run "$SCRIPT" --local --strategy custom $CHAIN
"""


@pytest.mark.root
def test_a_small_disk(tmp_path: Path) -> None:
    """A real file system, filled to its last block."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {
        **os.environ,
        "DISK": str(tmp_path / "disk"),
        "SMLAUNCH_HOME": str(tmp_path / "disk/home"),
        "CHAIN": CHAIN,
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SCRIPT": str(tmp_path / "train.py"),
    }
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", SMALL_DISK_SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    text = result.stdout + result.stderr
    codes = [int(line.split()[-1]) for line in result.stdout.splitlines() if line.startswith("exit code")]
    assert codes == [0, EXIT_MACHINE, EXIT_MACHINE, 0], text
    assert DISK_FULL in result.stderr
    assert "Traceback" not in text
    assert "bug in smlaunch" not in text
