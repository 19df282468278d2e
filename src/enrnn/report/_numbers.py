"""Numbers and times as a person writes them: a true minus sign, powers of ten, as many places as mean something."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime

NOTHING = "–"
THIN = "\u202f"
"""The space between thousands, at which no line breaks."""
MOST_PLACES = 5
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def finite(value: object) -> float | None:
    """`value` as a float, if it is a number, and one that can be compared."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def fixed(value: object, places: int | None) -> str:
    """With `places` decimals, or, for None, as a power of ten."""
    number = finite(value)
    if number is None:
        return str(value) if isinstance(value, str) else NOTHING
    if number and places is None:
        return scientific(number)
    return f"{number:,.{places or 0}f}".replace("-", "−").replace(",", THIN)


def scientific(number: float) -> str:
    mantissa, exponent = f"{number:.2e}".split("e")
    return f"{mantissa} × {power(int(exponent))}".replace("-", "−")


def power(exponent: int) -> str:
    """A power of ten."""
    return f"10{str(exponent).translate(SUPERSCRIPT)}"


def plain(value: object) -> str:
    """As it was given: text stays, a float in its shortest form, a whole number with thin spaces between thousands."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    number = finite(value)
    if number is None:
        return str(value) if isinstance(value, str) else NOTHING if value is None or isinstance(value, float) else str(value)
    if number == int(number) and abs(number) < 1e15:
        return f"{int(number):,}".replace(",", THIN).replace("-", "−")
    return scientific(number) if abs(number) < 1e-4 else f"{number:.6g}".replace("-", "−")


def signed(value: object, places: int | None) -> str:
    number = finite(value)
    text = fixed(value, places)
    return f"+{text}" if number is not None and number > 0 else text


def published_places(values: Iterable[object]) -> int:
    """The most decimals that any of them has."""
    numbers = (number for value in values if (number := finite(value)) is not None and abs(number) >= 1e-3)
    return min(MOST_PLACES, max((len(f"{number:.6g}".partition(".")[2]) for number in numbers), default=0))


def places(mean: object, spread: object, published: int) -> int | None:
    """Decimals for a mean: as many as were published, or more, to the spread's first digit; without a spread, to the third digit,
    and from 1 to 10 to the third decimal.

    None where decimals would show hardly a digit of it, or too many.
    """
    size, error = abs(finite(mean) or 0.0), abs(finite(spread) or 0.0)
    if size and not 1e-3 <= size < 1e6:
        return None
    first = error or size / (1000 if 1 <= size < 10 else 100)
    return max(published, min(MOST_PLACES, -math.floor(math.log10(first)))) if first else published


def duration(seconds: object) -> str:
    number = finite(seconds)
    if number is None:
        return NOTHING
    if number < 59.5:
        return f"{number:.0f} s" if number >= 9.95 else f"{number:.1f} s"
    minutes = round(number / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def moment(text: object) -> str:
    """An ISO time as a date; anything else as it is."""
    try:
        when = datetime.fromisoformat(str(text))
    except ValueError:
        return str(text)
    zone = " UTC" if when.tzinfo else ""
    when = when.astimezone(UTC) if when.tzinfo else when
    return f"{when.day} {when:%B %Y, %H:%M}{zone}"
