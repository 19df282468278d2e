"""The table of a sweep, best first: drawn in place on a terminal, and elsewhere a line for each run that ends."""

import shutil
import sys
import time
from collections.abc import Container, Set
from types import TracebackType
from typing import TextIO

from .._counted import counted
from ._grid import described
from ._standing import Row, Standing, count

EVERY = 1.0
"""Seconds between two drawings."""
HIDE_CURSOR, SHOW_CURSOR, ERASE, UP = "\x1b[?25l", "\x1b[?25h", "\x1b[2K", "\x1b[{}A"


def table(standing: Standing, rows: list[Row], lines: int | None = None) -> list[str]:
    """The rows as text, or as many as fit into so many lines."""
    metric = f"{standing.sweep.measure.split} {standing.sweep.measure.metric}"
    content = [["", metric, "", "steps", "runs", *(key.partition(".")[2] for key in standing.axes)]]
    shown = rows if lines is None else rows[: max(1, lines - 2)]
    content += [[f"{number}", *_cells(standing, row)] for number, row in enumerate(shown, 1)]
    text = aligned(content, right=(0, 1, 3))
    left_out = [f"… and {len(rows) - len(shown)} more"] if len(shown) < len(rows) else []
    return text + left_out


def aligned(content: list[list[str]], right: Container[int]) -> list[str]:
    """Rows of cells as lines of columns, those in `right` set to the right."""
    widths = [max(map(len, column)) for column in zip(*content, strict=True)]
    lines = []
    for row in content:
        cells = enumerate(zip(row, widths, strict=True))
        lines.append("  ".join(cell.rjust(width) if place in right else cell.ljust(width) for place, (cell, width) in cells))
    return [line.rstrip() for line in lines]


def summary(rows: list[Row]) -> str:
    """The sweep in one line."""
    runs = count(rows)
    parts = [f"{runs[name]} {name}" for name in ("finished", "running", "paused", "waiting", "failed") if runs[name]]
    return f"{counted(len(rows), 'point')}, {counted(runs.total(), 'run')}: {', '.join(parts)}"


def _cells(standing: Standing, row: Row) -> list[str]:
    score = "–" if row.score is None else f"{row.score:.5g}"
    spread = "" if row.spread is None else f"± {row.spread:.2g}"
    return [score, spread, f"{row.step}/{row.steps}", row.status, *(row.values.get(key, "·") for key in standing.axes)]


class LiveTable:
    """Used with `with`, so that the cursor comes back whatever happens."""

    def __init__(self, standing: Standing, stream: TextIO | None = None) -> None:
        self.standing = standing
        self.stream = sys.stdout if stream is None else stream
        self.alive = self.stream.isatty()
        self._drawn = 0
        self._last = 0.0
        self._told: set[tuple[int, str]] = set()

    def __enter__(self) -> "LiveTable":
        self._remember(self.standing.rows())
        if self.alive:
            self.stream.write(HIDE_CURSOR)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        rows = self.standing.rows()
        if self.alive:
            self._draw(rows)
            self.stream.write(SHOW_CURSOR)
        else:
            self._tell(rows)
        self.stream.flush()

    def tick(self, running: Set[str]) -> None:
        """Draw, if it is time to."""
        if time.monotonic() - self._last < EVERY:
            return
        rows = self.standing.rows(running)
        if self.alive:
            self._draw(rows)
        else:
            self._tell(rows)
        self.stream.flush()
        self._last = time.monotonic()

    def _draw(self, rows: list[Row]) -> None:
        size = shutil.get_terminal_size()
        lines = [summary(rows), *table(self.standing, rows, size.lines - 3)]
        cleared = max(0, self._drawn - len(lines))
        text = "".join(f"{ERASE}{line[: size.columns - 1]}\n" for line in lines + [""] * cleared)
        self.stream.write((UP.format(self._drawn) if self._drawn else "") + text)
        self._drawn = len(lines) + cleared

    def _tell(self, rows: list[Row]) -> None:
        done = sum(row.statuses["finished"] + row.statuses["failed"] for row in rows)
        for row in self._remember(rows):
            outcome = "; ".join(row.errors) or f"{self.standing.sweep.measure.metric} {row.score:.5g}"
            values = {key: row.values[key] for key in self.standing.axes if key in row.values}
            self.stream.write(f"{done}/{count(rows).total()}  {described(values)}  {outcome}\n")

    def _remember(self, rows: list[Row]) -> list[Row]:
        """The points all of whose runs have ended since the last time."""
        new = []
        for row in rows:
            key = id(row.point), row.status
            if row.statuses["finished"] + row.statuses["failed"] == len(row.point.trials) and key not in self._told:
                self._told.add(key)
                new.append(row)
        return new
