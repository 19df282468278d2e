"""What `--grid KEY=VALUES` means, and the points of a search: every combination, or some drawn at random.

    optimizer.lr=1e-3,1e-4       these values
    model.short_size=0.1:0.6:0.1 from 0.1 to 0.6 by 0.1, both ends included
    optimizer.lr=1e-5:1e-3:*10   from 1e-5 to 1e-3 by factors of 10
    model.negative_ones=10%,50%  shares of W_L's size, for negative_ones alone (short_size takes fractions as they are)
    optimizer.lr=1e-5:1e-2:log   anything between, for a random search alone; without :log, uniform

Values stay texts until `Config.override` reads them, so they mean what they mean to `enrnn train --set`.
"""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from ..training import Config

Point = dict[str, str]
"""Values at paths such as "optimizer.lr"."""

NEGATIVE_ONES = "model.negative_ones"
LARGEST = 100_000
"""Points of one grid: more is a slip of the keyboard."""

RATES = {"optimizer.name": "adam,rmsprop_tf,adagrad", "optimizer.lr": "1e-3,1e-4,1e-5", "optimizer.decay": "none"}
_ONE_RATE = {"optimizer.long_name": "none", "optimizer.long_lr": "none"}
PAPER = {
    "enrnn": RATES | _ONE_RATE | {"model.short_size": "0.1:0.6:0.1", NEGATIVE_ONES: "10%:100%:10%"},
    "scornn": RATES | _ONE_RATE | {NEGATIVE_ONES: "10%:100%:10%"},
    "lstm": RATES | {"model.forget_bias": "-4:4:1", "optimizer.clip_value": "1:10:1"},
}
"""§5 of the paper: what was tuned for each network, and `RATES` for all. The numbers of −1s that the paper came to (29 of 96,
52 of 172, 374 of 374, 186 of 310) are multiples of 10 % of W_L's size. W_L has the optimiser and the rate of the rest here."""


@dataclass(frozen=True)
class Between:
    """Any number from `low` to `high`, for a random search."""

    low: float
    high: float
    log: bool
    whole: bool

    def draw(self, uniform: float) -> str:
        """The value at `uniform` in [0, 1): a whole number between whole ends, else a fraction, 1.0 and never 1."""
        above = 1 if self.whole else 0
        if self.log:
            value = self.low * ((self.high + above) / self.low) ** uniform
        else:
            value = self.low + uniform * (self.high + above - self.low)
        return str(min(math.floor(value), int(self.high))) if self.whole else str(float(f"{value:.4g}"))


Values = list[str] | Between
Axes = dict[str, Values]


def paper_axes(config: Config) -> Axes:
    """The paper's own grid for this network."""
    name = "scornn" if config.model.network == "enrnn" and config.model.short_size == 0 else config.model.network
    return dict(axis(f"{key}={values}") for key, values in PAPER.get(name, RATES).items())


def axis(text: str) -> tuple[str, Values]:
    """The key and the values that a text such as "optimizer.lr=1e-3,1e-4" stands for."""
    key, equals, given = text.partition("=")
    parts = [part.strip() for part in given.split(",")]
    if not equals or not key.strip() or "" in parts:
        raise ValueError(f"--grid takes KEY=VALUE,VALUE,… or KEY=FIRST:LAST:STEP, got: {text!r}")
    if len(parts) == 1 and (between := _between(parts[0], text)) is not None:
        return key.strip(), between
    values = [value for part in parts for value in (_range(part, text) if ":" in part else [part])]
    return key.strip(), list(dict.fromkeys(values))


def grid(axes: Mapping[str, Values]) -> list[Point]:
    """Every combination, the last axis running fastest."""
    lists: list[list[str]] = []
    for key, values in axes.items():
        if isinstance(values, Between):
            raise ValueError(f"{key}: a grid needs values, or FIRST:LAST:STEP; FIRST:LAST is for --random")
        lists.append(values)
    if (count := math.prod(map(len, lists))) > LARGEST:
        raise ValueError(f"the grid has {count:,} points, {LARGEST:,} is the most; use --random N")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*lists)]


