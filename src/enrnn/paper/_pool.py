"""Several runs at a time, each in a process of its own, so that one that fails, or is killed, takes no other along."""

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ..sweep._processes import context_with, deaf, follow_the_driver
from ..sweep._work import leave_error
from ..training._signals import StoppedError, StopSignals
from . import _work
from ._work import Job

TICK = 0.25


class PaperStoppedError(StoppedError):
    """Runs were asked to stop, and have stopped with checkpoints."""

    def __init__(self, number: int, left: int) -> None:
        name = signal.Signals(number).name
        text = f"stopped by {name} with {left} runs to do; everything is saved, and the same command goes on from there"
        Exception.__init__(self, text)
        self.exit_code = 128 + number


def perform(jobs: Sequence[Job], runs: Path, at_once: int, ended: Callable[[Job], None]) -> None:
    """Do the jobs in their order, `at_once` at a time. SIGINT or SIGTERM: save and stop them all, and raise."""
    waiting = list(jobs)
    working: dict[BaseProcess, Job] = {}
    with StopSignals() as signals, _all_ended(working):
        while (waiting or working) and not signals.received:
            while waiting and len(working) < at_once:
                job = waiting.pop(0)
                working[_started(job, runs)] = job
            ready = wait([process.sentinel for process in working], TICK)
            for process in [process for process in working if process.sentinel in ready]:
                process.join()
                job = working.pop(process)
                if process.exitcode:
                    leave_error(job.config, runs, "ProcessDied", f"its process has ended with status {process.exitcode}")
                ended(job)
        left = len(waiting) + len(working)
    if signals.received:
        raise PaperStoppedError(signals.received, left)


def _started(job: Job, runs: Path) -> BaseProcess:
    context = context_with("enrnn.paper._work")
    process: BaseProcess = context.Process(target=_serve, args=(job.name, job.config.as_dict(), str(runs), job.data), daemon=True)
    with deaf():
        process.start()
    return process


def _serve(name: str, values: dict[str, Any], runs: str, data: str | None) -> None:
    follow_the_driver()
    _work.do(name, values, runs, data)


@contextlib.contextmanager
def _all_ended(working: dict[BaseProcess, Job]) -> Iterator[None]:
    """Whatever happens, no process stays behind: each is asked to save and stop."""
    try:
        yield
    finally:
        for process in working:
            process.terminate()
        for process in working:
            process.join()
