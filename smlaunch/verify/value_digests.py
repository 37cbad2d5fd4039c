"""Digests of a file's values, so that files are compared by value and not by their bytes: archives contain
times, and the same tensors can be pickled in many ways.

Nothing is executed. Supported: NumPy's .npy and .npz, PyTorch's and other pickles, safetensors, JSON, text,
and zip, tar and gzip around them. Any other or unreadable file is one value: its bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from smlaunch.verify import pickle_parser
from smlaunch.verify.array_digests import ValueDigest, digest_npy
from smlaunch.verify.pickle_digests import (
    MAX_BYTES_OF_NO_WEIGHT,
    PickleDigester,
    state_without_layer_versions,
)
from smlaunch.verify.pickle_parser import (
    ConstructedObject,
    DictItems,
    GlobalRef,
    PersistentRef,
    SetItems,
    UnreadableContent,
)

MAX_FILE_BYTES = 1 << 29
"""Limit for a file that is read into memory, and for all that is unpacked from it."""

_MAX_ARCHIVE_DEPTH = 3
"""Nested archives."""

_MAX_VALUES = 300_000
_MAX_SHORT_TEXT_LENGTH = 40
_T = TypeVar("_T")
_ZIP_MAGIC, _ZIP_END_MAGIC = b"PK\x03\x04", b"PK\x05\x06"
_GZIP_MAGIC = b"\x1f\x8b"
_PICKLE_MAGIC = b"\x80"
"""Opcode PROTO, with which pickles of protocol 2 and later begin."""

_ZIP_END_RECORD_BYTES = 22
_TAR_MAGIC_OFFSET = 257
_TORCH_PICKLE_NAME = "data.pkl"

_SAFETENSORS_HEADER_LENGTH = struct.Struct("<Q")


ValueDigests = Mapping[str, ValueDigest]
"""By path in the file; "" for a file that is one value."""

TextMask = Callable[[str], str]
"""Removes from a text what differs from run to run by nature, such as a job's name."""


def digest_values(content: bytes, mask_text: TextMask = str) -> ValueDigests:
    """Return the digests of a file's values."""
    try:
        return _FileDigester(mask_text).digest_file(content, 0)
    except Exception:  # a broken or hostile file may raise anything; its bytes are compared instead
        return {"": _digest_whole_content(content)}


