"""What claims are judged with: runs that must be there, comparisons, and how a verdict is worded."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._found import Found, Run

REPRODUCED, NOT_REPRODUCED, UNJUDGED = "reproduced", "not reproduced", "cannot be judged"

Judgement = tuple[str, str]


class Unjudged(Exception):  # noqa: N818 - it is no error
    """There is not enough to judge a claim by; the message says what is missing."""


def verdict_of(fine: bool) -> str:
    return REPRODUCED if fine else NOT_REPRODUCED


def need(found: Found, names: Sequence[str]) -> None:
    missing = [name for name in names if not found.of(name)]
    if missing:
        failed = [f"{name} failed ({found.failed(name)[0].error})" for name in missing if found.failed(name)]
        without = [name for name in missing if not found.failed(name)]
        parts = failed + ([f"{', '.join(without)} {'has' if len(without) == 1 else 'have'} no finished run"] if without else [])
        raise Unjudged("; ".join(parts) + ".")


def runs_on(found: Found, name: str, data: str) -> list[Run]:
    need(found, (name,))
    runs = found.of(name)
    if any(run.data != data for run in runs):
        raise Unjudged(f"{name} was run on {runs[0].data or 'data that nobody has named'}, not on {data}.")
    return runs


def compared(found: Found, ours: str, other: str, ours_label: str, other_label: str, unit: str = "") -> Judgement:
    """Whether the first ends lower than the second.

    With several seeds, a difference within their spread decides nothing; with one, where no weights were chosen, a difference
    within what each wavers towards its end.
    """
    need(found, (ours, other))
    first, second = found.values(ours, Run.final), found.values(other, Run.final)
    means = statistics.fmean(first), statistics.fmean(second)
    seeds = f"{len(first)} and {len(second)} seeds" if max(len(first), len(second)) > 1 else "one seed each"
    unit = f" {unit}" if unit else ""
    told = f"{ours_label} {means[0]:.4g}{unit}, {other_label} {means[1]:.4g}{unit} (test data, {seeds})."
    if min(len(first), len(second)) > 1:
        error = math.sqrt(statistics.variance(first) / len(first) + statistics.variance(second) / len(second))
        if abs(means[0] - means[1]) < 2 * error:
            return UNJUDGED, f"{told} The difference is within two standard errors, {2 * error:.2g}."
    else:
        ends = [late(run) for name in (ours, other) for run in found.of(name)]
        lower, higher = [min(each) for each in ends if each], [max(each) for each in ends if each]
        if len(lower) == len(ends) and max(lower) <= min(higher):
            ranges = " and ".join(f"{least:.2g} to {most:.2g}" for least, most in zip(lower, higher, strict=True))
            return UNJUDGED, f"{told} In the last tenth of their steps they waver, from {ranges}."
    return verdict_of(means[0] < means[1]), told


def lowest(found: Found, ours: str, others: Sequence[str]) -> Judgement:
    """Whether a run ends lower than each of the others; in words, only those that it cannot be told apart from."""
    each = {other: compared(found, ours, other, ours, other) for other in others}
    verdicts = {verdict for verdict, _ in each.values()}
    if NOT_REPRODUCED in verdicts:
        return NOT_REPRODUCED, ""
    told = " ".join(why for verdict, why in each.values() if verdict == UNJUDGED)
    return (UNJUDGED, f" {told}") if told else (REPRODUCED, "")


def joint(verdicts: Mapping[str, str]) -> Judgement:
    """Of a claim about several tasks: it must hold on each that can be judged. In words, which was the only one."""
    judged = [task for task, verdict in verdicts.items() if verdict != UNJUDGED]
    note = f" Judged by {judged[0]} alone." if len(judged) == 1 < len(verdicts) else ""
    return (verdict_of(NOT_REPRODUCED not in verdicts.values()) if judged else UNJUDGED), note


def late(run: Run) -> list[float]:
    """The errors of the last tenth of a run; none where weights were chosen by validation data, so that the last do not count."""
    curve = run.curve()
    if not curve or run.result is None or "chosen" in run.result:
        return []
    return [error for step, error in curve if step > 0.9 * curve[-1][0]]


def mean_of(found: Found, name: str) -> float:
    value = found.mean(name)
    assert value is not None, "asked for with _need before"
    return value


def median_of(found: Found, name: str, of: Callable[[Run], float | None]) -> float:
    """Over the seeds; infinite for what never came about in most of them."""
    return statistics.median(math.inf if (value := of(run)) is None else value for run in found.of(name))


def step_text(step: float) -> str:
    return "never" if math.isinf(step) else f"step {step:,.0f}"


def epochs_at(run: Run, step: int | None) -> float | None:
    return None if step is None else step * run.values["task"]["batch_size"] / run.values["task"]["train_size"]


def copying_baseline(found: Found) -> float:
    lengths = {run.values["task"]["length"] for run in found.all if run.name.startswith("copying/")}
    return 10 * math.log(8) / ((max(lengths) if lengths else 2000) + 20)


def sizes_of(found: Found, name: str) -> str:
    model = found.of(name)[0].values["model"]
    return f"{model['hidden_size'] - model['short_size']}/{model['short_size']}"


def last_look(run: Run) -> dict[str, Any] | None:
    looks: dict[str, dict[str, Any]] = run.measures.get("short", {})
    return looks[max(looks, key=int)] if looks else None
