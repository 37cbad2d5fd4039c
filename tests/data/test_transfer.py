"""Transfers against the local endpoint's S3, which verifies signatures and checksums as S3 does."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smlaunch.data import transfer_parts
from smlaunch.data.contents import LARGE, PART, combined, digest_of, known_by, new_digest, part_size, ranges
from smlaunch.data.tally import Tally
from smlaunch.data.transfer import AT_ONCE, Quick, QuickFailed, Transfers
from smlaunch.data.workers import each
from smlaunch.errors import JobError
from smlaunch.local.endpoint import Endpoint
from smlaunch.ports import CallError, Check, Parcel, Part, Unfinished
from smlaunch.runs.aws_parts import S3Parts
from smlaunch.runs.target import Target

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
        target.storage.make_bucket(BUCKET, info.region)
        yield target


@pytest.fixture(params=["obstore", "botocore"])
def transfer(request: pytest.FixtureRequest, target: Target) -> Transfers:
    return by_obstore(target) if request.param == "obstore" else by_botocore(target)


def by_obstore(target: Target) -> Transfers:
    from smlaunch.data.transfer_obstore import by_obstore

    quick = by_obstore(target.s3(), target.clients, target.owner_for())
    assert quick is not None
    return Transfers(target.storage, S3Parts(target.s3()), lambda: Loud(quick))


def by_botocore(target: Target) -> Transfers:
    return Transfers(target.storage, S3Parts(target.s3()), lambda: None)


class Loud:
    """obstore where it may not fail: a transfer that goes on by botocore would hide it."""

    def __init__(self, quick: Quick) -> None:
        self.takes = quick.takes
        self.put = _loud(quick.put)
        self.put_file = _loud(quick.put_file)
        self.get_range = _loud(quick.get_range)


def _loud(method: Callable[..., object]) -> Callable[..., object]:
    def called(*arguments: object) -> object:
        try:
            return method(*arguments)
        except QuickFailed as error:
            raise AssertionError(f"obstore failed: {error.__cause__}") from error

    return called


def files(folder: Path, contents: dict[str, bytes], prefix: str) -> list[Parcel]:
    parcels: list[Parcel] = []
    for number, (key, content) in enumerate(contents.items()):
        path = folder / str(number)
        path.write_bytes(content)
        parcels.append(Parcel(prefix + key, path, len(content)))
    return parcels


def stored(target: Target, prefix: str, folder: Path) -> list[Parcel]:
    return [
        Parcel(item.key, folder / f"{number}.back", item.size, item.etag)
        for number, item in enumerate(target.storage.list(BUCKET, prefix))
    ]


_KEYS = (
    *("plain.txt", "a b/c d", "é/ü/漢字", "100%/%20/%2F", "q?x=1&y#z", "~tilde", "[x]{y}", "back\\slash"),
    *('"<>|^`', "+=&;@,:$'()!*", "double//slash", "new\nline", "tab\tbell\x07", "../above", "a/./b"),
    *("a/../b", ".hidden", "/lead", "trailing/", "k" * 900),
)
HOSTILE = {"empty": b"", **{key: str(number).encode() for number, key in enumerate(_KEYS)}}


def test_every_key_and_content_comes_back_as_it_was(
    transfer: Transfers, target: Target, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    prefix = f"hostile-{request.node.callspec.id}/"
    tally = Tally(len(HOSTILE), sum(map(len, HOSTILE.values())))
    transfer.put(BUCKET, files(tmp_path, HOSTILE, prefix), tally.add)
    assert (tally.done_files, tally.done) == (tally.files, tally.size)

    listed = stored(target, prefix, tmp_path)
    assert {parcel.key.removeprefix(prefix) for parcel in listed} == set(HOSTILE)
    transfer.get(BUCKET, listed, Tally(0, 0).add)
    for parcel in listed:
        assert parcel.path.read_bytes() == HOSTILE[parcel.key.removeprefix(prefix)]
        assert transfer.is_there(BUCKET, parcel)
    assert not list(tmp_path.glob("*.part"))


def test_large_files_go_in_parts_and_are_checked_by_the_parts_digests(
    transfer: Transfers, target: Target, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    prefix = f"large-{request.node.callspec.id}/"
    content = random.Random(1).randbytes(LARGE + 12_345)
    tally = Tally(1, len(content))
    transfer.put(BUCKET, files(tmp_path, {"big": content}, prefix), tally.add)
    assert tally.done == len(content)
    [parcel] = stored(target, prefix, tmp_path)
    check = S3Parts(target.client("s3")).check(BUCKET, parcel.key)
    assert check.part == PART and check.sha256 == digest_of(tmp_path / "0", "sha256", PART)
    transfer.get(BUCKET, [parcel], Tally(0, 0).add)
    assert parcel.path.read_bytes() == content
    assert transfer.is_there(BUCKET, parcel)
    parcel.path.write_bytes(content[:-1] + b"?")
    assert not transfer.is_there(BUCKET, parcel)


def test_an_upload_that_was_cut_off_is_gone_on_with(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever began it: three parts of four are there, the second one is of another content."""
    content = random.Random(2).randbytes(3 * PART + 99)
    [parcel] = files(tmp_path, {"cut": content}, "resumed/")
    parts = S3Parts(target.client("s3"))
    upload = parts.begin(BUCKET, parcel.key)
    for number, (start, length) in enumerate(ranges(len(content), PART), 1):
        if number != 3:
            piece = content[start : start + length] if number != 2 else bytes(length)
            parts.put_part(BUCKET, parcel.key, upload, number, piece)
    sent: list[int] = []
    put_part = S3Parts.put_part

    def noting(self: S3Parts, *where: object) -> Part:
        sent.append(int(str(where[3])))
        return put_part(self, *where)  # type: ignore[arg-type]

    monkeypatch.setattr(S3Parts, "put_part", noting)
    tally = Tally(1, len(content))
    by_obstore(target).put(BUCKET, [parcel], tally.add)
    assert sorted(sent) == [2, 3]
    assert tally.done == len(content)
    assert target.storage.get_bytes(BUCKET, parcel.key) == content
    assert parts.unfinished(BUCKET, parcel.key) == []


