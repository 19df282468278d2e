"""How runs are watched: a line each that stays in its place on a terminal, and plain lines elsewhere."""

import math
import shutil
import sys
import time
from types import TracebackType
from typing import Any, TextIO

from ..training import Progress, Start, Watch

BAR, SHORTEST = 24, 6
LARGE = 1e5
HIDE_CURSOR, SHOW_CURSOR, ERASE, ERASE_BELOW, UP = "\x1b[?25l", "\x1b[?25h", "\x1b[2K", "\x1b[J", "\x1b[{}A"


class Bar(Watch):
    """The line of one run."""

    def __init__(self, screen: "Screen", name: str, announced: bool) -> None:
        self.screen, self.name, self.announced = screen, name, announced
        self.start: Start | None = None
        self.done = 0
        self.loss: float | None = None
        self.metric: float | None = None
        self.radius: float | None = None
        self.begun = 0.0
        self.ended: float | None = None

    def started(self, start: Start) -> None:
        self.start, self.done, self.begun = start, start.done, time.monotonic()
        self.name = self.name or start.name
        if self.announced:
            self.screen.say(f"{self.name}: {start.parameters:,} parameters, {start.steps:,} steps, in {start.folder}")
            if start.data is not None:
                self.screen.say(f"data: {start.data}")
            if start.baseline is not None:
                self.screen.say(f"baseline: {start.metric} {start.baseline:.5g} ({start.baseline_rule})")

    def advanced(self, progress: Progress) -> None:
        self.done, self.radius = progress.done, progress.spectral_radius
        self.loss = None if math.isnan(progress.loss) else progress.loss
        self.screen.draw()

    def evaluated(self, record: dict[str, Any]) -> None:
        assert self.start is not None
        self.done, self.loss, self.radius = record["step"], record["loss"], record["spectral_radius"]
        self.metric = record[self.start.metric]
        if not self.screen.alive:
            self.screen.say(self.text(10_000, bar=False))
        self.screen.draw()

    def said(self, message: str) -> None:
        self.screen.say(message)

    def finished(self, result: dict[str, Any]) -> None:
        self.ended = time.monotonic()
        self.screen.draw()
        if not self.announced:
            return
        chosen = "chosen" if "chosen" in result else "last"
        metric = result["metric"]
        scores = ", ".join(f"{split} {metric} {values[metric]:.5g}" for split, values in result[chosen].items())
        switch = "" if result["switched_at"] is None else f", normalising since step {result['switched_at']}"
        data = f", on {result['data']}" if "data" in result else ""
        name = f"{self.name}: " if self.name else ""  # of a run that was finished before, and is looked for by its folder
        self.screen.say(f"{name}{scores} after {result['steps']:,} steps{switch}{data}")

    def text(self, width: int, bar: bool = True) -> str:
        """The line, in at most `width` columns."""
        if self.start is None:
            return f"{self.name:<14} starting"[:width]
        values = {"loss": self.loss, self.start.metric: self.metric, "ρ(T)": self.radius}
        shown = [f"{label} {_short(value)}" for label, value in values.items() if value is not None]
        front, back = f"{self.name:<14}", [f"{self.done:>{len(str(self.start.steps))}}/{self.start.steps}", *shown, *self._pace()]
        while len("  ".join([front, *back])) > width and len(back) > 1:
            del back[-1]
        room = min(BAR, width - len("  ".join([front, "", *back])))
        parts = [front, _bar(self.done / self.start.steps, room), *back] if bar and room >= SHORTEST else [front, *back]
        return "  ".join(parts)[:width]

    def _pace(self) -> list[str]:
        assert self.start is not None
        seconds = (self.ended or time.monotonic()) - self.begun
        rate = (self.done - self.start.done) / seconds if seconds > 0 else 0.0
        if rate <= 0:
            return []
        left = (self.start.steps - self.done) / rate
        clock = f"{_clock(seconds)} in all" if self.ended else f"{_clock(left)} left"
        return [clock, f"{rate:.1f} steps/s" if rate < 100 else f"{rate:.0f} steps/s"]


class Screen:
    """All bars, drawn in place if `stream` is a terminal. Used with `with`, so that the cursor comes back whatever happens."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.alive = self.stream.isatty()
        self._bars: list[Bar] = []
        self._drawn = 0

    def __enter__(self) -> "Screen":
        if self.alive:
            self.stream.write(HIDE_CURSOR)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.alive:
            self.stream.write(SHOW_CURSOR)
            self.stream.flush()

    def watch(self, name: str, announced: bool = True) -> Bar:
        """A bar for one more run, with or without a few words at its beginning and its end."""
        bar = Bar(self, name, announced)
        self._bars.append(bar)
        return bar

    def remove(self, bar: Bar) -> None:
        """Its run is over, and a line says the rest."""
        self._bars.remove(bar)
        if self.alive:
            self.stream.write(self._to_the_top() + ERASE_BELOW)
            self._drawn = 0
            self.draw()

    def say(self, message: str) -> None:
        """A line that stays, above the bars."""
        if self.alive:
            self.stream.write(self._to_the_top() + ERASE + message + "\n")
            self._drawn = 0
            self.draw()
        else:
            self.stream.write(message + "\n")
            self.stream.flush()

    def draw(self) -> None:
        if self.alive:
            size = shutil.get_terminal_size()
            lines = _fitting([bar.text(size.columns - 1) for bar in self._bars], size.lines - 1)
            self.stream.write(self._to_the_top() + "".join(f"{ERASE}{line}\n" for line in lines))
            self._drawn = len(lines)
            self.stream.flush()

    def _to_the_top(self) -> str:
        return UP.format(self._drawn) if self._drawn else ""


def _fitting(lines: list[str], height: int) -> list[str]:
    """As many as the terminal has room for: what has left it at the top is not to be drawn over."""
    if len(lines) <= max(2, height):
        return lines
    shown = max(1, height - 1)
    return [*lines[:shown], f"… and {len(lines) - shown} more"]


def _bar(share: float, width: int) -> str:
    full = min(width, int(share * width))
    return "━" * full + "─" * (width - full)


def _short(value: float) -> str:
    return f"{value:.4f}" if 5e-4 <= abs(value) < LARGE or value == 0 else f"{value:.1e}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
