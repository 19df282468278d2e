"""Matrices that act after the optimiser's step, or in its place, and those that do neither."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from enrnn.training import RMSPropTF, attach


class Halved(nn.Module):
    """Halves its matrix after each step."""

    def forward(self, original: Tensor) -> Tensor:
        return original

    def after_step(self, original: Tensor) -> None:
        original.mul_(0.5)


class Rotated(nn.Module):
    """Goes along a geodesic of the orthogonal matrices, against the gradient."""

    def forward(self, original: Tensor) -> Tensor:
        return original

    def manifold_update(self, original: Tensor, lr: float | Tensor) -> None:
        gradient = original.grad
        assert gradient is not None
        skew = gradient @ original.mT
        original.copy_(torch.linalg.matrix_exp(-lr * (skew - skew.mT)) @ original)


class Plain(nn.Module):
    def forward(self, original: Tensor) -> Tensor:
        return original


def problem(matrix: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    linear = nn.Linear(4, 4).double()
    nn.init.orthogonal_(linear.weight)
    parametrize.register_parametrization(linear, "weight", matrix)
    optimizer = RMSPropTF(linear.parameters(), lr=0.1)
    attach(linear, optimizer)
    return linear, optimizer


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 5) -> Tensor:
    for seed in range(count):
        x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model(x).sin().sum().backward()
        optimizer.step()
    weight: Tensor = model.weight  # type: ignore[assignment]
    return weight.detach()


def test_a_matrix_without_the_methods_is_left_alone() -> None:
    model, optimizer = problem(Plain())
    bare = RMSPropTF(model.parameters(), lr=0.1)
    assert not optimizer._optimizer_step_post_hooks
    start = {name: value.clone() for name, value in model.state_dict().items()}
    attached = steps(model, optimizer).clone()
    model.load_state_dict(start)
    assert torch.equal(steps(model, bare), attached)


def test_after_step_comes_after_the_optimizers_step() -> None:
    plain = steps(*problem(Plain()), count=1)
    assert torch.equal(steps(*problem(Halved()), count=1), plain / 2)


def test_manifold_update_takes_the_place_of_the_optimizers_step() -> None:
    model, optimizer = problem(Rotated())
    before = model.weight.detach().clone()  # type: ignore[operator, union-attr]
    weight = steps(model, optimizer)
    assert (weight - before).abs().max() > 0.01
    assert (weight.mT @ weight - torch.eye(4, dtype=torch.float64)).abs().max() < 1e-13
    assert (optimizer.state[model.parametrizations.weight.original]["square_avg"] == 1).all()  # type: ignore[union-attr, index]
    assert model.parametrizations.weight.original.grad is not None  # type: ignore[union-attr, index]


def test_manifold_update_is_given_the_rate_of_its_group() -> None:
    model, optimizer = problem(Rotated())
    still = model.weight.detach().clone()  # type: ignore[operator, union-attr]
    optimizer.param_groups[0]["lr"] = 0.0
    assert steps(model, optimizer) == pytest.approx(still, abs=1e-15)


@pytest.mark.parametrize("by", [torch.optim.Adam, torch.optim.SGD, torch.optim.LBFGS])
def test_manifold_update_takes_its_place_where_a_closure_computes_the_gradient(by: type[torch.optim.Optimizer]) -> None:
    linear, _ = problem(Rotated())
    optimizer = by(linear.parameters(), lr=0.1)  # type: ignore[call-arg]
    attach(linear, optimizer)
    x, before = torch.randn(8, 4, dtype=torch.float64), linear.weight.detach().clone()  # type: ignore[operator, union-attr]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = linear(x).sin().sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)  # type: ignore[arg-type]
    weight = linear.weight.detach()  # type: ignore[operator, union-attr]
    assert (weight - before).abs().max() > 0.01
    assert (weight.mT @ weight - torch.eye(4, dtype=torch.float64)).abs().max() < 1e-13


def test_a_closure_gives_what_a_gradient_computed_before_gives() -> None:
    (model, optimizer), (other, other_optimizer) = problem(Rotated()), problem(Rotated())
    optimizer, other_optimizer = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, other))
    attach(model, optimizer)
    attach(other, other_optimizer)
    steps(model, optimizer)
    for seed in range(5):
        x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

        def closure(x: Tensor = x) -> Tensor:
            other_optimizer.zero_grad()
            loss: Tensor = other(x).sin().sum()
            loss.backward()
            return loss

        other_optimizer.step(closure)  # type: ignore[arg-type]
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), other.parameters(), strict=True))


def test_a_group_that_is_added_later_is_moved_too() -> None:
    linear, _ = problem(Rotated())
    optimizer = torch.optim.Adam([linear.bias], lr=0.1)
    attach(linear, optimizer)
    optimizer.add_param_group({"params": [linear.parametrizations.weight.original]})  # type: ignore[union-attr, index]
    weight = steps(linear, optimizer)
    assert (weight.mT @ weight - torch.eye(4, dtype=torch.float64)).abs().max() < 1e-13


def test_an_optimizer_is_needed() -> None:
    with pytest.raises(TypeError, match="attach needs the optimisers"):
        attach(nn.Linear(2, 2))


class Pair(nn.Module):
    """A product of two free tensors: the second one turns, the first is the optimiser's, and afterwards both have unit norm."""

    on_manifold = (1,)

    def forward(self, scale: Tensor, turned: Tensor) -> Tensor:
        return scale[:, None] * turned

    def right_inverse(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(matrix[0]), matrix

    manifold_update = Rotated.manifold_update

    def after_step(self, scale: Tensor, turned: Tensor) -> None:
        scale.div_(scale.norm())


def test_a_matrix_of_several_free_tensors_with_an_optimizer_each() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(4, 4).double()
    nn.init.orthogonal_(linear.weight)
    parametrize.register_parametrization(linear, "weight", Pair())
    free = linear.parametrizations.weight  # type: ignore[union-attr, index]
    scale, turned = free.original0, free.original1
    one, other = RMSPropTF([turned, linear.bias], lr=0.1), RMSPropTF([scale], lr=0.1)
    attach(linear, one, other)
    for _ in range(3):
        linear(torch.randn(8, 4, dtype=torch.float64)).sin().sum().backward()
        one.step()
        other.step()
    assert scale.norm().item() == pytest.approx(1, abs=1e-14)
    assert (scale != 0.5).any()
    assert (turned.mT @ turned - torch.eye(4, dtype=torch.float64)).abs().max() < 1e-13
