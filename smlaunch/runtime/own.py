"""The runtime's own folder on a host: nothing in it is carried away, and no other host looks into it."""

import os
from typing import Any

from smlaunch.protocol.paths import RUNTIME_ARCHIVE, RUNTIME_CHANNEL, Paths


def folder(paths: Paths) -> str:
    """Made when it is not there; another one where the image's user may not write below /opt/ml."""
    try:
        os.makedirs(paths.own, exist_ok=True)
        writable = os.access(paths.own, os.W_OK)
    except OSError:
        writable = False
    if writable:
        return paths.own
    import tempfile

    return tempfile.mkdtemp(prefix="smlaunch-")


def importable(own: str, paths: Paths) -> str:
    """A folder for the end of a PYTHONPATH, from which smlaunch.train can be imported (importable.py)."""
    loader: Any = __spec__.loader  # reads from the zip too, where there is no file to open
    text = loader.get_data(os.path.join(os.path.dirname(__file__), "importable.py"))
    archive = os.path.join(paths.channel(RUNTIME_CHANNEL), RUNTIME_ARCHIVE)
    call = "\n\ngive_way(sys.modules[__name__], {!r})\n".format(archive)
    package = os.path.join(own, "importable", "smlaunch")
    os.makedirs(package, exist_ok=True)
    with open(os.path.join(package, "__init__.py"), "wb") as file:
        file.write(text + call.encode("utf-8", "surrogateescape"))
    return os.path.dirname(package)
