"""The recurrence as an operator, with its gradients: a call that is replayed gives the same bits as one that is not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from enrnn import _graphs, _replay
from enrnn.functional import long_short_recurrence
from enrnn.recurrence import _engines, _gram, _linked, _product, _projection, _rotations
from tests.emulator._chip import Emulated
from tests.recurrence import _rotations as rotations
from tests.recurrence._problems import floating
from tests.recurrence._replayed import answers, at_first, leaves, programs


class Case(NamedTuple):
    steps: int
    batch: int
    long: int
    short: int
    nonlinearity: str
    apart: bool = False
    """Whether the two parts are run apart."""
    linked: bool = False
    strided: bool = False
    """Whether inputs, and gradients that come from above, have to be copied first."""
    gram: bool = False
    product: bool = False
    """How the gradients of matrices are formed; torch's way if neither."""
    graphs: int = 2
    """One for either direction, and more where torch's operations are among its kernels, of which here none can be in one."""


CASES = {
    "in one block": Case(5, 3, 20, 12, "modrelu", graphs=3),
    "of copies": Case(5, 3, 20, 12, "relu", strided=True, graphs=3),
    "without zeros": Case(4, 5, 24, 16, "tanh", gram=True),
    "of one part": Case(4, 17, 40, 0, "relu", product=True),
    "of a single step": Case(1, 3, 20, 12, "tanh", graphs=3),
    "of a single step, in two parts": Case(1, 17, 60, 70, "tanh", apart=True, product=True, graphs=3),
    "in two parts": Case(4, 18, 60, 70, "leaky_relu", apart=True, product=True, graphs=3),
    "in two parts, with torch's products": Case(3, 3, 60, 70, "identity", apart=True, graphs=5),
    "in two parts, linked": Case(4, 17, 60, 150, "modrelu", apart=True, linked=True, product=True),
    "linked, of copies": Case(3, 9, 60, 150, "tanh", apart=True, linked=True, strided=True, product=False, graphs=3),
}


