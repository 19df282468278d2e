"""What every task offers: settings that can be written down, and the live data they stand for."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from .._checks import InputError, positive_int
from ._random import key, permutation

DATA_VARIABLE = "ENRNN_DATA"
GIVE_DATA = f"give --data FOLDER (in Python, data=FOLDER) or set {DATA_VARIABLE}"

PATHS = ("data", "text", "cache")
"""Settings of tasks that are paths."""

Reads = Literal["last", "all"]
Direction = Literal["min", "max"]


@dataclass(frozen=True)
class Features:
    """The input is real: `[T, B, size]`, float32."""

    size: int


@dataclass(frozen=True)
class Symbols:
    """The input is a symbol a step: `[T, B]`, int64 in 0 … count − 1. One-hot or embedding is the model's matter."""

    count: int


class Batch(NamedTuple):
    """A batch, time first. What `weights` is None for counts in full, as all of a training batch of most tasks does."""

    inputs: Tensor
    """`[T, B, features]` or `[T, B]`, as `Data.input` says."""
    targets: Tensor
    """`[B]` for a task read at the last step, else `[T, B]` or `[T, B, output_size]`."""
    weights: Tensor | None
    """1 for what counts and 0 for padding, float32: `[B]`, or `[T, B]` where sequences end early."""


@dataclass(frozen=True)
class Task(ABC):
    """A task's settings. They are plain values; `load` makes the data."""

    name: ClassVar[str]

    @abstractmethod
    def load(self, device: torch.device | str = "cpu") -> "Data":
        """The data, on `device`. Reads files where the task has any."""

    def stand_in(self) -> str | None:
        """In words, that `load` would take other data than those that the task is about, and why; None if it would not."""
        return None

    def beginning_at(self, folder: Path) -> Self:
        """This task with relative paths taken from `folder`, and not from wherever the process is."""
        given = {name: getattr(self, name, None) for name in PATHS}
        return replace(self, **{name: str(folder / path) for name, path in given.items() if path})  # an absolute one stays


