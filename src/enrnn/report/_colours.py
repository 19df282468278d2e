"""Every colour of the page, light and dark.

The colour map is a path of evenly rising lightness in OKLCH (Ottosson 2020), from violet over green to yellow, so that equal
steps in value look equal, in grey too. The series' colours were found by a search for the largest smallest distance in OKLab
between any two, to normal eyes and to the three kinds of dichromats, at a contrast of at least 3 with the page.
"""

import math
from functools import cache

THEME = {
    "page": ("#faf9f6", "#14171c"),
    "card": ("#ffffff", "#1b2027"),
    "sunk": ("#f3f1ec", "#232932"),
    "ink": ("#1d2228", "#e7eaef"),
    "soft": ("#59626d", "#a6b0bc"),
    "line": ("#dfdbd3", "#343b46"),
    "accent": ("#0b5aa8", "#84b8ff"),
    "good": ("#17663a", "#74d09a"),
    "bad": ("#a3301b", "#ff9c86"),
    "open": ("#705206", "#e3c36c"),
}
"""Names of CSS variables; each with its light and its dark colour."""

SERIES = (
    ("#1f2e9e", "#427cec"),
    ("#a73b15", "#d74f1f"),
    ("#389993", "#23b8a6"),
    ("#630e55", "#b54ba0"),
    ("#b58538", "#d29e25"),
    ("#9c7ef4", "#e0a3fe"),
    ("#1a3600", "#98e787"),
    ("#545d68", "#e2e8f6"),
)

Rgb = tuple[float, float, float]


def theme_css() -> str:
    """The variables: light, dark where the system asks for it, and whichever the reader has chosen."""
    light, dark = (" ".join(f"--{name}: {pair[which]};" for name, pair in THEME.items()) for which in (0, 1))
    return (
        f":root {{ color-scheme: light; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ color-scheme: dark; {dark} }} }}\n"
        f"@media screen {{ :root[data-theme=dark] {{ color-scheme: dark; {dark} }} }}\n"
    )


def colour_map(count: int = 64, low: float = 0.2, high: float = 0.95) -> list[str]:
    """`count` colours whose OKLab lightness goes evenly from `low` to `high` while the hue goes from violet to yellow."""
    steps = [step / (count - 1) for step in range(count)]
    return [_hex(low + (high - low) * step, 300 - 195 * step, _chroma(low, high, step)) for step in steps]


def ordered(count: int) -> list[tuple[str, str]]:
    """Colours for series in an order, ever lighter: dark to middling on a light page, middling to light on a dark one."""
    steps = max(2, count)
    return list(zip(colour_map(steps, 0.25, 0.66), colour_map(steps, 0.58, 0.92), strict=True))[:count]


def _chroma(low: float, high: float, step: float) -> float:
    """As much as a screen has nearby, so that the path through the colours has no kinks: the mean of the least in a window."""

    def least(centre: float) -> float:
        near = (min(1.0, max(0.0, centre + shift / 50)) for shift in range(-6, 7, 2))
        return min(_most_chroma(low + (high - low) * place, 300 - 195 * place) for place in near)

    return sum(least(step + shift / 50) for shift in range(-6, 7, 2)) / 7


@cache
def _most_chroma(lightness: float, hue: float) -> float:
    chroma = 0.17
    while not _in_gamut(_linear_rgb(lightness, chroma, hue)):
        chroma -= 0.004
    return chroma


def _hex(lightness: float, hue: float, chroma: float) -> str:
    return "#" + "".join(f"{round(255 * _companded(channel)):02x}" for channel in _linear_rgb(lightness, chroma, hue))


def _in_gamut(colour: Rgb) -> bool:
    return all(-1e-4 <= channel <= 1 + 1e-4 for channel in colour)


def _companded(channel: float) -> float:
    channel = min(1.0, max(0.0, channel))
    return 12.92 * channel if channel <= 0.0031308 else 1.055 * channel ** (1 / 2.4) - 0.055


def _linear_rgb(lightness: float, chroma: float, hue: float) -> Rgb:
    """From OKLCH, the hue in degrees, to linear sRGB."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
