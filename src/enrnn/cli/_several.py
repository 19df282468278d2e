"""The runs of a table as they are done, several at a time: on a terminal, a bar for each that is under way."""

from typing import Any

from ..paper._reproduce import Display
from ..training import Progress, Start, Watch
from ._progress import Bar, Screen


class Live(Display):
    """What stays is a line for each run that has ended. Where nothing can be drawn in place, one that begins has a line, too."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._bars: dict[str, Bar] = {}

    def say(self, line: str) -> None:
        self._screen.say(line)

    def begun(self, name: str) -> Watch:
        if not self._screen.alive:
            return super().begun(name)
        self._forget(name)  # of a run that is tried again
        self._bars[name] = self._screen.watch(name, announced=False)
        self._screen.draw()
        return _Quiet(self._bars[name])

    def ended(self, name: str, line: str) -> None:
        self._forget(name)
        super().ended(name, line)

    def _forget(self, name: str) -> None:
        if name in self._bars:
            self._screen.remove(self._bars.pop(name))


class _Quiet(Watch):
    """Of what a run says besides, such as that it goes on after a look at its matrix, nothing."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def started(self, start: Start) -> None:
        self._bar.started(start)

    def advanced(self, progress: Progress) -> None:
        self._bar.advanced(progress)

    def evaluated(self, record: dict[str, Any]) -> None:
        self._bar.evaluated(record)

    def finished(self, result: dict[str, Any]) -> None:
        self._bar.finished(result)
