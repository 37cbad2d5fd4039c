"""Makes SIGTERM and SIGHUP end a program as Ctrl-C does: by an exception, so that what is open is closed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_handled_signals: set[signal.Signals] = set()
"""Those that have ``_exit_program`` as their handler."""

_masks_before_fork = threading.local()


@contextmanager
def exit_on_termination() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit within the context; a second signal ends the program at once. A
    signal that the program handles or ignores itself is left alone, and so are all outside of the main
    thread, where Python allows no change."""
    may_change_signals = threading.current_thread() is threading.main_thread()
    changed_signals = [
        number for number in _SIGNALS if may_change_signals and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in changed_signals:
        signal.signal(number, _exit_program)
        _handled_signals.add(number)
    try:
        yield
    finally:
        _restore_defaults(changed_signals)


def _exit_program(number: int, _: FrameType | None) -> None:
    _restore_defaults([signal.Signals(number)])
    raise SystemExit(128 + number)  # as a shell reports it


def _restore_defaults(numbers: list[signal.Signals]) -> None:
    for number in numbers:
        if signal.getsignal(number) is _exit_program:  # and not one that the program has set since
            signal.signal(number, signal.SIG_DFL)
        _handled_signals.discard(number)


# A forked process has nothing to close, so that the signals end it. Python forgets those that come between
# the fork and its first step in the new process; they are blocked until then.
def _block_before_fork() -> None:
    _masks_before_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handled_signals)


def _unblock_in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks_before_fork.mask)


def _unblock_in_child() -> None:
    _restore_defaults(list(_handled_signals))
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks_before_fork.mask)


os.register_at_fork(
    before=_block_before_fork, after_in_parent=_unblock_in_parent, after_in_child=_unblock_in_child
)
