"""At the end of each Python process on a host, print the files that were written meanwhile.

The tests copy this file into the environment that hosts run on, since what a script writes beside itself is
gone with its host. A line is ``written: model.pt``, relative to the folder that the process began in, or
``written: /tmp/model.pt``, or ``written: $SM_MODEL_DIR/model.pt``.
"""

import atexit
import os
import time

_BEGAN_IN = os.getcwd()
_BEGAN_AT = time.time() - 1  # times of files may be coarser than the clock


def print_written_files() -> None:
    places = ((_BEGAN_IN, ""), ("/tmp", "/tmp/"), (os.environ["SM_MODEL_DIR"], "$SM_MODEL_DIR/"))
    for place, prefix in places:
        for folder, subfolders, names in os.walk(place):
            subfolders[:] = [name for name in subfolders if name != "__pycache__"]
            for name in names:
                path = os.path.join(folder, name)
                if os.lstat(path).st_mtime >= _BEGAN_AT:
                    os.write(1, f"written: {prefix}{os.path.relpath(path, place)}\n".encode())


if "SM_MODEL_DIR" in os.environ:  # of a rank, and of what it starts
    atexit.register(print_written_files)
