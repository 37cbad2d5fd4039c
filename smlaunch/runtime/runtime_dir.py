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
    _write_file(
        os.path.join(package, "__init__.py"),
        package_source + replacement_call.encode("utf-8", "surrogateescape"),
    )
    return os.path.dirname(package)


def write_torch_extension(import_dir: str) -> None:
    """Write an extension of torch into a folder on the ranks' PYTHONPATH: the file joined_hosts_check.py, as
    a package that registers a function for ``import torch`` to call.
    """
    loader: Any = __spec__.loader
    source = loader.get_data(os.path.join(os.path.dirname(__file__), "joined_hosts_check.py"))
    module = "smlaunch_joined_hosts_check"
    metadata_dir = os.path.join(import_dir, module + "-1.dist-info")
    os.makedirs(metadata_dir, exist_ok=True)
    _write_file(os.path.join(import_dir, module + ".py"), source)
    metadata = "Metadata-Version: 2.1\nName: {}\nVersion: 1\n".format(module)
    _write_file(os.path.join(metadata_dir, "METADATA"), metadata.encode())
    entry_point = "[torch.backends]\n{0} = {0}:install\n".format(module)
    _write_file(os.path.join(metadata_dir, "entry_points.txt"), entry_point.encode())


def _write_file(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
