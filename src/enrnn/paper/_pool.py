"""Several runs at a time, each in a process of its own, so that one that fails, or is killed, takes no other along."""

import contextlib
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ..sweep._processes import context_with, deaf, follow_the_driver, for_cuda
from ..sweep._work import LOST, end_if_lost, forget_error, leave_error
from ..training import RunFolder
from ..training._signals import StoppedError, StopSignals
from . import _work
from ._work import Job, failure

TICK = 0.25
RETRIES = 3
"""How often a run is tried again whose process has lost its GPU, for which another's may be to blame."""


class PaperStoppedError(StoppedError):
    """Runs were asked to stop, and have stopped with checkpoints."""

    def __init__(self, number: int, left: int) -> None:
        name = signal.Signals(number).name
        text = f"stopped by {name} with {left} runs to do; everything is saved, and the same command goes on from there"
        Exception.__init__(self, text)
        self.exit_code = 128 + number


def perform(
    jobs: Sequence[Job], runs: Path, at_once: int, ended: Callable[[Job], None], environment: Mapping[str, str] | None = None
) -> None:
    """Do the jobs in their order, `at_once` at a time. SIGINT, SIGTERM or SIGHUP: save and stop them all, and raise.

    `environment`: changes to what CUDA reads from this process's environment.
    """
    waiting = list(jobs)
    losses: Counter[str] = Counter()
    working: dict[BaseProcess, Job] = {}
    with StopSignals() as signals, _all_ended(working):
        while (waiting or working) and not signals.received:
            while waiting and len(working) < at_once:
                job = waiting.pop(0)
                working[_started(job, runs, for_cuda(environment or {}))] = job
            ready = wait([process.sentinel for process in working], TICK)
            for process in [process for process in working if process.sentinel in ready]:
                process.join()
                job = working.pop(process)
                if process.exitcode == LOST and losses[job.folder_name] < RETRIES:
                    losses[job.folder_name] += 1
                    forget_error(job.config, runs)
                    waiting.append(job)
                    continue
                if process.exitcode and not (process.exitcode == LOST and failure(RunFolder(runs / job.folder_name))):
                    leave_error(job.config, runs, "ProcessDied", f"its process has ended with status {process.exitcode}")
                ended(job)
        left = len(waiting) + len(working)
    if signals.received:
        raise PaperStoppedError(signals.received, left)


def _started(job: Job, runs: Path, environment: Mapping[str, str | None]) -> BaseProcess:
    context = context_with("enrnn.paper._work")
    arguments = (job.name, job.config.as_dict(), str(runs), job.data, environment)
    process: BaseProcess = context.Process(target=_serve, args=arguments, daemon=True)
    with deaf():
        process.start()
    return process


def _serve(name: str, values: dict[str, Any], runs: str, data: str | None, environment: Mapping[str, str | None]) -> None:
    follow_the_driver(environment)
    try:
        _work.do(name, values, runs, data)
    finally:
        end_if_lost(values["run"]["device"])


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
