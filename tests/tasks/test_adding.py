"""The adding problem is the authors': its sequences, its order, its loss and its baseline."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enrnn.tasks import Adding, Batch, Features
from enrnn.tasks.adding import AddingData

SMALL = Adding(length=20, train_size=103, test_size=57, batch_size=10, eval_batch_size=25)


def digest(batch: Batch) -> str:
    content = batch.inputs.double().flatten().tolist() + batch.targets.double().flatten().tolist()
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def test_the_defaults_are_the_papers() -> None:
    settings = Adding()
    assert (settings.length, settings.train_size, settings.test_size, settings.batch_size) == (750, 100_000, 10_000, 50)
    data = settings.load()
    assert (data.splits, data.sizes) == (("train", "test"), {"train": 100_000, "test": 10_000})
    assert (data.input, data.output_size, data.reads, data.carries_state) == (Features(2), 1, "last", False)
    assert data.order("train", 0).shape == (2000, 50)  # an epoch is 2000 steps
    batch = data.batch("train", data.order("train", 0)[0])
    assert (batch.inputs.shape, batch.inputs.dtype) == ((750, 50, 2), torch.float32)
    assert (batch.targets.shape, batch.targets.dtype, batch.weights) == ((50,), torch.float32, None)


@given(length=st.integers(3, 60), seed=st.integers(0, 2**70), first=st.integers(0, 2**40))
def test_one_marker_in_each_half_and_the_sum_of_what_they_mark(length: int, seed: int, first: int) -> None:
    """f = ⌊(T − 1)/2⌋; the first marker stands before f, the second not."""
    data = Adding(length=length, seed=seed, train_size=100).load()
    inputs, targets, _ = data.batch("train", torch.arange(first, first + 30))
    values, markers = inputs.unbind(-1)
    f = (length - 1) // 2
    assert set(markers.unique().tolist()) == {0.0, 1.0}
    assert markers[:f].sum(0).tolist() == markers[f:].sum(0).tolist() == [1.0] * 30
    assert values.min() >= 0
    assert values.max() < 1
    for column in range(30):
        low, high = values[:, column][markers[:, column] == 1]
        assert targets[column] == low + high


def test_every_allowed_place_is_marked_about_equally_often() -> None:
    data = Adding(length=10).load()
    markers = data.batch("train", torch.arange(9000)).inputs[..., 1].sum(1)
    expected = torch.tensor([9000 / 4] * 4 + [9000 / 6] * 6)  # f = 4
    assert ((markers - expected).abs() < 5 * expected.sqrt()).all()


def test_the_sequences_are_what_they_were_when_this_was_written() -> None:
    data = SMALL.load()
    assert data.batch("train", torch.tensor([3])).inputs[:4, 0, 0].tolist() == GOLDEN_VALUES
    assert [digest(data.batch(split, torch.arange(50))) for split in ("train", "test")] == GOLDEN_BATCHES
    assert digest(Adding().load().batch("train", torch.tensor([0, 99_999]))) == GOLDEN_PAPER
    assert data.order("train", 2)[0].tolist() == GOLDEN_ORDER


def test_a_sequence_is_the_same_in_any_batch() -> None:
    data = SMALL.load()
    whole = data.batch("train", torch.arange(100))
    some = torch.tensor([99, 0, 42, 42])
    part = data.batch("train", some)
    assert torch.equal(part.inputs, whole.inputs[:, some])
    assert torch.equal(part.targets, whole.targets[some])


def test_a_sequence_is_the_same_in_another_process() -> None:
    program = (
        "import torch; torch.manual_seed(99); torch.set_default_dtype(torch.float64)\n"
        "from enrnn.tasks import Adding\n"
        "from tests.tasks.test_adding import digest\n"
        "data = Adding(length=20, train_size=103).load()\n"
        "print(digest(data.batch('train', data.order('train', 7)[0])))"
    )
    root = Path(__file__).parents[2]
    other = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    data = Adding(length=20, train_size=103).load()
    assert other == digest(data.batch("train", data.order("train", 7)[0]))


def test_seeds_and_splits_have_no_sequence_in_common() -> None:
    def values(seed: int, split: str) -> set[tuple[float, ...]]:
        data = Adding(length=6, seed=seed).load()
        return {tuple(row) for row in data.batch(split, torch.arange(3000)).inputs[:, :, 0].t().tolist()}

    sets = [values(seed, split) for seed in (0, 1, 2) for split in ("train", "test")]
    assert len(set.union(*sets)) == 6 * 3000


def test_training_is_reshuffled_in_each_epoch_by_seed_and_epoch_alone() -> None:
    orders = {
        (seed, epoch): Adding(train_size=1000, seed=seed).load().order("train", epoch) for seed in (0, 1) for epoch in (0, 1, 2)
    }
    for (seed, epoch), order in orders.items():
        assert sorted(order.flatten().tolist()) == list(range(1000))
        assert torch.equal(order, Adding(train_size=1000, seed=seed, length=30).load().order("train", epoch))
    assert len({tuple(order.flatten().tolist()) for order in orders.values()}) == 6


def test_what_does_not_fill_a_training_batch_is_left_out_and_differs_from_epoch_to_epoch() -> None:
    data = SMALL.load()
    left = []
    for epoch in range(5):
        order = data.order("train", epoch)
        assert order.shape == (10, 10)
        assert len(order.unique()) == 100
        left.append(frozenset(range(103)) - frozenset(order.flatten().tolist()))
    assert len(set(left)) > 1


def evaluate(data: AddingData, outputs: float | None = None) -> float:
    """The mean squared error of a constant output, or of the truth plus a tenth of the index."""
    sums = {"squared_error": torch.zeros((), dtype=torch.float64), "sequences": torch.zeros((), dtype=torch.float64)}
    for indices in data.order("test"):
        batch = data.batch("test", indices)
        guess = torch.full_like(batch.targets, outputs) if outputs is not None else batch.targets + 0.1 * indices
        for name, value in data.tally(guess[:, None], batch).items():
            assert value.dtype == torch.float64
            sums[name] += value
    assert sums["sequences"] == data.sizes["test"]
    return data.metrics(sums)["mse"]


def test_evaluation_visits_each_sequence_once_and_padding_counts_for_nothing() -> None:
    data = SMALL.load()
    order = data.order("test")
    assert torch.equal(order, data.order("test", 5))
    assert order.shape == (3, 25)
    assert order.flatten().tolist() == [*range(57), *[-1] * 18]
    weights = data.batch("test", order[-1]).weights
    assert weights is not None
    assert weights.tolist() == [1.0] * 7 + [0.0] * 18
    exact = sum((0.1 * index) ** 2 for index in range(57)) / 57
    assert evaluate(data) == pytest.approx(exact, rel=1e-6)  # targets and guesses are float32
    for eval_batch_size in (1, 7, 57, 1000):
        other = Adding(length=20, train_size=103, test_size=57, batch_size=10, eval_batch_size=eval_batch_size).load()
        assert other.order("test").shape == (-(-57 // eval_batch_size), min(eval_batch_size, 57))
        assert evaluate(other, 0.7) == pytest.approx(evaluate(data, 0.7), rel=1e-12)


def test_always_one_gives_the_baseline() -> None:
    """E(x + y − 1)² = 1/6 with variance 7/180, so the mean of 10,000 lies within five times 0.00197."""
    data = Adding(length=10).load()
    assert data.baseline == 1 / 6
    assert abs(evaluate(data, 1.0) - 1 / 6) < 5 * (7 / 180 / 10_000) ** 0.5
    assert min(evaluate(data, 0.9), evaluate(data, 1.1)) > evaluate(data, 1.0)


def test_the_loss_is_the_mean_squared_error() -> None:
    data = SMALL.load()
    batch = data.batch("train", torch.arange(10))
    outputs = torch.linspace(-1, 2, 10)[:, None].requires_grad_()
    loss = data.loss(outputs, batch)
    errors = [(o - t) ** 2 for o, t in zip(outputs[:, 0].tolist(), batch.targets.tolist(), strict=True)]
    assert loss.item() == pytest.approx(sum(errors) / 10)
    loss.backward()
    torch.testing.assert_close(outputs.grad, 2 * (outputs.detach() - batch.targets[:, None]) / 10)
    evaluated = data.batch("test", torch.tensor([0, 1, -1]))
    assert data.loss(torch.zeros(3, 1), evaluated) == evaluated.targets[:2].square().mean()


GOLDEN_VALUES = [0.6247960925102234, 0.8714110851287842, 0.751143753528595, 0.42603981494903564]
GOLDEN_BATCHES = ["95a7f41e0532b1f0", "f69136a091aefbad"]
GOLDEN_PAPER = "d41ec74f7d056ec2"
GOLDEN_ORDER = [41, 6, 102, 77, 27, 78, 23, 79, 17, 95]
