"""Parallel listing: every key exactly once, whatever its name and whatever interrupts the listing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.aws.interfaces import UNREACHABLE, CallError, KeyPage
from smlaunch.aws.s3_pager import S3Pager, parse_object_list
from smlaunch.cli.main import run_command
from smlaunch.connection.open_connection import target_of_endpoint
from smlaunch.data.inventory_file import Inventory
from smlaunch.data.key_ranges import KeyRange, key_between, merge_ranges, uncovered_ranges
from smlaunch.data.parallel_listing import ListingProgress, list_prefix
from smlaunch.errors import JobError
from smlaunch.local.endpoint import Endpoint
from smlaunch.runs.launch_target import Target
from tests.data.pagers import MODIFIED_AT, MemoryPager
from tests.data.test_inventory import HOSTILE
from tests.local.client import EndpointClient

PAGE = (
    "<ListBucketResult><Contents>{}<LastModified>2026-11-21T12:34:56.000Z</LastModified><ETag>e</ETag>"
    "<Size>1</Size></Contents><IsTruncated>false</IsTruncated></ListBucketResult>"
)

letters = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
key_sets = st.sets(letters.filter(bool) | st.text("ab/", min_size=1, max_size=8), max_size=60)


def keys_in(path: Path) -> list[str]:
    return [key for batch in Inventory(path).batches(["key"]) for key in batch.column(0).to_pylist()]


@given(letters, st.none() | letters, st.sets(st.characters(exclude_categories=["Cs"]), max_size=8))
@settings(max_examples=300)
def test_between_is_inside(low: str, high: str | None, known_keys: set[str]) -> None:
    if high is not None and low >= high:
        return
    middle_key = key_between(low, high, sorted(known_keys))
    if middle_key is not None:
        assert low < middle_key and (high is None or middle_key < high)


def test_between_finds_any_place_in_few_steps() -> None:
    """Halving works where keys have long prefixes in common."""
    wanted_key = "data/train/part-00500123.jpg"
    alphabet = sorted(set("data/train/part-0123456789.jpg"))
    low, high, steps = "", None, 0
    while low != wanted_key:
        middle = key_between(low, high, alphabet)
        assert middle is not None
        steps += 1
        low, high = (middle, high) if middle <= wanted_key else (low, middle)
    assert low == wanted_key
    assert steps < 5 * len(wanted_key)


ranges = st.builds(
    lambda a, b: KeyRange(min(a, b), max(a, b)), st.text("abc", max_size=3), st.text("abc", max_size=3)
)


@given(st.lists(ranges, max_size=8), st.booleans())
def test_what_is_taken_and_what_is_left_make_up_everything(
    occupied_ranges: list[KeyRange], open_end: bool
) -> None:
    if open_end:
        occupied_ranges = [*occupied_ranges, KeyRange("b", None)]
    remaining_ranges = uncovered_ranges(occupied_ranges)
    for key in ("a", "aa", "ab", "abc", "b", "bb", "c", "cc", "ccc", "d"):

        def count_ranges_with(key_ranges: list[KeyRange], key: str = key) -> int:
            return sum(
                key_range.after < key and (key_range.up_to is None or key <= key_range.up_to)
                for key_range in key_ranges
            )

        assert count_ranges_with(remaining_ranges) == (not count_ranges_with(occupied_ranges))
        assert count_ranges_with(merge_ranges(occupied_ranges)) == bool(count_ranges_with(occupied_ranges))


@given(key_sets, st.integers(1, 7), st.integers(1, 6), st.sampled_from(["", "a", "a/", "b"]))
@settings(max_examples=60, deadline=None)
def test_every_key_once(
    tmp_path_factory: pytest.TempPathFactory, keys: set[str], size: int, workers: int, prefix: str
) -> None:
    out = tmp_path_factory.mktemp("listing") / "keys.parquet"
    counts = list_prefix(MemoryPager(keys, size), "bucket", prefix, out, worker_count=workers)
    expected_keys = sorted(key for key in keys if key.startswith(prefix))
    assert keys_in(out) == expected_keys
    assert counts.objects == len(expected_keys) and counts.bytes == sum(map(len, expected_keys))
    assert Inventory(out).prefix == prefix and Inventory(out).bucket == "bucket"
    assert [path.name for path in out.parent.iterdir()] == ["keys.parquet"]


@pytest.mark.parametrize("name", ["numbers", "one deep folder", "hex"])
def test_ten_workers_share_the_keys_out(tmp_path: Path, name: str) -> None:
    keys = {
        "numbers": [f"data/train/part-{number:08d}" for number in range(30_000)],
        "one deep folder": ["a", "b", *(f"x/very/deep/{number:06d}" for number in range(30_000))],
        "hex": [f"{number * 2654435761 % 2**32:08x}" for number in range(30_000)],
    }[name]
    pager = MemoryPager(keys, 100, lambda number: time.sleep(0.002))
    most = 0

    def on_progress(counts: ListingProgress) -> None:
        nonlocal most
        most = max(most, counts.active_workers)

    counts = list_prefix(
        pager, "b", "", tmp_path / "keys.parquet", on_progress=on_progress, interval_seconds=0.01
    )
    assert keys_in(tmp_path / "keys.parquet") == sorted(keys)
    assert most == 10
    assert counts.requests < 2 * 300, "cuts that find nothing are the smaller part"


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("failing_request", [2, 5, 17, 40, 90])
def test_what_ends_early_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_request: int
) -> None:
    """No key is lost or listed twice, and saved pages are not requested again."""
    monkeypatch.setattr("smlaunch.data.parallel_listing._MAX_UNSAVED_ROWS", 50)
    keys = [f"{folder}/{number:04d}" for folder in "abc" for number in range(400)]
    out = tmp_path / "keys.parquet"

    def on_request(number: int) -> None:
        if number == failing_request:
            raise _Killed

    pager = MemoryPager(keys, 10, on_request)
    with pytest.raises(_Killed):
        list_prefix(pager, "b", "", out, worker_count=3)
    assert not out.exists()
    with pytest.raises(JobError, match="continue it with --resume"):
        list_prefix(pager, "b", "", out, worker_count=3)
    with pytest.raises(JobError, match=r"'bucket': 'b'.*not {.*'bucket': 'other'"):
        list_prefix(pager, "other", "", out, worker_count=3, resume=True)
    second_pager = MemoryPager(keys, 10)
    counts = list_prefix(second_pager, "b", "", out, worker_count=3, resume=True)
    assert keys_in(out) == keys
    assert counts.objects == len(keys) and counts.bytes == sum(map(len, keys))
    if failing_request == 90:
        assert second_pager.requests < 120
    assert [path.name for path in tmp_path.iterdir()] == ["keys.parquet"]


def test_two_commands_do_not_write_one_file(tmp_path: Path) -> None:
    out = tmp_path / "keys.parquet"

    def on_request(number: int) -> None:
        with pytest.raises(JobError, match="another process is writing it"):
            list_prefix(MemoryPager([]), "b", "", out, resume=True)

    list_prefix(MemoryPager(["a"], on_request=on_request), "b", "", out, worker_count=1)
    assert keys_in(out) == ["a"]


def test_a_service_that_is_asked_too_much_is_asked_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smlaunch.data.parallel_listing._MAX_PAUSE_SECONDS", 0.01)

    def on_request(number: int) -> None:
        time.sleep(0.001)
        if 40 <= number < 48:  # all connections at the same time
            time.sleep(0.1)
            raise CallError("ListObjectsV2", "SlowDown", "Please reduce your request rate.", 503)

    keys = [f"{number:05d}" for number in range(2000)]
    list_prefix(MemoryPager(keys, 20, on_request), "b", "", tmp_path / "keys.parquet")
    assert keys_in(tmp_path / "keys.parquet") == keys

    def always_throttle(number: int) -> None:
        raise CallError("ListObjectsV2", "SlowDown", "Please reduce your request rate.", 503)

    with pytest.raises(CallError, match="SlowDown"):
        list_prefix(MemoryPager(keys, 20, always_throttle), "b", "", tmp_path / "other.parquet")

    def missing_bucket(number: int) -> None:
        raise CallError("ListObjectsV2", UNREACHABLE, "no such host")

    unreachable = MemoryPager(keys, 20, missing_bucket)
    with pytest.raises(CallError, match="no such host"):
        list_prefix(unreachable, "b", "", tmp_path / "gone.parquet")
    assert unreachable.requests == 1, "what never answered is not waited for"

    def deny_access(number: int) -> None:
        raise CallError("ListObjectsV2", "AccessDenied", "no", 403)

    refused_pager = MemoryPager(keys, 20, deny_access)
    with pytest.raises(CallError, match="AccessDenied"):
        list_prefix(refused_pager, "b", "", tmp_path / "third.parquet", worker_count=4)
    assert refused_pager.requests == 1
    remaining_files = sorted(path.name for path in tmp_path.iterdir())
    assert remaining_files == ["keys.parquet"], "nothing is left to go on with where nothing was listed"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (KeyPage([], [], [], [], True), "returns none"),
        (KeyPage(["p/b", "p/a"], [1, 1], ["", ""], [MODIFIED_AT, MODIFIED_AT], False), "out of order"),
        (KeyPage(["q"], [1], [""], [MODIFIED_AT], False), "do not begin with 'p/'"),
        (KeyPage(["p/a"], [1], [""], [MODIFIED_AT], True), "lists 'p/a' after 'p/a'"),
    ],
)
def test_a_service_that_lists_otherwise_is_told(tmp_path: Path, page: KeyPage, message: str) -> None:
    class UnsortedPager:
        def list_page(self, bucket: str, prefix: str, start_after: str) -> KeyPage:
            return page

    with pytest.raises(CallError, match=message):
        list_prefix(UnsortedPager(), "b", "p/", tmp_path / "keys.parquet", worker_count=1)


def test_a_directory_bucket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="does not list in key order"):
        list_prefix(MemoryPager([]), "b--use1-az4--x-s3", "", tmp_path / "keys.parquet")


@pytest.mark.parametrize("page_xml", [str, lambda text: text.replace("<", "<s3:").replace("<s3:/", "</s3:")])
def test_an_answer_is_read_however_it_is_written(page_xml: Callable[[str], str]) -> None:
    entry = "<Contents>{}<LastModified>{}</LastModified>{}<Size>7</Size></Contents>"
    etag = "<ETag>&quot;abc-2&quot;</ETag>"
    rest_of_it = "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"

    def page(*entries: str) -> KeyPage:
        text = page_xml(f"<ListBucketResult>{''.join(entries)}{rest_of_it}</ListBucketResult>")
        return parse_object_list(
            text.replace("Result>", ' Result xmlns:s3="x">', 1).replace(" R", "R", 1).encode()
        )

    plain = entry.format("<Key>a%2Fb+c%2B</Key>", MODIFIED_AT, etag)
    assert page(plain) == KeyPage(["a/b c+"], [7], ["abc-2"], [MODIFIED_AT], True)
    escaped = entry.format("<Key>a&amp;b</Key>", MODIFIED_AT, etag)
    without_etag = entry.format("<Key>c</Key>", MODIFIED_AT, "")
    assert page(plain, escaped, without_etag).keys == ["a/b c+", "a&b", "c"]
    assert page(plain, escaped, without_etag).etags == ["abc-2", "abc-2", ""]
    assert page() == KeyPage([], [], [], [], True)


def test_an_answer_that_is_no_listing() -> None:
    for body in (b"<html/>", b"<ListBucketResult>", b"", b"<ListBucketResult><Contents/></ListBucketResult>"):
        with pytest.raises((ValueError, SyntaxError, KeyError)):
            parse_object_list(body)


def test_an_error_with_status_200_is_asked_again() -> None:
    """S3 may detect an error after it has sent status 200."""
    bodies = [
        b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>",
        PAGE.format("<Key>a</Key>").encode(),
        b"<html/>",
        b"",
    ]

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = bodies.pop(0)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *unused: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            target = Target.endpoint(f"http://127.0.0.1:{server.server_port}", "us-east-1", "a", "b")
            pages = S3Pager(target.client("s3"))
            assert pages.list_page("bucket", "", "").keys == ["a"]
            with pytest.raises(CallError, match="ListObjectsV2"):
                pages.list_page("bucket", "", "")
        finally:
            server.shutdown()
            thread.join()
    assert not bodies


def test_botocore_does_not_parse_a_page_again() -> None:
    """Parsing again would take as long as the rest. Our handler replaces botocore's own, which parses."""
    client = Target.endpoint("http://127.0.0.1:9", "us-east-1", "a", "b").client("s3")
    S3Pager(client)
    bodies: list[bytes] = []

    def record_parsed(response_dict: dict[str, Any], **unused: object) -> None:
        bodies.append(response_dict["body"])

    client.meta.events.register_first("before-parse.s3.*", record_parsed)
    answer: dict[str, Any] = {}
    client.meta.events.emit(
        "before-parse.s3.ListObjectsV2",
        operation_model=client.meta.service_model.operation_model("ListObjectsV2"),
        response_dict={"status_code": 200, "headers": {}, "body": PAGE.format("<Key>a</Key>").encode()},
        customized_response_dict=answer,
    )
    assert bodies == [b"<ListBucketResult/>"]
    assert [page.keys for page in answer.values()] == [["a"]]


