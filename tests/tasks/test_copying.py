"""The copying problem in both layouts: where the digits and the markers stand, and what knowing nothing costs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from enrnn.tasks import Batch, Copying, Symbols
from enrnn.tasks.copying import CopyingData


def test_the_defaults_are_the_papers() -> None:
    settings = Copying()
    assert (settings.length, settings.train_size, settings.test_size, settings.batch_size) == (2000, 20_000, 1_000, 20)
    data = settings.load()
    assert (data.input, data.output_size, data.reads) == (Symbols(10), 9, "all")
    batch = data.batch("train", data.order("train", 0)[0])
    assert (batch.inputs.shape, batch.targets.shape) == ((2020, 20), (2020, 20))
    assert (batch.inputs.dtype, batch.targets.dtype) == (torch.int64, torch.int64)


@given(length=st.integers(1, 40), layout=st.sampled_from(["code", "paper"]), seed=st.integers(0, 100))
def test_the_layout(length: int, layout: str, seed: int) -> None:
    data = Copying(length=length, layout=layout, seed=seed).load()
    inputs, targets, weights = data.batch("train", torch.arange(5))
    assert weights is None
    for column in range(5):
        digits = inputs[:10, column].tolist()
        assert set(digits) <= set(range(1, 9))
        if layout == "code":
            assert inputs[10:, column].tolist() == [0] * (length - 1) + [9] + [0] * 10
            assert targets[:, column].tolist() == [0] * (length + 10) + digits
            assert len(inputs) == length + 20
        else:
            assert inputs[10:, column].tolist() == [9] + [0] * length + [9] + [0] * 10
            assert targets[:, column].tolist() == [0] * (length + 12) + digits
            assert len(inputs) == length + 22
    marker = int((inputs[:, 0] == 9).nonzero()[-1])
    assert targets[marker, 0] == 0, "nothing is wanted at the marker"
    assert targets[marker + 1, 0] == inputs[0, 0], "and the first digit right after"


def guesses(batch: Batch) -> torch.Tensor:
    """Logits of the baseline's rule: certainly blank, and in the last ten steps one of 1 … 8 at random."""
    logits = torch.full((*batch.targets.shape, 9), -math.inf)
    logits[:-10, :, 0] = 0.0
    logits[-10:, :, 1:] = 0.0
    return logits


def evaluate(data: CopyingData) -> dict[str, float]:
    sums: dict[str, torch.Tensor] = {}
    for indices in data.order("test"):
        batch = data.batch("test", indices)
        for name, value in data.tally(guesses(batch), batch).items():
            assert value.dtype == torch.float64
            sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + value
    assert sums["digits"] == 10 * data.sizes["test"]
    return data.metrics(sums)


@pytest.mark.parametrize(
    ("length", "layout", "baseline"),
    [
        (2000, "code", 10 * math.log(8) / 2020),
        (1000, "code", 10 * math.log(8) / 1020),
        (2000, "paper", 10 * math.log(8) / 2022),
    ],
)
def test_the_baselines_rule_costs_the_baseline(length: int, layout: str, baseline: float) -> None:
    data = Copying(length=length, layout=layout, test_size=13, eval_batch_size=4).load()
    assert data.baseline == baseline
    found = evaluate(data)
    assert found["cross_entropy"] == pytest.approx(baseline, rel=1e-12)
    batch = data.batch("test", torch.arange(4))
    assert float(data.loss(guesses(batch), batch)) == pytest.approx(baseline, rel=1e-5)


def test_the_baselines_as_they_are_printed() -> None:
    assert f"{Copying().load().baseline:.6f}" == "0.010294"
    assert f"{Copying(length=1000).load().baseline:.7f}" == "0.0203867"


def test_the_right_answer_costs_nothing_and_is_counted() -> None:
    data = Copying(length=5).load()
    batch = data.batch("train", torch.arange(3))
    outputs = 1e3 * F.one_hot(batch.targets, 9).float()
    assert data.metrics(data.tally(outputs, batch)) == {"cross_entropy": 0.0, "accuracy": 1.0}
    outputs[-1, 0] = outputs[-1, 0].roll(1)
    assert data.metrics(data.tally(outputs, batch))["accuracy"] == pytest.approx(29 / 30)


def test_loss_and_metric_are_the_mean_over_all_steps() -> None:
    data = Copying(length=7, test_size=50).load()
    outputs = torch.randn(27, 4, 9, generator=torch.Generator().manual_seed(0))
    batch = data.batch("test", torch.tensor([4, -1, 49, 0]))
    by_hand = [
        -math.log(math.exp(row[target]) / sum(map(math.exp, row)))
        for column in (0, 2, 3)
        for row, target in zip(outputs[:, column].double().tolist(), batch.targets[:, column].tolist(), strict=True)
    ]
    assert data.metrics(data.tally(outputs, batch))["cross_entropy"] == pytest.approx(math.fsum(by_hand) / 81, rel=1e-12)
    assert float(data.loss(outputs, batch)) == pytest.approx(math.fsum(by_hand) / 81, rel=1e-5)
    training = data.batch("train", torch.arange(4))
    assert torch.allclose(data.loss(outputs, training), F.cross_entropy(outputs.flatten(0, 1), training.targets.flatten()))


def test_training_is_never_shuffled() -> None:
    data = Copying(length=5, train_size=70).load()
    for epoch in (0, 1, 7):
        assert data.order("train", epoch).tolist() == torch.arange(60).view(3, 20).tolist()


def test_digits_are_uniform_and_differ_between_seeds_and_splits() -> None:
    sets = []
    for seed, split in ((0, "train"), (0, "test"), (1, "train")):
        digits = Copying(length=1, seed=seed).load().batch(split, torch.arange(8000)).inputs[:10]
        counts = torch.bincount(digits.flatten(), minlength=9)[1:].double()
        assert (counts - 10_000).abs().max() < 5 * (10_000 * 7 / 8) ** 0.5
        sets.append(digits)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(float((sets[one] == sets[other]).double().mean()) - 1 / 8) < 5 * (7 / 64 / 80_000) ** 0.5


def test_the_layouts_have_the_same_digits_and_the_sequences_are_what_they_were() -> None:
    code, paper = (
        Copying(length=8, layout=layout).load().batch("train", torch.tensor([0, 1, 19_999])) for layout in ("code", "paper")
    )
    assert torch.equal(code.inputs[:10], paper.inputs[:10])
    assert code.inputs[:10].t().tolist() == GOLDEN_DIGITS


GOLDEN_DIGITS = [[6, 3, 2, 3, 5, 3, 1, 5, 6, 5], [3, 5, 4, 3, 1, 3, 5, 1, 5, 5], [7, 8, 5, 8, 3, 6, 8, 8, 2, 8]]
