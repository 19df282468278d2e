"""§4's switch: W_S = T until ρ(T) first exceeds 1, T/(ρ(T) + ε) ever after."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from
from torch import Tensor

from enrnn import ENRNN, EigenvalueNormalized
from tests._record import Recorder
from tests.laws._training import exact, original, train

SEEDS = integers(0, 2**32 - 1)


def with_radius(size: int, radius: float, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    T = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (T * radius / torch.linalg.eigvals(T).abs().max()).to(dtype)


def radius(W: Tensor) -> float:
    return float(np.abs(np.linalg.eigvals(exact(W))).max())


def slack(W: Tensor) -> float:
    """Rounding of W and of the eigenvalues found, times the condition of the spectrum."""
    values, vectors = np.linalg.eig(exact(W))
    eps = torch.finfo(W.dtype).eps + 8 * len(values) * torch.finfo(torch.float64).eps
    return float(np.linalg.cond(vectors) * np.linalg.norm(exact(W)) * eps)


@given(size=integers(1, 12), below=floats(0.01, 0.999), dtype=sampled_from([torch.float32, torch.float64]), seed=SEEDS)
def test_W_is_T_to_the_last_digit_while_the_spectral_radius_is_at_most_one(
    record: Recorder, size: int, below: float, dtype: torch.dtype, seed: int
) -> None:
    T = with_radius(size, below, seed, dtype)
    matrix = EigenvalueNormalized(0.3)
    assert torch.equal(matrix(T), T)
    assert not matrix.normalizing
    assert abs(matrix.radius.item() - below) <= max(slack(T), 4 * torch.finfo(torch.float32).eps * below)
    record(cases=1)


def test_a_spectral_radius_of_exactly_one_does_not_switch() -> None:
    matrix = EigenvalueNormalized()
    T = torch.diag(torch.tensor([1.0, -1.0, 0.5]))
    assert torch.equal(matrix(T), T)
    assert not matrix.normalizing
    matrix(torch.nextafter(T, T * 2))
    assert matrix.normalizing


@given(
    size=integers(1, 12),
    above=floats(1.001, 100.0),
    below=floats(0.01, 0.999),
    epsilon=sampled_from([0.0, 0.1]),
    dtype=sampled_from([torch.float32, torch.float64]),
    seed=SEEDS,
)
def test_it_turns_on_at_the_first_forming_above_one_and_stays_on(
    record: Recorder, size: int, above: float, below: float, epsilon: float, dtype: torch.dtype, seed: int
) -> None:
    matrix = EigenvalueNormalized(epsilon)
    large, small = with_radius(size, above, seed, dtype), with_radius(size, below, seed, dtype)
    matrix(small)
    assert not matrix.normalizing
    W = matrix(large)
    assert matrix.normalizing
    assert abs(radius(W) - above / (above + epsilon)) <= 2 * slack(W)
    # Later ρ falls below 1: T is now scaled up to ρ(W) = 1 (for ε = 0).
    W = matrix(small)
    assert matrix.normalizing
    assert abs(radius(W) - below / (below + epsilon)) <= 2 * slack(W)
    assert (radius(W) > radius(small)) == (below + epsilon < 1)
    record(cases=1)


def test_in_training_it_turns_on_once_and_never_off() -> None:
    """Step by step through a run in which ρ(T) crosses 1 and comes back."""
    torch.manual_seed(0)
    layer = ENRNN(2, 10, short_size=6, dtype=torch.float64)
    T = original(layer, "weight_short_l0")
    start = T.detach().clone() / radius(T)
    x = torch.randn(4, 2, 2, dtype=torch.float64)
    for step, size in enumerate([0.5, 0.9, 1.0 - 1e-9, 1.2, 0.7, 0.3, 1.1]):
        T.data.copy_(size * start)
        layer(x)
        assert layer.normalizing.tolist() == [step >= 3]
        assert radius(layer.weight_short_l0) == pytest.approx(size if step < 3 else 1.0, abs=1e-12)


def test_a_layer_that_trains_switches_by_itself() -> None:
    torch.manual_seed(1)
    layer = ENRNN(3, 16)
    assert layer.normalizing.tolist() == [False]
    train(layer, 30, 0.05, 1)
    assert layer.normalizing.tolist() == [True]
    assert layer.spectral_radius.item() > 1
    # Formed once more since, T has moved on by one step.
    layer(torch.zeros(1, 1, 3))
    assert layer.spectral_radius.item() == pytest.approx(radius(original(layer, "weight_short_l0")), rel=1e-6)


def test_a_float64_layer_reports_its_spectral_radius_in_float64() -> None:
    torch.manual_seed(0)
    layer = ENRNN(2, 10, dtype=torch.float64)
    layer(torch.zeros(1, 1, 2, dtype=torch.float64))
    T = original(layer, "weight_short_l0")
    assert layer.spectral_radius.dtype == torch.float64
    assert abs(layer.spectral_radius.item() - radius(T)) <= slack(T)


def test_in_evaluation_the_outcome_is_applied_and_nothing_is_written() -> None:
    matrix = EigenvalueNormalized().eval()
    T = with_radius(5, 3.0, 0)
    before = copy.deepcopy(matrix.state_dict())
    W = matrix(T)
    assert radius(W) == pytest.approx(1.0, abs=slack(W))
    assert not matrix.normalizing
    assert matrix.radius == 0
    assert before.keys() == matrix.state_dict().keys()
    assert all(torch.equal(before[name], value) for name, value in matrix.state_dict().items())
    # So the next small T is still taken as it is.
    small = with_radius(5, 0.5, 0)
    assert torch.equal(matrix(small), small)


@pytest.mark.parametrize("read", ["attribute", "recurrent_weight", "forward"])
def test_evaluating_a_layer_writes_nothing(read: str) -> None:
    torch.manual_seed(0)
    layer = ENRNN(2, 8, short_size=4)
    original(layer, "weight_short_l0").data.copy_(with_radius(4, 2.0, 1, torch.float32))
    layer.eval()
    before = copy.deepcopy(dict(layer.named_buffers()))
    if read == "attribute":
        W = layer.weight_short_l0
    elif read == "recurrent_weight":
        W = layer.recurrent_weight()[4:, 4:]
    else:
        layer(torch.randn(3, 1, 2))
        W = layer.weight_short_l0
    assert radius(W) == pytest.approx(1.0, abs=slack(W))
    assert all(torch.equal(before[name], value) for name, value in layer.named_buffers())


def test_the_switch_is_saved_and_restored() -> None:
    torch.manual_seed(0)
    layer = ENRNN(2, 8, num_layers=2, short_size=4)
    original(layer, "weight_short_l1").data.copy_(with_radius(4, 2.0, 1, torch.float32))
    x = torch.randn(3, 1, 2)
    layer(x)
    # Below 1 by now: without the switch it would be taken as it is.
    original(layer, "weight_short_l1").data.mul_(0.2)
    assert layer.normalizing.tolist() == [False, True]
    expected, _ = layer(x)

    stored = io.BytesIO()
    torch.save(layer.state_dict(), stored)
    stored.seek(0)
    other = ENRNN(2, 8, num_layers=2, short_size=4)
    other.load_state_dict(torch.load(stored, weights_only=True))
    assert other.normalizing.tolist() == [False, True]
    assert torch.equal(other(x)[0], expected)
    assert copy.deepcopy(layer).normalizing.tolist() == [False, True]

    # The test would see it: with the switch off the output is another one.
    other.parametrizations["weight_short_l1"][0].normalizing.fill_(False)
    assert not torch.equal(other(x)[0], expected)


def test_reset_parameters_forgets_the_switch_and_the_counts() -> None:
    layer = ENRNN(2, 4, short_size=2)
    original(layer, "weight_short_l0").data.copy_(torch.tensor([[2.0, 1.0], [0.0, 2.0]]))
    layer(torch.zeros(1, 1, 2))
    assert layer.normalizing.tolist() == [True]
    assert layer.nearly_defective.tolist() == [1]
    layer.reset_parameters()
    assert layer.normalizing.tolist() == [False]
    assert layer.nearly_defective.tolist() == [0]
    assert layer.spectral_radius.tolist() == [0.0]
    assert torch.equal(layer.weight_short_l0, original(layer, "weight_short_l0"))


def test_each_layer_and_direction_has_its_own_switch() -> None:
    layer = ENRNN(2, 4, num_layers=2, bidirectional=True, short_size=2)
    original(layer, "weight_short_l0_reverse").data.copy_(2 * torch.eye(2))
    layer(torch.zeros(2, 1, 2))
    assert layer.normalizing.tolist() == [False, True, False, False]


def test_it_can_be_on_from_the_start() -> None:
    T = with_radius(4, 0.25, 0)
    W = EigenvalueNormalized(normalizing=True)(T)
    assert torch.allclose(W, 4 * T, rtol=1e-12, atol=0)
