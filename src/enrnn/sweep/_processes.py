"""Processes that work for a driver: they do not hear the terminal's Ctrl-C, and save and end when the driver has died."""

import contextlib
import multiprocessing as mp
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any


def context_with(preload: str) -> Any:
    """How to start them: from a server that has imported torch and this module once, where the system has one."""
    method = "forkserver" if "forkserver" in mp.get_all_start_methods() else "spawn"
    context: Any = mp.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([preload, "torch._dynamo"])
    return context


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """What is started here does not hear the terminal's Ctrl-C: the driver does, and tells the others."""
    if threading.current_thread() is not threading.main_thread():  # Python allows it nowhere else
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def follow_the_driver() -> None:
    """To be called first in such a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_stop_with_the_driver, daemon=True).start()


def _stop_with_the_driver() -> None:
    driver = mp.parent_process()
    assert driver is not None
    wait([driver.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
