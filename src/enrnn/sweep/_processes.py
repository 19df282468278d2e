"""Processes that work for a driver: they do not hear what the terminal sends, and save and end when the driver has died.

What CUDA reads from the environment is handed to them. They would have it as it was when the server that starts them was started.
"""

import contextlib
import multiprocessing as mp
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.connection import wait
from typing import Any

from ..training._signals import HANGUP
from ._mps import PIPES, VISIBLE

FROM_THE_TERMINAL = [signal.SIGINT] if HANGUP is None else [signal.SIGINT, HANGUP]
"""To all processes of a command: its Ctrl-C, and that it is gone."""


def context_with(preload: str) -> Any:
    """How to start them: from a server that has imported torch and this module once, where the system has one."""
    method = "forkserver" if "forkserver" in mp.get_all_start_methods() else "spawn"
    context: Any = mp.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([preload, "torch._dynamo"])
    return context


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def for_cuda(changes: Mapping[str, str]) -> dict[str, str | None]:
    """What is in this process's environment for CUDA, with these changes. None: it must not be there."""
    return {name: changes.get(name, os.environ.get(name)) for name in (PIPES, VISIBLE)}


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """What is started here does not hear the terminal's signals: the driver does, and tells the others."""
    if threading.current_thread() is not threading.main_thread():  # Python allows it nowhere else
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in FROM_THE_TERMINAL}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def follow_the_driver(environment: Mapping[str, str | None]) -> None:
    """To be called first in such a process, before CUDA starts there, with what the driver's `for_cuda` has returned."""
    for number in FROM_THE_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_stop_with_the_driver, daemon=True).start()
    for name, value in environment.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def _stop_with_the_driver() -> None:
    driver = mp.parent_process()
    assert driver is not None
    wait([driver.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
