"""Every kind of layout of `recurrence.cu` and `wide.cu`: what they compute."""

from __future__ import annotations

import pytest

from enrnn.recurrence import _cuda
from enrnn.recurrence._shapes import _clusters, shape_for, split_block
from enrnn.recurrence._wide import wide_for
from tests.emulator._chip import Emulated
from tests.gpu._kernels import Forced
from tests.recurrence import _problems
from tests.recurrence.test_kernel import H200

pytestmark = pytest.mark.usefixtures("in_any_order_too")

LAYOUTS = {
    "a warp": (20, 3, "modrelu"),
    "a block": (96, 3, "relu"),
    "complex units": (192, 2, "paired_modrelu"),
    "a cluster": (310, 3, "tanh"),
    "two groups": (720, 5, "modrelu"),
    "the identity": (33, 2, "identity"),
    "a leaky ReLU": (150, 1, "leaky_relu"),
}


@pytest.mark.parametrize(("n", "batch", "name"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_layout_that_is_chosen(n: int, batch: int, name: str, emulated: Emulated) -> None:
    given = _problems.problem(4, batch, n, name, lengths=True)
    assert _problems.excess(_cuda, given, "cpu") < 4


def test_zeros_left_out(emulated: Emulated) -> None:
    shape = split_block(96, 64, H200)
    assert shape is not None
    given = _problems.problem(4, 3, 160, "modrelu")
    given.weight[96:, :96] = 0
    assert _problems.excess(Forced(lambda *_: shape, 96), given, "cpu") < 4


@pytest.mark.parametrize("batch", [5, 6])
def test_sequences_that_do_not_fill_planes(batch: int, emulated: Emulated) -> None:
    """Of four, in a cluster with one group; some of them are not there."""
    shape = next(each for each in _clusters(230, 1, H200) if (each.batch, each.groups) == (batch, 1))
    assert _problems.excess(Forced(lambda *_: shape), _problems.problem(3, batch - 1, 230, "relu", lengths=True), "cpu") < 4


MANY = [(160, 96, "modrelu"), (70, None, "tanh"), (128, None, "paired_modrelu")]


@pytest.mark.parametrize(("n", "q", "name"), MANY)
def test_many_sequences(n: int, q: int | None, name: str, emulated: Emulated) -> None:
    """Two rows of tiles to a warp, and one; complex units."""
    given = _problems.problem(4, 21, n, name, lengths=n == 70)
    if q is not None:
        given.weight[q:, :q] = 0
    layout = lambda *sizes: wide_for(*sizes) or shape_for(*sizes[:5])  # noqa: E731
    assert _problems.excess(Forced(layout, q), given, "cpu") < 4
