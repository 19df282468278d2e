"""Derivatives beyond the first, in forward mode and for many at once, by the kernels: as exact as the reference in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from enrnn.functional import long_short_recurrence
from tests._record import Recorder
from tests.recurrence._problems import problem, worst_excess

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels")]

Numbers = tuple[Tensor, ...]

SIZES = [(96, 64, 10, 20), (374, 94, 5, 9), (310, 720, 12, 16)]
"""In one block, in clusters, and two sweeps at once; units of both parts, steps and sequences."""


def gradient(number: Callable[..., Tensor], point: Numbers) -> Numbers:
    found: Numbers = torch.func.grad(number, tuple(range(len(point))))(*point)
    return found


def forward_over_reverse(number: Callable[..., Tensor], point: Numbers, direction: Numbers) -> Numbers:
    found: Numbers = torch.func.jvp(lambda *at: gradient(number, at), point, direction)[1]
    return found


def reverse_over_reverse(number: Callable[..., Tensor], point: Numbers, direction: Numbers) -> Numbers:
    def slope(*at: Tensor) -> Tensor:
        pairs = zip(gradient(number, at), direction, strict=True)
        return torch.stack([(each * by).sum() for each, by in pairs]).sum()

    return gradient(slope, point)


@pytest.mark.parametrize("nonlinearity", ["modrelu", "tanh"])
@pytest.mark.parametrize("second", [forward_over_reverse, reverse_over_reverse])
@pytest.mark.parametrize(("q", "s", "steps", "batch"), SIZES)
def test_second_derivatives(
    q: int, s: int, steps: int, batch: int, second: Callable[..., Numbers], nonlinearity: str, record: Recorder
) -> None:
    given = problem(steps, batch, q + s, nonlinearity, lengths=True)
    W, bias = given.weight, given.bias
    assert bias is not None
    point = given.inputs, W[:q, :q], W[:q, q:], W[q:, q:], bias, given.initial
    point = tuple(each.float().double() for each in point)
    direction = tuple(torch.randn_like(each) for each in point)

    def found(backend: str, dtype: torch.dtype, device: str) -> Numbers:
        there = {"dtype": dtype, "device": device}
        weight, lengths = given.upstream.to(**there), given.lengths
        lengths = None if lengths is None else lengths.to(device)

        def number(*at: Any) -> Tensor:
            return (weight * long_short_recurrence(*at, nonlinearity, lengths=lengths, backend=backend)).sum()

        return second(number, tuple(each.to(**there) for each in point), tuple(each.to(**there) for each in direction))

    truth, loop = (found("reference", dtype, "cpu") for dtype in (torch.float64, torch.float32))
    worst = worst_excess(truth, loop, found("cuda", torch.float32, "cuda"))
    record(cases=1, worst_error_over_the_float32_loops=worst)
    assert worst < 4


@pytest.mark.parametrize(("q", "s", "steps", "batch"), SIZES)
def test_a_gradient_for_every_sequence(q: int, s: int, steps: int, batch: int) -> None:
    given = problem(steps, batch, q + s, "modrelu")
    W = given.weight
    blocks = tuple(each.float().cuda() for each in (W[:q, :q], W[:q, q:], W[q:, q:]))
    x = given.inputs.float().cuda()

    def loss(blocks: Numbers, x: Tensor) -> Tensor:
        return long_short_recurrence(x[:, None], *blocks, None, x[:1] * 0, "modrelu", backend="cuda").square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 1))(blocks, x)
    alone = [torch.func.grad(loss)(blocks, one) for one in x.unbind(1)]
    for together, separate in zip(each, zip(*alone, strict=True), strict=True):
        separate = torch.stack(separate)
        torch.testing.assert_close(together, separate, rtol=1e-4, atol=1e-5 * float(separate.abs().max()))
