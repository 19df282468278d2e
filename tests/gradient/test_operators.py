"""The operators keep torch's contract for custom operators: schema, fake tensors, autograd, and tracing of both passes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import enrnn.matrices
import enrnn.recurrence  # noqa: F401  the operators exist once these are imported


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, requires_grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * len(shape) + sum(shape))
    return torch.randn(shape, dtype=dtype, generator=generator).requires_grad_(requires_grad)


def rotation(size: int) -> Tensor:
    """All eigenvalues complex: a cyclic shift with a twist."""
    return torch.roll(torch.eye(size, dtype=torch.float64), 1, 0) * torch.linspace(0.5, 1.0, size, dtype=torch.float64)


NORMALIZE = {
    "real dominant, normalising": (torch.diag(torch.tensor([2.0, 0.5, -1.0])).requires_grad_(), True, 0.0),
    "complex dominant, normalising": ((rotation(5)[1:4, 1:4] + rotation(3)).requires_grad_(), True, 0.3),
    "gaussian, float32": (normal(6, 6, dtype=torch.float32), False, 0.0),
    "below one, not normalising": ((0.1 * normal(4, 4)).detach().requires_grad_(), False, 0.0),
    "defective": (torch.tensor([[2.0, 1.0], [0.0, 2.0]], dtype=torch.float64).requires_grad_(), True, 0.1),
    "one entry": (torch.tensor([[-3.0]]).requires_grad_(), True, 0.0),
    "no gradient asked": (normal(4, 4, requires_grad=False), True, 0.0),
    "not finite": (torch.full((2, 2), float("inf")), True, 0.0),
}


@pytest.mark.parametrize("name", NORMALIZE)
def test_normalize_spectrum(name: str) -> None:
    T, normalizing, epsilon = NORMALIZE[name]
    opcheck(torch.ops.enrnn.normalize_spectrum.default, (T, torch.tensor(normalizing), epsilon, "auto"))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_shifted_skew_inverse(size: int) -> None:
    skew = normal(size, size, requires_grad=False)
    opcheck(torch.ops.enrnn.shifted_skew_inverse.default, ((skew - skew.mT).requires_grad_(),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_cayley(size: int, dtype: torch.dtype) -> None:
    P = normal(size, size, dtype=dtype)
    opcheck(torch.ops.enrnn.cayley.default, (P, size // 2))
    X = torch.ops.enrnn.cayley(P.detach(), size // 2)[1]
    opcheck(torch.ops.enrnn.cayley_backward.default, (torch.ones_like(P), X, size // 2))


@pytest.mark.parametrize("ones", [0, 2, 5])
def test_the_gradient_of_both_outputs_of_cayley(ones: int) -> None:
    """Also twice: there the formula is made of operations that torch can differentiate."""
    P = normal(5, 5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda P: torch.ops.enrnn.cayley(P, ones), P)
    assert torch.autograd.gradgradcheck(lambda P: torch.ops.enrnn.cayley(P, ones), P)


def sequence(nonlinearity: str, *, bias: bool, lengths: bool, dtype: torch.dtype = torch.float64) -> tuple[object, ...]:
    steps, batch, size = 4, 3, 5
    return (
        normal(steps, batch, size, dtype=dtype),
        (normal(size, size, dtype=dtype) / 2).detach().requires_grad_(),
        None,
        None,
        (-normal(size, dtype=dtype).abs() / 8).detach().requires_grad_() if bias else None,
        normal(batch, size, dtype=dtype),
        nonlinearity,
        torch.tensor([4, 2, 1]) if lengths else None,
        "torch",
    )


@pytest.mark.parametrize("lengths", [False, True], ids=["whole", "lengths"])
@pytest.mark.parametrize(("nonlinearity", "bias"), [("modrelu", True), ("modrelu", False), ("tanh", True), ("relu", False)])
def test_recurrence(nonlinearity: str, bias: bool, lengths: bool) -> None:
    opcheck(torch.ops.enrnn.recurrence.default, sequence(nonlinearity, bias=bias, lengths=lengths))


def test_recurrence_in_float32_without_gradients() -> None:
    arguments = sequence("modrelu", bias=True, lengths=True, dtype=torch.float32)
    detached = tuple(a.detach() if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments)
    opcheck(torch.ops.enrnn.recurrence.default, detached)


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_two_parts_and_their_final_state(backend: str) -> None:
    q, s = 3, 2
    inputs, _, _, _, bias, initial, nonlinearity, lengths, _ = sequence("modrelu", bias=True, lengths=True)
    blocks = [(normal(*shape) / 2).detach().requires_grad_() for shape in ((q, q), (q, s), (s, s))]
    arguments = (inputs, *blocks, bias, initial, nonlinearity, lengths, backend)
    opcheck(torch.ops.enrnn.recurrence.default, arguments)
    detached = tuple(a.detach() if isinstance(a, Tensor) else a for a in arguments)
    opcheck(torch.ops.enrnn.final_state.default, detached)


@pytest.mark.parametrize("lengths", [False, True], ids=["whole", "lengths"])
@pytest.mark.parametrize("nonlinearity", ["modrelu", "relu", "tanh", "identity"])
def test_recurrence_backward(nonlinearity: str, lengths: bool) -> None:
    """Without gradients of its own: where these are asked for, it is not what is called."""
    inputs, weight, _, _, _, initial, _, ends, backend = sequence(nonlinearity, bias=False, lengths=lengths)
    with torch.no_grad():
        states = torch.ops.enrnn.recurrence(inputs, weight, None, None, None, initial, nonlinearity, ends, backend)
    upstream, known = normal(4, 3, 5, requires_grad=False), (weight.detach(), None, None, None, initial.detach())
    for wanted in ([True, False, False], [False, False, False]):
        arguments = (upstream, states, *known, nonlinearity, ends, backend, wanted)
        opcheck(torch.ops.enrnn.recurrence_backward.default, arguments)


@pytest.mark.parametrize("backend", ["torch", "cpu"])
@pytest.mark.parametrize("nonlinearity", ["tanh", "modrelu"])
def test_linear_sweeps(nonlinearity: str, backend: str) -> None:
    q, s = 3, 2
    x, _, _, _, bias, initial, *_ = sequence(nonlinearity, bias=True, lengths=False)
    blocks = [(normal(*shape) / 2).detach().requires_grad_() for shape in ((q, q), (q, s), (s, s))]
    states = normal(4, 3, q + s, seed=1).tanh().detach().requires_grad_()
    along = states, *blocks, bias, nonlinearity, None, backend
    opcheck(torch.ops.enrnn.pull_back.default, (x, *along))
    opcheck(torch.ops.enrnn.push_forward.default, (x, initial, *along))


def test_derivatives_of_the_spectral_radius() -> None:
    T = normal(4, 4)
    opcheck(torch.ops.enrnn.spectral_projector.default, (T,))
    opcheck(torch.ops.enrnn.radius_gradient.default, (T, normal(4, 4, seed=1, requires_grad=False)))


@pytest.mark.parametrize("backend", ["torch", "cpu"])
@pytest.mark.parametrize("wanted", [[True, True, True], [True, True, False], [False, True, True], [False, False, True]], ids=str)
def test_recurrence_backward_of_two_parts(wanted: list[bool], backend: str) -> None:
    q, s = 3, 2
    inputs, _, _, _, bias, initial, nonlinearity, lengths, _ = sequence("modrelu", bias=True, lengths=True)
    known = [normal(*shape, requires_grad=False) / 2 for shape in ((q, q), (q, s), (s, s))]
    known += [each.detach() for each in (bias, initial)]
    states = torch.ops.enrnn.recurrence(inputs.detach(), *known, nonlinearity, lengths, backend)
    upstream = normal(4, 3, q + s, requires_grad=False)
    opcheck(torch.ops.enrnn.recurrence_backward.default, (upstream, states, *known, nonlinearity, lengths, backend, wanted))
