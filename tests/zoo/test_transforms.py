"""`torch.func`: gradients by transforms, for every sequence by itself too; and a plain word where there is no derivative."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import enrnn

NETWORKS = [name for name in enrnn.networks() if name not in ("rnn", "lstm", "gru")]  # torch's own

pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop"),  # vmap is a loop
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),  # torch's own, in forward mode
]


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


@pytest.mark.parametrize("kind", [enrnn.SCORNN, enrnn.ENRNN])
def test_a_jacobian_by_one_call(kind: type[nn.Module]) -> None:
    layer, x = kind(2, 5).eval(), torch.randn(3, 1, 2)

    def last(x: Tensor) -> Tensor:
        state: Tensor = layer(x)[0][-1]
        return state

    row_by_row = torch.autograd.functional.jacobian(last, x)
    torch.testing.assert_close(torch.autograd.functional.jacobian(last, x, vectorize=True), row_by_row)
    torch.testing.assert_close(torch.func.jacrev(last)(x), row_by_row)


@pytest.mark.parametrize("second", [torch.func.jacrev, torch.func.jacfwd])
def test_second_derivatives_are_right_or_refused(second: Callable[..., Callable[[Tensor], Tensor]]) -> None:
    torch.manual_seed(0)
    fused = enrnn.ENRNN(2, 4, nonlinearity="tanh").eval()
    plain = enrnn.ENRNN(2, 4, nonlinearity="tanh", backend="reference").eval()
    plain.load_state_dict(fused.state_dict())
    x = torch.randn(3, 1, 2)
    expected = torch.autograd.functional.hessian(lambda x: plain(x)[0].square().sum(), x)
    torch.testing.assert_close(second(torch.func.grad(lambda x: plain(x)[0].square().sum()))(x), expected)
    with pytest.raises((RuntimeError, NotImplementedError), match=r"differentiated once only|no derivative in forward mode"):
        second(torch.func.grad(lambda x: fused(x)[0].square().sum()))(x)


def test_what_has_no_derivative_in_forward_mode_says_so() -> None:
    layer, x = enrnn.ENRNN(2, 4).eval(), torch.randn(3, 1, 2)
    matrix = torch.randn(3, 3)
    for what, call in {
        "recurrence": lambda: torch.func.jvp(lambda x: layer(x)[0], (x,), (x,)),
        "cayley": lambda: torch.func.jvp(enrnn.Cayley(), (matrix,), (matrix,)),
        "spectral_radius": lambda: torch.func.jacfwd(lambda matrix: enrnn.spectral_radius(matrix).value)(matrix),
    }.items():
        with pytest.raises(NotImplementedError, match=f"enrnn::{what} has no derivative in forward mode"):
            call()
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        assert layer(x)[0].isfinite().all()  # nothing has a tangent here
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(NotImplementedError, match="forward mode"):
            layer(dual)
