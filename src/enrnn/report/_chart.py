"""A chart as SVG that needs no script: axes, curves, bands, points and level lines. For documents, and for other parts' pages."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from ._html import Html, element, join
from ._numbers import plain, power

LEFT, RIGHT, TOP, BOTTOM = 72, 26, 14, 48
TICK = (1.0, 2.0, 2.5, 5.0, 10.0)
NARROW = 5
"""A logarithmic scale over less than this factor has the ticks of a linear one."""
Range = tuple[float, float]
Point = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """From [low, high] to places between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log10(number) if self.log else number for number in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """About `count` round values with their labels; on a logarithmic scale decades, or 1, 2 and 5 where it holds few."""
        first, last = (math.log10(value) if self.log else value for value in (self.low, self.high))
        if self.log and math.floor(last) - math.ceil(first) >= 1:
            stride = max(1, math.ceil((last - first) / count))
            return [(10.0**exponent, _decade(exponent)) for exponent in range(math.ceil(first), math.floor(last) + 1, stride)]
        if self.log and self.high / self.low >= NARROW:
            numbers = [factor * 10.0**exponent for exponent in range(math.floor(first), math.ceil(last)) for factor in (1, 2, 5)]
            inside = [value for value in numbers if 0.999999 * self.low <= value <= 1.000001 * self.high]
            return [(value, plain(float(f"{value:.6g}"))) for value in inside]
        rough = (self.high - self.low) / count
        base = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * base for factor in TICK if factor * base >= 0.999 * rough)
        start, stop = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(index * step, plain(float(f"{index * step:.6g}"))) for index in range(start, stop + 1)]


def _decade(exponent: int) -> str:
    return plain(10.0**exponent) if -2 <= exponent <= 3 else power(exponent)


@dataclass
class Chart:
    """What is drawn goes on top of what was; what lies above or below the frame is cut off. Colours are CSS classes, so that
    whoever shows the chart chooses them.

    `grid`, `axis`, `label` and `level` are the chart's own; `kind` in its methods names yours.
    """

    x: Range
    y: Range
    x_label: str = ""
    y_label: str = ""
    x_log: bool = False
    y_log: bool = False
    width: int = 720
    height: int = 380
    parts: list[Html] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.across = Scale(*self.x, LEFT, self.width - RIGHT, self.x_log)
        self.up = Scale(*self.y, self.height - BOTTOM, TOP, self.y_log)

    def curve(self, points: Iterable[Sequence[float | None]], kind: str, dash: str = "") -> None:
        """A line, broken where y is None, not finite, or not positive on a logarithmic scale; a point alone is a dot."""
        for piece in self._pieces(points):
            if len(piece) > 1:
                path = "".join(map(_path, self._inside(piece)))
                if path:
                    self.parts.append(element("path", class_=f"curve {kind}", d=path, stroke_dasharray=dash or None))
            elif TOP <= piece[0][1] <= self.height - BOTTOM:
                (x, y), *_ = _rounded(piece)
                self.parts.append(element("circle", class_=f"dot {kind}", cx=x, cy=y, r=3.5))

    def band(self, points: Sequence[Sequence[float | None]], kind: str) -> None:
        """Between y = lower and upper, for points (x, lower, upper)."""
        lower = self._pieces((x, low) for x, low, high in points if self._fits(x, low) and self._fits(x, high))
        upper = self._pieces((x, high) for x, low, high in points if self._fits(x, low) and self._fits(x, high))
        for one, other in zip(lower, upper, strict=True):
            below, above = self._pressed(one), self._pressed(other)
            if below != above:
                self.parts.append(element("path", class_=f"band {kind}", d=f"{_path(below)}L{_path(above[::-1])[1:]}Z"))

    def level(self, y: float) -> None:
        """A line across at `y`."""
        if self._fits(self.x[0], y) and self.y[0] <= y <= self.y[1]:
            at = round(self.up(y), 1)
            self.parts.append(element("line", class_="level", x1=LEFT, x2=self.width - RIGHT, y1=at, y2=at))

    def content(self) -> Html:
        """Axes and everything drawn, to stand inside an `<svg>` of `width` by `height`."""
        right, bottom = self.width - RIGHT, self.height - BOTTOM
        lines: list[Html] = []
        for value, text in self.across.ticks(max(2, (right - LEFT) // 70)):
            at = round(self.across(value), 1)
            lines.append(element("line", class_="grid", x1=at, x2=at, y1=TOP, y2=bottom))
            lines.append(element("text", text, x=at, y=bottom + 18, text_anchor="middle"))
        for value, text in self.up.ticks(max(2, (bottom - TOP) // 48)):
            at = round(self.up(value), 1)
            lines.append(element("line", class_="grid", x1=LEFT, x2=right, y1=at, y2=at))
            lines.append(element("text", text, x=LEFT - 8, y=at + 4, text_anchor="end"))
        middle = (TOP + bottom) / 2
        return join(
            (
                *lines,
                *self.parts,
                element("path", class_="axis", d=f"M{LEFT},{TOP}V{bottom}H{right}"),
                element("text", self.x_label, class_="label", x=(LEFT + right) / 2, y=bottom + 37, text_anchor="middle"),
                element(
                    "text", self.y_label, class_="label", text_anchor="middle", transform=f"translate(16,{middle}) rotate(-90)"
                ),
            )
        )

    def _fits(self, x: float | None, y: float | None) -> bool:
        if x is None or y is None or not (math.isfinite(x) and math.isfinite(y)):
            return False
        return (x > 0 or not self.x_log) and (y > 0 or not self.y_log)

    def _pieces(self, points: Iterable[Sequence[float | None]]) -> list[list[Point]]:
        """Places of the points that follow one another without a gap, in the frame or not."""
        pieces: list[list[Point]] = [[]]
        for x, y in points:
            if x is None or y is None or not self._fits(x, y):
                pieces.append([])
            else:
                pieces[-1].append((self.across(x), self.up(y)))
        return [piece for piece in pieces if piece]

    def _crossed(self, piece: Sequence[Point]) -> list[Point]:
        """The same line with a point wherever it crosses the upper or the lower edge of the frame."""
        for edge in (TOP, self.height - BOTTOM):
            found = [piece[0]]
            for (x0, y0), (x1, y1) in pairwise(piece):
                if (y0 - edge) * (y1 - edge) < 0:
                    found.append((x0 + (edge - y0) / (y1 - y0) * (x1 - x0), float(edge)))
                found.append((x1, y1))
            piece = found
        return list(piece)

    def _inside(self, piece: Sequence[Point]) -> list[list[Point]]:
        """The parts of a line that are in the frame."""
        crossed = self._crossed(piece)
        parts = groupby(crossed, key=lambda point: TOP <= point[1] <= self.height - BOTTOM)
        found = [list(points) for inside, points in parts if inside]
        return [part for part in found if len(part) > 1]

    def _pressed(self, piece: Sequence[Point]) -> list[Point]:
        """An edge of a band: where it is out of the frame, the frame's."""
        return [(x, min(max(y, TOP), self.height - BOTTOM)) for x, y in self._crossed(piece)]


def _rounded(piece: Sequence[Point]) -> list[Point]:
    return [(round(x, 1), round(y, 1)) for x, y in piece]


def _path(piece: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x},{y}" for x, y in _rounded(piece))
