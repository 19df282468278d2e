"""The report as one page of HTML that needs nothing else: figures as SVG, light and dark."""

import html
import itertools
from collections.abc import Callable, Sequence

from ..report._chart import Scale
from ._grid import as_number
from ._standing import Row
from ._surfaces import Findings, Profile, flatness, text
from ._table import summary

WIDTH, HEIGHT = 330, 210
LEFT, RIGHT, TOP, BOTTOM = 70, 10, 12, 40
BAR, SHADES = 44, 32
"""The room for a map's scale, below it, and how many colours that has."""
FAINTEST, STRONGEST = 0.05, 0.8
ROOM = 0.05
"""Of an axis, beyond its least and its greatest value."""
WIDE = 20
"""Values that span more than this factor are on a logarithmic scale."""
MANY = 12
"""More values than this, as a random search has them, are drawn along a scale, not one beside the other."""

EACH = "A dot is a point (open: not at its end); in colour, the best point at each value; the ring, the best of all."
TWO = (
    "The best point at each pair of values. Colour is in proportion to the value, on the scale under the map; stronger is better."
)

STYLE = """
:root { --paper: #fff; --ink: #1b2733; --faint: #6b7885; --line: #dfe4e9; --accent: #1f6feb; --soft: #eef3f9;
  --low: 31, 111, 235 }
@media (prefers-color-scheme: dark) {
  :root { --paper: #11161c; --ink: #e4eaf0; --faint: #93a1af; --line: #2b3540; --accent: #6aa9ff; --soft: #1a222b;
    --low: 106, 169, 255 }
}
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1100px;
  padding: 0 1.2rem }
h1 { font-size: 1.4rem; margin: 0 } h2 { font-size: 1.05rem; margin: 2rem 0 .6rem }
p { margin: .3rem 0 } .faint { color: var(--faint) }
.figures { display: flex; flex-wrap: wrap; gap: 14px }
figure { background: var(--soft); border-radius: 8px; margin: 0; padding: 10px 10px 4px }
figcaption { font-weight: 600; font-size: .9rem }
svg text { fill: var(--faint); font: 11px system-ui, sans-serif } svg .line { stroke: var(--line) }
.all { fill: var(--faint); fill-opacity: .45 } .open { fill: none; stroke: var(--faint); stroke-opacity: .6 }
.profile { fill: none; stroke: var(--accent); stroke-width: 2 } .on { fill: var(--accent) }
.star { fill: none; stroke: var(--accent); stroke-width: 1.6 } svg .cell { fill: rgb(var(--low)) } svg .value { fill: var(--ink) }
pre { background: var(--soft); border-radius: 8px; overflow-x: auto; padding: .8rem; font-size: .82rem; line-height: 1.45 }
pre.command { white-space: pre-wrap }
"""


