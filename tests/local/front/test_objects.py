"""The object store, used in process: any key, in S3's order, also with damaged files."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.stores import object_store
from smlaunch.local.stores.object_store import NoSuchBucket, NoSuchKey, ObjectStore

ODD_KEYS = [
    *("a", "a/", "a/b", "a//b", "/a", "/", "..", "../../etc/passwd", "a/../b", ".", "a/./b", "-rf", "~", "*"),
    *(
        " ",
        "a b",
        "a+b",
        "a%2Fb",
        "\n",
        "\x01",
        "é",
        "e\u0301",
        "日本",
        "😀",
        "x" * 255,
        "x" * 256,
        "x/" * 500,
    ),
    *("k" * 1024, "_store/index.sqlite", "_store", "bucket", ".hidden", "CON", "A", "a:b", 'q"uote', "\\"),
]
keys = st.one_of(
    st.sampled_from(ODD_KEYS),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    st.text(st.sampled_from("ab/."), min_size=1, max_size=8),
).filter(lambda key: len(key.encode()) <= 1024 and "\0" not in key)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    new_store = ObjectStore(tmp_path / "s3")
    new_store.create_bucket("bucket")
    return new_store


def test_objects_are_plain_files_at_their_keys(store: ObjectStore) -> None:
    store.put_object_bytes("bucket", "data/part-1.csv", b"x,y")
    assert (store.root / "bucket/data/part-1.csv").read_bytes() == b"x,y"
    assert store.object_body_path("bucket", "data/part-1.csv") == store.root / "bucket/data/part-1.csv"
    assert store.delete_object("bucket", "data/part-1.csv")
    assert list((store.root / "bucket").iterdir()) == []
    assert not store.delete_object("bucket", "data/part-1.csv")


def test_keys_that_are_no_paths_get_hashed_files(store: ObjectStore) -> None:
    for key in ODD_KEYS:
        store.put_object_bytes("bucket", key, key.encode())
    for key in ODD_KEYS:
        path = store.object_body_path("bucket", key)
        assert path.read_bytes() == key.encode()
        assert store.root in path.resolve().parents
    assert [info.key for info in store.list_objects("bucket")] == sorted(ODD_KEYS, key=str.encode)
    for key in ODD_KEYS:
        store.delete_object("bucket", key)
    assert list((store.root / "bucket").iterdir()) == []
    assert list((store.root / "_store/odd").iterdir()) == []


def test_missing_buckets_and_keys(store: ObjectStore) -> None:
    with pytest.raises(NoSuchKey) as missing:
        store.object_body_path("bucket", "none")
    assert isinstance(missing.value, KeyError)
    assert str(missing.value) == "NoSuchKey: The specified key does not exist."
    with pytest.raises(NoSuchBucket):
        list(store.list_objects("nowhere"))
    with pytest.raises(NoSuchBucket):
        store.put_object_bytes("nowhere", "a", b"")
    for name in ("Ab-c", "ab", "a..b", "_store", "../x", "127.0.0.1", "x" * 64, "a/b"):
        with pytest.raises(ApiError, match="InvalidBucketName"):
            store.create_bucket(name)


def test_put_file_copies_or_moves(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "model.bin"
    source.write_bytes(b"weights")
    info = store.put_object_file("bucket", "m", source)
    assert (info.size, info.etag) == (7, hashlib.md5(b"weights").hexdigest())
    assert source.exists()
    assert source.stat().st_ino != store.object_body_path("bucket", "m").stat().st_ino
    store.put_object_file("bucket", "n", source, move=True)
    assert not source.exists()
    assert store.object_body_path("bucket", "n").read_bytes() == b"weights"
    other = tmp_path / "other"
    other.write_bytes(b"x")
    with pytest.raises(NoSuchBucket):
        store.put_object_file("nowhere", "n", other, move=True)
    assert other.read_bytes() == b"x"


def test_bodies_are_replaced_never_changed(store: ObjectStore) -> None:
    store.put_object_bytes("bucket", "a", b"old")
    info, reader = store.open_object("bucket", "a")
    store.put_object_bytes("bucket", "a", b"new!")
    with reader:
        assert reader.read() == b"old"
    assert info.size == 3
    assert store.head_object("bucket", "a").size == 4


def test_bodies_edited_or_removed_by_hand(store: ObjectStore) -> None:
    store.put_object_bytes("bucket", "a", b"old", {"metadata": {"k": "v"}, "checksums": {"CRC32": "AAAA"}})
    store.object_body_path("bucket", "a").write_bytes(b"edited")
    info = store.head_object("bucket", "a")
    assert (info.size, info.etag) == (6, hashlib.md5(b"edited").hexdigest())
    assert info.attributes == {"metadata": {"k": "v"}}
    store.object_body_path("bucket", "a").unlink()
    with pytest.raises(NoSuchKey):
        store.head_object("bucket", "a")
    assert list(store.list_objects("bucket")) == []


def test_pages_and_common_prefixes(store: ObjectStore) -> None:
    names = [f"d{number:03}/{part}" for number in range(30) for part in "ab"] + ["top"]
    for name in names:
        store.put_object_bytes("bucket", name, b"")
    listing, after = [], b""
    while True:
        page = store.list_page("bucket", delimiter="/", first_key=after, max_entries=7)
        listing += page.prefixes + [info.key for info in page.objects]
        assert len(page.prefixes) + len(page.objects) <= 7
        if page.next_key is None:
            break
        after = page.next_key
    assert listing == [f"d{number:03}/" for number in range(30)] + ["top"]
    assert [info.key for info in store.list_objects("bucket", "d001/")] == ["d001/a", "d001/b"]


def test_two_stores_share_a_root_and_one_is_killed(store: ObjectStore) -> None:
    code = """
