"""What a run's directory says of it: whether it is finished or failed, how far it is, and how good."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from ..training import RunError, RunFolder

ERROR = "error.json"

Status = Literal["waiting", "begun", "finished", "failed"]


@dataclass(frozen=True)
class Measure:
    """What the runs of a sweep are ranked by: the task's main metric on validation data, or on test data where it has no other.

    A run that can choose its weights on validation data is as good as its best evaluation, any other as its last.
    """

    metric: str
    direction: str
    split: str

    def of(self, records: list[dict[str, Any]]) -> float | None:
        """The score after these evaluations."""
        values = [float(record[self.metric]) for record in records]
        if not values:
            return None
        if self.split != "valid":
            return values[-1]
        return min(values) if self.direction == "min" else max(values)

    def loss(self, score: float) -> float:
        """What to sort by: less is better."""
        return score if self.direction == "min" else -score


@dataclass(frozen=True)
class Outcome:
    """Where a run stands. `step` is that of its last evaluation."""

    status: Status
    records: list[dict[str, Any]]
    error: str | None = None

    @property
    def step(self) -> int:
        return int(self.records[-1]["step"]) if self.records else 0

    def until(self, step: int) -> list[dict[str, Any]] | None:
        """The evaluations up to the first at or after `step`; None if it has not come so far."""
        after = [index for index, record in enumerate(self.records) if record["step"] >= step]
        return self.records[: after[0] + 1] if after else None


def outcome(folder: RunFolder) -> Outcome:
    """Read from the directory, which may not be there yet, and in which a process may be at work."""
    records = _records(folder)
    try:
        if folder.result is not None:
            return Outcome("finished", records)
    except RunError as error:
        return Outcome("failed", records, str(error))
    try:
        failure = json.loads((folder.path / ERROR).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Outcome("begun" if (folder.path / "config.json").exists() else "waiting", records)
    return Outcome("failed", records, f"{failure['error']}: {failure['message']}")


def _records(folder: RunFolder) -> list[dict[str, Any]]:
    try:
        text = folder.metrics.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    # A line without its end is being written.
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
