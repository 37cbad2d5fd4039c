"""What ranks import as ``smlaunch`` when nothing else of that name is installed: the zip's own.

The bundle puts this file into the zip as ``importable/smlaunch/__init__.py``, and that folder comes last on
the ranks' PYTHONPATH. Entries of PYTHONPATH come before what is installed, and which Python a rank turns
out to be (a shell script may start any), and what requirements bring it, is known only there. So this
package looks for an installed smlaunch that has a ``train`` when it is imported, and gives way to it.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Optional


def give_way(package: ModuleType) -> None:
    """Puts the installed smlaunch in the place of ``package``; without one, leads it to the zip's modules."""
    folder = os.path.dirname(os.path.dirname(str(package.__file__)))
    spec = _installed(folder)
    if spec is None or spec.loader is None:
        package.__path__ = [os.path.join(os.path.dirname(folder), package.__name__)]
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


if __name__ == "smlaunch":
    give_way(sys.modules[__name__])