import sys
from pathlib import Path
from smlaunch.local.stores.object_store import ObjectStore
store = ObjectStore(Path(sys.argv[1]))
number = 0
while True:
    store.put_object_bytes("bucket", f"other/{number % 50}", b"x" * (number % 50))
    number += 1
    if number == 60:
        print("going", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code, str(store.root)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        for number in range(50):
            store.put_object_bytes("bucket", f"mine/{number}", b"y")
        other.stdout.readline()
        other.send_signal(signal.SIGKILL)
    reopened = ObjectStore(store.root)
    for info in reopened.list_objects("bucket"):
        read, file = reopened.open_object("bucket", info.key)
        with file:
            body = file.read()
        assert (read.size, read.etag) == (len(body), hashlib.md5(body).hexdigest())
    assert len(list(reopened.list_objects("bucket", "mine/"))) == 50
    assert len(list(reopened.list_objects("bucket", "other/"))) == 50


def test_readers_never_see_a_mixture(store: ObjectStore) -> None:
    bodies = [bytes([number]) * 1000 for number in range(8)]
    store.put_object_bytes("bucket", "hot", bodies[0])
    failures: list[BaseException] = []
    stop = threading.Event()

    def write() -> None:
        try:
            for number in range(150):
                store.put_object_bytes("bucket", "hot", bodies[number % 8])
        finally:
            stop.set()

    def read() -> None:
        try:
            while not stop.is_set():
                info, file = store.open_object("bucket", "hot")
                with file:
                    assert hashlib.md5(file.read()).hexdigest() == info.etag
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write), *(threading.Thread(target=read) for _ in range(3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_disk_that_is_full_leaves_the_old_object(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_object_bytes("bucket", "a", b"old")

    def raise_disk_full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr("smlaunch.local.stores.object_body_paths._rename_with_parents", raise_disk_full)
        with pytest.raises(OSError, match="No space"):
            store.put_object_bytes("bucket", "a", b"new")
    assert store.object_body_path("bucket", "a").read_bytes() == b"old"
    assert list((store.root / "_store/incoming").iterdir()) == []


class Model(RuleBasedStateMachine):
    """Compare the store with a dict."""

    known = Bundle("known")

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.store = ObjectStore(Path(self.folder.name))
        self.store.create_bucket("bucket")
        self.truth: dict[str, bytes] = {}

    @rule(target=known, key=keys, body=st.binary(max_size=20))
    def put(self, key: str, body: bytes) -> str:
        self.store.put_object_bytes("bucket", key, body)
        self.truth[key] = body
        return key

    @rule(key=known, body=st.binary(max_size=20))
    def put_again(self, key: str, body: bytes) -> None:
        self.store.put_object_bytes("bucket", key, body)
        self.truth[key] = body

    @rule(key=known)
    def delete(self, key: str) -> None:
        assert self.store.delete_object("bucket", key) == (key in self.truth)
        self.truth.pop(key, None)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = ObjectStore(self.store.root)

    @rule(prefix=st.sampled_from(["", "a", "a/", "é", "/", "."]), limit=st.integers(1, 4))
    def list_by_pages(self, prefix: str, limit: int) -> None:
        listing: list[str] = []
        after: bytes | None = b""
        while after is not None:
            page = self.store.list_page("bucket", prefix, delimiter="/", first_key=after, max_entries=limit)
            listing += sorted([info.key for info in page.objects] + page.prefixes, key=str.encode)
            after = page.next_key
        expected = set()
        for key in self.truth:
            if key.startswith(prefix):
                head, slash, _ = key[len(prefix) :].partition("/")
                expected.add(prefix + head + slash)
        assert listing == sorted(expected, key=str.encode)

    @invariant()
    def same(self) -> None:
        listing = {
            info.key: self.store.object_body_path("bucket", info.key).read_bytes()
            for info in self.store.list_objects("bucket")
        }
        assert listing == self.truth
        files = [path for path in self.store.root.glob("bucket/**/*") if path.is_file()]
        files += list((self.store.root / "_store/odd").iterdir())
        assert len(files) == len(self.truth)

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_files_of_killed_writers_are_removed_after_a_day(store: ObjectStore) -> None:
    incoming = store.root / "_store/incoming"
    for name in ("old", "young"):
        (incoming / name).write_bytes(b"")
    os.utime(incoming / "old", (0, 0))
    ObjectStore(store.root)
    assert [path.name for path in incoming.iterdir()] == ["young"]


def test_concurrent_changes_fail_independently(store: ObjectStore) -> None:
    """The first change runs while the others queue, so that those are applied in one batch."""
    inside, proceed = threading.Event(), threading.Event()
    answers: dict[str, object] = {}

    def put(key: str, bucket: str = "bucket") -> None:
        try:
            answers[key] = store.put_object_bytes(bucket, key, key.encode()).size
        except ApiError as error:
            answers[key] = error.code

    def wait(db: object, folders: object) -> None:
        inside.set()
        assert proceed.wait(30)

    first = threading.Thread(target=store.index.run_in_shared_transaction, args=(wait,))
    first.start()
    assert inside.wait(30)
    threads = [threading.Thread(target=put, args=(f"key/{number}",)) for number in range(100)]
    threads += [
        threading.Thread(target=put, args=("k" * 2000,)),
        threading.Thread(target=put, args=("x", "no")),
    ]
    for thread in threads:
        thread.start()
    while len(store.index._pending_changes) < len(threads):
        assert all(thread.is_alive() for thread in threads)
        time.sleep(0.005)
    proceed.set()
    for thread in (first, *threads):
        thread.join()
    assert (answers.pop("k" * 2000), answers.pop("x")) == ("KeyTooLongError", "NoSuchBucket")
    assert answers == {f"key/{number}": len(f"key/{number}") for number in range(100)}
    assert len(list(store.list_objects("bucket"))) == 100
    assert list((store.root / "_store/incoming").iterdir()) == []


def test_a_listing_of_bodies_has_all_its_pages(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_ROWS_PER_QUERY", 2)
    keys = [f"part-{number}" for number in range(5)]
    for key in keys:
        store.put_object_bytes("bucket", key, b"body")
    assert [key for key, _, _ in store.list_object_bodies("bucket")] == keys
