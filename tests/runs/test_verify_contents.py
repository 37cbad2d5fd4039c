"""Files compared by what they hold: the same values are the same, however they were written; one value that
differs is found and named."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smlaunch.verify import pickle_parser
from smlaunch.verify.value_digests import digest_values

np = pytest.importorskip("numpy")


def differing_paths(first: bytes, other: bytes) -> list[str]:
    first_values, other_values = digest_values(first), digest_values(other)
    return [
        path
        for path in sorted({*first_values, *other_values})
        if first_values.get(path) != other_values.get(path)
    ]


def zip_of(year: int, **members: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), data)
    return content.getvalue()


def tar_of(time: int, **members: bytes) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.mtime, info.size = time, len(data)
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


def npy(array: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def npz(**arrays: Any) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def safetensors(metadata: dict[str, str], **arrays: Any) -> bytes:
    header: dict[str, Any] = {"__metadata__": metadata}
    data = b""
    for name, array in arrays.items():
        start, data = len(data), data + array.tobytes()
        header[name] = {"dtype": "F64", "shape": list(array.shape), "data_offsets": [start, len(data)]}
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + data


def copy_text(text: str) -> str:
    """Returns an equal object that is not the same one: pickle writes it again."""
    return "".join(list(text))


W, B = np.arange(6.0).reshape(2, 3), np.ones(3)
OTHER = W + np.eye(2, 3) * 1e-9

SAME: dict[str, tuple[bytes, bytes]] = {
    "zip with other times": (zip_of(1999, a=b"x\0"), zip_of(2020, a=b"x\0")),
    "zip in another order": (zip_of(1999, a=b"1", b=b"2"), zip_of(1999, b=b"2", a=b"1")),
    "tar with other times": (tar_of(1, a=b"x\0"), tar_of(2, a=b"x\0")),
    "gzip with another time and level": (
        gzip.compress(b"x\0" * 99, 1, mtime=1),
        gzip.compress(b"x\0" * 99, 9, mtime=2),
    ),
    "tar.gz": (gzip.compress(tar_of(1, a=b"x\0"), mtime=1), gzip.compress(tar_of(2, a=b"x\0"), mtime=2)),
    "an array by columns": (npy(W), npy(np.asfortranarray(W))),
    "npz": (npz(w=W, b=B), npz(b=B, w=W)),
    "an array by columns, pickled": (pickle.dumps({"w": W}), pickle.dumps({"w": np.asfortranarray(W)})),
    "protocols": (pickle.dumps({"w": [1.5, 2]}, 2), pickle.dumps({"w": [1.5, 2]}, 5)),
    "texts that are one object, or two": (
        pickle.dumps([{"name": "w"}, {"name": "w"}]),
        pickle.dumps([{copy_text("name"): "w"}, {"name": copy_text("w")}]),
    ),
    "dicts in another order": (pickle.dumps({"a": W, "b": 2}), pickle.dumps({"b": 2, "a": W.copy()})),
    "sets": (pickle.dumps({0, 8}), pickle.dumps({8, 0})),
    "JSON": (b'{"a": 1, "b": [1.0, 2]}', b'{\n "b": [1.0, 2],\n "a": 1}'),
    "nan": (b'{"a": NaN}', b'{"a":NaN}'),
    "safetensors": (safetensors({}, w=W, b=B), safetensors({}, b=B, w=W)),
}


@pytest.mark.parametrize("name", SAME)
def test_equal_values_in_other_encodings_have_equal_digests(name: str) -> None:
    first, other = SAME[name]
    assert first != other, "this shows nothing"
    assert differing_paths(first, other) == []


DIFFERENT: dict[str, tuple[bytes, bytes, list[str]]] = {
    "npz": (npz(w=W, b=B), npz(w=OTHER, b=B), ["w"]),
    "a missing array": (npz(w=W, b=B), npz(w=W), ["b"]),
    "another type": (npy(B), npy(B.astype("f4")), [""]),
    "another shape": (npy(W), npy(W.reshape(3, 2)), [""]),
    "transposed": (npy(np.ones((2, 2)) + np.eye(2, k=1)), npy((np.ones((2, 2)) + np.eye(2, k=1)).T), [""]),
    "minus zero": (npy(np.zeros(2)), npy(-np.zeros(2)), [""]),
    "the second of two arrays in a file": (npy(B) + npy(B), npy(B) + npy(B * 2), [""]),
    "JSON": (b'{"a": {"b": [1, 2]}, "c": 1}', b'{"a": {"b": [1, 3]}, "c": 1}', ["a.b"]),
    "true is not 1": (b'{"a": true}', b'{"a": 1}', ["a"]),
    "1 is not 1.0": (b'{"a": [1]}', b'{"a": [1.0]}', ["a"]),
    "keys that read alike": (b'{"a.b": 1, "a": {"b": 2}}', b'{"a.b": 1, "a": {"b": 3}}', ["a.b #2"]),
    "a pickled array": (pickle.dumps({"net": {"w": W}}), pickle.dumps({"net": {"w": OTHER}}), ["net.w"]),
    "an attribute": (
        pickle.dumps(Counter(a=1)),
        pickle.dumps(Counter(a=2)),
        ["()"],
    ),
    "an item of an OrderedDict": (
        pickle.dumps(OrderedDict(a=1, b=2)),
        pickle.dumps(OrderedDict(a=1, b=3)),
        ["b"],
    ),
    "bytes in protocol 2": (pickle.dumps({"a": b"\xff1"}, 2), pickle.dumps({"a": b"\xff2"}, 2), ["a()"]),
    "a list of things": (pickle.dumps([{"a": 1}, {"a": 2}]), pickle.dumps([{"a": 1}, {"a": 3}]), ["[1].a"]),
    "the second of two pickles": (pickle.dumps(1) + pickle.dumps(2), pickle.dumps(1) + pickle.dumps(3), [""]),
    "what follows a pickle": (pickle.dumps(1) + b"\xffab", pickle.dumps(1) + b"\xffac", [""]),
    "safetensors": (safetensors({}, w=W, b=B), safetensors({}, w=OTHER, b=B), ["w"]),
    "safetensors' metadata": (safetensors({"a": "1"}, w=W), safetensors({"a": "2"}, w=W), ["__metadata__.a"]),
    "zip": (zip_of(1999, a=b"x\0"), zip_of(1999, a=b"y\0"), ["a"]),
    "tar": (tar_of(1, a=b"x\0"), tar_of(1, a=b"y\0"), ["a"]),
    "gzip": (gzip.compress(b"x\0"), gzip.compress(b"y\0"), [""]),
    "an archive in an archive": (
        zip_of(1999, a=tar_of(1, b=b"1")),
        zip_of(1999, a=tar_of(1, b=b"2")),
        ["a b"],
    ),
    "text": (b"loss 1", b"loss 2", [""]),
    "anything else": (b"\0\1\2", b"\0\1\3", [""]),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_changed_value_is_named(name: str) -> None:
    first, other, places = DIFFERENT[name]
    assert differing_paths(first, other) == places
    assert differing_paths(first, first) == []


def test_weights_are_bulk_values() -> None:
    values = digest_values(
        pickle.dumps({"w": W, "list": [1.0, 2.0], "at": 1.5, "id": "a" * 20, "n": np.float64(2)})
    )
    assert {path: leaf.is_weight_like for path, leaf in values.items() if not path.endswith("()")} == {
        "w": True,
        "list": True,
        "at": False,
        "id": False,
    }
    assert digest_values(b"0.1 0.2\n0.3 0.4")[""].is_weight_like
    assert not digest_values(b"trained for 3 epochs")[""].is_weight_like
    assert digest_values(b"\x89HDF\r\n")[""].is_weight_like


def test_job_names_are_masked() -> None:
    first, other = (
        digest_values(
            json.dumps({"by": f"run {name}"}).encode(), lambda text, name=name: text.replace(name, "(job)")
        )  # type: ignore[misc]
        for name in ("job-1", "job-2")
    )
    assert first == other


class TouchesOnLoad:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def nested_lists(depth: int) -> bytes:
    return b"\x80\x04" + b"]" * depth + b"a" * (depth - 1) + b"."


def doubled_lists(depth: int) -> bytes:
    """A list that holds the one before twice: 2 to the power of ``depth`` of them, in a few bytes."""
    return b"\x80\x04]\x94" + b"".join(b"]\x94(h%ch%ce" % (n, n) for n in range(depth)) + b"."


def itself_pickled() -> bytes:
    loop: list[Any] = ["x"]
    loop.append(loop)
    return pickle.dumps(loop)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "a memo of many gigabytes": lambda: b"\x80\x04]r\xff\xff\xff\x7f.",
    "bytes that are not there": lambda: b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f" + b".",
    "no end": lambda: b"\x80\x04]]]",
    "an empty stack": lambda: b"\x80\x04R.",
    "no mark": lambda: b"\x80\x04]e.",
    "a state for a list": lambda: b"\x80\x04]]b.",
    "an opcode of copyreg": lambda: b"\x80\x04\x82\x01.",
    "lists in lists": lambda: nested_lists(100_000),
    "lists held twice": lambda: doubled_lists(60),
    "a list that holds itself": itself_pickled,
    "JSON in JSON": lambda: b"[" * 100_000 + b"]" * 100_000,
    "a zip of zeros": lambda: zip_of(1999, **{str(n): b"\0" * (1 << 20) for n in range(9)}),
    "a broken zip": lambda: zip_of(1999, a=b"x")[:-9],
    "an array that is not there": lambda: npy(B).replace(b"(3,)", b"(9,)"),
    "a header that is no header": lambda: b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16,
    "a safetensors header of no use": lambda: struct.pack("<Q", 12) + b'{"w": "abc"}',
    "numbers that are too long": lambda: b"1" * 10_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_compared_by_its_bytes_at_worst(name: str) -> None:
    content = HOSTILE[name]()
    assert digest_values(content) == digest_values(content)
    assert digest_values(content) != digest_values(content + b"\0")


def test_pickles_are_never_executed(tmp_path: Path) -> None:
    marker = tmp_path / "made"
    content = pickle.dumps({"w": TouchesOnLoad(marker)})
    values = digest_values(content)
    assert set(values) == {"w()"}
    assert not marker.exists()
    pickle.loads(content)
    assert marker.exists(), "the file would have done it"


def test_globals_are_only_names() -> None:
    assert pickle_parser.parse_pickle(pickle.dumps(os.system)) == pickle_parser.GlobalRef("posix", "system")


@pytest.mark.torch
def test_pytorch_s_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def save_tensor_file(name: str, saved_value: Any) -> bytes:
        torch.save(saved_value, tmp_path / name)
        return (tmp_path / name).read_bytes()

    base = torch.arange(12.0).reshape(3, 4)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    copied = OrderedDict((copy_text(name), value.clone()) for name, value in net.state_dict().items())
    equal_pairs = [
        (save_tensor_file("a.pt", net.state_dict()), save_tensor_file("another-name.pt", copied)),
        (save_tensor_file("a.pt", {"w": base.T}), save_tensor_file("b.pt", {"w": base.T.contiguous()})),
        (save_tensor_file("a.pt", {"w": base[1]}), save_tensor_file("b.pt", {"w": base[1].clone()})),
        (save_tensor_file("a.pt", {"w": torch.nn.Parameter(base)}), save_tensor_file("b.pt", {"w": base})),
        (
            save_tensor_file("a.pt", {"w": base.to(torch.bfloat16)}),
            save_tensor_file("b.pt", {"w": base.clone().to(torch.bfloat16)}),
        ),
    ]
    for first, other in equal_pairs:
        assert first != other or first is not other
        assert differing_paths(first, other) == []
    changed = OrderedDict((name, value.clone()) for name, value in net.state_dict().items())
    changed["1.running_mean"][2] = 1e-30
    assert differing_paths(save_tensor_file("a.pt", net.state_dict()), save_tensor_file("b.pt", changed)) == [
        "1.running_mean"
    ]
    assert differing_paths(
        save_tensor_file("a.pt", {"w": base[1]}), save_tensor_file("b.pt", {"w": base[2]})
    ) == ["w"]
    assert differing_paths(
        save_tensor_file("a.pt", {"w": base}), save_tensor_file("b.pt", {"w": base.int()})
    ) == ["w"]
    values = digest_values(save_tensor_file("a.pt", net))
    assert any(path.endswith("weight") and leaf.is_weight_like for path, leaf in values.items())
    old_files = [io.BytesIO(), io.BytesIO()]
    for content, value in zip(old_files, (base, base + 1), strict=True):
        torch.save({"w": value}, content, _use_new_zipfile_serialization=False)
    assert differing_paths(old_files[0].getvalue(), old_files[1].getvalue()) != []
