"""What ranks import as ``smlaunch`` when nothing else of that name is installed: the zip's own.

The runtime puts this file's text into a folder that comes last on the ranks' PYTHONPATH, as ``smlaunch/
__init__.py``, with a call of ``give_way`` below it. Entries of PYTHONPATH come before what is installed, and
which Python a rank turns out to be (a shell script may start any), and what requirements bring it, is known
only there. So the package looks for an installed smlaunch that has a ``train`` when it is imported, and gives
way to it. It is a folder and not the zip itself, since every Python that a rank starts would read the zip's
whole directory for each module it looks for.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Optional


def give_way(package: ModuleType, archive: str) -> None:
    """Puts the installed smlaunch in the place of ``package``; without one, leads it to the modules of the
    zip at ``archive``.
    """
    folder = os.path.dirname(os.path.dirname(str(package.__file__)))
    spec = _installed(folder)
    if spec is None or spec.loader is None:
        package.__path__ = [os.path.join(archive, package.__name__)]
        return
    installed = module_from_spec(spec)
    # The import that is under way takes what stands there when it is done (importlib, _load_unlocked).
    sys.modules[package.__name__] = installed
    spec.loader.exec_module(installed)


def _installed(folder: str) -> Optional[ModuleSpec]:
    others = [entry for entry in sys.path if entry != folder]
    for finder in sys.meta_path:
        # Others than PathFinder stand for what is installed as editable; they need no path.
        find = getattr(finder, "find_spec", None)
        spec = find("smlaunch", others if finder is PathFinder else None) if find is not None else None
        inside = spec.submodule_search_locations if spec is not None else None
        if inside is not None and PathFinder.find_spec("smlaunch.train", inside) is not None:
            return spec
    return None
