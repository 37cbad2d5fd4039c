"""Transfers against the local endpoint's S3, which verifies signatures and checksums as S3 does."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smlaunch.aws.interfaces import CallError, MultipartUpload, ObjectChecksum, TransferItem, UploadedPart
from smlaunch.aws.s3_multipart import S3Multipart
from smlaunch.data import multipart_transfer
from smlaunch.data.s3_checksums import (
    LARGE_FILE_BYTES,
    MIN_PART_BYTES,
    DigestAlgorithm,
    RunningDigest,
    expected_digest,
    file_digest,
    multipart_digest,
    new_digest,
    part_ranges,
    part_size,
)
from smlaunch.data.s3_transfer import CONNECTIONS, FastTransfer, FastTransferFailed, S3Transfer
from smlaunch.data.thread_pool import for_each_in_threads
from smlaunch.data.transfer_progress import TransferProgress
from smlaunch.errors import JobError
from smlaunch.local.endpoint import Endpoint
from smlaunch.runs.launch_target import Target

obstore = pytest.importorskip("obstore", reason="needs the extra data")

BUCKET = "transfers"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with Endpoint(tmp_path_factory.mktemp("home"), isolation="plain") as info:
        target = Target.endpoint(info.url, info.region, info.access_key, info.secret_key)
        target.storage.create_bucket(BUCKET, info.region)
        yield target


@pytest.fixture(params=["obstore", "botocore"])
def transfer(request: pytest.FixtureRequest, target: Target) -> S3Transfer:
    return by_obstore(target) if request.param == "obstore" else by_botocore(target)


def by_obstore(target: Target) -> S3Transfer:
    from smlaunch.data.obstore_transfer import open_obstore

    fast_transfer = open_obstore(
        target.owner_checked_s3_client(), target.session, target.bucket_owner_check()
    )
    assert fast_transfer is not None
    return S3Transfer(
        target.storage, S3Multipart(target.owner_checked_s3_client()), lambda: StrictTransfer(fast_transfer)
    )


def by_botocore(target: Target) -> S3Transfer:
    return S3Transfer(target.storage, S3Multipart(target.owner_checked_s3_client()), lambda: None)


class StrictTransfer:
    """An obstore transfer that may not fail: the fallback to botocore would hide the failure."""

    def __init__(self, fast_transfer: FastTransfer) -> None:
        self.supports_key = fast_transfer.supports_key
        self.put = _fail_on_error(fast_transfer.put)
        self.upload_file = _fail_on_error(fast_transfer.upload_file)
        self.get_range = _fail_on_error(fast_transfer.get_range)


def _fail_on_error(method: Callable[..., object]) -> Callable[..., object]:
    def call(*arguments: object) -> object:
        try:
            return method(*arguments)
        except FastTransferFailed as error:
            raise AssertionError(f"obstore failed: {error.__cause__}") from error

    return call


def files(folder: Path, contents: dict[str, bytes], prefix: str) -> list[TransferItem]:
    items: list[TransferItem] = []
    for number, (key, content) in enumerate(contents.items()):
        path = folder / str(number)
        path.write_bytes(content)
        items.append(TransferItem(prefix + key, path, len(content)))
    return items


def store_files(target: Target, prefix: str, folder: Path) -> list[TransferItem]:
    return [
        TransferItem(item.key, folder / f"{number}.back", item.size, item.etag)
        for number, item in enumerate(target.storage.list_objects(BUCKET, prefix))
    ]


_KEYS = (
    *("plain.txt", "a b/c d", "é/ü/漢字", "100%/%20/%2F", "q?x=1&y#z", "~tilde", "[x]{y}", "back\\slash"),
    *('"<>|^`', "+=&;@,:$'()!*", "double//slash", "new\nline", "tab\tbell\x07", "../above", "a/./b"),
    *("a/../b", ".hidden", "/lead", "trailing/", "k" * 900),
)
HOSTILE = {"empty": b"", **{key: str(number).encode() for number, key in enumerate(_KEYS)}}


def test_every_key_and_content_comes_back_as_it_was(
    transfer: S3Transfer, target: Target, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    prefix = f"hostile-{request.node.callspec.id}/"
    progress = TransferProgress(len(HOSTILE), sum(map(len, HOSTILE.values())))
    transfer.upload_files(BUCKET, files(tmp_path, HOSTILE, prefix), progress.add)
    assert (progress.done_files, progress.done_bytes) == (progress.total_files, progress.total_bytes)

    items = store_files(target, prefix, tmp_path)
    assert {item.key.removeprefix(prefix) for item in items} == set(HOSTILE)
    transfer.download_files(BUCKET, items, TransferProgress(0, 0).add)
    for item in items:
        assert item.path.read_bytes() == HOSTILE[item.key.removeprefix(prefix)]
        assert transfer.has_same_content(BUCKET, item)
    assert not list(tmp_path.glob("*.part"))


def test_large_files_go_in_parts_and_are_checked_by_the_parts_digests(
    transfer: S3Transfer, target: Target, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    prefix = f"large-{request.node.callspec.id}/"
    content = random.Random(1).randbytes(LARGE_FILE_BYTES + 12_345)
    progress = TransferProgress(1, len(content))
    transfer.upload_files(BUCKET, files(tmp_path, {"big": content}, prefix), progress.add)
    assert progress.done_bytes == len(content)
    [item] = store_files(target, prefix, tmp_path)
    check = S3Multipart(target.client("s3")).get_object_checksum(BUCKET, item.key)
    assert check.part_size == MIN_PART_BYTES and check.sha256 == file_digest(
        tmp_path / "0", "sha256", MIN_PART_BYTES
    )
    transfer.download_files(BUCKET, [item], TransferProgress(0, 0).add)
    assert item.path.read_bytes() == content
    assert transfer.has_same_content(BUCKET, item)
    item.path.write_bytes(content[:-1] + b"?")
    assert not transfer.has_same_content(BUCKET, item)


def test_a_content_with_another_hash_than_the_planned_one_never_becomes_an_object(
    transfer: S3Transfer, target: Target, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Small and large, by either client: the size is the planned one, and the last byte is not."""
    prefix = f"planned-{request.node.callspec.id}/"
    contents = {"small": b"abc", "large": bytes(LARGE_FILE_BYTES + 1)}
    items = [
        item._replace(sha256=hashlib.sha256(contents[item.key.removeprefix(prefix)]).digest())
        for item in files(tmp_path, contents, prefix)
    ]
    for item in items:
        content = item.path.read_bytes()
        item.path.write_bytes(content[:-1] + b"?")
        with pytest.raises(JobError, match=r"has changed since the plan was made; plan again"):
            transfer.upload_files(BUCKET, [item], TransferProgress(1, 0).add)
        assert target.storage.get_bytes(BUCKET, item.key) is None

        item.path.write_bytes(content)
        transfer.upload_files(BUCKET, [item], TransferProgress(1, 0).add)
        assert target.storage.get_bytes(BUCKET, item.key) == content
        assert transfer.has_same_content(BUCKET, item)
        assert not transfer.has_same_content(BUCKET, item._replace(sha256=bytes(32)))


