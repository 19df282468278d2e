"""From a run's process to the one that shows it: what the run tells its watch."""

import contextlib
from multiprocessing.connection import Connection
from typing import Any

from ._watch import Progress, Start, Watch


class Sent(Watch):
    """Sends what it hears. That nobody listens any more, as the command has died, is no matter of the run, which has to save."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def started(self, start: Start) -> None:
        self._send("started", start)

    def advanced(self, progress: Progress) -> None:
        self._send("advanced", progress)

    def evaluated(self, record: dict[str, Any]) -> None:
        self._send("evaluated", record)

    def said(self, message: str) -> None:
        self._send("said", message)

    def finished(self, result: dict[str, Any]) -> None:
        self._send("finished", result)

    def _send(self, event: str, content: object) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send((event, content))


def pass_on(pipe: Connection, watch: Watch) -> None:
    """To `watch`, all that has come so far."""
    while True:
        try:
            if not pipe.poll():
                return
            event, content = pipe.recv()
        except (EOFError, OSError):  # its process has ended
            return
        getattr(watch, event)(content)
