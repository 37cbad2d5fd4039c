"""Every request to a bucket of ours says whose the bucket has to be, whichever part of smlaunch sends it.

Requests are recorded where they arrive: at the S3 of a real endpoint in this process. What the command line,
obstore and the ranks of a job send is all there.
"""

from __future__ import annotations

import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from smlaunch.cli.main import run_command
from smlaunch.connection.open_connection import open_connection
from smlaunch.local.front.http_messages import Payload, Request, Response
from smlaunch.local.front.request_context import ACCOUNT
from smlaunch.local.services.s3.operations import bucket_and_key
from smlaunch.local.services.s3.service import S3Service
from tests.e2e.chains import drive_command, write_script

OTHER_ACCOUNT = "999999999999"


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
    def without_owner(self) -> list[Sent]:
        """Requests that name no owner, except those that make a bucket, which the caller then owns."""
        return [
            row
            for row in self.sent
            if row.bucket and row.owner != ACCOUNT and not (row.method == "PUT" and not row.key)
        ]


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Iterator[Record]:
    record = Record()
    serve, owner_of = S3Service.serve, S3Service.owner_of

    def record_request(self: S3Service, request: Request, payload: Payload) -> Response:
        record.take(request)
        return serve(self, request, payload)

    def owner(self: S3Service, bucket: str) -> str | None:
        return OTHER_ACCOUNT if bucket in record.strangers else owner_of(self, bucket)

    monkeypatch.setattr(S3Service, "serve", record_request)
    monkeypatch.setattr(S3Service, "owner_of", owner)
    yield record


MakeBucket = Callable[[str, str], None]


@pytest.fixture
def bucket_maker(home: Path) -> MakeBucket:
    """Returns a function that makes a bucket with an object in it."""

    def make(bucket: str, key: str) -> None:
        with open_connection({"local": True, "region": None, "profile": None}) as connection:
            s3 = connection.target.client("s3")
            s3.create_bucket(Bucket=bucket)
            s3.put_object(Bucket=bucket, Key=key, Body=b"content")

    return make


@pytest.fixture
def default_bucket(home: Path) -> str:
    with open_connection({"local": True, "region": None, "profile": None}) as connection:
        connection.target.storage.create_bucket(str(connection.target.bucket), "us-east-1")
        return str(connection.target.bucket)


def smlaunch(*arguments: str | Path) -> int:
    return run_command([str(word) for word in arguments])


def test_a_chain_its_followers_and_its_files_name_the_owner(
    home: Path, tmp_path: Path, record: Record, capfd: pytest.CaptureFixture[str]
) -> None:
    script = write_script(tmp_path / "source")
    (tmp_path / "data").mkdir()
    for number in range(30):
        (tmp_path / "data" / f"{number}.bin").write_bytes(bytes(100))
    run = [*drive_command(script, "owned"), "--input", f"train={tmp_path / 'data'}"]
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
    assert record.without_owner == []


DIRECT = """\
from smlaunch.train import Checkpointer

class Thing:
    value = 0
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = state["value"]

thing = Thing()
with Checkpointer(thing=thing) as run:
    for batch in run.batches([1, 2, 3], epochs=1):
        thing.value += batch
        run.step()
"""


CHAIN = "limits: {max_runtime: 10m, segment: 60s}\n"


def write_job(tmp_path: Path, checkpoints: str, job_lines: str = "") -> Path:
    (tmp_path / "train.py").write_text(DIRECT)
    job = tmp_path / "job.yaml"
    job.write_text(f"entry: train.py\ncheckpoints: {checkpoints}\n{job_lines}")
    return job


def test_ranks_that_move_their_own_checkpoints_name_the_owner(
    home: Path, tmp_path: Path, record: Record
) -> None:
    job = write_job(tmp_path, "{upload: direct}")
    assert smlaunch("run", job, "--local", "--name", "moved") == 0
    ranks = [row for row in record.sent if "rank-00000" in row.key or "COMMIT" in row.key]
    assert {row.method for row in ranks} >= {"PUT", "HEAD"}
    assert record.without_owner == []