def test_what_s3_has_is_compared_with_the_plan_and_not_with_the_file(target: Target, tmp_path: Path) -> None:
    """A small object by S3's SHA-256 alone: the file need not be read, nor be what it was. One that was
    uploaded in parts, or by another client, by the file, if that still is the planned one."""
    content, other = bytes(LARGE_FILE_BYTES), bytes(LARGE_FILE_BYTES - 1) + b"?"
    small, large = files(tmp_path, {"small": b"abc", "large": content}, "compared/")
    small = small._replace(sha256=hashlib.sha256(b"abc").digest())
    large = large._replace(sha256=hashlib.sha256(content).digest())
    transfer = by_botocore(target)
    transfer.upload_files(BUCKET, [small, large], TransferProgress(2, 0).add)
    small.path.write_bytes(b"xyz")
    assert transfer.has_same_content(BUCKET, small._replace(path=tmp_path / "none"))
    assert transfer.has_same_content(BUCKET, large)
    large.path.write_bytes(other)
    assert not transfer.has_same_content(BUCKET, large)
    transfer.upload_files(BUCKET, [large._replace(sha256=None)], TransferProgress(1, 0).add)  # another client
    assert not transfer.has_same_content(BUCKET, large)  # file and object are equal, and neither is planned
    target.client("s3").put_object(Bucket=BUCKET, Key=small.key, Body=b"xyz")
    assert not transfer.has_same_content(BUCKET, small)