def turned(leaf: Tensor | None) -> Tensor:
    """The same, with other strides."""
    assert leaf is not None
    return leaf.detach().mT.contiguous().mT.requires_grad_()


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits(name: str, emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    monkeypatch.setattr(_engines, "why_not", lambda *_: None)
    monkeypatch.setattr(_engines, "as_one", lambda *_: not case.apart)
    monkeypatch.setattr(_linked, "pays", lambda *_: case.linked)
    monkeypatch.setattr(_gram, "NARROW", 192 if case.gram else 0)
    monkeypatch.setattr(_gram, "LITTLE", 0)
    monkeypatch.setattr(_product, "LEAST_SIDE", 1)
    monkeypatch.setattr(_product, "LEAST_WORK", 1 if case.product else 2**60)
    wholes = []
    for seed in range(5):
        if seed != 2:  # the two calls that are watched have the same tensors, and perhaps memory at the same addresses
            given, upstream = leaves(*case[:4], seed)
        if case.strided:
            given[0], upstream = turned(given[0]), upstream[0, 0, 0].expand(upstream.shape)
        emulated.launched.clear()
        found = answers(given, upstream, case.nonlinearity)
        wholes.append(emulated.launched.copy())
    assert all(whole == wholes[0] for whole in wholes)
    assert [kernel in wholes[0] for kernel in ("couple", "gram", "product")] == [case.linked, case.gram, case.product]
    assert [type(each) for each in programs()] == [_replay.Program] * 2
    with monkeypatch.context() as patch:
        patch.setattr(_replay, "replayable", lambda like: False)
        again = answers(given, upstream, case.nonlinearity)
    assert all(torch.equal(*pair) for pair in zip(found, again, strict=True))
    emulated.launched.clear()
    monkeypatch.setattr(_graphs.Graphs, "run", at_first)
    assert all(torch.equal(*pair) for pair in zip(found, answers(given, upstream, case.nonlinearity), strict=True))
    assert emulated.launched == wholes[0]
    assert emulated.graphs_launched == case.graphs
    doubles = [each if each is None else each.detach().double().requires_grad_() for each in given]
    exact = answers(doubles, upstream.double(), case.nonlinearity, "reference")
    for each, right in zip(found, exact, strict=True):
        torch.testing.assert_close(each.double(), right, rtol=1e-4, atol=1e-5 * float(right.abs().max()))


@pytest.mark.parametrize("large", [True, False])
def test_the_way_in_and_out(large: bool, emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """A projection by our kernels, or by torch's products with the rest by our kernels."""
    monkeypatch.setattr(_projection, "_large", lambda *_: large)
    monkeypatch.setattr(_product, "LEAST_SIDE", 1)
    monkeypatch.setattr(_product, "LEAST_WORK", 1 if large else 2**60)

    def projected(given: list[Tensor], upstream: Tensor) -> list[Tensor]:
        out = _projection.projection(*given)
        return [out.detach(), *torch.autograd.grad(out, given, upstream)]

    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        given = [torch.randn(size, generator=generator).requires_grad_() for size in ((3, 17, 40), (35, 40), (35,))]
        upstream = torch.randn(3, 17, 35, generator=generator)
        found = projected(given, upstream)
    kinds = {function.__name__: set(map(type, known.values())) for function, known in _replay._known.items() if known}
    assert kinds == {"projection": {_replay.Program if large else bool}, "projection_backward": {_replay.Program}}
    with monkeypatch.context() as patch:
        patch.setattr(_replay, "replayable", lambda like: False)
        again = projected(given, upstream)
    assert all(torch.equal(*pair) for pair in zip(found, again, strict=True))
    x, weight, bias = (each.detach().double() for each in given)
    rows = upstream.double().flatten(0, 1)
    exact = [x @ weight.mT + bias, upstream.double() @ weight, rows.mT @ x.flatten(0, 1), rows.sum(0)]
    for each, right in zip(found, exact, strict=True):
        torch.testing.assert_close(each.double(), right, rtol=1e-5, atol=1e-5 * float(right.abs().max()))


@pytest.mark.parametrize("lengths", [True, False])
def test_layers_of_rotations(lengths: bool, emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(given: list[Tensor | None], upstream: Tensor) -> list[Tensor]:
        states = _rotations.rotations(*given)
        wanted = [each for each in given if isinstance(each, Tensor) and each.requires_grad]
        return [states.detach(), *torch.autograd.grad(states, wanted, upstream)]

    for seed in range(5):
        case = rotations.problem(rotations.Case(9, 3, lengths=lengths), seed)
        given = [each.float().requires_grad_() if floating(each) else each for each in case[:-1]]
        found = answers(given, case.upstream.float())
    assert [type(each) for each in programs()] == [_replay.Program] * 2
    with monkeypatch.context() as patch:
        patch.setattr(_replay, "replayable", lambda like: False)
        again = answers(given, case.upstream.float())
    assert all(torch.equal(*pair) for pair in zip(found, again, strict=True))


def test_what_fits_nothing_is_refused_after_calls_that_are_replayed(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are not checked again, where they are like those of such a call; but only there."""
    monkeypatch.setattr(_engines, "why_not", lambda *_: None)
    given, upstream = leaves(5, 3, 20, 12, 0)
    for _ in range(5):
        answers(given, upstream, "modrelu")
    bias, initial = given[4:]
    assert initial is not None
    assert bias is not None
    for wrong in ([*given[:4], bias[:-1], initial], [*given[:4], bias.double(), initial], [*given[:5], initial[:2]]):
        with pytest.raises(ValueError, match=r"^(bias|initial) must have"):
            long_short_recurrence(*wrong, "modrelu", backend="cuda")
    for name, error in (("modreluu", "Unknown nonlinearity"), ("paired_modrelu", "works on one recurrent matrix")):
        with pytest.raises(ValueError, match=error):
            long_short_recurrence(*given, name, backend="cuda")
    with pytest.raises(ValueError, match="Unknown backend"):
        long_short_recurrence(*given, "modrelu", backend="cudaa")
    with pytest.raises(TypeError, match="nonlinearity should be a string"):
        long_short_recurrence(*given, ["modrelu"], backend="cuda")
    for strange in ({"backend": {}}, {"lengths": [1, 2, 3]}, {"lengths": np.array([1, 2, 3])}):
        with pytest.raises(TypeError, match=r"should be a string|lengths must be a Tensor"):
            long_short_recurrence(*given, "modrelu", **{"backend": "cuda", **strange})
    sparse = initial.detach().to_sparse()
    with pytest.raises((RuntimeError, NotImplementedError)):
        long_short_recurrence(*given[:5], sparse, "modrelu", backend="cuda")
    left = []
    torch.func.grad(lambda x: (left.append(x), x.sum())[1])(initial.detach())
    outside = long_short_recurrence(*given[:5], left[0], "modrelu", backend="cuda")
    assert torch.equal(outside, long_short_recurrence(*given, "modrelu", backend="cuda"))


def test_numbers_that_have_yet_to_be_formed(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative views, and zeros without memory, are for torch's dispatcher."""
    monkeypatch.setattr(_engines, "why_not", lambda *_: None)
    given, upstream = leaves(5, 3, 20, 12, 0)
    for _ in range(5):
        found = answers(given, upstream, "modrelu")
    inputs = given[0]
    assert inputs is not None
    negative = torch._neg_view(-inputs.detach())
    assert negative.is_neg()
    assert torch.equal(long_short_recurrence(negative, *given[1:], "modrelu", backend="cuda"), found[0])
    minus = torch._neg_view(-upstream)
    states = long_short_recurrence(*given, "modrelu", backend="cuda")
    wanted = [each for each in given if each is not None]
    assert all(torch.equal(*pair) for pair in zip(torch.autograd.grad(states, wanted, minus), found[1:], strict=True))
    zeros = torch._efficientzerotensor((3, 32))
    same = long_short_recurrence(*given[:5], torch.zeros(3, 32), "modrelu", backend="cuda")
    assert torch.equal(long_short_recurrence(*given[:5], zeros, "modrelu", backend="cuda"), same)
