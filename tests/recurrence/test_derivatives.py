"""Derivatives of the recurrence beyond the first and in forward mode, on every engine: those of the reference, to rounding."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis.strategies import booleans, integers, lists, sampled_from
from torch import Tensor
from torch.autograd import forward_ad

from enrnn.functional import long_short_recurrence, recurrence
from enrnn.nonlinearities import NONLINEARITIES
from enrnn.recurrence import _op
from tests._record import Recorder

Scalar = Callable[..., Tensor]


def along(function: Scalar, direction: tuple[Tensor, ...], mode: str) -> Scalar:
    """The derivative of a function of many tensors in one direction, forwards or in reverse: a function of the same tensors."""
    if mode == "forward":
        return lambda *point: torch.func.jvp(function, point, direction)[1]
    which = tuple(range(len(direction)))
    return lambda *point: sum(
        ((g * d).sum() for g, d in zip(torch.func.grad(function, which)(*point), direction, strict=True)), torch.zeros(())
    )


def problem(
    steps: int, batch: int, q: int, s: int, nonlinearity: str, bias: bool, lengths: list[int] | None, seed: int = 0
) -> tuple[Callable[[str], Scalar], tuple[Tensor, ...]]:
    """A number that depends on all states, as a function of everything that they depend on; for each backend."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    n, parts = q + s, NONLINEARITIES[nonlinearity].parts
    blocks = [normal(q, q) / max(1, q) ** 0.5 if q else None, normal(q, s) / 2 if q and s else None]
    blocks.append(normal(s, s) / max(1, s) ** 0.5 if s else None)
    threshold = (-normal(n // parts).abs() if "modrelu" in nonlinearity else normal(n // parts)) / 4 if bias else None
    given = normal(steps, batch, n), *blocks, threshold, normal(batch, n)
    ends = None if lengths is None else torch.tensor(lengths[:batch])
    weight = normal(steps, batch, n)

    def on(backend: str) -> Scalar:
        def number(*there: Tensor) -> Tensor:
            left = iter(there)
            whole = [None if each is None else next(left) for each in given]
            states = long_short_recurrence(*whole, nonlinearity, lengths=ends, backend=backend)  # type: ignore[arg-type]
            return (weight * states).sin().sum()

        return number

    return on, tuple(each for each in given if each is not None)


@given(
    steps=integers(1, 6),
    batch=integers(1, 3),
    q=integers(0, 4),
    s=integers(0, 4),
    nonlinearity=sampled_from(sorted(NONLINEARITIES)),
    bias=booleans(),
    lengths=lists(integers(0, 7), min_size=3, max_size=3),
    ends=booleans(),
    backend=sampled_from(["torch", "cpu"]),
    modes=sampled_from([*itertools.product(["forward", "reverse"], repeat=2)]),
    seed=integers(0, 2**32 - 1),
)
@example(3, 1, 2, 0, "paired_modrelu", True, [0, 0, 0], False, "torch", ("forward", "forward"), 7881583)  # |h| is |z|/2,700 once
def test_third_derivatives_in_any_order_of_modes(
    record: Recorder,
    steps: int,
    batch: int,
    q: int,
    s: int,
    nonlinearity: str,
    bias: bool,
    lengths: list[int],
    ends: bool,
    backend: str,
    modes: tuple[str, str],
    seed: int,
) -> None:
    """Twice in one direction, and from there a gradient by everything."""
    if nonlinearity == "paired_modrelu":
        q, s = 2 * q, 0
    assume(q + s > 0)
    on, point = problem(steps, batch, q, s, nonlinearity, bias, lengths if ends else None, seed)
    directions = [tuple(torch.randn_like(each) for each in point) for _ in modes]
    which, answers = tuple(range(len(point))), {}
    for name in (backend, "reference"):
        number = on(name)
        for direction, mode in zip(directions, modes, strict=True):
            number = along(number, direction, mode)
        answers[name] = torch.func.grad(number, which)(*point)
    scale = max(1.0, *(float(each.abs().max()) for each in answers["reference"]))
    for found, expected in zip(answers[backend], answers["reference"], strict=True):
        error = float((found - expected).abs().max()) / scale
        record(cases=1, worst_error_over_largest=error)
        # Each order passes once more through all steps, whose matrices and slopes need not be smaller than one: a thousand times
        # what one pass of `steps` sums of n products may lose.
        lost = near_the_edge(point) if nonlinearity == "paired_modrelu" and bias else 1.0
        assert error <= 1000 * steps * (q + s) * lost * torch.finfo(torch.float64).eps


def near_the_edge(point: tuple[Tensor, ...]) -> float:
    """How many times more third derivatives lose where a paired modReLU leaves little of z. All that a derivative knows is the
    state, |h| = |z| + b is known to the rounding of |z|, and each order beyond the first divides by it once more."""
    inputs, weight, bias, initial = point
    states = recurrence(inputs, weight, bias, initial, "paired_modrelu", backend="reference")
    size = torch.hypot(*states.chunk(2, dim=-1))
    share = torch.where(size == 0, 1, size / (size - bias).abs())
    return max(1.0, 1 / float(share.min())) ** 2


CASES = {
    "tanh": (5, 3, 3, 2, "tanh", True, None),
    "modReLU with lengths": (4, 3, 3, 2, "modrelu", True, [4, 2, 0]),
    "complex units": (4, 2, 6, 0, "paired_modrelu", True, [4, 1]),
}


@pytest.mark.parametrize("backend", ["torch", "cpu"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_against_differences(case: tuple[Any, ...], backend: str) -> None:
    """With autograd's own: first derivatives in both modes and for many at once, second ones reverse over reverse and forward
    over reverse."""
    on, point = problem(*case)
    number, leaves = on(backend), tuple(each.requires_grad_() for each in point)
    assert torch.autograd.gradcheck(
        number, leaves, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(number, leaves, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("wanted", [range(6), [0], [1], [2], [3], [4], [5]], ids=lambda wanted: "".join(map(str, wanted)))
def test_many_gradients_by_one_call(wanted: Sequence[int]) -> None:
    """`is_grads_batched`, by which `vectorize=True` works too, is an older vmap, of fewer operations. Of whatever is wanted:
    gradients, to be differentiated again or not, and then gradients of these."""
    on, point = problem(*CASES["tanh"])
    leaves = [each.requires_grad_(i in wanted) for i, each in enumerate(point)]
    chosen = [leaves[i] for i in wanted]

    def compare(values: Tensor) -> None:
        basis = torch.eye(len(values), dtype=values.dtype)
        one_by_one = [torch.autograd.grad(values, chosen, each, retain_graph=True) for each in basis]
        expected = tuple(map(torch.stack, zip(*one_by_one, strict=True)))
        for again in (False, True):
            found = torch.autograd.grad(values, chosen, basis, is_grads_batched=True, retain_graph=True, create_graph=again)
            torch.testing.assert_close(found, expected)

    number = on("auto")(*leaves)
    compare(torch.stack([number, number.square()]))
    gradients = torch.autograd.grad(number, chosen, create_graph=True)
    compare(torch.stack([each.square().sum() for each in gradients]))


def test_a_tangent_can_be_differentiated_in_reverse() -> None:
    on, point = problem(*CASES["tanh"])
    direction, answers = tuple(torch.randn_like(each) for each in point), []
    for backend in ("auto", "reference"):
        leaves = [each.detach().requires_grad_() for each in point]
        with forward_ad.dual_level():
            moved = on(backend)(*map(forward_ad.make_dual, leaves, direction))
            tangent = forward_ad.unpack_dual(moved).tangent  # type: ignore[no-untyped-call]
            answers.append(torch.autograd.grad(tangent, leaves))
    torch.testing.assert_close(*answers)


def test_single_precision_loses_no_more_than_the_reference() -> None:
    on, point = problem(60, 5, 24, 17, "tanh", True, None)
    direction, which = tuple(torch.randn_like(each) for each in point), tuple(range(len(point)))

    def product(backend: str, dtype: torch.dtype) -> Tensor:
        there, moved = (tuple(each.to(dtype) for each in all_of) for all_of in (point, direction))
        gradients = torch.func.grad(along(on(backend), moved, "forward"), which)(*there)
        return torch.cat([each.double().flatten() for each in gradients])

    truth = product("reference", torch.float64)
    loop, fused = (float((product(backend, torch.float32) - truth).norm()) for backend in ("reference", "auto"))
    assert fused < 2 * loop


class Calls:
    """How often the recurrence is swept through, forwards or back."""

    def __init__(self) -> None:
        self.count = 0
        engine_for = _op.engine_for

        def counted(*arguments: Any) -> Any:
            self.count += 1
            return engine_for(*arguments)

        self.patch = mock.patch.object(_op, "engine_for", counted)


@pytest.mark.parametrize("final_only", [False, True])
@pytest.mark.parametrize("lengths", [False, True])
def test_many_batches_are_one(final_only: bool, lengths: bool) -> None:
    """`vmap`, for gradients of each by itself as well: one sweep forwards and one back, however many there are."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 4, 3, 5, dtype=torch.float64, generator=generator)
    W = torch.randn(5, 5, dtype=torch.float64, generator=generator) / 2
    ends = torch.randint(0, 5, (7, 3), generator=generator)

    def loss(W: Tensor, x: Tensor, ends: Tensor) -> Tensor:
        start = torch.zeros_like(x[0])
        states = recurrence(x, W, None, start, "tanh", lengths=ends if lengths else None, final_only=final_only)
        return states.square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))
    calls = Calls()
    with calls.patch:
        found = each(W, x, ends)
    assert calls.count == 2
    expected = torch.stack([torch.func.grad(loss)(W, *one) for one in zip(x, ends, strict=True)])
    torch.testing.assert_close(found, expected)
    outputs = torch.func.vmap(loss, (None, 0, 0))(W, x, ends)
    torch.testing.assert_close(outputs, torch.stack([loss(W, *one) for one in zip(x, ends, strict=True)]))


def test_many_networks_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, 5, dtype=torch.float64, generator=generator)
    many = torch.randn(6, 5, 5, dtype=torch.float64, generator=generator) / 2

    def final(W: Tensor) -> Tensor:
        return recurrence(x, W, None, x[0], "tanh", final_only=True)

    torch.testing.assert_close(torch.func.vmap(final)(many), torch.stack([final(W) for W in many]))
    torch.testing.assert_close(torch.func.vmap(torch.func.jacfwd(final))(many), torch.func.vmap(torch.func.jacrev(final))(many))


def test_an_ordinary_gradient_is_still_one_operator() -> None:
    """What can be differentiated again costs more, and is formed only where that is asked for."""
    calls = Calls()
    on, point = problem(*CASES["tanh"])
    leaves = [each.requires_grad_() for each in point]
    with mock.patch("enrnn.recurrence._derivatives.pull_back", side_effect=AssertionError), calls.patch:
        on("auto")(*leaves).backward()
    assert calls.count == 2