def digest_chunks(chunks: Iterator[bytes]) -> ValueDigests:
    """Return the digest of a file that is too large for memory."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return {"": ValueDigest(digest.hexdigest(), is_weight_like=True)}


def _digest_whole_content(content: bytes) -> ValueDigest:
    return ValueDigest(hashlib.sha256(content).hexdigest(), is_weight_like=True)


class _FileDigester:
    """Computes the digests of one file's values, and of those of all files packed in it. ``mask_text``: see
    TextMask."""

    def __init__(self, mask_text: TextMask) -> None:
        self._mask_text = mask_text
        self._remaining_unpack_bytes = MAX_FILE_BYTES
        self._value_count = 0

    def digest_file(self, content: bytes, archive_depth: int) -> dict[str, ValueDigest]:
        """Return the digests of all values in a file of any known format, by their path in it, such as
        ``layers.0.weight``. A file of an unknown format is one value with an empty path.

        ``archive_depth``: number of archives around the file. Raises UnreadableContent for a damaged archive
        or pickle.
        """
        # These return None for content of another format.
        for digest_format in (digest_npy, self._digest_safetensors, self._digest_json):
            digests = digest_format(content)
            if digests is not None:
                return digests
        # None for a file that is no archive, and for one in too many others.
        unpacked_files = None if archive_depth >= _MAX_ARCHIVE_DEPTH else self._unpack_archive(content)
        if unpacked_files is not None:
            return self._digest_archive_files(unpacked_files, archive_depth)
        if content[:1] == _PICKLE_MAGIC:  # a pickle by itself, without PyTorch's storages beside it
            return self._digest_pickle(content, {})
        # Text is hashed without names that differ from run to run; None for content that is no text.
        return {"": self._digest_text(content) or _digest_whole_content(content)}

    # ---- archives ------------------------------------------------------------------------------------------

    def _unpack_archive(self, content: bytes) -> dict[str, bytes] | None:
        """Return the files of a zip, gzip or tar archive by path; None for other content. A gzip file has one
        file with an empty path.

        Raises UnreadableContent for a damaged archive, and for one that unpacks to more than MAX_FILE_BYTES.
        """
        try:
            if content[:4] == _ZIP_MAGIC:
                return self._unpack_zip(content)
            if content[:2] == _GZIP_MAGIC:
                return {"": self._read_unpacked_file(gzip.GzipFile(fileobj=io.BytesIO(content)))}
            if content[_TAR_MAGIC_OFFSET : _TAR_MAGIC_OFFSET + 5] == b"ustar":
                return self._unpack_tar(content)
        except UnreadableContent:  # with its own message
            raise
        except Exception as error:  # zipfile, zlib and tarfile raise many types for a broken file
            raise UnreadableContent(str(error)) from error
        return None

    def _unpack_zip(self, content: bytes) -> dict[str, bytes]:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            end_record_offset = content.rfind(_ZIP_END_MAGIC)
            if end_record_offset + _ZIP_END_RECORD_BYTES + len(archive.comment) != len(content):
                raise UnreadableContent("something follows the archive")
            files = [info for info in archive.infolist() if not info.is_dir()]
            return _number_duplicate_paths(
                (info.filename, self._read_unpacked_file(archive.open(info))) for info in files
            )

    def _unpack_tar(self, content: bytes) -> dict[str, bytes]:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            files = [member for member in archive if member.isfile()]
            return _number_duplicate_paths(
                (member.name, self._read_unpacked_file(archive.extractfile(member))) for member in files
            )

    def _read_unpacked_file(self, file: Any) -> bytes:
        """Read one unpacked file. All of them count against one limit, because a small archive may hold a
        huge file."""
        with file:
            content: bytes = file.read(self._remaining_unpack_bytes + 1)
        self._remaining_unpack_bytes -= len(content)
        if self._remaining_unpack_bytes < 0:
            raise UnreadableContent("too large when it is unpacked")
        return content

    def _digest_archive_files(
        self, content_by_path: Mapping[str, bytes], archive_depth: int
    ) -> dict[str, ValueDigest]:
        """Return the digests of all values in an archive's files, by file name and path in the file.

        ``archive_depth``: number of archives around this one. In a file of ``torch.save``, a zip archive, the
        pickle ``<root>/data.pkl`` refers to the tensors' elements in ``<root>/data/<key>`` (storages), which
        count as parts of its values and not as files.
        """
        pickle_paths = [path for path in content_by_path if path.endswith(f"/{_TORCH_PICKLE_NAME}")]
        if not pickle_paths:  # not of torch.save
            return _number_duplicate_paths(self._digest_plain_files(content_by_path, "", archive_depth))
        pickle_path = pickle_paths[0]
        root = pickle_path.removesuffix(_TORCH_PICKLE_NAME)
        storage_prefix = f"{root}data/"
        storage_bytes_by_key = {
            path.removeprefix(storage_prefix): content
            for path, content in content_by_path.items()
            if path.startswith(storage_prefix)
        }
        id_path = f"{root}.data/serialization_id"  # differs with each save
        path_digest_pairs: list[tuple[str, ValueDigest]] = []
        for path, content in content_by_path.items():
            if path == pickle_path:
                path_digest_pairs += self._digest_pickle(content, storage_bytes_by_key).items()
            elif path != id_path and not path.startswith(storage_prefix):
                path_digest_pairs += self._digest_plain_files({path: content}, root, archive_depth)
        return _number_duplicate_paths(path_digest_pairs)  # a dict: a path that comes twice gets a number

    def _digest_plain_files(
        self, content_by_path: Mapping[str, bytes], root: str, archive_depth: int
    ) -> Iterator[tuple[str, ValueDigest]]:
        """Yield the digest of each value in these files of an archive, by file name and path in the file.
        ``root``: the folder in the archive that names are relative to."""
        for path, content in content_by_path.items():
            file_name = path.removeprefix(root).removesuffix(".npy")
            for value_path, digest in self.digest_file(content, archive_depth + 1).items():
                yield " ".join(filter(None, (file_name, value_path))), digest

    # ---- single formats ------------------------------------------------------------------------------------

    def _digest_safetensors(self, content: bytes) -> dict[str, ValueDigest] | None:
        """Return the digests of the tensors and the metadata of a safetensors file, by name; None for other
        content.

        The format: 8 bytes with the header's length, a JSON header with type, shape and data offsets of each
        tensor, then the data.
        """
        if len(content) < 10 or content[8:9] != b"{":  # with which the JSON header begins
            return None
        (header_bytes,) = _SAFETENSORS_HEADER_LENGTH.unpack(content[:8])
        data_start = 8 + header_bytes
        if data_start > len(content):
            return None
        digests: dict[str, ValueDigest] = {}
        try:
            header = json.loads(content[8:data_start])
            for name, tensor_info in header.items():
                if name == "__metadata__":
                    for key, value in tensor_info.items():
                        digests[f"{name}.{key}"] = self._digest_value(value)
                    continue
                start, end = tensor_info["data_offsets"]
                # Tensors with the same bytes are equal only if type and shape are, too.
                type_and_shape = f"{tensor_info['dtype']} {tensor_info['shape']}".encode()
                tensor_bytes = content[data_start + start : data_start + end]
                digests[name] = ValueDigest(
                    hashlib.sha256(type_and_shape + tensor_bytes).hexdigest(),
                    is_weight_like=math.prod(tensor_info["shape"]) > 1,
                )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None  # some other format that happens to have a brace at this place
        return digests

    def _digest_json(self, content: bytes) -> dict[str, ValueDigest] | None:
        if content[:1] == _PICKLE_MAGIC:
            return None
        try:
            tree = json.loads(content)
        except ValueError:
            return None
        return _number_duplicate_paths(self._digest_tree(_convert_json_dicts(tree), "", PickleDigester({})))

    def _digest_pickle(
        self, content: bytes, storage_bytes_by_key: Mapping[str, bytes]
    ) -> dict[str, ValueDigest]:
        return _number_duplicate_paths(
            self._digest_tree(pickle_parser.parse_pickle(content), "", PickleDigester(storage_bytes_by_key))
        )

    def _digest_text(self, content: bytes) -> ValueDigest | None:
        """Return the digest of a text file as one value; None for content that is no text."""
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            return None
        if "\0" in text:
            return None
        words = re.split(r"[\s,;]+", text.strip())
        masked_text = self._mask_text(text)  # without names that differ from run to run
        return ValueDigest(
            sha256=hashlib.sha256(masked_text.encode()).hexdigest(),
            is_weight_like=len(words) > 1 and all(map(_is_number, words)),
            short_value_text=_text_if_short(masked_text),
        )

    # ---- trees ---------------------------------------------------------------------------------------------

    def _digest_tree(
        self, node: Any, path: str, pickle_digester: PickleDigester
    ) -> Iterator[tuple[str, ValueDigest]]:
        """Yield path and digest of each array, list of numbers and single value in a parsed pickle or JSON
        document.

        ``node``: the document or a part of it, where dicts are DictItems (lists of pairs) and objects are
        described by the call that would make them. ``path``: of that part, empty for all of it.
        ``pickle_digester``: knows the tensors that the pickle refers to. Raises UnreadableContent for too
        many values.
        """
        self._value_count += 1  # over all files of one archive
        if self._value_count > _MAX_VALUES:
            raise UnreadableContent("too many values")
        # None unless the node describes a tensor or a NumPy array.
        array_digest = pickle_digester.digest_array_object(node)
        if array_digest is not None:
            yield path, array_digest
        elif isinstance(node, ConstructedObject):  # any other object, by the call that would make it
            yield from self._digest_constructed_object(node, path, pickle_digester)
        elif isinstance(node, DictItems) and node:
            for key, value in node:
                key_text = _path_text_of_key(key, pickle_digester)
                yield from self._digest_tree(value, _append_to_value_path(path, key_text), pickle_digester)
        elif _is_sequence(node) and node:
            if pickle_digester.is_nested_number_list(node):  # counts as one value
                yield path, ValueDigest(pickle_digester.sha256_of(node), is_weight_like=len(node) > 1)
                return
            for index, item in enumerate(node):
                yield from self._digest_tree(item, f"{path}[{index}]", pickle_digester)
        else:
            yield path, self._digest_value(node, pickle_digester)

    def _digest_constructed_object(
        self, node: ConstructedObject, path: str, pickle_digester: PickleDigester
    ) -> Iterator[tuple[str, ValueDigest]]:
        """Yield path and digest of the call that would make a pickled object, and of each value in its
        content: state, and items of a list or dict."""
        is_plain_call = not (node.state is not None or node.list_items or node.dict_items or node.arguments)
        if is_plain_call:
            yield path, ValueDigest(pickle_digester.sha256_of(node), is_weight_like=False)
            return
        constructor_call = (node.constructor, node.arguments)
        # "()" in the path stands for the call.
        yield (
            _append_to_value_path(path, "()"),
            ValueDigest(
                pickle_digester.sha256_of(constructor_call), pickle_digester.is_weight_like(node.arguments)
            ),
        )
        # PyTorch adds layer versions (_metadata) to a state_dict(), and not to its copies: they are left out.
        for content in (node.dict_items, state_without_layer_versions(node), node.list_items):
            if content:
                yield from self._digest_tree(content, path, pickle_digester)

    def _digest_value(self, value: Any, pickle_digester: PickleDigester | None = None) -> ValueDigest:
        """Return the digest of one value, with its text if it is short, for a message. ``pickle_digester``:
        knows the tensors that a pickle refers to; None for a value of another format."""
        if isinstance(value, str):
            value = self._mask_text(value)  # without names that differ from run to run
        sha256 = (pickle_digester or PickleDigester({})).sha256_of(value)  # {}: no tensors outside the value
        is_weight_like = isinstance(value, (bytes, bytearray)) and len(value) > MAX_BYTES_OF_NO_WEIGHT
        short_value_text = ""
        if isinstance(value, (str, int, float)) or value is None:
            short_value_text = _text_if_short(value if isinstance(value, str) else repr(value))
        return ValueDigest(sha256, is_weight_like, short_value_text)


def _convert_json_dicts(document: Any) -> Any:
    """Return a parsed JSON document whose dicts have the form of a parsed pickle's dicts."""
    if isinstance(document, dict):
        return DictItems((key, _convert_json_dicts(value)) for key, value in document.items())
    if isinstance(document, list):
        return [_convert_json_dicts(item) for item in document]
    return document


