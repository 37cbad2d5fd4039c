"""All that the endpoint has acknowledged is on the disk: its system calls, and a power cut after each
response."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.stores.job_store import JobStore
from smlaunch.local.stores.object_store import ObjectStore
from tests.conftest import ROOT
from tests.local.client import EndpointClient
from tests.real.disk_trace import STRACE, Call, Disk, calls, is_answer

SCRIPT = """
os.makedirs("/opt/ml/checkpoints/step-1".replace("/opt/ml", ROOT))
for name, text in (("part", "parameters"), ("COMMIT", "all")):
    with open(f"{ROOT}/checkpoints/step-1/{name}", "w") as file:
        file.write(text)
with open(f"{ROOT}/model/weights", "w") as file:
    file.write("weights")
"""
UNKNOWN_CONTENT = b"of which only the name is known beforehand"


@contextmanager
def traced_endpoint(home: Path, folder: Path) -> Iterator[EndpointClient]:
    """Yields a client of an endpoint whose system calls are written into ``folder``."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: make test-real")
    home.mkdir(mode=0o700)
    program = [sys.executable, "-m", "tests.local.endpoint_process", str(home), "plain", "embedded", "{}"]
    with subprocess.Popen(
        [*STRACE, "-o", str(folder / "trace"), *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as endpoint:
        assert endpoint.stdin is not None and endpoint.stdout is not None
        yield EndpointClient(EndpointInfo.from_json(endpoint.stdout.readline()))
        endpoint.stdin.close()


@pytest.mark.parametrize("all_names", [False, True], ids=["synced-names", "all-names"])
def test_what_was_answered_survives_a_power_cut(all_names: bool, tmp_path: Path) -> None:
    home = tmp_path / "home"
    truths: list[tuple[dict[str, bytes], dict[str, str]]] = [
        ({}, {})
    ]  # the bucket itself, made by the client
    truth: dict[str, bytes] = {}
    jobs: dict[str, str] = {}

    def record_answered_state() -> None:
        truths.append((dict(truth), dict(jobs)))

    with traced_endpoint(home, tmp_path) as client:
        s3 = client.s3

        def put(key: str, body: bytes) -> None:
            s3.put_object(Bucket="tests", Key=key, Body=body)
            truth[key] = body
            record_answered_state()

        put("a", b"one")
        put("deep/er/still/b", b"two" * 1000)
        put("a", b"another one")  # over it
        put("../odd", b"in the side folder")
        upload = s3.create_multipart_upload(Bucket="tests", Key="c")["UploadId"]
        record_answered_state()
        part = s3.upload_part(Bucket="tests", Key="c", UploadId=upload, PartNumber=1, Body=b"three" * 999)
        record_answered_state()
        chosen = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        s3.complete_multipart_upload(Bucket="tests", Key="c", UploadId=upload, MultipartUpload=chosen)
        truth["c"] = b"three" * 999
        record_answered_state()
        s3.copy_object(Bucket="tests", Key="new/d", CopySource={"Bucket": "tests", "Key": "c"})
        truth["new/d"] = truth["c"]
        record_answered_state()
        s3.delete_object(Bucket="tests", Key="a")
        del truth["a"]
        record_answered_state()
        put("a/b", b"where a was")
        s3.delete_objects(Bucket="tests", Delete={"Objects": [{"Key": "a/b"}, {"Key": "../odd"}]})
        del truth["a/b"], truth["../odd"]
        record_answered_state()
        request = client.request("job", SCRIPT, CheckpointConfig={"S3Uri": "s3://tests/checkpoints"})
        truth["code/job/script.py"] = s3.get_object(Bucket="tests", Key="code/job/script.py")["Body"].read()
        record_answered_state()  # the put
        record_answered_state()  # the get
        client.sagemaker.create_training_job(**request)
        jobs["job"] = "InProgress"
        record_answered_state()
        while client.describe("job")["TrainingJobStatus"] == "InProgress":
            record_answered_state()
            time.sleep(0.2)
        jobs["job"] = "Completed"
        truth["checkpoints/step-1/part"] = b"parameters"
        truth["checkpoints/step-1/COMMIT"] = b"all"
        truth["out/job/output/model.tar.gz"] = UNKNOWN_CONTENT
        record_answered_state()

    disk = Disk(home)
    number = -1
    for call in calls(tmp_path):
        if not is_answer(call):
            disk.apply(call)
            continue
        number += 1
        if number == len(truths):
            break
        surviving = tmp_path / f"left-{number}"
        disk.write_surviving_files(surviving, all_names=all_names)
        check(surviving, *truths[number])
    assert number == len(truths) - 1


def check(home: Path, truth: dict[str, bytes], jobs: dict[str, str]) -> None:
    store = ObjectStore(home / "s3")
    contents = {}
    for info in store.list_objects("tests"):
        _, file = store.open_object("tests", info.key)
        with file:
            contents[info.key] = file.read()
    store.close()
    for key, body in truth.items():  # one that was being written may be there too
        assert contents.get(key) is not None and body in (contents[key], UNKNOWN_CONTENT), key
    jobs_store = JobStore(home / "jobs.sqlite")
    for name, status in jobs.items():
        record = jobs_store.get_job("training-job", "us-east-1", name)
        assert record is not None, name
        assert status == "InProgress" or record.state.status == status, record.state
    jobs_store.close()


def test_the_order_is_body_name_folders_index_answer(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with traced_endpoint(home, tmp_path) as client:
        client.s3.put_object(Bucket="tests", Key="new/folder/key", Body=b"body")
    traced_calls = list(calls(tmp_path))
    bucket = f"{home}/s3/tests"
    (rename,) = (
        call for call in traced_calls if call.name == "rename" and call.other == f"{bucket}/new/folder/key"
    )

    def is_sync_of(path: str) -> Callable[[Call], bool]:
        return lambda call: call.name in ("fsync", "fdatasync") and call.path == path

    steps: list[Callable[[Call], bool]] = [
        lambda call: call.name == "write" and call.path == rename.path,
        is_sync_of(rename.path),
        lambda call: call is rename,
        lambda call: call.name == "pwrite64" and call.path.endswith("index.sqlite-wal"),
        lambda call: call.name in ("fsync", "fdatasync") and call.path.endswith("index.sqlite-wal"),
        is_answer,
    ]
    position = 0
    for number, step in enumerate(steps):
        position = next((i for i in range(position, len(traced_calls)) if step(traced_calls[i])), -1)
        assert position >= 0, f"step {number} does not follow"
    calls_between = traced_calls[traced_calls.index(rename) : position]
    committed = max(
        i for i, call in enumerate(calls_between) if is_sync_of(f"{home}/s3/_store/index.sqlite-wal")(call)
    )
    for folder in (f"{bucket}/new/folder", f"{bucket}/new", bucket):
        assert any(is_sync_of(folder)(call) for call in calls_between[:committed]), folder
