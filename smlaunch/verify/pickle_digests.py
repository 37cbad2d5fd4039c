"""Digests of the values of a parsed pickle, also of PyTorch's tensors and NumPy's arrays in it."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from smlaunch.verify.array_digests import ValueDigest, compute_element_strides, digest_array_elements
from smlaunch.verify.pickle_parser import (
    ConstructedObject,
    DictItems,
    GlobalRef,
    PersistentRef,
    SetItems,
    UnreadableContent,
)

MAX_BYTES_OF_NO_WEIGHT = 16
"""Longer byte strings may be weights."""

_UNFINISHED_SHA256 = ""
"""In place of the hash of a container whose items are being hashed."""

_TENSOR_CONSTRUCTORS = (
    GlobalRef("torch._utils", "_rebuild_tensor_v2"),
    GlobalRef("torch._utils", "_rebuild_tensor_v3"),
)
_PARAMETER_CONSTRUCTORS = (GlobalRef("torch._utils", "_rebuild_parameter"),)
_NUMPY_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray")


class PickleDigester:
    """Digests of a pickle's values. ``storage_bytes_by_key``: PyTorch's storages beside the pickle, by
    key."""

    def __init__(self, storage_bytes_by_key: Mapping[str, bytes]) -> None:
        self._storage_bytes_by_key = storage_bytes_by_key
        self._node_and_sha256_by_id: dict[int, tuple[Any, str]] = {}
        self._is_number_list_by_id: dict[int, bool] = {}

    def sha256_of(self, node: Any) -> str:
        """Return the SHA-256 of a value in the pickle, in hexadecimal.

        An object that is referenced twice has the same hash as two equal ones, and is hashed once. Raises
        UnreadableContent for a value that contains itself.
        """
        known = self._node_and_sha256_by_id.get(id(node))
        if known is not None:
            _, known_sha256 = known
            if known_sha256 == _UNFINISHED_SHA256:
                raise UnreadableContent("it contains itself")
            return known_sha256
        is_container = isinstance(node, (list, tuple, ConstructedObject))
        if is_container:  # its items, which are hashed below, may lead back to it
            self._node_and_sha256_by_id[id(node)] = (node, _UNFINISHED_SHA256)
        array_digest = self.digest_array_object(node)  # None unless it is a tensor or a NumPy array
        identifying_bytes = (
            self._canonical_bytes(node) if array_digest is None else array_digest.sha256.encode()
        )
        sha256 = hashlib.sha256(identifying_bytes).hexdigest()
        if is_container:
            # The entry keeps the node alive, so that its id is not reused.
            self._node_and_sha256_by_id[id(node)] = (node, sha256)
        return sha256

    def is_nested_number_list(self, items: Sequence[Any]) -> bool:
        """Return whether these are numbers, or nested lists of numbers."""
        is_number_list = self._is_number_list_by_id.get(id(items))
        if is_number_list is None:
            is_number_list = all(
                isinstance(item, (int, float))
                or (type(item) in (list, tuple) and self.is_nested_number_list(item))
                for item in items
            )
            self._is_number_list_by_id[id(items)] = is_number_list
        return is_number_list

    def is_weight_like(self, node: Any) -> bool:
        """Return whether a constructor's arguments look like weights: more than a few bytes, or several
        floats."""
        if isinstance(node, (bytes, bytearray)):
            return len(node) > MAX_BYTES_OF_NO_WEIGHT
        if isinstance(node, (list, tuple)):
            return len(node) > 1 and all(isinstance(item, float) for item in node)
        return False

    def digest_array_object(self, node: Any) -> ValueDigest | None:
        """Return the digest of a pickled tensor or NumPy array by type, shape and elements in row-major
        order; None for other values. A pickled object is described by the function that would make it."""
        if not isinstance(node, ConstructedObject) or not isinstance(node.constructor, GlobalRef):
            return None
        try:
            # The functions by which PyTorch and NumPy rebuild an array, given its type, shape and elements.
            if node.constructor in _TENSOR_CONSTRUCTORS:
                return self._digest_tensor(node.arguments)
            if node.constructor in _PARAMETER_CONSTRUCTORS:  # a parameter around its tensor
                return self.digest_array_object(node.arguments[0])
            if node.constructor.name == "_reconstruct" and node.constructor.module in _NUMPY_MODULES:
                return self._digest_numpy_array(node.state)
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, struct.error):
            return None  # not of the form that the constructor's name promises: compared as any other object
        return None

    def _digest_numpy_array(self, state: Any) -> ValueDigest:
        """``state``: what ``ndarray.__setstate__`` takes."""
        _, shape, dtype, is_fortran_order, data = state
        data_bytes = _numpy_data_bytes(data)
        element_bytes = _element_bytes(math.prod(shape), data_bytes)
        strides = compute_element_strides(shape, is_fortran_order)
        return digest_array_elements(self.sha256_of(dtype), data_bytes, element_bytes, shape, strides)

    def _digest_tensor(self, arguments: Any) -> ValueDigest | None:
        """``arguments``: of ``torch._utils._rebuild_tensor_v2``."""
        storage, offset, shape, strides = arguments[:4]
        _, storage_type, key, _, element_count = storage.persistent_id
        data_bytes = self._storage_bytes_by_key[str(key)]
        return digest_array_elements(
            storage_type.name, data_bytes, _element_bytes(element_count, data_bytes), shape, strides, offset
        )

    def _canonical_bytes(self, node: Any) -> bytes:
        """Return bytes that are the same for equal values of a pickle only: a value's type as a word, and its
        content or the hashes of its parts. They are hashed and never parsed."""
        if isinstance(node, PersistentRef):  # to a tensor's elements, which are outside of the pickle
            # The id says which of the storages, files beside the pickle, has them.
            return self._canonical_storage_bytes(node.persistent_id)
        if isinstance(node, GlobalRef):  # a function or class, by its name
            return f"name {node.module} {node.name}".encode("utf-8", "surrogatepass")
        if isinstance(node, DictItems):
            # Sorted, because the order of keys does not matter.
            pair_hashes = sorted(self.sha256_of(key) + self.sha256_of(value) for key, value in node)
            return ("dict " + " ".join(pair_hashes)).encode()
        if isinstance(node, SetItems):
            return ("set " + " ".join(sorted(map(self.sha256_of, node)))).encode()
        if isinstance(node, (list, tuple)):
            type_name = "list" if isinstance(node, list) else "tuple"
            if all(type(item) in (int, float, bool) for item in node):  # without a hash of each number
                return f"{type_name} of {node!r}".encode()
            return f"{type_name} {' '.join(map(self.sha256_of, node))}".encode()
        if isinstance(node, ConstructedObject):  # an object, by the call that would make it
            object_parts: tuple[Any, ...] = (
                node.constructor,
                node.arguments,
                state_without_layer_versions(node),  # without the _metadata of PyTorch's state_dict()
                node.list_items,
                node.dict_items,
            )
            return ("called " + " ".join(map(self.sha256_of, object_parts))).encode()
        if isinstance(node, (bytes, bytearray)):
            return b"bytes " + bytes(node)
        return f"{type(node).__name__} {node!r}".encode("utf-8", "surrogatepass")

    def _canonical_storage_bytes(self, persistent_id: Any) -> bytes:
        """Return the canonical bytes of a tensor's storage, which PyTorch refers to by a tuple of "storage",
        type, key, device and length. Any other persistent id counts as a value."""
        storage_bytes = None
        if isinstance(persistent_id, tuple) and len(persistent_id) > 2:
            storage_bytes = self._storage_bytes_by_key.get(str(persistent_id[2]))
        if storage_bytes is None:
            return b"kept " + self.sha256_of(persistent_id).encode()
        storage_type = persistent_id[1]
        return b"storage " + self.sha256_of(storage_type).encode() + hashlib.sha256(storage_bytes).digest()


def state_without_layer_versions(node: ConstructedObject) -> Any:
    """Return an object's state without the layer versions that PyTorch adds to a ``state_dict()``, but not to
    its copies."""
    state = node.state
    if node.constructor == GlobalRef("collections", "OrderedDict") and isinstance(state, DictItems):
        return DictItems(pair for pair in state if pair[0] != "_metadata") or None
    return state


def _element_bytes(element_count: int, data_bytes: bytes) -> int:
    return len(data_bytes) // element_count if element_count else 1


def _numpy_data_bytes(data: Any) -> bytes:
    """Return the bytes of an array's data. Pickle protocols before 3 have no bytes and store latin-1 text."""
    if isinstance(data, ConstructedObject) and data.constructor == GlobalRef("_codecs", "encode"):
        return bytes(data.arguments[0], "latin-1")
    return bytes(data)
