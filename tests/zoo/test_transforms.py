"""`torch.func`: derivatives by transforms, for every sequence by itself too; and a plain word where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import enrnn

NETWORKS = [name for name in enrnn.networks() if name not in ("rnn", "lstm", "gru")]  # torch's own


def loss(layer: nn.Module) -> Callable[[dict[str, Tensor], dict[str, Tensor], Tensor], Tensor]:
    def of(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(layer, (parameters, buffers), (x,))[0]
        return output.square().sum()

    return of


def given(name: str) -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]:
    torch.manual_seed(0)
    layer: nn.Module = enrnn.build(name, 2, 6)
    return layer, {name: value.detach() for name, value in layer.named_parameters()}, dict(layer.named_buffers())


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_backward_and_each_sequence_may_have_its_own(name: str) -> None:
    layer, parameters, buffers = given(name)
    x = torch.randn(3, 4, 1, 2)
    each = torch.func.vmap(torch.func.grad(loss(layer)), (None, None, 0))(parameters, buffers, x)
    for i, sequence in enumerate(x):
        layer.zero_grad()
        layer(sequence)[0].square().sum().backward()
        for name, parameter in layer.named_parameters():
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(each[name][i], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_ensemble_is_its_members(name: str, training: bool) -> None:
    """`vmap` over parameters and buffers: outputs, gradients, and what training writes into buffers."""
    torch.manual_seed(0)
    members = [enrnn.build(name, 2, 6).double().train(training) for _ in range(3)]
    with torch.no_grad():
        for scale, member in enumerate(members, start=1):
            for parameter in member.parameters():
                parameter.mul_(scale)  # of eigenvalue-normalised ones some have to be divided, others not
    x = torch.randn(4, 3, 2, dtype=torch.float64)

    def stacked(tensors: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {key: torch.stack([each[key].detach() for each in tensors]) for key in tensors[0]}

    parameters = stacked([dict(member.named_parameters()) for member in members])
    buffers = stacked([dict(member.named_buffers()) for member in members])
    layer = enrnn.build(name, 2, 6).double().train(training)
    gradients = torch.func.vmap(torch.func.grad(loss(layer)), (0, 0, None))(parameters, buffers, x)
    for i, member in enumerate(members):
        member(x)[0].square().sum().backward()
        for key, parameter in member.named_parameters():
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(gradients[key][i], expected, rtol=1e-9, atol=1e-9)
        for key, buffer in member.named_buffers():
            torch.testing.assert_close(buffers[key][i], buffer)


def test_of_none_there_is_no_ensemble() -> None:
    layer, parameters, _ = given("enrnn")
    run = torch.func.vmap(lambda parameters, x: torch.func.functional_call(layer.eval(), parameters, (x,))[0])
    none = {name: value[None][:0] for name, value in parameters.items()}
    with pytest.raises(ValueError, match="size 0"):
        run(none, torch.ones(0, 4, 3, 2))
    with pytest.raises(ValueError, match="size 0"):
        torch.func.vmap(layer)(torch.ones(0, 4, 3, 2))


@pytest.mark.parametrize("name", ["enrnn", "exprnn"])
def test_a_member_that_is_not_finite_is_told_or_seen(name: str) -> None:
    layer, parameters, buffers = given(name)
    both = {
        key: torch.stack([value, value * (math.nan if "short" in key or "hh" in key else 1)]) for key, value in parameters.items()
    }
    run = torch.func.vmap(lambda parameters: torch.func.functional_call(layer, (parameters, buffers), (torch.ones(4, 3, 2),))[0])
    if name == "enrnn":
        with pytest.raises(ValueError, match="not finite"):
            run(both)
    else:
        outputs = run(both)
        assert outputs[0].isfinite().all()
        assert outputs[1].isnan().any()


@pytest.mark.parametrize("kind", [enrnn.SCORNN, enrnn.ENRNN])
def test_a_jacobian_by_one_call(kind: type[nn.Module]) -> None:
    layer, x = kind(2, 5).eval(), torch.randn(3, 1, 2)

    def last(x: Tensor) -> Tensor:
        state: Tensor = layer(x)[0][-1]
        return state

    row_by_row = torch.autograd.functional.jacobian(last, x)
    torch.testing.assert_close(torch.autograd.functional.jacobian(last, x, vectorize=True), row_by_row)
    torch.testing.assert_close(torch.func.jacrev(last)(x), row_by_row)


def moving(name: str) -> tuple[Callable[..., Tensor], tuple[dict[str, Tensor], Tensor], tuple[dict[str, Tensor], Tensor]]:
    """A network in float64 as a function of its parameters and its input, these, and a direction to move them in."""
    torch.manual_seed(0)
    layer = enrnn.build(name, 2, 6).double().eval()
    parameters, buffers = {name: value.detach() for name, value in layer.named_parameters()}, dict(layer.named_buffers())
    x = torch.randn(5, 3, 2, dtype=torch.float64)

    def outputs(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(layer, (parameters, buffers), (x,))[0]
        return output

    return outputs, (parameters, x), tree_map(torch.randn_like, (parameters, x))


def difference(function: Callable[..., Any], point: Any, direction: Any) -> Any:
    """The derivative in a direction, from two values near by."""
    step = 1e-6

    def value(step: float) -> Any:
        return function(*tree_map(lambda at, by: at + step * by, point, direction))

    above, below = value(step), value(-step)
    return tree_map(lambda above, below: (above - below) / (2 * step), above, below)


def close(found: Any, expected: Any) -> bool:
    """Within what a difference of two values is good for."""
    scale = max(float(each.abs().max()) for each in tree_leaves(expected))
    return all(float((a - b).abs().max()) < 1e-6 * scale for a, b in zip(tree_leaves(found), tree_leaves(expected), strict=True))


SMOOTH = [name for name in NETWORKS if name not in ("goru", "hmrnn")]
"""All but the one below, and the one whose gradient is that of another function on purpose."""


@pytest.mark.parametrize("name", SMOOTH)
def test_forward_mode_and_second_derivatives(name: str) -> None:
    """Of outputs by all parameters and the input; and then of gradients, forwards and backwards."""
    outputs, point, direction = moving(name)
    assert close(torch.func.jvp(outputs, point, direction)[1], difference(outputs, point, direction))

    def loss(*point: Any) -> Tensor:
        return outputs(*point).square().sum()

    gradient = torch.func.grad(loss, (0, 1))
    expected = difference(gradient, point, direction)
    assert close(torch.func.jvp(gradient, point, direction)[1], expected)

    def slope(*point: Any) -> Tensor:
        pairs = zip(tree_leaves(gradient(*point)), tree_leaves(direction), strict=True)
        return sum(((g * d).sum() for g, d in pairs), torch.zeros(()))

    assert close(torch.func.grad(slope, (0, 1))(*point), expected)


@pytest.mark.parametrize("name", ["enrnn", "urnn", "hmrnn"])
def test_both_modes_have_one_jacobian(name: str) -> None:
    outputs, point, _ = moving(name)
    torch.testing.assert_close(torch.func.jacfwd(outputs, 0)(*point), torch.func.jacrev(outputs, 0)(*point))


@pytest.mark.parametrize("name", ["goru"])
def test_what_has_one_derivative_says_so(name: str) -> None:
    outputs, point, direction = moving(name)
    with pytest.raises(NotImplementedError, match=r"no derivative in forward mode .* or choose backend='reference'"):
        torch.func.jvp(outputs, point, direction)
    gradient = torch.func.grad(lambda *point: outputs(*point).square().sum(), (0, 1))
    with pytest.raises(RuntimeError, match="differentiated once only; for second derivatives choose backend='reference'"):
        torch.func.grad(lambda *point: sum(each.square().sum() for each in tree_leaves(gradient(*point))))(*point)
    x = point[1]
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        assert outputs(*point).isfinite().all()  # nothing has a tangent here
        with pytest.raises(NotImplementedError, match="forward mode"):
            outputs(point[0], torch.autograd.forward_ad.make_dual(x, x))


def test_a_gradient_through_what_was_mapped() -> None:
    """What is mapped shows nobody that it will be differentiated."""
    layer, x = enrnn.GORU(2, 4).double(), torch.randn(3, 4, 1, 2, dtype=torch.float64)
    found = torch.func.grad(lambda x: torch.func.vmap(lambda one: layer(one)[0])(x).square().sum())(x)
    torch.testing.assert_close(found, torch.stack([torch.func.grad(lambda x: layer(x)[0].square().sum())(one) for one in x]))


@pytest.mark.parametrize("size", [1, 4, 5])
def test_the_spectral_radius_to_the_fourth_derivative(size: int) -> None:
    torch.manual_seed(size)
    T, direction = torch.randn(2, size, size, dtype=torch.float64).unbind()

    def radius(T: Tensor) -> Tensor:
        return enrnn.spectral_radius(T).value

    def second(T: Tensor) -> Tensor:
        return torch.func.jvp(torch.func.grad(radius), (T,), (direction,))[1]

    assert torch.autograd.gradcheck(second, T.requires_grad_())
    assert torch.autograd.gradgradcheck(second, T)


def test_where_the_spectral_radius_has_no_derivative_there_is_none_of_a_higher_order() -> None:
    """A Jordan block: zeros, and no NaN."""
    T = torch.tensor([[0.5, 1.0], [0.0, 0.5]], dtype=torch.float64)

    def slope(T: Tensor) -> Tensor:
        found: Tensor = torch.func.jvp(lambda T: enrnn.spectral_radius(T).value, (T,), (torch.ones_like(T),))[1]
        return found

    for order in range(3):
        assert not slope(T).any(), order
        slope = torch.func.grad(lambda T, slope=slope: slope(T).sum())
