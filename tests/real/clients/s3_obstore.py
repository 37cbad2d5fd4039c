"""obstore: python s3_obstore.py FEATURE BUCKET BIG_FILE"""

import os
import sys
from pathlib import Path

import obstore
from obstore.store import S3Store

feature, bucket, big = sys.argv[1:4]
content = Path(big).read_bytes()
store = S3Store(bucket, endpoint=os.environ["AWS_ENDPOINT_URL"], client_options={"allow_http": True})


def check_refused(kind: str, *arguments, **options) -> None:  # type: ignore[no-untyped-def]
    try:
        obstore.put(store, *arguments, **options)
    except Exception as error:
        assert type(error).__name__ == kind, error
    else:
        raise AssertionError(f"not refused: {options}")


def whole() -> None:
    obstore.put(store, "w", b"abc")
    assert bytes(obstore.get(store, "w").bytes()) == b"abc"
    obstore.delete(store, "w")
    assert list(obstore.list(store)) == []


def multipart() -> None:
    obstore.put(store, "m", content, use_multipart=True, chunk_size=5 << 20)
    assert obstore.head(store, "m")["e_tag"].endswith('-5"')
    assert bytes(obstore.get(store, "m").bytes()) == content


def ranges() -> None:
    obstore.put(store, "r", content)
    assert bytes(obstore.get_range(store, "r", start=10, end=20)) == content[10:20]
    parts = obstore.get_ranges(store, "r", starts=[1, 9_000_000], ends=[5, 9_000_010])
    assert [bytes(part) for part in parts] == [content[1:5], content[9_000_000:9_000_010]]


def conditions() -> None:
    obstore.put(store, "c", b"1", mode="create")
    check_refused("AlreadyExistsError", "c", b"2", mode="create")
    check_refused("PreconditionError", "c", b"2", mode={"e_tag": '"0"'})
    obstore.put(store, "c", b"2", mode={"e_tag": obstore.head(store, "c")["e_tag"]})
    assert bytes(obstore.get(store, "c").bytes()) == b"2"


def copies() -> None:
    obstore.put(store, "from", content)
    obstore.copy(store, "from", "to é+")
    obstore.rename(store, "to é+", "moved")
    assert bytes(obstore.get(store, "moved").bytes()) == content


def odd_keys() -> None:
    odd = ["a b+c%20&=#.txt", "ü/日本/🙂", "a", "a/b", "~!*'()", "y" * 1024]
    for key in odd:
        obstore.put(store, key, key.encode())
    assert {entry["path"] for page in obstore.list(store) for entry in page} == set(odd)
    for key in odd:
        assert bytes(obstore.get(store, key).bytes()) == key.encode(), key
    obstore.delete(store, odd)
    assert list(obstore.list(store)) == []


def pages() -> None:
    keys = [entry["path"] for page in obstore.list(store) for entry in page]
    assert keys == [f"p/{number:04d}" for number in range(2100)]


globals()[feature]()
