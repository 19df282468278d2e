"""What a run tells those who watch it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Start:
    """A run begins, or goes on."""

    name: str
    folder: str
    steps: int
    done: int
    parameters: int
    metric: str
    baseline: float | None
    baseline_rule: str
    data: str | None = None
    """What was read, where the task has a choice."""


@dataclass(frozen=True)
class Progress:
    """How far it has come. `loss` is the mean since the last evaluation."""

    done: int
    loss: float
    spectral_radius: float | None


class Watch:
    """Does nothing; a watcher overrides what it wants to hear of."""

    def started(self, start: Start) -> None:
        """The run begins."""

    def advanced(self, progress: Progress) -> None:
        """Some steps were done. Called a few times a second at most."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """A line was added to metrics.jsonl."""

    def said(self, message: str) -> None:
        """Something worth a line, such as a damaged checkpoint."""

    def finished(self, result: dict[str, Any]) -> None:
        """result.json is there."""


class Watches(Watch):
    """Several watchers as one: each hears everything, in their order."""

    def __init__(self, *watches: Watch) -> None:
        self._watches = watches

    def started(self, start: Start) -> None:
        for watch in self._watches:
            watch.started(start)

    def advanced(self, progress: Progress) -> None:
        for watch in self._watches:
            watch.advanced(progress)

    def evaluated(self, record: dict[str, Any]) -> None:
        for watch in self._watches:
            watch.evaluated(record)

    def said(self, message: str) -> None:
        for watch in self._watches:
            watch.said(message)

    def finished(self, result: dict[str, Any]) -> None:
        for watch in self._watches:
            watch.finished(result)
