"""Several runs at a time, each in a process of its own, so that one that fails, or is killed, takes no other along."""

import contextlib
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from .._counted import counted
from ..sweep._outcome import outcome
from ..sweep._processes import context_with, deaf, follow_the_driver, for_cuda
from ..sweep._work import LOST, end_if_lost, forget_error, leave_error
from ..training import RunFolder, Watch
from ..training._signals import StoppedError, StopSignals
from ..training._wire import Sent, pass_on
from . import _work
from ._work import Job, failure

TICK = 0.25
RETRIES = 3
"""How often a run is tried again whose process has lost its GPU, for which another's may be to blame."""


class PaperStoppedError(StoppedError):
    """Runs were asked to stop, and have stopped with checkpoints."""

    def __init__(self, number: int, left: int) -> None:
        name = signal.Signals(number).name
        todo = f"{counted(left, 'run')} to do"
        Exception.__init__(self, f"stopped by {name} with {todo}; everything is saved, and the same command goes on from there")
        self.exit_code = 128 + number


class _Working(NamedTuple):
    """A run under way."""

    job: Job
    pipe: Connection
    watch: Watch


def perform(
    jobs: Sequence[Job],
    runs: Path,
    at_once: int,
    ended: Callable[[Job], None],
    environment: Mapping[str, str] | None = None,
    begun: Callable[[Job], Watch] = lambda job: Watch(),
) -> None:
    """Do the jobs in their order, `at_once` at a time. SIGINT, SIGTERM or SIGHUP: save and stop them all, and raise.

    Arguments:
        ended: called with each that has finished or failed, and with one that something else has stopped.
        environment: changes to what CUDA reads from this process's environment.
        begun: called with each that begins; what it returns is told how the run goes.
    """
    waiting = list(jobs)
    losses: Counter[str] = Counter()
    working: dict[BaseProcess, _Working] = {}
    stopped: list[Job] = []
    with StopSignals() as signals, _all_ended(working):
        while (waiting or working) and not _asked_to_stop(signals):
            while waiting and len(working) < at_once:
                job = waiting.pop(0)
                process, pipe = _started(job, runs, for_cuda(environment or {}))
                working[process] = _Working(job, pipe, begun(job))
            ready = wait([*(process.sentinel for process in working), *(each.pipe for each in working.values())], TICK)
            for each in working.values():
                pass_on(each.pipe, each.watch)
            for process in [process for process in working if process.sentinel in ready]:
                process.join()
                job, pipe, _ = working.pop(process)
                pipe.close()
                if _asked_to_stop(signals) and _unsettled(job, runs):  # it has heard the same signal
                    stopped.append(job)
                    continue
                if process.exitcode == LOST and losses[job.folder_name] < RETRIES:
                    losses[job.folder_name] += 1
                    forget_error(job.config, runs)
                    waiting.append(job)
                    continue
                if process.exitcode and not (process.exitcode == LOST and failure(RunFolder(runs / job.folder_name))):
                    leave_error(job.config, runs, "ProcessDied", f"its process has ended with status {process.exitcode}")
                ended(job)
        left = [*waiting, *stopped, *(each.job for each in working.values())]
    if signals.received:
        raise PaperStoppedError(signals.received, sum(_unsettled(job, runs) for job in left))


def _asked_to_stop(signals: StopSignals) -> bool:
    """A signal may come between any two lines."""
    return signals.received != 0


def _unsettled(job: Job, runs: Path) -> bool:
    """Whether it has neither finished nor failed."""
    return not job.done(runs) and outcome(RunFolder(runs / job.folder_name)).status != "failed"


def _started(job: Job, runs: Path, environment: Mapping[str, str | None]) -> tuple[BaseProcess, Connection]:
    context = context_with("enrnn.paper._work")
    here, there = context.Pipe(duplex=False)
    arguments = (job.name, job.config.as_dict(), str(runs), job.data, environment, there)
    process: BaseProcess = context.Process(target=_serve, args=arguments, daemon=True)
    with deaf():
        process.start()
    there.close()
    return process, here


def _serve(
    name: str, values: dict[str, Any], runs: str, data: str | None, environment: Mapping[str, str | None], pipe: Connection
) -> None:
    follow_the_driver(environment)
    try:
        _work.do(name, values, runs, data, Sent(pipe))
    finally:
        end_if_lost(values["run"]["device"])


@contextlib.contextmanager
def _all_ended(working: dict[BaseProcess, _Working]) -> Iterator[None]:
    """Whatever happens, no process stays behind: each is asked to save and stop."""
    try:
        yield
    finally:
        for process, each in working.items():
            process.terminate()
            each.pipe.close()  # or one that has much to tell might wait for ever to be heard
        for process in working:
            process.join()
