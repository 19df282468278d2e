"""The copying problem: repeat ten digits after a long time."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .._checks import one_of, positive_int
from ._cross_entropy import cross_entropies, mean_cross_entropy
from ._random import Stream, key
from ._task import (
    Batch,
    Data,
    Symbols,
    Task,
    check_batch_sizes,
    check_fills_a_batch,
    check_outputs,
    count,
    total,
    whole_number,
)

DIGITS = 10
BLANK, MARKER = 0, 9


@dataclass(frozen=True)
class Copying(Task):
    """Ten digits from 1 … 8 at the start, to be put out in the last ten steps, and the blank 0 in all before (§5.2).

    | layout  | input                                           | length | digits wanted                |
    |---------|-------------------------------------------------|--------|------------------------------|
    | "code"  | 10 digits, T − 1 blanks, 9, 10 blanks           | T + 20 | from the step after the 9    |
    | "paper" | 10 digits, 9, T blanks, 9, 10 blanks            | T + 22 | from the step after the 2nd 9|

    "code" is what the authors' script makes, and nearly everyone's. The paper's text describes two markers, but gives the
    length T + 20, which only one marker fits. The loss is the mean cross-entropy, in nats, over all steps.

    Arguments:
        length: T, the time between the digits and their recall; the sequences are longer, as above.
        train_size, test_size: fixed sets; training visits its own in the same order in every epoch.
    """

    name: ClassVar[str] = "copying"

    length: int = 2000
    train_size: int = 20_000
    test_size: int = 1_000
    batch_size: int = 20
    eval_batch_size: int = 200
    layout: str = "code"
    seed: int = 0

    def __post_init__(self) -> None:
        positive_int("length", self.length)
        positive_int("train_size", self.train_size)
        positive_int("test_size", self.test_size)
        check_batch_sizes(self.batch_size, self.eval_batch_size)
        whole_number("seed", self.seed, 0)
        check_fills_a_batch("train_size", self.train_size, self.batch_size)
        one_of("layout", self.layout, ("code", "paper"))

    def load(self, device: torch.device | str = "cpu") -> "CopyingData":
        return CopyingData(self, torch.device(device))


class CopyingData(Data):
    name = "copying"
    input = Symbols(10)
    output_size = 9
    reads = "all"
    metric = "cross_entropy"
    direction = "min"
    baseline_rule = "blanks, then digits at random"

    def __init__(self, settings: Copying, device: torch.device) -> None:
        sizes = {"train": settings.train_size, "test": settings.test_size}
        super().__init__(sizes, settings.batch_size, settings.eval_batch_size, settings.seed, device)
        T = settings.length
        blanks = [BLANK] * DIGITS
        wait = [MARKER, *[BLANK] * T, MARKER] if settings.layout == "paper" else [*[BLANK] * (T - 1), MARKER]
        self._after_the_digits = torch.tensor([*wait, *blanks]).to(device)[:, None]
        self._before_the_recall = torch.full_like(self._after_the_digits, BLANK)
        self.baseline = DIGITS * math.log(8) / (DIGITS + len(self._after_the_digits))
        self._words = {split: Stream(key("copying", settings.seed, split), DIGITS, device) for split in sizes}

    def batch(self, split: str, indices: Tensor) -> Batch:
        indices, weights = self._present(self._known(split), indices)
        digits = (self._words[split].bits(indices) >> 28) + 1  # [10, B]: the leading three bits of each word
        columns = (-1, len(indices))
        inputs = torch.cat([digits, self._after_the_digits.expand(columns)])
        targets = torch.cat([self._before_the_recall.expand(columns), digits])
        return Batch(inputs, targets, weights)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        check_outputs(outputs, (*batch.targets.shape, self.output_size))
        return mean_cross_entropy(outputs, batch.targets, batch.weights)

    def tally(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        check_outputs(outputs, (*batch.targets.shape, self.output_size))
        entropy = cross_entropies(outputs.to(torch.float64), batch.targets)
        right = (outputs[-DIGITS:].argmax(-1) == batch.targets[-DIGITS:]).to(torch.float64)
        return {
            "nats": total(entropy, batch.weights),
            "steps": count(entropy, batch.weights),
            "right": total(right, batch.weights),
            "digits": count(right, batch.weights),
        }

    def metrics(self, sums: Mapping[str, Tensor | float]) -> dict[str, float]:
        """The cross-entropy over all steps, and the share of right digits in the last ten."""
        return {
            "cross_entropy": float(sums["nats"]) / float(sums["steps"]),
            "accuracy": float(sums["right"]) / float(sums["digits"]),
        }

    def _visits(self, size: int, epoch: int) -> Tensor:
        return torch.arange(size, device=self.device)
