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
from pathlib import Path
from types import CodeType

_ROOMS = ("protocol", "runtime", "train")
_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest a zip can say."""

_MAIN = "from smlaunch.runtime.__main__ import start\n\nstart()\n"
_UNCHECKED_HASH = (0b01).to_bytes(4, "little")
"""PEP 552: compiled code that says which source it is of by hash, and that is not to be checked against it.
"""

_STABLE_MARSHAL = 2
"""Newer formats of marshal depend on how often an object happens to be referred to."""


def build_runtime() -> bytes:
    """The same bytes for the same sources and the same Python. Stored, not deflated: it starts sooner so."""
    package = Path(__file__).resolve().parent.parent
    sources = [("__main__.py", _MAIN), ("smlaunch/__init__.py", "")]
    sources += [
        (f"smlaunch/{path.relative_to(package).as_posix()}", path.read_text(encoding="utf-8"))
        for path in _modules(package)
    ]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, source in sources:
            archive.writestr(_entry(name), source)
            archive.writestr(_entry(name + "c"), _compiled(name, source))
    return buffer.getvalue()


def _modules(package: Path) -> Iterator[Path]:
    for room in _ROOMS:
        yield from sorted((package / room).rglob("*.py"))


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.create_system = 3  # as on Unix, wherever it is built
    entry.external_attr = 0o644 << 16
    return entry


def _compiled(name: str, source: str) -> bytes:
    code: CodeType = compile(source, name, "exec", dont_inherit=True, optimize=0)
    source_hash = importlib.util.source_hash(source.encode("utf-8"))
    return importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + source_hash + marshal.dumps(code, _STABLE_MARSHAL)
