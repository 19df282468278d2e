"""The adding problem: remember two numbers of a long sequence, and add them up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .._checks import positive_int
from ._random import Stream, below, key, uniform
from ._task import (
    Batch,
    Data,
    Features,
    Task,
    check_batch_sizes,
    check_fills_a_batch,
    check_outputs,
    count,
    mean,
    total,
    whole_number,
)


@dataclass(frozen=True)
class Adding(Task):
    """Two features a step, a value from U[0, 1) and a marker; the target is the sum of the two marked values (§5.1).

    Markers stand as in the authors' code: with f = ⌊(T − 1)/2⌋, the first is uniform on {0, …, f − 1} and the second on
    {f, …, T − 1}. (The paper's text says [1, T/2) and [T/2, T).) The loss is the mean squared error of the last step's output.

    Arguments:
        length: T, at least 3.
        train_size, test_size: fixed sets; training visits its own in a new order each epoch.
    """

    name: ClassVar[str] = "adding"

    length: int = 750
    train_size: int = 100_000
    test_size: int = 10_000
    batch_size: int = 50
    eval_batch_size: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        whole_number("length", self.length, 3, 2**31 - 1)
        positive_int("train_size", self.train_size)
        positive_int("test_size", self.test_size)
        check_batch_sizes(self.batch_size, self.eval_batch_size)
        whole_number("seed", self.seed, 0)
        check_fills_a_batch("train_size", self.train_size, self.batch_size)

    def load(self, device: torch.device | str = "cpu") -> "AddingData":
        return AddingData(self, torch.device(device))


class AddingData(Data):
    name = "adding"
    input = Features(2)
    output_size = 1
    reads = "last"
    metric = "mse"
    direction = "min"
    baseline = 1 / 6
    baseline_rule = "always 1"

    def __init__(self, settings: Adding, device: torch.device) -> None:
        sizes = {"train": settings.train_size, "test": settings.test_size}
        super().__init__(sizes, settings.batch_size, settings.eval_batch_size, settings.seed, device)
        T = settings.length
        first_half = (T - 1) // 2
        # A sequence draws its T values, and then its two markers.
        self._words = {split: Stream(key("adding", settings.seed, split), T + 2, device) for split in sizes}
        self._lengths = torch.tensor([[first_half], [T - first_half]]).to(device)
        self._starts = torch.tensor([[0], [first_half]]).to(device)

    def batch(self, split: str, indices: Tensor) -> Batch:
        indices, weights = self._present(self._known(split), indices)
        bits = self._words[split].bits(indices)  # [T + 2, B]
        values = uniform(bits[:-2])
        marked = below(bits[-2:], self._lengths).add_(self._starts)  # [2, B]
        markers = torch.zeros_like(values).scatter_(0, marked, 1.0)
        targets = values.gather(0, marked).sum(0)
        return Batch(torch.stack([values, markers], dim=-1), targets, weights)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return mean(self._squared_error(outputs, batch), batch.weights)

    def tally(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        error = self._squared_error(outputs.to(torch.float64), batch)
        return {"squared_error": total(error, batch.weights), "sequences": count(error, batch.weights)}

    def metrics(self, sums: Mapping[str, Tensor | float]) -> dict[str, float]:
        return {"mse": float(sums["squared_error"]) / float(sums["sequences"])}

    def _squared_error(self, outputs: Tensor, batch: Batch) -> Tensor:
        check_outputs(outputs, (batch.targets.shape[0], 1))
        return (outputs[:, 0] - batch.targets).square()
