"""The runtime as one zip, which travels with every job.

Inside, the packages keep their names; ``__main__.py`` makes ``python3 runtime.pyz`` the host's program.
Every module is there as source, for any Python from 3.8, and also compiled for the Python that builds the
zip, which saves a host with the same version (every host of the local endpoint) compiling it anew: a zip
has no ``__pycache__``. zipimport takes compiled code only if its magic number fits, and the source
otherwise.
"""

import importlib.util
import io
import marshal
import zipfile
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

_ROOMS = ("protocol", "runtime", "train")
_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest a zip can say."""

_MAIN = b"from smlaunch.runtime.__main__ import start\n\nstart()\n"
_UNCHECKED_HASH = (0b01).to_bytes(4, "little")
"""PEP 552: compiled code that says which source it is of by hash, and that is not to be checked against it.
"""

_STABLE_MARSHAL = 2
"""Newer formats of marshal depend on how often an object happens to be referred to."""


def build_runtime() -> bytes:
    """The same bytes for the same sources and the same Python. Stored, not deflated: it starts sooner so."""
    package = Path(__file__).resolve().parent.parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, source in (("__main__.py", _MAIN), ("smlaunch/__init__.py", b"")):
            _add(archive, name, source, compile(source, name, "exec", dont_inherit=True, optimize=0))
        for path in _modules(package):
            name = f"smlaunch/{path.relative_to(package).as_posix()}"
            _add(archive, name, path.read_bytes(), _cached_code(path, name))
    return buffer.getvalue()


def _modules(package: Path) -> Iterator[Path]:
    for room in _ROOMS:
        yield from sorted((package / room).rglob("*.py"))


def _add(archive: zipfile.ZipFile, name: str, source: bytes, code: CodeType) -> None:
    compiled = marshal.dumps(code, _STABLE_MARSHAL)
    stamp = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source)
    archive.writestr(_entry(name), source)
    archive.writestr(_entry(name + "c"), stamp + compiled)


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.create_system = 3  # as on Unix, wherever it is built
    entry.external_attr = 0o644 << 16
    return entry


def _cached_code(path: Path, name: str) -> CodeType:
    """Through the loader: compiling everything anew would be the better part of a launch's own time."""
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    if not isinstance(code, CodeType):
        raise ImportError(f"{path}: cannot be compiled", path=str(path))
    return _renamed(code, name)


def _renamed(code: CodeType, name: str) -> CodeType:
    """With the name inside the zip, which no two machines see differently."""
    constants = tuple(_renamed(c, name) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=name, co_consts=constants)