def drawn(axes: Mapping[str, Values], count: int, seed: int) -> list[Point]:
    """`count` different points at random, or as many as there are. With a larger count come more points, and these stay."""
    if count < 1:
        raise ValueError(f"--random takes the number of points, at least 1, got: {count}")
    points: dict[tuple[str, ...], Point] = {}
    for index in range(100 * count):
        point = {key: _drawn(values, random.Random(f"{seed}/{index}/{key}").random()) for key, values in axes.items()}
        points.setdefault(tuple(point.values()), point)
        if len(points) == count:
            break
    return list(points.values())


def configured(base: Config, point: Mapping[str, str], seed: int) -> Config:
    """The run of a point: the base with the point's values and this seed. A share of negative ones becomes a number of them."""
    changes: dict[str, object] = {**point, "run.seed": seed}
    share = point.get(NEGATIVE_ONES, "")
    if not share.endswith("%"):
        return base.override(changes)
    config = base.override(changes | {NEGATIVE_ONES: None})
    whole = config.model.long_size if config.model.network == "enrnn" else config.model.hidden_size
    return config.override({NEGATIVE_ONES: round(_number(share.removesuffix("%"), f"{NEGATIVE_ONES}={share}") * whole / 100)})


def _drawn(values: Values, uniform: float) -> str:
    return values.draw(uniform) if isinstance(values, Between) else values[int(uniform * len(values))]


def _between(part: str, text: str) -> Between | None:
    """FIRST:LAST or FIRST:LAST:log, or None for anything else."""
    ends = part.split(":")
    log = len(ends) == 3 and ends[2] == "log"
    if len(ends) != 2 and not log:
        return None
    low, high = (float(_number(end, text)) for end in ends[:2])
    whole = all(end.lstrip("-").isdigit() for end in ends[:2])
    if low > high or (log and low <= 0):
        raise ValueError(
            f"--grid {text}: the first end must not exceed the last{', and :log needs positive ends' if log else ''}"
        )
    return Between(low, high, log, whole)


def _range(part: str, text: str) -> list[str]:
    """FIRST:LAST:STEP in decimals, so that 0.1 + 0.1 + 0.1 is 0.3. In a range of fractions 1 is 1.0, all and not one."""
    ends = part.split(":")
    if len(ends) != 3:
        raise ValueError(f"--grid {text}: a range among values is FIRST:LAST:STEP, got: {part!r}")
    unit = "%" if all(end.endswith("%") for end in ends) else ""
    factor = ends[2].startswith("*")
    first, last, step = (_number(end.removesuffix(unit).removeprefix("*"), text) for end in ends)
    grows = step > 1 and first > 0 if factor else step > 0
    if not grows or first > last:
        raise ValueError(f"--grid {text}: {part!r} does not lead from its first value up to its last")
    values = list(itertools.islice(_steps(first, last, step, factor), LARGEST + 1))
    whole = all(end == end.to_integral_value() for end in (first, step))
    return [f"{int(value) if whole else float(value)}{unit}" for value in values]


def _steps(value: Decimal, last: Decimal, step: Decimal, factor: bool) -> Iterator[Decimal]:
    while value <= last:
        yield value
        value = value * step if factor else value + step


def _number(text: str, where: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"--grid {where}: {text!r} is not a number") from None
    if not number.is_finite():
        raise ValueError(f"--grid {where}: {text!r} is not finite")
    return number


def described(point: Mapping[str, object]) -> str:
    """A point in one line."""
    return " ".join(f"{key}={value}" for key, value in point.items()) or "the base"


def ordered(keys: Sequence[str], points: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The different values of each key in all the points, numbers by size."""
    found = {key: list(dict.fromkeys(point[key] for point in points if key in point)) for key in keys}
    return {key: sorted(values, key=_rank) for key, values in found.items()}


def _rank(value: str) -> tuple[int, float, str]:
    number = as_number(value)
    return (1, 0.0, value) if number is None else (0, number, value)


def as_number(value: str) -> float | None:
    """The number that a value stands for, a share by its per cent, or None for a word."""
    try:
        number = float(value.removesuffix("%"))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
