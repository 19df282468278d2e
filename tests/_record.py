"""A pytest plugin that lets a test report what it measured.

A test asks for the fixture `record` and says what it saw:

    def test_outputs_equal_the_reference(record, full):
        ...
        record(cases=5000, worst_error=1e-9)

It may do so once, or once for each case, also from inside a hypothesis test; the *name* says how numbers are combined:

| name                | combined by     |
|---------------------|-----------------|
| `cases`, `cases_…`  | their sum       |
| `worst_…`           | their maximum   |
| `least_…`           | their minimum   |
| any other           | recorded once   |

With `--record-file FILE` the session writes one JSON object: `counts` (passed, failed, skipped with reasons),
`measurements` for each test, and `totals`, the same numbers combined over all tests. `tools/verify.py` makes a record
of that.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Value: TypeAlias = bool | int | float | str


def combination(name: str) -> Callable[[Iterable[Any]], Any] | None:
    """The function that makes one value of all that was recorded under `name`, or None where there is no such rule."""
    if name == "cases" or name.startswith("cases_"):
        return sum
    if name.startswith("worst_"):
        return max
    if name.startswith("least_"):
        return min
    return None


def plain(name: str, value: Any) -> Value:
    """`value` as a plain Python value that JSON can hold. Tensors and NumPy scalars are taken by their `item()`."""
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, bool | int | float | str):
        raise TypeError(f"record: {name} must be a number or a text, got {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        # max() and min() let a NaN through or drop it depending on the order, so it must not get that far.
        raise ValueError(f"record: {name} must be finite, got {value}")
    return value


class Recorder:
    """What the fixture `record` hands out: notes measurements for whichever test is running."""

    def __init__(self) -> None:
        self._item: pytest.Item | None = None
        self._measurements: dict[str, Value] = {}

    def __call__(self, **measurements: Any) -> None:
        assert self._item is not None, "record is called while a test runs"
        if not self._measurements:
            # A report carries user_properties from an xdist worker to the process that writes the file.
            self._item.user_properties.append(("measurements", self._measurements))
        for name, new in measurements.items():
            value = plain(name, new)
            if name in self._measurements:
                rule = combination(name)
                if rule is None:
                    raise ValueError(
                        f"record: {name} is already recorded for this test; only names that begin with "
                        "cases, worst_ or least_ can be recorded again"
                    )
                value = rule((self._measurements[name], value))
            self._measurements[name] = value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._item, self._measurements = item, {}
        try:
            return (yield)
        finally:
            self._item = None


class Collector:
    """Gathers the reports of all tests, and writes them when the session ends."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.outcomes: Counter[str] = Counter()
        self.skips: Counter[str] = Counter()
        self.measurements: dict[str, dict[str, Value]] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcomes["failed"] += 1
        elif report.skipped:
            self.skips[skip_reason(report)] += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            for name, value in report.user_properties:
                if name == "measurements" and isinstance(value, dict):
                    self.measurements[report.nodeid] = value
        # A test passes by its call alone, but it can fail or be skipped in its set-up or its tear-down.
        if report.skipped:
            self.skips[skip_reason(report)] += 1
        elif report.failed:
            self.outcomes["failed"] += 1
            # At once: a run of many minutes may be ended before pytest says so.
            print(f"\n{report.nodeid} failed in its {report.when}:\n{report.longreprtext[-2000:]}", flush=True)
        elif report.when == "call":
            self.outcomes["passed"] += 1

    def pytest_sessionfinish(self) -> None:
        values: dict[str, list[Value]] = {}
        for measured in self.measurements.values():
            for name, value in measured.items():
                values.setdefault(name, []).append(value)
        totals = {name: rule(values[name]) for name in sorted(values) if (rule := combination(name)) is not None}
        report = {
            "counts": {
                "passed": self.outcomes["passed"],
                "failed": self.outcomes["failed"],
                "skipped": dict(sorted(self.skips.items())),
            },
            # Sorted, because xdist workers finish in any order.
            "measurements": dict(sorted(self.measurements.items())),
            "totals": totals,
        }
        self.file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def skip_reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


recorder_key = pytest.StashKey[Recorder]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-file", metavar="FILE", help="write what the tests measured to FILE, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[recorder_key] = Recorder()
    config.pluginmanager.register(config.stash[recorder_key], "measurement-recorder")
    file = config.getoption("--record-file")
    is_xdist_worker = hasattr(config, "workerinput")
    if file and not is_xdist_worker:
        config.pluginmanager.register(Collector(Path(file).resolve()), "measurement-collector")


# The scope is the session's, although it always speaks for the running test: hypothesis rightly refuses fixtures of
# function scope, whose state would leak from one example to the next. Here that is the purpose.
@pytest.fixture(scope="session")
def record(pytestconfig: pytest.Config) -> Recorder:
    """Call it with the numbers a test has measured: `record(cases=5000, worst_error=1e-9)`."""
    return pytestconfig.stash[recorder_key]
