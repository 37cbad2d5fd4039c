"""botocore sessions whose clients are created in a tenth of the time: their service models are reduced ones.

botocore parses 2.6 MB for a SageMaker client, and looks into 400 folders for the names of all services. Here
it gets the same data, less what smlaunch does not use (service_models), from a cache (user_cache). Models of
the user's own, in ~/.aws/models or AWS_DATA_PATH, are read by botocore as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import botocore
from botocore import xform_name
from botocore.exceptions import DataNotFoundError
from botocore.loaders import JSONFileLoader, Loader, create_loader
from botocore.session import Session

from smlaunch.aws.service_models import SERVICE_IDS, ReducedSection, reduction_of
from smlaunch.user_cache import read_entry, write_entry

_CACHE_VERSION = 1
"""Of reductions: changes with the code in service_models."""

_SUFFIXES = (".json", ".json.gz")
"""In the order in which botocore looks for them."""


def create_session(**options: Any) -> Any:
    """Return a botocore session. ``options`` are those of its class."""
    session = Session(**options)
    session.lazy_register_component(
        "data_loader", lambda: ModelLoader(session.get_config_variable("data_path"))
    )
    for service, ids in SERVICE_IDS.items():
        session.register(
            f"creating-client-class.{ids.event_id}", partial(_name_all_operations, session, service)
        )
        session.register(f"getattr.{ids.event_id}", _bind_other_operation)
    return session


class ModelLoader(Loader):
    """botocore's loader, with reduced models. ``data_path``: the session's variable of this name."""

    def __init__(self, data_path: str | None) -> None:
        super().__init__(
            extra_search_paths=create_loader(data_path).search_paths,
            file_loader=_ReducingFileLoader(),
            include_default_search_paths=False,
        )

    def list_available_services(self, type_name: str) -> Collection[str]:
        return _ServiceNames(
            partial(self.list_api_versions, type_name=type_name),
            partial(super().list_available_services, type_name),
        )


class _ServiceNames(Collection[str]):
    """The names of all services, for which 400 folders are read. Whether one of them exists takes only its
    own."""

    def __init__(
        self, list_api_versions: Callable[[str], Collection[str]], list_names: Callable[[], Collection[str]]
    ) -> None:
        self._list_api_versions = list_api_versions
        self._list_names = list_names

    def __contains__(self, name: object) -> bool:
        try:
            return bool(self._list_api_versions(str(name)))
        except DataNotFoundError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self._list_names())

    def __len__(self) -> int:
        return len(self._list_names())


class _ReducingFileLoader(JSONFileLoader):
    """Reads botocore's own files as reductions, and all others as they are."""

    def load_file(self, file_path: str) -> Any:
        """Return the content of a file, reduced if it is a model of botocore's own; None if there is no such
        file. ``file_path``: without the suffix."""
        load_full = cache(partial(super().load_file, file_path))
        botocore_folder = Loader.BUILTIN_DATA_PATH + os.sep
        model_name = file_path.removeprefix(botocore_folder)
        is_botocores_own = model_name != file_path
        reduction = reduction_of(model_name) if is_botocores_own else None
        file_status = None if reduction is None else _stat_data_file(file_path)
        if reduction is None or file_status is None:
            return load_full()
        # The reduced content is cached: read it if file and reduction are still the same, or else make it.
        source = [botocore.__version__, model_name, file_status.st_size, file_status.st_mtime_ns]
        cache_key = json.dumps([_CACHE_VERSION, *source, *reduction.parameters])
        entry_name = model_name.replace("/", "-")
        cached_json = read_entry(entry_name, cache_key)
        if cached_json is not None:
            return reduction.complete(json.loads(cached_json), load_full)
        full_content = load_full()
        try:
            content = reduction.reduce(full_content)
        except (LookupError, TypeError, AttributeError):  # another botocore may have another format
            return full_content
        write_entry(entry_name, cache_key, json.dumps(content, separators=(",", ":")).encode())
        return reduction.complete(content, load_full)


def _stat_data_file(file_path: str) -> os.stat_result | None:
    for suffix in _SUFFIXES:
        with suppress(FileNotFoundError):
            return Path(file_path + suffix).stat()
    return None


def _name_all_operations(session: Any, service: str, class_attributes: dict[str, Any], **_: object) -> None:
    """Make a client know all names of methods, for paginators and presigned URLs of other operations: a
    handler for botocore, which calls it before it creates a client's class."""

    def load_all_names() -> dict[str, str]:
        model = session.get_component("data_loader").load_service_model(service, "service-2")
        operations = model["operations"]
        if isinstance(operations, ReducedSection):
            operations = operations.load_full()
        return {xform_name(operation): operation for operation in operations}

    operation_by_method = "_PY_TO_OP_NAME"  # the attribute in which botocore has the names
    if operation_by_method in class_attributes:
        class_attributes[operation_by_method] = ReducedSection(
            class_attributes[operation_by_method], load_all_names
        )


def _bind_other_operation(client: Any, event_name: str, **_: object) -> Callable[..., Any] | None:
    """Return a method for an operation that the reduced model lacks; None if the service lacks it too: a
    handler for botocore, which calls it for an attribute that a client does not have."""
    method = event_name.rpartition(".")[2]
    operation = None if method.startswith("_") else client.meta.method_to_api_mapping.get(method)
    if operation is None:
        return None

    def call(**params: Any) -> Any:
        return client._make_api_call(operation, params)  # noqa: SLF001 - as botocore's own methods do

    return call