def test_an_upload_of_another_file_is_left_alone(target: Target, tmp_path: Path) -> None:
    content = bytes(LARGE)
    [parcel] = files(tmp_path, {"other": content}, "left/")
    parts = S3Parts(target.client("s3"))
    upload = parts.begin(BUCKET, parcel.key)
    for number, size in ((1, PART), (2, PART - 1), (3, PART)):
        parts.put_part(BUCKET, parcel.key, upload, number, bytes(size))
    by_botocore(target).put(BUCKET, [parcel], Tally(1, 0).add)
    assert target.storage.get_bytes(BUCKET, parcel.key) == content
    assert [found.upload for found in parts.unfinished(BUCKET, parcel.key)] == [upload]


# ---- damage ----------------------------------------------------------------------------------------------


class Spoilt:
    """PartStorage of which one byte comes back wrong."""

    def __init__(self, parts: S3Parts, check: Check | None = None) -> None:
        self.begin, self.put_part, self.complete = parts.begin, parts.put_part, parts.complete
        self.unfinished = parts.unfinished
        self._parts, self._check = parts, check

    def get_range(self, bucket: str, key: str, start: int, length: int, etag: str | None) -> Iterator[bytes]:
        for number, piece in enumerate(self._parts.get_range(bucket, key, start, length, etag)):
            yield piece if start or number else bytes([piece[0] ^ 1]) + piece[1:]

    def check(self, bucket: str, key: str) -> Check:
        return self._check or self._parts.check(bucket, key)