def _is_sequence(node: Any) -> bool:
    """Return whether a part of a parsed pickle is a list or tuple, and not one of the parser's own types,
    some of which are subclasses of these."""
    return isinstance(node, (list, tuple)) and not isinstance(node, (GlobalRef, PersistentRef, SetItems))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number_duplicate_paths(path_value_pairs: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """Return the values by path. Of several values with the same path, all but the first get a number after
    it, so that none is lost."""
    value_by_path: dict[str, _T] = {}
    for path, value in path_value_pairs:
        number, unique_path = 1, path
        while unique_path in value_by_path:
            number += 1
            unique_path = f"{path} #{number}"
        value_by_path[unique_path] = value
    return value_by_path


def _path_text_of_key(key: Any, pickle_digester: PickleDigester) -> str:
    """Return a dict's key as a part of a value's path; of a key that is no text or number, a short hash."""
    if isinstance(key, str):
        return key
    if isinstance(key, int):
        return f"[{key!r}]"
    return f"({pickle_digester.sha256_of(key)[:8]})"


def _append_to_value_path(path: str, key_text: str) -> str:
    if not path:
        return key_text
    return path + key_text if key_text.startswith(("[", "(")) else f"{path}.{key_text}"


def _text_if_short(text: str) -> str:
    return text if len(text) <= _MAX_SHORT_TEXT_LENGTH else ""