def test_data_that_is_sent_fetched_packed_and_listed(
    home: Path, tmp_path: Path, record: Record, default_bucket: str
) -> None:
    """botocore transfers the first objects; obstore takes over from sixteen objects on, and for large ones in
    parts."""
    pytest.importorskip("obstore", reason="needs the extra data")
    data = tmp_path / "data"
    data.mkdir()
    for number in range(20):
        (data / f"{number}.bin").write_bytes(bytes(1000))
    (data / "large.bin").write_bytes(bytes(40 << 20))
    uri = f"s3://{default_bucket}/data/"
    assert smlaunch("data", "push", data, uri, "--local") == 0
    assert smlaunch("data", "push", data, uri, "--local") == 0
    assert smlaunch("data", "pull", uri, tmp_path / "back", "--local") == 0
    assert smlaunch("data", "pack", uri, f"s3://{default_bucket}/packed/", "--local") == 0
    assert smlaunch("data", "inventory", uri, "--local", "--out", tmp_path / "listed") == 0
    assert any("uploads" in row.query for row in record.sent)
    assert any("object_store" in row.agent for row in record.sent)
    assert record.without_owner == []


def test_a_stranger_who_has_the_default_bucket_gets_nothing(
    home: Path, tmp_path: Path, record: Record, default_bucket: str, capfd: pytest.CaptureFixture[str]
) -> None:
    record.strangers.add(default_bucket)
    files_before = sorted(path for path in home.rglob("*") if "/s3/" in str(path) and path.is_file())
    (tmp_path / "train.py").write_text("print(1)\n")
    assert smlaunch("run", tmp_path / "train.py", "--local") == 3
    message = capfd.readouterr().err.splitlines()[-1]
    assert f"the bucket {default_bucket} does not belong to the account {ACCOUNT}" in message
    assert "S3 has refused the request" in message
    data = tmp_path / "data"
    data.mkdir()
    for number in range(20):
        (data / f"{number}.bin").write_bytes(b"secret")
    assert smlaunch("data", "push", data, f"s3://{default_bucket}/x/", "--local") == 3
    assert smlaunch("data", "pull", f"s3://{default_bucket}/x/", tmp_path / "back", "--local") == 3
    assert smlaunch("data", "pack", data, f"s3://{default_bucket}/x/", "--local") == 3
    assert sorted(path for path in home.rglob("*") if "/s3/" in str(path) and path.is_file()) == files_before
    assert record.without_owner == [] or all(
        row.method == "HEAD" and not row.key for row in record.without_owner
    )