@pytest.mark.parametrize("size", [1000, LARGE])
def test_what_comes_damaged_is_not_kept(target: Target, tmp_path: Path, size: int) -> None:
    prefix = f"damaged-{size}/"
    by_botocore(target).put(BUCKET, files(tmp_path, {"x": os.urandom(size)}, prefix), Tally(1, 0).add)
    [parcel] = stored(target, prefix, tmp_path)
    parcel.path.write_bytes(b"what was there")
    spoilt = Transfers(target.storage, Spoilt(S3Parts(target.client("s3"))), lambda: None)
    with pytest.raises(JobError, match="not what S3 knows the object by"):
        spoilt.get(BUCKET, [parcel], Tally(1, 0).add)
    assert parcel.path.read_bytes() == b"what was there"
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize("kind", ["COMPOSITE", "FULL_OBJECT"])
@pytest.mark.parametrize("damaged", [False, True])
def test_what_others_sent_with_crc32_is_compared_with_that(
    target: Target, tmp_path: Path, kind: str, damaged: bool
) -> None:
    """boto3's own default is the first, and a content put whole is always the second."""
    content = random.Random(5).randbytes(LARGE + 7)
    client, where = target.client("s3"), {"Bucket": BUCKET, "Key": f"crc32-{kind}/x"}
    upload = client.create_multipart_upload(**where, ChecksumAlgorithm="CRC32", ChecksumType=kind)["UploadId"]
    sent = []
    for number, start in enumerate(range(0, len(content), PART), 1):
        part = {**where, "PartNumber": number, "UploadId": upload, "ChecksumAlgorithm": "CRC32"}
        answer = client.upload_part(**part, Body=content[start : start + PART])
        sent.append({"PartNumber": number, **{name: answer[name] for name in ("ETag", "ChecksumCRC32")}})
    client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": sent})
    parts = S3Parts(client)
    known = known_by(parts.check(BUCKET, where["Key"]), len(content))
    assert known is not None and known[0] == "crc32" and known[1].endswith("-3") == (kind == "COMPOSITE")
    [parcel] = stored(target, where["Key"], tmp_path)
    using = Transfers(target.storage, Spoilt(parts) if damaged else parts, lambda: None)
    if damaged:
        with pytest.raises(JobError, match="not what S3 knows the object by"):
            using.get(BUCKET, [parcel], Tally(1, 0).add)
    else:
        using.get(BUCKET, [parcel], Tally(1, 0).add)
        assert parcel.path.read_bytes() == content and using.is_there(BUCKET, parcel)
    assert parcel.path.exists() != damaged


def test_an_etag_that_is_no_checksum_is_not_taken_for_one(target: Target, tmp_path: Path) -> None:
    """Under a KMS key ETags look like MD5 sums and are none; then nothing else is known here."""
    by_botocore(target).put(BUCKET, files(tmp_path, {"x": b"content"}, "kms/"), Tally(1, 0).add)
    [parcel] = stored(target, "kms/", tmp_path)
    parts = Spoilt(S3Parts(target.client("s3")), Check(None, None, None))
    Transfers(target.storage, parts, lambda: None).get(BUCKET, [parcel], Tally(1, 0).add)
    assert parcel.path.read_bytes() == b"bontent"


def test_an_object_that_changed_since_it_was_listed_is_refused(
    transfer: Transfers, target: Target, tmp_path: Path
) -> None:
    target.storage.put_bytes(BUCKET, "moving", b"before")
    [parcel] = stored(target, "moving", tmp_path)
    target.storage.put_bytes(BUCKET, "moving", b"after!")
    with pytest.raises(CallError, match="PreconditionFailed"):
        by_botocore(target).get(BUCKET, [parcel], Tally(1, 0).add)


def test_files_that_change_or_vanish_are_told(transfer: Transfers, target: Target, tmp_path: Path) -> None:
    parcels = files(tmp_path, {"small": b"12345", "large": bytes(LARGE)}, "changing/")
    parcels[0].path.write_bytes(b"1234")
    with pytest.raises(JobError, match="has changed while it was being sent"):
        transfer.put(BUCKET, parcels[:1], Tally(1, 0).add)
    with parcels[1].path.open("ab") as stream:
        stream.write(b"more")
    with pytest.raises(JobError, match="has changed while it was being sent"):
        transfer.put(BUCKET, parcels[1:], Tally(1, 0).add)
    assert target.storage.size(BUCKET, parcels[1].key) is None, "half of one and half of another"
    parcels[0].path.unlink()
    with pytest.raises(JobError, match="cannot be read: No such file"):
        transfer.put(BUCKET, parcels[:1], Tally(1, 0).add)


