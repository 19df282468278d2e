"""The constraints on weights of other modules, and off again."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import enrnn
from enrnn import ENRNN, Cayley, EigenvalueNormalized
from tests.laws._training import train

EPS = torch.finfo(torch.float32).eps

MODULES = {
    "Linear": (lambda: nn.Linear(8, 8), "weight"),
    "RNNCell": (lambda: nn.RNNCell(3, 8), "weight_hh"),
    "RNN": (lambda: nn.RNN(3, 8), "weight_hh_l0"),
}


def fit(module: nn.Module, steps: int = 10) -> None:
    """Some large steps on a random loss."""
    size = 8 if isinstance(module, nn.Linear) else 3
    given = [torch.randn(5, 4, size) if isinstance(module, nn.RNN) else torch.randn(4, size)]
    if isinstance(module, nn.RNNCell):
        given.append(torch.randn(4, 8))  # from a zero state, one step does not see the recurrent weight
    optimiser = torch.optim.Adam(module.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        output = module(*given)
        output = output[0] if isinstance(output, tuple) else output
        (output - 1).square().sum().backward()
        optimiser.step()


def orthogonality(W: torch.Tensor) -> float:
    exact = W.detach().double()
    return float((exact.mT @ exact - torch.eye(len(W), dtype=torch.float64)).abs().max())


def spectral_radius(W: torch.Tensor) -> float:
    return float(torch.linalg.eigvals(W.detach().double()).abs().max())


@pytest.mark.parametrize("name", MODULES)
def test_a_weight_is_kept_orthogonal(name: str) -> None:
    torch.manual_seed(0)
    make, weight = MODULES[name]
    module = make()
    before = getattr(module, weight).detach().clone()
    assert enrnn.orthogonal(module, weight, negative_ones=3) is module
    start = getattr(module, weight).detach().clone()
    assert orthogonality(start) <= 8 * 8 * EPS
    assert torch.linalg.det(start) < 0
    # The nearest: no other orthogonal matrix of that determinant agrees better with what was there.
    left, values, right = torch.linalg.svd(before)
    best = values.sum() - (2 * values[-1] if torch.linalg.det(left @ right) > 0 else 0)
    assert (start * before).sum() == pytest.approx(best.item(), rel=1e-5)
    fit(module)
    assert orthogonality(getattr(module, weight)) <= 8 * 8 * EPS
    assert (getattr(module, weight) - start).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_any_weight_of_a_short_dtype_can_be_made_orthogonal(dtype: torch.dtype) -> None:
    """Whatever its determinant, and however near to −1 an eigenvalue of the nearest matrix is."""
    torch.manual_seed(0)
    eps = torch.finfo(dtype).eps
    for size in (2, 3, 8, 64):
        for negative_ones in (0, 1) * 5:
            linear = nn.Linear(size, size).to(dtype)
            left, _, right = torch.linalg.svd(linear.weight.detach().double())
            if torch.linalg.det(left @ right) * (-1) ** negative_ones < 0:
                left[:, -1] *= -1
            enrnn.orthogonal(linear, negative_ones=negative_ones)
            assert orthogonality(linear.weight) <= 4 * math.sqrt(size) * eps
            # A is rounded, as large as 1/√eps in its norm, where it has been cut off; that alone is 2√eps.
            assert (linear.weight - left @ right).abs().max() <= 4 * math.sqrt(eps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_orthogonal_weight_of_a_short_dtype_is_kept_or_refused(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    eps = torch.finfo(dtype).eps
    for size in (2, 3, 8, 64):
        P = 0.3 * torch.randn(size, size, dtype=torch.float64) / math.sqrt(size)
        W = Cayley(negative_ones=1)(P).to(dtype)
        assert (Cayley(negative_ones=1)(Cayley(negative_ones=1).right_inverse(W)) - W).abs().max() <= 4 * eps
        with pytest.raises(ValueError, match="determinant -1, but 0 negative ones"):
            Cayley(negative_ones=0).right_inverse(W)
        with pytest.raises(ValueError, match=r"at \(or too near\) −1"):
            Cayley(negative_ones=2).right_inverse(torch.eye(size, dtype=dtype))


@pytest.mark.parametrize("name", MODULES)
def test_a_weight_is_kept_at_spectral_radius_one(name: str) -> None:
    torch.manual_seed(0)
    make, weight = MODULES[name]
    module = make()
    assert enrnn.eigenvalue_normalized(module, weight, normalizing=True) is module
    assert spectral_radius(getattr(module, weight)) == pytest.approx(1.0, abs=1000 * EPS)
    fit(module)
    assert spectral_radius(getattr(module, weight)) == pytest.approx(1.0, abs=1000 * EPS)
    epsilon = enrnn.eigenvalue_normalized(make(), weight, epsilon=0.5, normalizing=True)
    fit(epsilon)
    T = epsilon.parametrizations[weight].original
    expected = spectral_radius(T) / (spectral_radius(T) + 0.5)
    assert spectral_radius(getattr(epsilon, weight)) == pytest.approx(expected, rel=1000 * EPS)


@pytest.mark.parametrize("name", MODULES)
def test_without_normalizing_a_weight_stays_as_it_is_until_its_radius_exceeds_one(name: str) -> None:
    torch.manual_seed(0)
    make, weight = MODULES[name]
    module = make()
    with torch.no_grad():
        getattr(module, weight).mul_(0.5 / spectral_radius(getattr(module, weight)))
    before = getattr(module, weight).detach().clone()
    enrnn.eigenvalue_normalized(module, weight)
    assert torch.equal(getattr(module, weight), before)
    module.parametrizations[weight].original.data.mul_(4)
    assert spectral_radius(getattr(module, weight)) == pytest.approx(1.0, abs=1000 * EPS)
    assert module.parametrizations[weight][0].normalizing


@pytest.mark.parametrize("front", [enrnn.orthogonal, enrnn.eigenvalue_normalized])
def test_a_recurrent_module_runs_with_the_constrained_weight(front: object) -> None:
    """torch.nn.RNN keeps a list of its weights; it must be the present ones that it runs with, after steps too."""
    torch.manual_seed(0)
    module = front(nn.RNN(3, 8), "weight_hh_l0")
    x = torch.randn(5, 2, 3)
    for _ in range(2):
        with torch.no_grad():
            W = module.weight_hh_l0
            h = torch.zeros(2, 8)
            for step in x:
                h = torch.tanh(step @ module.weight_ih_l0.mT + module.bias_ih_l0 + h @ W.mT + module.bias_hh_l0)
            assert torch.allclose(module(x)[0][-1], h, atol=1e-5)
        before = module.parametrizations["weight_hh_l0"].original.detach().clone()
        fit(module, 3)
        assert not torch.equal(module.parametrizations["weight_hh_l0"].original, before)


@pytest.mark.parametrize("matrix", [Cayley(negative_ones=1), EigenvalueNormalized(normalizing=True)])
def test_they_are_parametrizations_of_torch(matrix: nn.Module) -> None:
    torch.manual_seed(0)
    module = nn.Linear(6, 6)
    parametrize.register_parametrization(module, "weight", copy.deepcopy(matrix))
    constrained = module.weight.detach().clone()
    x = torch.randn(2, 6)
    expected = module(x).detach()

    with parametrize.cached():
        assert module.weight is module.weight
    twin = nn.Linear(6, 6)
    parametrize.register_parametrization(twin, "weight", copy.deepcopy(matrix))
    twin.load_state_dict(module.state_dict())
    assert torch.equal(twin(x), expected)
    assert torch.equal(copy.deepcopy(module)(x), expected)

    parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    assert not parametrize.is_parametrized(module)
    assert torch.equal(module.weight, constrained)
    assert torch.equal(module(x), expected)


@pytest.mark.parametrize("front", [enrnn.orthogonal, enrnn.eigenvalue_normalized])
def test_a_weight_that_does_not_fit_is_refused(front: object) -> None:
    with pytest.raises(ValueError, match="square"):
        front(nn.Linear(3, 4))
    with pytest.raises(ValueError, match="wieght"):
        front(nn.Linear(4, 4), "wieght")


@pytest.mark.parametrize("settings", [{}, {"num_layers": 2, "bidirectional": True}, {"short_size": 0}, {"short_size": 8}])
@pytest.mark.parametrize("normalising", [False, True])
def test_a_layer_works_on_without_its_constraints(settings: dict[str, object], normalising: bool) -> None:
    torch.manual_seed(0)
    layer = ENRNN(3, 8, **settings)
    if normalising:
        train(layer, 20, 0.1, 0)
        assert layer.normalizing.all()
    x = torch.randn(5, 2, 3)
    expected, final = layer(x)
    W = layer.recurrent_weight()
    for name in list(layer.matrices()):
        parametrize.remove_parametrizations(layer, name, leave_parametrized=True)
    assert type(layer) is ENRNN
    assert layer.matrices() == {}
    output, h = layer(x)
    assert torch.equal(output, expected)
    assert torch.equal(h, final)
    assert torch.equal(layer.recurrent_weight(), W)
    assert layer.normalizing.numel() == 0
    assert layer.constraint_error() == 0.0
    # All of it is free now.
    assert layer.num_free_parameters() == sum(p.numel() for p in layer.parameters())
    twin = copy.deepcopy(layer)
    train(layer, 3, 0.1, 0)
    assert not torch.equal(layer(x)[0], expected)
    assert torch.equal(twin(x)[0], expected)
    assert "8" in repr(layer)


def test_one_constraint_can_go_and_the_other_stay() -> None:
    torch.manual_seed(0)
    layer = ENRNN(3, 8)
    parametrize.remove_parametrizations(layer, "weight_long_l0")
    train(layer, 20, 0.1, 0)
    assert orthogonality(layer.weight_long_l0) > 1e-3
    assert spectral_radius(layer.weight_short_l0) <= 1 + 1000 * EPS
    assert list(layer.matrices()) == ["weight_short_l0"]
    assert repr(layer).startswith("ENRNN(")
