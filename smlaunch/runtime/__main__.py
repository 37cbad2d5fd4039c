"""Where the host's process begins: first the signals, then everything else, even imports."""

import os

from smlaunch.runtime.problems import Stopped
from smlaunch.runtime.signals import Signals


def start() -> None:
    """Ends the process. Not by sys.exit: nothing is left to finalize, and a look-up thread may still be
    waiting.
    """
    signals = Signals()
    try:
        signals.install()
        from smlaunch.runtime.main import main

        code = main(signals)
    except Stopped as stopped:
        code = stopped.exit_code
    os._exit(code)


if __name__ == "__main__":
    start()