def test_keys_that_s3_cannot_have_are_all_refused_before_anything_is_sent(
    transfer: Transfers, target: Target, tmp_path: Path
) -> None:
    good, *bad = files(tmp_path, {"good": b"x", "k" * 1100: b"x", "\udcff": b"x"}, "refused/")
    with pytest.raises(JobError) as caught:
        transfer.put(BUCKET, [good, *bad], Tally(3, 0).add)
    assert len(caught.value.problems) == 2
    assert target.storage.size(BUCKET, good.key) is None


# ---- obstore only speeds things up -----------------------------------------------------------------------


class Failing:
    """Quick that fails; ``begun`` bytes of a large file were counted before."""

    def __init__(self) -> None:
        self.asked = 0

    def takes(self, key: str) -> bool:
        return True

    def put(self, bucket: str, key: str, content: bytes) -> None:
        self.asked += 1
        raise QuickFailed

    def put_file(self, bucket: str, parcel: Parcel, at_once: int, moved: Callable[[int, int], None]) -> None:
        moved(1000, 0)
        self.put(bucket, parcel.key, b"")

    def get_range(self, bucket: str, key: str, start: int, length: int, etag: str | None) -> Iterator[bytes]:
        self.asked += 1
        yield b"\0"[:length] if length > 1 else b""
        raise QuickFailed


def test_what_obstore_cannot_do_goes_by_botocore(target: Target, tmp_path: Path) -> None:
    contents = {"large": bytes(LARGE), **{f"{number}": b"x" for number in range(100)}}
    failing = Failing()
    transfer = Transfers(target.storage, S3Parts(target.client("s3")), lambda: failing)
    tally = Tally(101, LARGE + 100)
    transfer.put(BUCKET, files(tmp_path, contents, "fallen-back/"), tally.add)
    assert (tally.done_files, tally.done) == (101, LARGE + 100)
    assert failing.asked <= AT_ONCE, "after a failure it is not asked again"
    back = stored(target, "fallen-back/", tmp_path)
    transfer.get(BUCKET, back, Tally(0, 0).add)
    assert sum(parcel.path.stat().st_size for parcel in back) == LARGE + 100


def test_an_error_is_s3s_own_answer(transfer: Transfers, tmp_path: Path, target: Target) -> None:
    quick = Transfers(target.storage, S3Parts(target.client("s3")), lambda: Failing())
    for way in (by_botocore(target), quick):
        with pytest.raises(CallError, match="NoSuchBucket"):
            way.put("nowhere", files(tmp_path, {str(n): b"x" for n in range(20)}, ""), Tally(20, 0).add)


