"""Ctrl-C while there is nothing to save or to tidy up, as while torch is imported: the process ends, and says nothing.

An exception would not do. It comes up wherever the import is, and code there may take it for a module that is missing.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """In here, Ctrl-C ends the process, until `raising_again` is called."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        raising_again()


def raising_again() -> None:
    """From here on, Ctrl-C is a `KeyboardInterrupt` as ever."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)
