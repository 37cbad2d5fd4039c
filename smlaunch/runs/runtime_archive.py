"""The runtime as one zip file, which is sent with every job.

The packages keep their names inside the zip; ``__main__.py`` makes ``python3 runtime.pyz`` the host's
program. Files that only mpirun's ranks need, a seventh of the bytes, are only in the zips of jobs with such
ranks. Every module is stored as source, for any Python from 3.8, and compiled for the Python that builds
the zip. A zip has no ``__pycache__``, so that hosts with the same version (every host of the local endpoint)
need not compile it again. zipimport uses compiled code only if its magic number fits, and the source
otherwise.
"""

import hashlib
import importlib.util
import io
import json
import marshal
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

from smlaunch import user_cache

_CACHE_ENTRY_NAME = "runtime"
_HASH_CACHE_ENTRY_NAME = "hash-of-runtime"
_PACKAGE = Path(__file__).resolve().parent.parent
"""The folder of smlaunch itself."""

_PACKAGES_FOR_HOSTS = ("contract", "runtime", "train")
_MPI_PACKAGE = Path("runtime", "mpi")
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can store."""

_MAIN_SOURCE = b"from smlaunch.runtime.__main__ import start\n\nstart()\n"
_UNCHECKED_HASH_FLAGS = (0b01).to_bytes(4, "little")
"""PEP 552: compiled code that names its source by hash, without a check of that hash."""

_MARSHAL_VERSION = 2
"""Newer marshal formats depend on how often an object is referred to."""


def load_runtime_archive(uses_mpi: bool) -> bytes:
    """Return what ``build_runtime_archive`` returns, which takes as long as a bare interpreter's start, from
    the user's cache unless a source has changed."""
    return _load_cached(_CACHE_ENTRY_NAME, uses_mpi, lambda: build_runtime_archive(uses_mpi))


def runtime_sha256() -> str:
    """Return the hash, in hex, of all that an archive may contain: that of the archive with the MPI part.
    From the user's cache unless a source has changed."""

    def compute_hash() -> bytes:
        return hashlib.sha256(build_runtime_archive(uses_mpi=True)).hexdigest().encode()

    return _load_cached(_HASH_CACHE_ENTRY_NAME, True, compute_hash).decode()


def _load_cached(entry_name: str, uses_mpi: bool, make: Callable[[], bytes]) -> bytes:
    """Return an entry of the user's cache, made anew where a source of the archive has changed since."""
    key = _cache_key(uses_mpi)
    content = user_cache.read_entry(entry_name, key)
    if content is None:
        content = make()
        if _cache_key(uses_mpi) == key:  # no source was saved while it was made
            user_cache.write_entry(entry_name, key, content)
    return content


def _cache_key(uses_mpi: bool) -> str:
    """Return what the archive depends on: the format of compiled code, and each source. The time of a file's
    last change (ctime) differs also where a tool has restored its time and its size is the same."""
    parts: list[object] = [importlib.util.MAGIC_NUMBER.hex(), sys.flags.optimize, uses_mpi]
    for path in (Path(__file__), *_iter_module_paths(_PACKAGE, uses_mpi)):
        status = path.stat()
        parts.append([str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns])
    return json.dumps(parts)


def build_runtime_archive(uses_mpi: bool = False) -> bytes:
    """Return the zip file's bytes, which are the same for the same sources and the same Python.

    The files are stored without compression, because that starts faster. ``uses_mpi`` adds the modules for
    ranks that mpirun starts (launch_spec.MPI).
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, source in (("__main__.py", _MAIN_SOURCE), ("smlaunch/__init__.py", b"")):
            _add_module(archive, name, source, compile(source, name, "exec", dont_inherit=True, optimize=0))
        for path in _iter_module_paths(_PACKAGE, uses_mpi):
            name = f"smlaunch/{path.relative_to(_PACKAGE).as_posix()}"
            _add_module(archive, name, path.read_bytes(), _cached_code(path, name))
    return buffer.getvalue()


def _iter_module_paths(package: Path, uses_mpi: bool) -> Iterator[Path]:
    """Yield the Python files that hosts need, which the runtime's archive contains. ``package``: the folder
    of smlaunch itself. ``uses_mpi``: include the modules for ranks that mpirun starts."""
    mpi_folder = package / _MPI_PACKAGE
    for package_name in _PACKAGES_FOR_HOSTS:
        for path in sorted((package / package_name).rglob("*.py")):  # sorted: the archive is always the same
            if uses_mpi or path.parent != mpi_folder:
                yield path


def _add_module(archive: zipfile.ZipFile, name: str, source: bytes, code: CodeType) -> None:
    compiled = marshal.dumps(code, _MARSHAL_VERSION)
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH_FLAGS + importlib.util.source_hash(source)
    archive.writestr(_zip_info(name), source)
    archive.writestr(_zip_info(name + "c"), header + compiled)


def _zip_info(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _FIXED_TIME)
    entry.create_system = 3  # as on Unix, wherever it is built
    entry.external_attr = 0o644 << 16
    return entry


def _cached_code(path: Path, name: str) -> CodeType:
    """Compile a module through its loader, which uses ``__pycache__``. Compiling all modules would dominate
    the time of a launch."""
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    if not isinstance(code, CodeType):
        raise ImportError(f"{path}: cannot be compiled", path=str(path))
    return _with_filename(code, name)


def _with_filename(code: CodeType, name: str) -> CodeType:
    """Return the code with its name inside the zip, so that it does not depend on this machine's paths."""
    constants = tuple(
        _with_filename(constant, name) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(co_filename=name, co_consts=constants)
