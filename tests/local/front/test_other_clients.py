"""Other people's S3 clients against the endpoint's S3: the AWS CLI, s5cmd, obstore.

``make test-real`` installs them (tools/real_components.py). One that is missing is skipped by name.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local.front.conftest import CREDENTIALS, ServerHarness

pytestmark = pytest.mark.real
HOME = Path(__file__).resolve().parents[3] / ".venv-real"
Run = Callable[..., str]


@pytest.fixture
def run(front: ServerHarness, tmp_path: Path) -> Run:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
        "AWS_ACCESS_KEY_ID": CREDENTIALS.access_key,
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret_key,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": front.url,
        "S3_ENDPOINT_URL": front.url,
    }

    def call(program: str, *arguments: object, check: bool = True) -> str:
        """``program``: ``<environment>/<program>``. Its stdout; fails with its stderr."""
        home, _, name = program.partition("/")
        path = HOME / home / "bin" / name
        if not path.exists():
            pytest.skip(f"{home} is not installed: make test-real")
        words = [str(path), *map(str, arguments)]
        result = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
        if check and result.returncode:
            pytest.fail(f"{' '.join(words)}: {result.stdout}{result.stderr}")
        return result.stdout

    return call


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    (folder / "sub").mkdir(parents=True)
    (folder / "a b+c.txt").write_text("x")
    (folder / "sub/ü.txt").write_text("y")
    (folder / "big").write_bytes(os.urandom((20 << 20) + 1))
    return folder


def test_aws_cli(run: Run, files: Path, bucket: str, tmp_path: Path) -> None:
    aws = "awscli/aws"
    run(aws, "s3", "sync", files, f"s3://{bucket}/d")
    back = tmp_path / "back"
    run(aws, "s3", "sync", f"s3://{bucket}/d", back)
    assert (back / "big").read_bytes() == (files / "big").read_bytes()
    assert (back / "sub/ü.txt").read_text() == "y"
    run(aws, "s3", "mv", f"s3://{bucket}/d/big", f"s3://{bucket}/e/big")
    run(aws, "s3", "mb", "s3://made-by-cli")
    run(aws, "s3", "cp", f"s3://{bucket}/", "s3://made-by-cli/", "--recursive")
    listing = run(aws, "s3", "ls", "s3://made-by-cli", "--recursive")
    assert [line.split(maxsplit=3)[3] for line in listing.splitlines()] == [
        "d/a b+c.txt",
        "d/sub/ü.txt",
        "e/big",
    ]
    for algorithm in ("CRC32", "SHA256"):
        words = ("s3", "cp", files / "big", f"s3://{bucket}/{algorithm}", "--checksum-algorithm", algorithm)
        run(aws, *words)
        run(aws, "s3", "cp", f"s3://{bucket}/{algorithm}", back / algorithm)
        assert (back / algorithm).read_bytes() == (files / "big").read_bytes()
    run(aws, "s3", "rb", "s3://made-by-cli", "--force")
    assert "000000000000" in run(aws, "sts", "get-caller-identity")
    assert "Completed" in run(aws, "sagemaker", "list-training-jobs")
    assert run(aws, "s3", "ls", "--no-sign-request", check=False) == ""


def test_s5cmd(run: Run, files: Path, bucket: str, tmp_path: Path) -> None:
    s5cmd = "clients/s5cmd"
    run(s5cmd, "cp", f"{files}/", f"s3://{bucket}/d/")
    back = tmp_path / "back"
    run(s5cmd, "cp", "--part-size", "5", f"s3://{bucket}/d/big", f"{back}/")
    assert (back / "big").read_bytes() == (files / "big").read_bytes()
    run(s5cmd, "cp", f"s3://{bucket}/d/*", f"s3://{bucket}/e/")
    run(s5cmd, "mv", f"s3://{bucket}/e/a b+c.txt", f"s3://{bucket}/moved")
    assert run(s5cmd, "cat", f"s3://{bucket}/moved") == "x"
    run(s5cmd, "sync", f"{files}/", f"s3://{bucket}/synced/")
    run(s5cmd, "rm", f"s3://{bucket}/*")
    assert run(s5cmd, "ls", f"s3://{bucket}", check=False) == ""


OBSTORE = """
import os, sys, obstore
from obstore.store import S3Store
store = S3Store(sys.argv[1], endpoint=os.environ["AWS_ENDPOINT_URL"], client_options={"allow_http": True})
big = os.urandom(25 << 20)
obstore.put(store, "o/big", big, use_multipart=True, chunk_size=5 << 20)
assert bytes(obstore.get(store, "o/big").bytes()) == big
assert [bytes(b) for b in obstore.get_ranges(store, "o/big", starts=[1, 9_000_000], ends=[5, 9_000_010])] == [
    big[1:5], big[9_000_000:9_000_010]]
obstore.put(store, "o/x", b"1")
for mode in ("create", {"e_tag": '"0"'}):
    try:
        obstore.put(store, "o/x", b"2", mode=mode)
    except Exception as error:
        print(type(error).__name__)
obstore.put(store, "o/x", b"3", mode={"e_tag": obstore.head(store, "o/x")["e_tag"]})
obstore.copy(store, "o/x", "o/y é+")
obstore.rename(store, "o/y é+", "o/z")
print(sorted(entry["path"] for page in obstore.list(store, "o") for entry in page))
obstore.delete(store, ["o/x", "o/z", "o/big"])
"""


def test_obstore(front: ServerHarness, run: Run, bucket: str) -> None:
    output = run("clients/python", "-c", OBSTORE, bucket)
    assert output.splitlines() == ["AlreadyExistsError", "PreconditionError", "['o/big', 'o/x', 'o/z']"]
    assert list(front.objects.list_objects(bucket)) == []
