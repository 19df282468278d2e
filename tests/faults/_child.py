"""A run in a process of its own, to which something happens.

Children are forked from a server that has imported torch once, so that a hundred of them take seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import multiprocessing as mp
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

from enrnn.training import Config, StoppedError, _container, train
from enrnn.training._step import Step


class Fault(NamedTuple):
    """`where`: "step" (a signal during the n-th step), or a place in the n-th atomic write, where the process is killed."""

    where: str
    count: int
    number: int = signal.SIGKILL


SAVE_FAULTS = ("half written", "before replace", "after replace", "before folder sync")


def run_child(config: Config, runs: Path, fault: Fault | None) -> int:
    """Do the run, or go on with it, until its end or the fault: the child's exit code, negative for a signal."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults._child", "torch._dynamo"])  # which torch would import in each child
    child = context.Process(target=_work, args=(config.as_dict(), str(runs), fault))
    child.start()
    child.join(120)
    assert child.exitcode is not None, "the child does not end"
    return child.exitcode


def _work(values: dict[str, Any], runs: str, fault: Fault | None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # if a sweep's driver has started the server, it does not hear the terminal
    if fault is not None:
        _arrange(fault)
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            train(Config.from_dict(values), runs)
        except StoppedError as stopped:
            sys.exit(stopped.exit_code)


def _arrange(fault: Fault) -> None:
    calls = 0

    def due() -> bool:
        nonlocal calls
        calls += 1
        return calls == fault.count

    def end() -> None:
        os.kill(os.getpid(), fault.number)

    if fault.where == "step":
        gradients = Step._gradients

        def interrupted(step: Step) -> Any:
            loss = gradients(step)
            if due():
                end()
            return loss

        Step._gradients = interrupted  # type: ignore[method-assign]
        return
    if fault.where == "half written":
        fsync = os.fsync

        def half(handle: int) -> None:
            writable = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
            if writable and due():
                os.ftruncate(handle, os.fstat(handle).st_size // 2)
                end()
            fsync(handle)

        os.fsync = half
        return
    if fault.where == "before folder sync":
        sync = _container._sync_folder

        def unsynced(folder: Path) -> None:
            if due():
                end()
            sync(folder)

        _container._sync_folder = unsynced
        return
    replace = os.replace

    def replaced(source: Any, target: Any) -> None:
        now = due()
        if now and fault.where == "before replace":
            end()
        replace(source, target)
        if now:
            end()

    os.replace = replaced
