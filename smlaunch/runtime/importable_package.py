"""The package that ranks import as ``smlaunch`` when no other one is installed: the one in the runtime's zip.

The runtime writes this file into a folder at the end of the ranks' PYTHONPATH, as ``smlaunch/__init__.py``,
with a call of ``prefer_installed_package`` below it. Entries of PYTHONPATH precede installed packages, and
which Python a rank uses (a shell script may start any), and what requirements install, is known only in the
rank. So the package looks for an installed smlaunch that has a ``train`` when it is imported, and gives way
to it. It is a folder and not the zip itself, since every Python that a rank starts would read the zip's whole
directory for each module that it looks for.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Optional


def prefer_installed_package(package: ModuleType, archive: str) -> None:
    """Replace ``package`` by the installed smlaunch; without one, let it find the modules of the zip at
    ``archive``.
    """
    folder = os.path.dirname(os.path.dirname(str(package.__file__)))
    spec = _find_installed_smlaunch(folder)
    if spec is None or spec.loader is None:
        package.__path__ = [os.path.join(archive, package.__name__)]
        return
    installed = module_from_spec(spec)
    # The running import returns the module found in sys.modules at its end (importlib, _load_unlocked).
    sys.modules[package.__name__] = installed
    spec.loader.exec_module(installed)


def _find_installed_smlaunch(excluded_entry: str) -> Optional[ModuleSpec]:
    """Return the import spec of an installed smlaunch other than this one, which the job brings along for
    hosts without any; None without one. It must have ``smlaunch.train``, which is what scripts import.
    ``excluded_entry``: the entry of sys.path to skip, where this one lies.
    """
    other_entries = [entry for entry in sys.path if entry != excluded_entry]
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        if find_spec is None:
            continue
        # Finders other than PathFinder are those of editable installs; they need no path.
        spec: Optional[ModuleSpec] = find_spec("smlaunch", other_entries if finder is PathFinder else None)
        package_path = None if spec is None else spec.submodule_search_locations
        if package_path is not None and PathFinder.find_spec("smlaunch.train", package_path) is not None:
            return spec
    return None