class Data(ABC):
    """A task's data on a device: batches, the loss of a batch, and the metrics of a split.

    Sequence i of a split is a function of (seed, split, i) and stays the same whatever the batch and the device. `batch`, `loss`
    and `tally` are tensor operations without a look at any value, so a CUDA graph can hold them. Training runs

        for indices in data.order("train", epoch):
            batch = data.batch("train", indices)
            data.loss(model(batch.inputs), batch).backward()

    and evaluation adds up `tally(outputs, batch)` over `order(split)` and hands the sums to `metrics`.
    """

    name: str
    input: Features | Symbols
    output_size: int
    reads: Reads
    """"last": outputs are `[B, output_size]`, of the last step; "all": `[T, B, output_size]`."""
    metric: str
    """The main one among what `metrics` returns."""
    direction: Direction
    """Whether less ("min") or more ("max") of it is better."""
    carries_state: bool = False
    """Whether a batch continues the one before, column by column, so that the state goes on. It starts at zero in each epoch."""
    baseline: float | None = None
    """The main metric of a network that has learned nothing but the obvious."""
    baseline_rule: str = ""
    """What is obvious, in words."""
    fingerprint: str | None = None
    """The SHA-256 of the files' content, for a task that reads files."""
    source: str | None = None
    """What was read, for people, where a task has a choice."""

    def __init__(self, sizes: Mapping[str, int], batch_size: int, eval_batch_size: int, seed: int, device: torch.device) -> None:
        self.sizes = dict(sizes)
        """Sequences in each split."""
        self.device = device
        self._batch_sizes = {
            split: batch_size if split == "train" else min(eval_batch_size, size) for split, size in sizes.items()
        }
        self._seed = seed

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    def order(self, split: str, epoch: int = 0) -> Tensor:
        """Which sequences make each batch: int64 `[steps, B]` on the device.

        Training: shuffled anew in each epoch by (seed, epoch); what does not fill a last batch is left out of that epoch.
        Evaluation: 0, 1, 2, … in every epoch, the last batch filled up with −1, whose weight is 0.
        """
        size, batch_size = self.sizes[self._known(split)], self._batch_sizes[split]
        if split != "train":
            steps = -(-size // batch_size)
            order = torch.arange(steps * batch_size, device=self.device)
            return order.where(order < size, -1).view(steps, batch_size)
        steps = size // batch_size
        whole_number("epoch", epoch, 0)
        return self._visits(size, epoch)[: steps * batch_size].view(steps, batch_size)

    @abstractmethod
    def batch(self, split: str, indices: Tensor) -> Batch:
        """The sequences `indices`, int64 `[B]` on the device. −1 (nothing, with weight 0) is for evaluation splits alone."""

    @abstractmethod
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The scalar that training lessens."""

    def counted(self, batch: Batch) -> Tensor | None:
        """What the loss is a mean over, where batches of one size differ in that; None where they do not.

        By this the losses of a batch's parts, in several processes, come to that of the batch.
        """
        return None

    @abstractmethod
    def tally(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """float64 sums over the batch, to be added up over a split. They are taken of the outputs in float64."""

    @abstractmethod
    def metrics(self, sums: Mapping[str, Tensor | float]) -> dict[str, float]:
        """What the sums of all batches of a split come to."""

    def _visits(self, size: int, epoch: int) -> Tensor:
        return permutation(key("order", self.name, self._seed, epoch), size, self.device)

    def _known(self, split: str) -> str:
        if split not in self.sizes:
            raise ValueError(f"Unknown split {split!r} of {self.name}. Select from {', '.join(map(repr, self.sizes))}.")
        return split

    def _present(self, split: str, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """Indices that can be looked up, and the weights that cancel those which stood for nothing."""
        if split == "train":
            return indices, None
        return indices.clamp(min=0), (indices >= 0).to(torch.float32)


def mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """The weighted mean; where all weights are 0, zero."""
    if weights is None:
        return values.mean()
    weights = weights.expand_as(values)
    return (values * weights).sum() / weights.sum().clamp(min=1.0)


def total(values: Tensor, weights: Tensor | None) -> Tensor:
    """The weighted sum, in float64."""
    values = values.to(torch.float64)
    return values.sum() if weights is None else (values * weights).sum()


def count(values: Tensor, weights: Tensor | None) -> Tensor:
    """What `total` is to be divided by for a mean."""
    return total(torch.ones_like(values), weights)


def check_outputs(outputs: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(outputs.shape) != shape:
        raise InputError(f"outputs must have shape {list(shape)} for this batch, got: {list(outputs.shape)}")


def whole_number(name: str, value: object, least: int, most: int | None = None) -> int:
    """`value` if it is an int in least … most."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} should be of type int, got: {type(value).__name__} ({value!r})")
    if value < least or (most is not None and value > most):
        allowed = f"at least {least}" if most is None else f"between {least} and {most}"
        raise ValueError(f"{name} must be {allowed}, got: {value}")
    return value


def check_batch_sizes(batch_size: object, eval_batch_size: object) -> None:
    positive_int("batch_size", batch_size)
    positive_int("eval_batch_size", eval_batch_size)


def check_fills_a_batch(name: str, size: int, batch_size: int) -> None:
    if size < batch_size:
        raise ValueError(f"{name} must be at least batch_size = {batch_size}, got: {size}")


def check_path(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value or "\0" in value):
        raise TypeError(f"{name} should be a path as a string, or None, got: {type(value).__name__} ({value!r})")


def data_folder(given: str | None) -> Path | None:
    """The folder with the data sets: the one given, or the one that ENRNN_DATA names, or None."""
    named = given if given is not None else os.environ.get(DATA_VARIABLE) or None
    if named is None:
        return None
    folder = Path(named)
    if not folder.is_dir():
        whence = "data" if given is not None else f"the environment variable {DATA_VARIABLE}"
        raise FileNotFoundError(f"{whence} names a folder that does not exist: {folder}")
    return folder
