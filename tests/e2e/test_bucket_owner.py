"""Every request to a bucket of ours says whose the bucket has to be, whichever part of smlaunch sends it.

Requests are recorded where they arrive: at the S3 of a real endpoint in this process. What the command line,
obstore and the ranks of a job send is all there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from smlaunch.cli.main import run_command
from smlaunch.local.caller import ACCOUNT
from smlaunch.local.messages import Payload, Request, Response
from smlaunch.local.services.s3.service import S3Service, bucket_and_key
from tests.e2e.chains import words, write_script

STRANGER = "999999999999"


class Sent(NamedTuple):
    method: str
    bucket: str
    key: str
    query: str
    owner: str | None
    agent: str


class Record:
    """``strangers``: buckets that belong to another account."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.strangers: set[str] = set()
        self._lock = threading.Lock()

    def take(self, request: Request) -> None:
        bucket, key = bucket_and_key(request)
        owner = request.headers.get("x-amz-expected-bucket-owner")
        row = Sent(
            request.method,
            bucket,
            key,
            " ".join(sorted(request.query)),
            owner,
            request.headers.get("user-agent", ""),
        )
        with self._lock:
            self.sent.append(row)

    @property
    def bare(self) -> list[Sent]:
        """Requests that name no owner, but for those that make a bucket, which is then the caller's."""
        return [
            row
            for row in self.sent
            if row.bucket and row.owner != ACCOUNT and not (row.method == "PUT" and not row.key)
        ]


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Iterator[Record]:
    record = Record()
    serve, owner_of = S3Service.serve, S3Service.owner_of

    def recording(self: S3Service, request: Request, payload: Payload) -> Response:
        record.take(request)
        return serve(self, request, payload)

    def owner(self: S3Service, bucket: str) -> str | None:
        return STRANGER if bucket in record.strangers else owner_of(self, bucket)

    monkeypatch.setattr(S3Service, "serve", recording)
    monkeypatch.setattr(S3Service, "owner_of", owner)
    yield record


def smlaunch(*arguments: str | Path) -> int:
    return run_command([str(word) for word in arguments])


def test_a_chain_its_followers_and_its_files_name_the_owner(
    home: Path, tmp_path: Path, record: Record, capfd: pytest.CaptureFixture[str]
) -> None:
    script = write_script(tmp_path / "source")
    (tmp_path / "data").mkdir()
    for number in range(30):
        (tmp_path / "data" / f"{number}.bin").write_bytes(bytes(100))
    run = [*words(script, "owned"), "--input", f"train={tmp_path / 'data'}"]
    assert smlaunch(*run) == 0
    for command in (
        ("show", "owned"),
        ("logs", "owned"),
        ("wait", "owned"),
        ("resume", "owned"),
        ("checkpoints", "ls", "owned"),
        ("checkpoints", "verify", "owned"),
        ("ls",),
        ("stop", "owned"),
    ):
        assert smlaunch(*command, "--local") in (0, 2), capfd.readouterr().err
    assert len(record.sent) > 50
    assert {row.method for row in record.sent} >= {"GET", "PUT", "HEAD"}
    assert record.bare == []