def page(found: Findings) -> str:
    """All of it."""
    sweep = found.standing.sweep
    measure = sweep.measure
    best = found.best.score
    title = html.escape(f"{sweep.recipe}: {sweep.path.name}")
    figures = "".join(_figure(profile, found) for profile in found.profiles if any(profile.best))
    maps = "".join(_map(one, other, found) for one, other in _pairs(found.profiles))
    better = "less" if measure.direction == "min" else "more"
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>{STYLE}</style>
<h1>{title}</h1>
<p class="faint">{html.escape(summary(found.standing.rows()))}; {measure.metric} on {measure.split} data, {better} is better</p>
<h2>Best: {measure.metric} {best:.5g}{_plus_minus(found.best)}</h2>
<pre class="command">{html.escape(found.command)}</pre>
<p>{html.escape(flatness(found))}.</p>
{_section("Against each setting", figures, EACH)}
{_section("Against two settings", maps, TWO)}
<h2>Table</h2>
<pre>{html.escape(chr(10).join(text(found)[2:]))}</pre>
</html>
"""


def _section(title: str, figures: str, caption: str) -> str:
    return f'<h2>{title}</h2><p class="faint">{caption}</p><div class="figures">{figures}</div>' if figures else ""


def _plus_minus(row: Row) -> str:
    return "" if row.spread is None else f" ± {row.spread:.2g}"


def _pairs(profiles: Sequence[Profile]) -> list[tuple[Profile, Profile]]:
    few = [profile for profile in profiles if len(profile.values) <= MANY]
    return list(itertools.combinations(few, 2))[:6]


def _figure(profile: Profile, found: Findings) -> str:
    """Metric against one setting."""
    rows = [row for row in found.rows if profile.key in row.values]
    scores = [row.score for row in rows if row.score is not None]
    y = _scale(scores, HEIGHT - BOTTOM, TOP)
    x, ticks_x = _across(profile.values)
    parts = [_along(_named(found.standing.sweep.measure.metric, y))]
    parts += [
        f'<line class="line" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{label}</text>'
        for value, label in y.ticks(4)
    ]
    parts += [
        f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{html.escape(label)}</text>'
        for place, label in ticks_x
    ]
    for row in rows:
        name = " ".join(f"{key}={value}" for key, value in row.values.items())
        parts.append(
            f'<circle class="{"all" if row.finished else "open"}" cx="{x(row.values[profile.key]):.1f}" '
            f'cy="{y(row.score or 0):.1f}" r="3.2"><title>{html.escape(f"{row.score:.5g}  {name}")}</title></circle>'
        )
    if len(profile.values) <= MANY:
        pairs = zip(profile.values, profile.best, strict=True)
        line = [(x(value), y(row.score)) for value, row in pairs if row is not None and row.score is not None]
        if all(as_number(value) is not None for value in profile.values):
            parts.append(f'<polyline class="profile" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in line)}"/>')
        parts += [f'<circle class="on" cx="{a:.1f}" cy="{b:.1f}" r="3.6"/>' for a, b in line]
    if profile.key in found.best.values:
        at = x(found.best.values[profile.key]), y(found.best.score or 0)
        parts.append(f'<circle class="star" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="7"/>')
    return _svg(profile.key, "".join(parts))


def _map(across: Profile, down: Profile, found: Findings) -> str:
    """The best metric at each pair of values."""
    cells: dict[tuple[str, str], float] = {}
    for row in found.rows:
        pair = row.values.get(across.key), row.values.get(down.key)
        if pair[0] is not None and pair[1] is not None and row.score is not None:
            cells.setdefault((pair[0], pair[1]), row.score)
    measure = found.standing.sweep.measure
    strength = _strengths(list(cells.values()), measure.loss)
    width, height = (WIDTH - LEFT - RIGHT) / len(across.values), (HEIGHT - TOP - BOTTOM) / len(down.values)
    parts = []
    for (one, other), score in cells.items():
        left, top = LEFT + across.values.index(one) * width, TOP + down.values.index(other) * height
        place = f'x="{left + 1:.1f}" y="{top + 1:.1f}" width="{width - 2:.1f}" height="{height - 2:.1f}"'
        title = html.escape(f"{score:.5g}  {one}, {other}")
        parts.append(f'<rect class="cell" fill-opacity="{strength(score):.2f}" {place} rx="3"><title>{title}</title></rect>')
        if width >= 38 and height >= 14:
            at = f'x="{left + width / 2:.1f}" y="{top + height / 2 + 4:.1f}"'
            parts.append(f'<text class="value" {at} text-anchor="middle">{score:.3g}</text>')
    parts += [
        f'<text x="{LEFT + (index + 0.5) * width:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
        f"{html.escape(value)}</text>"
        for index, value in enumerate(across.values)
    ]
    parts += [
        f'<text x="{LEFT - 6}" y="{TOP + (index + 0.5) * height + 4:.1f}" text-anchor="end">{html.escape(value)}</text>'
        for index, value in enumerate(down.values)
    ]
    parts.append(_bar(list(cells.values()), strength, measure.metric))
    return _svg(f"{down.key} against {across.key}", "".join(parts), HEIGHT - 14 + BAR)


def _strengths(scores: Sequence[float], loss: Callable[[float], float]) -> Callable[[float], float]:
    """How strong the colour of a value is: in proportion to where it lies between the worst and the best."""
    worst, best = max(scores, key=loss), min(scores, key=loss)
    if worst == best:
        return lambda score: STRONGEST
    log = _is_wide(scores)
    return Scale(worst, best, FAINTEST, STRONGEST, log)


def _bar(scores: Sequence[float], strength: Callable[[float], float], metric: str) -> str:
    """The scale of a map's colours, with its ends and round values between them."""
    low, high, top = min(scores), max(scores), HEIGHT - 12
    if low == high:
        return ""
    along = Scale(low, high, LEFT, WIDTH - RIGHT, _is_wide(scores))
    step = (WIDTH - LEFT - RIGHT) / SHADES
    first, last = strength(low), strength(high)
    opacities = [first + (index + 0.5) / SHADES * (last - first) for index in range(SHADES)]
    shades = [
        f'<path class="cell" shape-rendering="crispEdges" fill-opacity="{opacity:.3f}" '
        f'd="M{LEFT + index * step:.2f},{top}h{step:.2f}v8h-{step:.2f}z"/>'
        for index, opacity in enumerate(opacities)
    ]
    ticks = [
        f'<text x="{along(value):.1f}" y="{top + 22}" text-anchor="middle">{label}</text>' for value, label in along.ticks(4)
    ]
    name = f'<text class="of" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{top + 37}" text-anchor="middle">{_named(metric, along)}</text>'
    return "".join([*shades, *ticks, name])


def _named(metric: str, scale: Scale) -> str:
    return html.escape(metric) + (" (log scale)" if scale.log else "")


def _along(label: str) -> str:
    """The name of the vertical axis."""
    place = f"translate(13,{(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)"
    return f'<text transform="{place}" text-anchor="middle">{label}</text>'


def _svg(caption: str, content: str, height: int = HEIGHT - 14) -> str:
    return (
        f"<figure><figcaption>{html.escape(caption)}</figcaption>"
        f'<svg width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">{content}</svg></figure>'
    )


def _across(values: Sequence[str]) -> tuple[Callable[[str], float], list[tuple[float, str]]]:
    """Places along the horizontal axis, and its labels."""
    numbers = [as_number(value) for value in values]
    if len(values) > MANY and all(number is not None for number in numbers):
        known = [number for number in numbers if number is not None]
        place = _scale(known, LEFT, WIDTH - RIGHT)
        return lambda value: place(as_number(value) or 0.0), [(place(tick), label) for tick, label in place.ticks(5)]
    step = (WIDTH - LEFT - RIGHT) / len(values)
    places = {value: LEFT + (index + 0.5) * step for index, value in enumerate(values)}
    shown = values if len(values) <= MANY else ()
    return places.__getitem__, [(places[value], value) for value in shown]


def _scale(values: Sequence[float], start: float, end: float) -> Scale:
    """From values to places between `start` and `end`, with some room beyond the least and the greatest."""
    low, high = min(values), max(values)
    if _is_wide(values):
        room = (high / low) ** ROOM
        return Scale(low / room, high * room, start, end, log=True)
    room = ROOM * (high - low) or 0.5 * abs(high) or 0.5
    return Scale(low - room, high + room, start, end)


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > WIDE