def test_inputs_may_be_anybodys_and_checkpoints_whose_the_job_says(
    home: Path, tmp_path: Path, record: Record, bucket_maker: MakeBucket, capfd: pytest.CaptureFixture[str]
) -> None:
    bucket_maker("public", "in/a.bin")
    bucket_maker("theirs", "marker")
    record.strangers |= {"public", "theirs"}
    inputs = "inputs: {{train: {{uri: 's3://public/in/'{0}}}}}\n"
    refused_job = write_job(tmp_path, "{upload: direct}", inputs.format(f", bucket_owner: '{ACCOUNT}'"))
    assert smlaunch("run", refused_job, "--local") == 2
    assert f"does not belong to the account {ACCOUNT}" in capfd.readouterr().err
    for owner_setting in ("", f", bucket_owner: '{OTHER_ACCOUNT}'"):
        job = write_job(tmp_path, "{upload: direct}", inputs.format(owner_setting))
        assert smlaunch("run", job, "--local") == 0

    push_command = ("data", "push", tmp_path / "train.py", "s3://theirs/pushed/", "--local")
    assert smlaunch(*push_command) == 3
    assert smlaunch(*push_command, "--bucket-owner", OTHER_ACCOUNT) == 0
    assert smlaunch("data", "pull", "s3://public/in/", tmp_path / "back", "--local") == 0
    assert smlaunch(*push_command, "--bucket-owner", "me") == 2

    mine = write_job(tmp_path, "{uri: 's3://theirs/kept/', upload: direct}")
    assert smlaunch("run", mine, "--local", "--name", "mine") == 3
    assert f"the bucket theirs does not belong to the account {ACCOUNT}" in capfd.readouterr().err
    record.sent.clear()
    checkpoints = f"{{uri: 's3://theirs/kept/', upload: direct, bucket_owner: '{OTHER_ACCOUNT}'}}"
    job = write_job(
        tmp_path, checkpoints, f"output: s3://theirs/out/\nbucket_owner: '{OTHER_ACCOUNT}'\n{CHAIN}"
    )
    assert smlaunch("run", job, "--local", "--name", "lent") == 0
    assert smlaunch("show", "lent", "--local") == 0
    assert smlaunch("checkpoints", "ls", "lent", "--local") == 0
    assert "step 3" in capfd.readouterr().out
    rows = [row for row in record.sent if row.bucket == "theirs"]
    assert {row.method for row in rows} >= {"PUT", "HEAD", "GET"}
    assert {row.owner for row in rows} == {OTHER_ACCOUNT}
    assert smlaunch("checkpoints", "ls", "s3://theirs/kept/", "--local") == 3
    assert smlaunch("checkpoints", "ls", "s3://theirs/kept/", "--local", "--bucket-owner", OTHER_ACCOUNT) == 0
    assert all(row.bucket == "theirs" for row in record.without_owner)


def test_a_source_that_somebody_replaced_is_not_run(
    home: Path, tmp_path: Path, default_bucket: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The source is stored under its own hash and not sent again if it exists: a host compares what it
    downloads."""
    script = tmp_path / "source" / "train.py"
    script.parent.mkdir()
    script.write_text("print('mine')\n")
    assert smlaunch("run", script, "--local") == 0
    with open_connection({"local": True, "region": None, "profile": None}) as connection:
        storage = connection.target.storage
        (source_object,) = storage.list_objects(default_bucket, "smlaunch/source/")
        planted = io.BytesIO()
        with tarfile.open(fileobj=planted, mode="w:gz") as archive:
            info = tarfile.TarInfo("train.py")
            info.size = len(b"print('planted')")
            archive.addfile(info, io.BytesIO(b"print('planted')"))
        storage.put_bytes(default_bucket, source_object.key, planted.getvalue())
    capfd.readouterr()
    assert smlaunch("run", script, "--local") != 0
    captured = capfd.readouterr()
    assert "the source is not the one that was sent with the job" in captured.out + captured.err
    assert "planted" not in captured.out


def test_what_is_exported_names_the_owner(home: Path, tmp_path: Path, record: Record) -> None:
    """Both the staged objects and the machine's requests to S3 name the owner."""
    script = write_script(tmp_path / "source")
    limits = ("--max-runtime", "10m", "--segment", "60s")
    assert smlaunch("export", "step-functions", script, "--local", *limits, "--out", tmp_path / "out") == 0
    assert any(row.method == "PUT" for row in record.sent)
    assert record.without_owner == []
    (machine,) = (tmp_path / "out").rglob("*.asl.json")
    states = json.loads(machine.read_text())["States"].values()
    parameters = [row["Parameters"] for row in states if ":s3:" in row.get("Resource", "")]
    assert len(parameters) == 2
    assert {row["ExpectedBucketOwner"] for row in parameters} == {ACCOUNT}


def test_a_proof_of_resuming_names_the_owner(home: Path, tmp_path: Path, record: Record) -> None:
    job = write_job(tmp_path, "{upload: sync}")
    (tmp_path / "train.py").write_text(DIRECT.replace("[1, 2, 3]", "[1] * 40"))
    smlaunch("verify-resume", job, "--cuts", "1", "--signal", "term")
    assert {row.method for row in record.sent} >= {"PUT", "GET"}
    assert record.without_owner == []
