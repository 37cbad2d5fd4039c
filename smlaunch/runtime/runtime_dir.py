"""The runtime's own folder on a host: it is not uploaded, and no other host reads it."""

import os
from typing import Any

from smlaunch.contract.sagemaker_paths import RUNTIME_ARCHIVE, RUNTIME_CHANNEL, Paths


def make_runtime_dir(paths: Paths) -> str:
    """Make the folder if necessary; a temporary one where the image's user may not write below /opt/ml."""
    try:
        os.makedirs(paths.runtime_dir, exist_ok=True)
        writable = os.access(paths.runtime_dir, os.W_OK)
    except OSError:
        writable = False
    if writable:
        return paths.runtime_dir
    import tempfile

    return tempfile.mkdtemp(prefix="smlaunch-")


def write_import_package(runtime_dir: str, paths: Paths) -> str:
    """Write a package from which ranks can import smlaunch.train (importable_package.py); return its folder,
    for the end of PYTHONPATH.
    """
    loader: Any = __spec__.loader  # reads from the zip too, where there is no file to open
    package_source = loader.get_data(os.path.join(os.path.dirname(__file__), "importable_package.py"))
    archive = os.path.join(paths.channel_dir(RUNTIME_CHANNEL), RUNTIME_ARCHIVE)
    replacement_call = "\n\nprefer_installed_package(sys.modules[__name__], {!r})\n".format(archive)
    package = os.path.join(runtime_dir, "importable", "smlaunch")
    os.makedirs(package, exist_ok=True)
    with open(os.path.join(package, "__init__.py"), "wb") as file:
        file.write(package_source + replacement_call.encode("utf-8", "surrogateescape"))
    return os.path.dirname(package)
