"""Runs in worker processes of this machine, with nothing but the standard library.

A worker does one run after another. If it dies, by SIGKILL or for want of memory, another takes its place, and the run goes on
from its last checkpoint. A worker whose driver has died saves its run and ends.
"""

import contextlib
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from ..training._signals import StopSignals
from ._mps import VISIBLE
from ._processes import context_with, deaf, follow_the_driver, for_cuda
from ._sharing import Sharing
from ._stopped import SweepStoppedError
from ._work import LOST, Job, forget_error, leave_error, work

TICK = 0.25
"""Seconds between two looks at what the workers do."""
BUSY = 1.0
"""Seconds until a run that another process is at work on is tried again."""
RECOVERY = 5.0
"""Seconds until a run whose process has lost its GPU is tried again: MPS takes none before all that it has lost are gone."""

Tick = Callable[[set[str]], None]
"""Is told, a few times a second, the names of the runs under way."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    gpu: int | None
    job: Job | None = None


@dataclass
class LocalRunner:
    """`workers` processes, as many on each of `gpus`. A run whose worker has died more than `retries` times has failed."""

    runs: Path
    workers: int
    retries: int = 3
    gpus: int = 0
    sharing: Sharing | None = None
    _deaths: Counter[str] = field(default_factory=Counter)

    def run(self, jobs: Sequence[Job], tick: Tick) -> None:
        """Do the jobs; return when all have ended. SIGINT, SIGTERM or SIGHUP: save and stop them all, and raise."""
        queue = deque((0.0, job) for job in jobs)
        crew: list[_Worker] = []
        with StopSignals() as signals, _ended(crew):
            while (queue or any(worker.job for worker in crew)) and not signals.received:
                self._hand_out(queue, crew)
                for pipe in wait([worker.pipe for worker in crew], TICK):
                    self._hear(next(worker for worker in crew if worker.pipe is pipe), queue, crew)
                tick({worker.job.name for worker in crew if worker.job})
        if signals.received:
            raise SweepStoppedError(signals.received)

    @property
    def about(self) -> str:
        return "" if self.sharing is None else self.sharing.words

    def close(self) -> None:
        """Workers end with the jobs they were started for; what they shared a GPU through ends here."""
        if self.sharing is not None:
            self.sharing.close()

    def _hand_out(self, queue: deque[tuple[float, Job]], crew: list[_Worker]) -> None:
        for _ in range(len(queue)):
            free = next((worker for worker in crew if worker.job is None), None)
            if free is None and len(crew) == self.workers:
                return
            earliest, job = queue.popleft()
            if time.monotonic() < earliest:
                queue.append((earliest, job))
                continue
            if free is None:
                environment = {} if self.sharing is None else self.sharing.environment
                free = _started(least_used(self.gpus, [worker.gpu for worker in crew]), environment)
                crew.append(free)
            free.job = job
            with contextlib.suppress(BrokenPipeError):  # it has died since, as its pipe will tell
                free.pipe.send((job.config.as_dict(), str(self.runs), job.until))

    def _hear(self, worker: _Worker, queue: deque[tuple[float, Job]], crew: list[_Worker]) -> None:
        job, worker.job = worker.job, None
        try:
            ended = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            crew.remove(worker)
            worker.process.join()
            worker.pipe.close()
            if job is not None and self._may_try_again(job, worker.process.exitcode):
                lost = worker.process.exitcode == LOST
                if lost:
                    forget_error(job.config, self.runs)
                queue.appendleft((time.monotonic() + RECOVERY if lost else 0.0, job))
            return
        if ended == "busy" and job is not None:
            queue.append((time.monotonic() + BUSY, job))

    def _may_try_again(self, job: Job, code: int | None) -> bool:
        self._deaths[job.name] += 1
        if self._deaths[job.name] <= self.retries:
            return True
        if code == LOST:  # its worker has left the error
            return False
        times = f"{self._deaths[job.name]} times"
        leave_error(job.config, self.runs, "WorkerDied", f"its worker process was ended {times}, the last time {_cause(code)}")
        return False


@contextlib.contextmanager
def _ended(crew: list[_Worker]) -> Iterator[None]:
    """Whatever happens, no worker stays behind: one at work is asked to save and stop, an idle one sees its pipe closed."""
    try:
        yield
    finally:
        for worker in crew:
            if worker.job is not None:
                worker.process.terminate()
            worker.pipe.close()
        for worker in crew:
            worker.process.join()


def least_used(gpus: int, used: Sequence[int | None]) -> int | None:
    """Which of so many GPUs the next worker is to have, besides those that others have. None: it is not for us to say."""
    return min(range(gpus), key=used.count, default=None)


def _started(gpu: int | None, environment: Mapping[str, str]) -> _Worker:
    context = context_with("enrnn.sweep._work")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, gpu, for_cuda(environment)), daemon=True)
    with deaf():
        process.start()
    there.close()
    return _Worker(process, here, gpu)


def _serve(pipe: Connection, gpu: int | None, environment: Mapping[str, str | None]) -> None:
    follow_the_driver(environment)
    if gpu is not None:
        visible = os.environ.get(VISIBLE)
        os.environ[VISIBLE] = visible.split(",")[gpu] if visible else str(gpu)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send(work(*pipe.recv()))


def _cause(code: int | None) -> str:
    return f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with status {code}"