def test_hostile_keys_of_a_service(home: Path, tmp_path: Path) -> None:
    """The keys arrive through botocore and HTTP, by the command, and as botocore itself pages through
    them."""
    with Endpoint(home) as info:
        client = EndpointClient(info)
        for number, key in enumerate(HOSTILE):
            client.put(key, b"x" * number)
        pages = S3Pager(target_of_endpoint(info).client("s3"))
        page = pages.list_page("tests", "", "")
        client_entries = client.s3.list_objects_v2(Bucket="tests")["Contents"]
        assert page.keys == [entry["Key"] for entry in client_entries] == sorted(HOSTILE)
        assert page.sizes == [entry["Size"] for entry in client_entries]
        assert page.etags == [entry["ETag"].strip('"') for entry in client_entries]
        with pytest.raises(CallError, match="NoSuchBucket"):
            pages.list_page("nobody", "", "")
    out = tmp_path / "keys.parquet"
    assert run_command(["data", "inventory", "s3://tests/", "--out", str(out), "--local"]) == 0
    assert keys_in(out) == sorted(HOSTILE)
    rows = [row for batch in Inventory(out).batches(("key", "size")) for row in batch.to_pylist()]
    assert {row["key"]: row["size"] for row in rows} == {key: size for size, key in enumerate(HOSTILE)}


