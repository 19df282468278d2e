"""SIGTERM, SIGINT and SIGHUP as a wish to stop at the next step, with a checkpoint."""

import signal
import threading
from types import FrameType, TracebackType

HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)
"""The terminal is gone. (Windows has no such signal.)"""


class StoppedError(Exception):
    """A run was asked to stop, and has stopped with a checkpoint."""

    def __init__(self, number: int, step: int) -> None:
        name = signal.Signals(number).name
        super().__init__(f"stopped by {name} after step {step}; everything is saved, and the same command goes on from there")
        self.exit_code = 128 + number


class StopSignals:
    """While it is entered, a signal is only noted; the same one again does what it would have done without us."""

    def __init__(self) -> None:
        self.received = 0
        self._seen: set[int] = set()
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # Python allows it nowhere else
            self._before = {number: signal.signal(number, self._note) for number in _heard()}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in self._seen:
            self._restore()
            signal.raise_signal(number)
        self._seen.add(number)
        self.received = number

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}


def _heard() -> list[signal.Signals]:
    """Those that are a wish to stop. Who was started with nohup is to outlive the terminal."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    if HANGUP is not None and signal.getsignal(HANGUP) is not signal.SIG_IGN:
        numbers.append(HANGUP)
    return numbers
