"""Every kind of layout of `recurrence.cu` and `wide.cu`: what they compute."""

from __future__ import annotations

import pytest
import torch

from enrnn.recurrence import _cuda, _torch
from enrnn.recurrence._shapes import Shape, _clusters, one_block, shape_for, split_block
from enrnn.recurrence._wide import wide_for
from tests.emulator._chip import Emulated
from tests.gpu._kernels import Forced
from tests.recurrence import _problems
from tests.recurrence.test_kernel import H200

pytestmark = pytest.mark.usefixtures("in_any_order_too")

CHOSEN = {
    "a warp": (20, 3, "modrelu"),
    "a block": (96, 3, "relu"),
    "complex units": (192, 2, "paired_modrelu"),
    "a cluster": (310, 3, "tanh"),
    "a cluster of complex units": (300, 2, "paired_modrelu"),
    "the identity": (33, 2, "identity"),
    "a leaky ReLU": (150, 1, "leaky_relu"),
}


@pytest.mark.parametrize(("n", "batch", "name"), CHOSEN.values(), ids=CHOSEN)
def test_the_layout_that_is_chosen(n: int, batch: int, name: str, emulated: Emulated) -> None:
    given = _problems.problem(4, batch, n, name, lengths=True)
    assert _problems.excess(_cuda, given, "cpu") < 4


def cluster(n: int, batch: int, groups: int, parts: int = 1) -> Shape:
    """The smallest."""
    shapes = [each for each in _clusters(n, parts, H200) if (each.batch, each.groups) == (batch, groups)]
    return min(shapes, key=lambda shape: shape.cluster * shape.threads)


FORCED = {
    "two sequences to a block": (one_block(40, 1, H200, 2), 40, "relu"),
    "eight": (one_block(70, 1, H200, 8), 70, "modrelu"),
    "two in a cluster": (cluster(230, 2, 1), 230, "modrelu"),
    "five, with weights in shared memory": (cluster(230, 5, 1), 230, "relu"),
    "six": (cluster(230, 6, 1), 230, "tanh"),
    "two groups": (cluster(230, 5, 2), 230, "modrelu"),
    "two groups of complex units": (cluster(230, 8, 2, 2), 230, "paired_modrelu"),
    "two groups in fifteen blocks": (Shape(15, 256, 32, 6, 23, 0, 5, 2), 720, "relu"),
}


@pytest.mark.parametrize(("shape", "n", "name"), FORCED.values(), ids=FORCED)
def test_several_sequences_at_once(shape: Shape, n: int, name: str, emulated: Emulated) -> None:
    """In a second block or cluster, too, where some of them are not there."""
    batch = 2 * shape.batch - 1 if n < 720 else shape.batch
    assert _problems.excess(Forced(lambda *_: shape), _problems.problem(3, batch, n, name, lengths=True), "cpu") < 4


def test_zeros_left_out(emulated: Emulated) -> None:
    shape = split_block(96, 64, H200)
    assert shape is not None
    given = _problems.problem(4, 3, 160, "modrelu")
    given.weight[96:, :96] = 0
    assert _problems.excess(Forced(lambda *_: shape, 96), given, "cpu") < 4


MANY = [(160, 96, "modrelu"), (70, None, "tanh"), (128, None, "paired_modrelu")]


@pytest.mark.parametrize(("n", "q", "name"), MANY)
def test_many_sequences(n: int, q: int | None, name: str, emulated: Emulated) -> None:
    """Two rows of tiles to a warp, and one; complex units."""
    given = _problems.problem(4, 21, n, name, lengths=n == 70)
    if q is not None:
        given.weight[q:, :q] = 0
    layout = lambda *sizes: wide_for(*sizes) or shape_for(*sizes[:5])  # noqa: E731
    assert _problems.excess(Forced(layout, q), given, "cpu") < 4


@pytest.mark.parametrize("n", [70, 128])
def test_many_sequences_in_a_lower_precision(n: int, emulated: Emulated) -> None:
    """Numbers of 16 bits, and sums of n products of them."""
    layout = Forced(lambda *sizes: wide_for(*sizes[:6], True))
    given = _problems.problem(3, 21, n, "tanh", lengths=True)
    exact = _problems.Sweeps(_torch, given, torch.float64, "cpu")
    found = _problems.Sweeps(layout, given, torch.float32, "cpu", exact.states).outputs()
    for name, right in exact.outputs().items():
        assert float((found[name] - right).abs().max()) < 2**-15 * float(right.abs().max()) * n**0.5