def test_obstore_is_left_out_where_only_botocore_knows_the_way(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from smlaunch.data.transfer_obstore import by_obstore

    assert by_obstore(target.s3(), target.clients, target.owner_for()) is not None
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert by_obstore(target.s3(), target.clients, target.owner_for()) is None


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

    from smlaunch.data.transfer_obstore import addressed

    store = S3Store(
        bucket, region="eu-west-1", access_key_id="a", secret_access_key="s", **addressed(endpoint, bucket)
    )
    signed = obstore.sign(store, "GET", "a b/c%d", timedelta(minutes=1))
    assert signed.split("?")[0] == f"{address}/a%20b/c%25d"


# ---- small things ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, PART, LARGE, 80 << 30, 5 << 40])
def test_parts_are_at_most_ten_thousand_and_cover_everything(size: int) -> None:
    part = part_size(size)
    assert part >= PART and -(-size // part) <= 10_000
    if size <= LARGE:
        pieces = ranges(size, part)
        assert sum(length for _, length in pieces) == size
        assert [start for start, _ in pieces] == [number * part for number in range(len(pieces))]


def test_digests_are_written_as_s3_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abcde")
    assert digest_of(path, "md5", None) == "ab56b4d92b40713acc5af89985d4b786"
    sums = [new_digest("md5", piece).digest() for piece in (b"ab", b"cd", b"e")]
    assert digest_of(path, "md5", 2) == combined("md5", sums)
    assert combined("md5", sums).endswith("-3")


def test_parts_that_cannot_be_of_the_file_are_not_gone_on_with() -> None:
    def upload(*sizes: int) -> Unfinished:
        return Unfinished("u", {number: Part(size, "e", "s") for number, size in enumerate(sizes, 1)})

    whole = 2 * PART + 5
    uniform = transfer_parts._uniform
    assert uniform(upload(PART, PART, 5), whole) == PART
    assert uniform(upload(PART), whole) == PART
    assert uniform(upload(PART, PART, 6), whole) is None
    assert uniform(upload(PART, PART, PART), whole) is None
    assert uniform(upload(1000), whole) is None


def test_workers_stop_at_the_first_error() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == 5:
            raise CallError("Put", "Broken", "no")
        done.append(number)

    with pytest.raises(CallError, match="Broken"):
        each(work, iter(range(10**9)), 3)
    assert set(range(5)) <= set(done)


def test_the_tally_tells_rate_and_end() -> None:
    now = [0.0]
    seen: list[tuple[int, float | None]] = []
    tally = Tally(100, 100_000, lambda tally: seen.append((tally.done, tally.left)), clock=lambda: now[0])
    for second in range(1, 51):
        now[0] = second * 0.5
        tally.add(1000, 1)
    assert tally.rate == pytest.approx(2000)
    assert tally.left == pytest.approx(25)
    assert seen[0][1] is None, "too early to say"
    assert len(seen) == 50
    tally.add(0, 0)
    assert len(seen) == 50, "not for every file"


@pytest.mark.parametrize("kept", [True, False])
def test_ctrl_c_ends_large_files_between_parts(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """Very large ones are gone on with; of others nothing is left behind."""
    monkeypatch.setattr("smlaunch.data.transfer._KEPT_FROM", LARGE if kept else 1 << 40)
    content = random.Random(3).randbytes(4 * PART)
    [parcel] = files(tmp_path, {"long": content}, f"interrupted-{kept}/")
    transfer = by_obstore(target)
    moved: list[int] = []

    def interrupted(size: int, files: int) -> None:
        moved.append(size)
        if len(moved) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer.put(BUCKET, [parcel], interrupted)
    assert target.storage.size(BUCKET, parcel.key) is None
    begun = S3Parts(target.client("s3")).unfinished(BUCKET, parcel.key)
    assert bool(begun) is kept
    tally = Tally(1, len(content))
    transfer.put(BUCKET, [parcel], tally.add)
    assert target.storage.get_bytes(BUCKET, parcel.key) == content
    assert tally.done == len(content)


def test_parts_of_unequal_sizes_are_not_taken_for_damage() -> None:
    assert known_by(Check(PART, None, f"{'0' * 32}-3"), 3 * PART) == ("md5", f"{'0' * 32}-3")
    assert known_by(Check(PART, None, f"{'0' * 32}-3"), 4 * PART) is None
    assert known_by(Check(None, "sum", "0" * 32), 4 * PART) == ("sha256", "sum")
    assert known_by(Check(PART, None, f"{'0' * 32}-3", "sum-3"), 3 * PART) == ("crc32", "sum-3")
    assert known_by(Check(PART, None, None, "sum-3"), 4 * PART) is None


def test_credentials_that_are_gone_are_botocores_to_tell(target: Target, tmp_path: Path) -> None:
    from smlaunch.data.transfer_obstore import ByObstore

    class Gone:
        def get_frozen_credentials(self) -> None:
            raise RuntimeError("the session has expired")

    quick = ByObstore(target.s3(), Gone(), target.owner_for())
    with pytest.raises(QuickFailed):
        quick.put(BUCKET, "never", b"x")
    with pytest.raises(QuickFailed):
        quick.put_file(BUCKET, files(tmp_path, {"x": bytes(LARGE)}, "never/")[0], 3, Tally(1, 0).add)