@pytest.mark.real
def test_a_listing_that_is_killed_goes_on(tmp_path: Path) -> None:
    """A real process gets SIGKILL at several points."""
    script = """\
import sys, time
from pathlib import Path
import smlaunch.data.parallel_listing as listing
from tests.data.pagers import MemoryPager
listing._RUN_ROWS = 200
keys = [f"{number:06d}" for number in range(20_000)]
pager = MemoryPager(keys, 20, lambda number: time.sleep(0.002))
listing.list_prefix(pager, "b", "", Path(sys.argv[1]), resume=True, worker_count=4)
"""
    out = tmp_path / "keys.parquet"
    kills = 0
    while not out.exists():
        process = subprocess.Popen([sys.executable, "-c", script, str(out)])
        try:
            process.wait(0.7 + 0.1 * kills)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills
    assert keys_in(out) == [f"{number:06d}" for number in range(20_000)]


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "keys.parquet")]
    for arguments, message in (
        (["data", "inventory", *out], "give what to list"),
        (["data", "inventory", str(tmp_path / "gone"), *out], "is neither s3://bucket/prefix nor a folder"),
        (["data", "inventory", "s3://", *out], "'s3://' is not s3://bucket/prefix"),
        (
            ["data", "inventory", str(tmp_path), "--resume", *out],
            "a folder is always listed from the beginning",
        ),
        (["data", "invntory"], "did you mean 'inventory'"),
    ):
        assert run_command(arguments) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "x").write_text("12")
    assert run_command(["data", "inventory", str(tmp_path), *out, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["objects"], facts["bytes"], facts["prefix"]) == (1, 2, str(tmp_path))
