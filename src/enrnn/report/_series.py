"""Which colour and which dashes a series has: the same in every figure where that is possible, and never twice in one."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ._colours import SERIES, ordered

DASHES = ("", "7 4", "2 3", "10 3 2 3")
COUNTED = re.compile(r"(.*?)(-?\d[\d,]*(?:\.\d+)?)\s*")


def styles(figures: Iterable[Mapping[str, Any]]) -> list[list[dict[str, str]]]:
    """For each figure a style for each series: `light`, `dark`, `dash`."""
    known: dict[str, int] = {}
    return [_styles([str(series.get("label")) for series in figure.get("series") or ()], known) for figure in figures]


def _styles(labels: Sequence[str], known: dict[str, int]) -> list[dict[str, str]]:
    if _in_order(labels):
        return [{"light": light, "dark": dark, "dash": ""} for light, dark in ordered(len(labels))]
    taken: set[int] = set()
    slots = []
    for label in labels:
        slot = known.get(label)
        if slot is None or slot in taken:
            claimed = {known[other] for other in labels if other in known}
            slot = next(free for free in range(2 * len(labels)) if free not in taken | claimed)
        known.setdefault(label, slot)
        taken.add(slot)
        slots.append(slot)
    return [_style(slot) for slot in slots]


def _style(slot: int) -> dict[str, str]:
    light, dark = SERIES[slot % len(SERIES)]
    return {"light": light, "dark": dark, "dash": DASHES[slot // len(SERIES) % len(DASHES)]}


def _in_order(labels: Sequence[str]) -> bool:
    """`s = 0`, `s = 16`, …: three or more that differ in a rising or falling number alone."""
    matches = [COUNTED.fullmatch(label) for label in labels]
    found = [match for match in matches if match]
    if len(found) < max(3, len(labels)) or len({match[1] for match in found}) > 1:
        return False
    numbers = [float(match[2].replace(",", "")) for match in found]
    return numbers in (sorted(set(numbers)), sorted(set(numbers), reverse=True))
