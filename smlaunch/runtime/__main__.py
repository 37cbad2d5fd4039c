"""The entry of a host's process: first the signal handlers, then everything else, even imports."""

import os

from smlaunch.runtime.errors import StoppedDuringSetup
from smlaunch.runtime.signals import SignalQueue


def start() -> None:
    """Run and end the process. Uses os._exit: there is nothing to finalize, and a look-up thread may still be
    waiting.
    """
    signals = SignalQueue()
    try:
        signals.install()
        from smlaunch.runtime.main import main

        code = main(signals)
    except StoppedDuringSetup as stopped:
        code = stopped.exit_code
    os._exit(code)


if __name__ == "__main__":
    start()