def test_an_upload_that_was_cut_off_is_gone_on_with(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unfinished upload of any client is continued: three of four parts exist, and the second one
    differs."""
    content = random.Random(2).randbytes(3 * MIN_PART_BYTES + 99)
    [item] = files(tmp_path, {"cut": content}, "resumed/")
    parts = S3Multipart(target.client("s3"))
    upload = parts.create_multipart_upload(BUCKET, item.key)
    for number, (start, length) in enumerate(part_ranges(len(content), MIN_PART_BYTES), 1):
        if number != 3:
            piece = content[start : start + length] if number != 2 else bytes(length)
            parts.upload_part(BUCKET, item.key, upload, number, piece)
    part_numbers: list[int] = []
    put_part = S3Multipart.upload_part

    def record_part(self: S3Multipart, *arguments: object) -> UploadedPart:
        part_numbers.append(int(str(arguments[3])))
        return put_part(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(S3Multipart, "upload_part", record_part)
    progress = TransferProgress(1, len(content))
    by_obstore(target).upload_files(BUCKET, [item], progress.add)
    assert sorted(part_numbers) == [2, 3]
    assert progress.done_bytes == len(content)
    assert target.storage.get_bytes(BUCKET, item.key) == content
    assert parts.list_resumable_uploads(BUCKET, item.key) == []


def test_parts_are_hashed_for_comparison_only_if_s3_has_them(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``upload_part`` hashes what it sends: hashing it twice would slow uploads down."""
    hashed_sizes: list[int] = []

    def record_digest(algorithm: DigestAlgorithm, content: bytes = b"") -> RunningDigest:
        hashed_sizes.append(len(content))
        return new_digest(algorithm, content)

    monkeypatch.setattr(multipart_transfer, "new_digest", record_digest)
    [item] = files(tmp_path, {"new": bytes(LARGE_FILE_BYTES)}, "hashed/")
    by_botocore(target).upload_files(BUCKET, [item], TransferProgress(1, 0).add)
    assert hashed_sizes == []


def test_an_upload_of_another_file_is_left_alone(target: Target, tmp_path: Path) -> None:
    content = bytes(LARGE_FILE_BYTES)
    [item] = files(tmp_path, {"other": content}, "left/")
    parts = S3Multipart(target.client("s3"))
    upload = parts.create_multipart_upload(BUCKET, item.key)
    for number, size in ((1, MIN_PART_BYTES), (2, MIN_PART_BYTES - 1), (3, MIN_PART_BYTES)):
        parts.upload_part(BUCKET, item.key, upload, number, bytes(size))
    by_botocore(target).upload_files(BUCKET, [item], TransferProgress(1, 0).add)
    assert target.storage.get_bytes(BUCKET, item.key) == content
    assert [unfinished.upload_id for unfinished in parts.list_resumable_uploads(BUCKET, item.key)] == [upload]


# ---- damage ----------------------------------------------------------------------------------------------


class DamagingMultipart:
    """PartStorage that returns one byte wrong."""

    def __init__(self, parts: S3Multipart, check: ObjectChecksum | None = None) -> None:
        self.create_multipart_upload = parts.create_multipart_upload
        self.upload_part = parts.upload_part
        self.complete_multipart_upload = parts.complete_multipart_upload
        self.list_resumable_uploads = parts.list_resumable_uploads
        self._parts, self._check = parts, check

    def get_range(self, bucket: str, key: str, start: int, length: int, etag: str | None) -> Iterator[bytes]:
        for number, piece in enumerate(self._parts.get_range(bucket, key, start, length, etag)):
            yield piece if start or number else bytes([piece[0] ^ 1]) + piece[1:]

    def get_object_checksum(self, bucket: str, key: str) -> ObjectChecksum:
        return self._check or self._parts.get_object_checksum(bucket, key)


@pytest.mark.parametrize("size", [1000, LARGE_FILE_BYTES])
def test_what_comes_damaged_is_not_kept(target: Target, tmp_path: Path, size: int) -> None:
    prefix = f"damaged-{size}/"
    by_botocore(target).upload_files(
        BUCKET, files(tmp_path, {"x": os.urandom(size)}, prefix), TransferProgress(1, 0).add
    )
    [item] = store_files(target, prefix, tmp_path)
    item.path.write_bytes(b"what was there")
    damaging_transfer = S3Transfer(
        target.storage, DamagingMultipart(S3Multipart(target.client("s3"))), lambda: None
    )
    with pytest.raises(JobError, match="does not match S3's checksum"):
        damaging_transfer.download_files(BUCKET, [item], TransferProgress(1, 0).add)
    assert item.path.read_bytes() == b"what was there"
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize("kind", ["COMPOSITE", "FULL_OBJECT"])
@pytest.mark.parametrize("damaged", [False, True])
def test_what_others_sent_with_crc32_is_compared_with_that(
    target: Target, tmp_path: Path, kind: str, damaged: bool
) -> None:
    """boto3 sends the first kind by default; an object put in one request always has the second."""
    content = random.Random(5).randbytes(LARGE_FILE_BYTES + 7)
    client, location = target.client("s3"), {"Bucket": BUCKET, "Key": f"crc32-{kind}/x"}
    upload = client.create_multipart_upload(**location, ChecksumAlgorithm="CRC32", ChecksumType=kind)[
        "UploadId"
    ]
    sent_parts = []
    for number, start in enumerate(range(0, len(content), MIN_PART_BYTES), 1):
        part = {**location, "PartNumber": number, "UploadId": upload, "ChecksumAlgorithm": "CRC32"}
        answer = client.upload_part(**part, Body=content[start : start + MIN_PART_BYTES])
        sent_parts.append(
            {"PartNumber": number, **{name: answer[name] for name in ("ETag", "ChecksumCRC32")}}
        )
    client.complete_multipart_upload(**location, UploadId=upload, MultipartUpload={"Parts": sent_parts})
    parts = S3Multipart(client)
    digest = expected_digest(parts.get_object_checksum(BUCKET, location["Key"]), len(content))
    assert digest is not None and digest[0] == "crc32" and digest[1].endswith("-3") == (kind == "COMPOSITE")
    [item] = store_files(target, location["Key"], tmp_path)
    using = S3Transfer(target.storage, DamagingMultipart(parts) if damaged else parts, lambda: None)
    if damaged:
        with pytest.raises(JobError, match="does not match S3's checksum"):
            using.download_files(BUCKET, [item], TransferProgress(1, 0).add)
    else:
        using.download_files(BUCKET, [item], TransferProgress(1, 0).add)
        assert item.path.read_bytes() == content and using.has_same_content(BUCKET, item)
    assert item.path.exists() != damaged


def test_an_etag_that_is_no_checksum_is_not_taken_for_one(target: Target, tmp_path: Path) -> None:
    """Under a KMS key ETags look like MD5 sums and are not; no other checksum is known here."""
    by_botocore(target).upload_files(
        BUCKET, files(tmp_path, {"x": b"content"}, "kms/"), TransferProgress(1, 0).add
    )
    [item] = store_files(target, "kms/", tmp_path)
    parts = DamagingMultipart(S3Multipart(target.client("s3")), ObjectChecksum(None, None, None))
    S3Transfer(target.storage, parts, lambda: None).download_files(BUCKET, [item], TransferProgress(1, 0).add)
    assert item.path.read_bytes() == b"bontent"


def test_an_object_that_changed_since_it_was_listed_is_refused(
    transfer: S3Transfer, target: Target, tmp_path: Path
) -> None:
    target.storage.put_bytes(BUCKET, "moving", b"before")
    [item] = store_files(target, "moving", tmp_path)
    target.storage.put_bytes(BUCKET, "moving", b"after!")
    with pytest.raises(CallError, match="PreconditionFailed"):
        by_botocore(target).download_files(BUCKET, [item], TransferProgress(1, 0).add)


def test_files_that_change_or_vanish_are_told(transfer: S3Transfer, target: Target, tmp_path: Path) -> None:
    items = files(tmp_path, {"small": b"12345", "large": bytes(LARGE_FILE_BYTES)}, "changing/")
    items[0].path.write_bytes(b"1234")
    with pytest.raises(JobError, match="has changed while it was being sent"):
        transfer.upload_files(BUCKET, items[:1], TransferProgress(1, 0).add)
    with items[1].path.open("ab") as stream:
        stream.write(b"more")
    with pytest.raises(JobError, match="has changed while it was being sent"):
        transfer.upload_files(BUCKET, items[1:], TransferProgress(1, 0).add)
    assert target.storage.object_size(BUCKET, items[1].key) is None, "half of one and half of another"
    items[0].path.unlink()
    with pytest.raises(JobError, match="cannot be read: No such file"):
        transfer.upload_files(BUCKET, items[:1], TransferProgress(1, 0).add)


def test_keys_that_s3_cannot_have_are_all_refused_before_anything_is_sent(
    transfer: S3Transfer, target: Target, tmp_path: Path
) -> None:
    accepted, *rejected = files(tmp_path, {"good": b"x", "k" * 1100: b"x", "\udcff": b"x"}, "refused/")
    with pytest.raises(JobError) as caught:
        transfer.upload_files(BUCKET, [accepted, *rejected], TransferProgress(3, 0).add)
    assert len(caught.value.problems) == 2
    assert target.storage.object_size(BUCKET, accepted.key) is None


# ---- obstore only speeds things up -----------------------------------------------------------------------


class FailingTransfer:
    """A fast transfer that fails after it has reported 1,000 bytes of a large file."""

    def __init__(self) -> None:
        self.call_count = 0

    def supports_key(self, key: str) -> bool:
        return True

    def put(self, bucket: str, key: str, content: bytes) -> None:
        self.call_count += 1
        raise FastTransferFailed

    def upload_file(
        self,
        bucket: str,
        item: TransferItem,
        max_concurrent_parts: int,
        on_transferred: Callable[[int, int], None],
    ) -> None:
        on_transferred(1000, 0)
        self.put(bucket, item.key, b"")

    def get_range(self, bucket: str, key: str, start: int, length: int, etag: str | None) -> Iterator[bytes]:
        self.call_count += 1
        yield b"\0"[:length] if length > 1 else b""
        raise FastTransferFailed


def test_what_obstore_cannot_do_goes_by_botocore(target: Target, tmp_path: Path) -> None:
    contents = {"large": bytes(LARGE_FILE_BYTES), **{f"{number}": b"x" for number in range(100)}}
    failing = FailingTransfer()
    transfer = S3Transfer(target.storage, S3Multipart(target.client("s3")), lambda: failing)
    progress = TransferProgress(101, LARGE_FILE_BYTES + 100)
    transfer.upload_files(BUCKET, files(tmp_path, contents, "fallen-back/"), progress.add)
    assert (progress.done_files, progress.done_bytes) == (101, LARGE_FILE_BYTES + 100)
    assert failing.call_count <= CONNECTIONS, "after a failure it is not asked again"
    back = store_files(target, "fallen-back/", tmp_path)
    transfer.download_files(BUCKET, back, TransferProgress(0, 0).add)
    assert sum(item.path.stat().st_size for item in back) == LARGE_FILE_BYTES + 100


def test_an_error_is_s3s_own_answer(transfer: S3Transfer, tmp_path: Path, target: Target) -> None:
    failing_transfer = S3Transfer(target.storage, S3Multipart(target.client("s3")), lambda: FailingTransfer())
    for way in (by_botocore(target), failing_transfer):
        with pytest.raises(CallError, match="NoSuchBucket"):
            way.upload_files(
                "nowhere", files(tmp_path, {str(n): b"x" for n in range(20)}, ""), TransferProgress(20, 0).add
            )


def test_obstore_is_left_out_where_only_botocore_knows_the_way(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from smlaunch.data.obstore_transfer import open_obstore

    assert (
        open_obstore(target.owner_checked_s3_client(), target.session, target.bucket_owner_check())
        is not None
    )
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert open_obstore(target.owner_checked_s3_client(), target.session, target.bucket_owner_check()) is None


@pytest.mark.parametrize(
    ("endpoint", "bucket", "address"),
    [
        ("https://s3.eu-west-1.amazonaws.com", "data", "https://data.s3.eu-west-1.amazonaws.com"),
        ("https://s3.eu-west-1.amazonaws.com", "my.data", "https://s3.eu-west-1.amazonaws.com/my.data"),
        ("http://127.0.0.1:9000/", "data", "http://127.0.0.1:9000/data"),
    ],
)
def test_where_obstore_looks_for_a_bucket(endpoint: str, bucket: str, address: str) -> None:
    from datetime import timedelta

    from obstore.store import S3Store

    from smlaunch.data.obstore_transfer import address_options

    store = S3Store(
        bucket,
        region="eu-west-1",
        access_key_id="a",
        secret_access_key="s",
        **address_options(endpoint, bucket),
    )
    signed = obstore.sign(store, "GET", "a b/c%d", timedelta(minutes=1))
    assert signed.split("?")[0] == f"{address}/a%20b/c%25d"


# ---- small things ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, MIN_PART_BYTES, LARGE_FILE_BYTES, 80 << 30, 5 << 40])
def test_parts_are_at_most_ten_thousand_and_cover_everything(size: int) -> None:
    part = part_size(size)
    assert part >= MIN_PART_BYTES and -(-size // part) <= 10_000
    if size <= LARGE_FILE_BYTES:
        pieces = part_ranges(size, part)
        assert sum(length for _, length in pieces) == size
        assert [start for start, _ in pieces] == [number * part for number in range(len(pieces))]


def test_digests_are_written_as_s3_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abcde")
    assert file_digest(path, "md5", None) == "ab56b4d92b40713acc5af89985d4b786"
    sums = [new_digest("md5", piece).digest() for piece in (b"ab", b"cd", b"e")]
    assert file_digest(path, "md5", 2) == multipart_digest("md5", sums)
    assert multipart_digest("md5", sums).endswith("-3")


def test_parts_that_cannot_be_of_the_file_are_not_gone_on_with() -> None:
    def upload(*sizes: int) -> MultipartUpload:
        return MultipartUpload(
            "u", {number: UploadedPart(size, "e", "s") for number, size in enumerate(sizes, 1)}
        )

    file_bytes = 2 * MIN_PART_BYTES + 5
    uniform = multipart_transfer._find_uniform_part_size
    assert uniform(upload(MIN_PART_BYTES, MIN_PART_BYTES, 5), file_bytes) == MIN_PART_BYTES
    assert uniform(upload(MIN_PART_BYTES), file_bytes) == MIN_PART_BYTES
    assert uniform(upload(MIN_PART_BYTES, MIN_PART_BYTES, 6), file_bytes) is None
    assert uniform(upload(MIN_PART_BYTES, MIN_PART_BYTES, MIN_PART_BYTES), file_bytes) is None
    assert uniform(upload(1000), file_bytes) is None


def test_workers_stop_at_the_first_error() -> None:
    finished: list[int] = []

    def work(number: int) -> None:
        if number == 5:
            raise CallError("Put", "Broken", "no")
        finished.append(number)

    with pytest.raises(CallError, match="Broken"):
        for_each_in_threads(work, iter(range(10**9)), 3)
    assert set(range(5)) <= set(finished)


def test_the_tally_tells_rate_and_end() -> None:
    now = [0.0]
    reports: list[tuple[int, float | None]] = []
    progress = TransferProgress(
        100,
        100_000,
        lambda progress: reports.append((progress.done_bytes, progress.remaining_seconds)),
        clock=lambda: now[0],
    )
    for second in range(1, 51):
        now[0] = second * 0.5
        progress.add(1000, 1)
    assert progress.bytes_per_second == pytest.approx(2000)
    assert progress.remaining_seconds == pytest.approx(25)
    assert reports[0][1] is None, "too early to say"
    assert len(reports) == 50
    progress.add(0, 0)
    assert len(reports) == 50, "not for every file"


@pytest.mark.parametrize("is_resumable", [True, False])
def test_ctrl_c_ends_large_files_between_parts(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_resumable: bool
) -> None:
    """Uploads of very large files are resumed; those of other files leave nothing behind."""
    monkeypatch.setattr(
        "smlaunch.data.s3_transfer._MIN_RESUMABLE_BYTES", LARGE_FILE_BYTES if is_resumable else 1 << 40
    )
    content = random.Random(3).randbytes(4 * MIN_PART_BYTES)
    [item] = files(tmp_path, {"long": content}, f"interrupted-{is_resumable}/")
    transfer = by_obstore(target)
    moved_sizes: list[int] = []

    def interrupt_after_three(size: int, files: int) -> None:
        moved_sizes.append(size)
        if len(moved_sizes) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer.upload_files(BUCKET, [item], interrupt_after_three)
    assert target.storage.object_size(BUCKET, item.key) is None
    unfinished = S3Multipart(target.client("s3")).list_resumable_uploads(BUCKET, item.key)
    assert bool(unfinished) is is_resumable
    progress = TransferProgress(1, len(content))
    transfer.upload_files(BUCKET, [item], progress.add)
    assert target.storage.get_bytes(BUCKET, item.key) == content
    assert progress.done_bytes == len(content)


def test_parts_of_unequal_sizes_are_not_taken_for_damage() -> None:
    assert expected_digest(ObjectChecksum(MIN_PART_BYTES, None, f"{'0' * 32}-3"), 3 * MIN_PART_BYTES) == (
        "md5",
        f"{'0' * 32}-3",
    )
    assert expected_digest(ObjectChecksum(MIN_PART_BYTES, None, f"{'0' * 32}-3"), 4 * MIN_PART_BYTES) is None
    assert expected_digest(ObjectChecksum(None, "sum", "0" * 32), 4 * MIN_PART_BYTES) == ("sha256", "sum")
    assert expected_digest(
        ObjectChecksum(MIN_PART_BYTES, None, f"{'0' * 32}-3", "sum-3"), 3 * MIN_PART_BYTES
    ) == ("crc32", "sum-3")
    assert expected_digest(ObjectChecksum(MIN_PART_BYTES, None, None, "sum-3"), 4 * MIN_PART_BYTES) is None


def test_credentials_that_are_gone_are_botocores_to_tell(target: Target, tmp_path: Path) -> None:
    from smlaunch.data.obstore_transfer import ObstoreTransfer

    class MissingCredentials:
        def get_frozen_credentials(self) -> None:
            raise RuntimeError("the session has expired")

    fast_transfer = ObstoreTransfer(
        target.owner_checked_s3_client(), MissingCredentials(), target.bucket_owner_check()
    )
    with pytest.raises(FastTransferFailed):
        fast_transfer.put(BUCKET, "never", b"x")
    with pytest.raises(FastTransferFailed):
        fast_transfer.upload_file(
            BUCKET,
            files(tmp_path, {"x": bytes(LARGE_FILE_BYTES)}, "never/")[0],
            3,
            TransferProgress(1, 0).add,
        )
