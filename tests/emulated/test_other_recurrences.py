"""GORU's steps and layers of rotations, `gated.cu` and `rotations.cu`: what they compute."""

from __future__ import annotations

import pytest
import torch

from enrnn.recurrence import _gated as gated_recurrence
from enrnn.recurrence import _rotations_cuda
from tests.emulator._chip import Emulated
from tests.recurrence import _gated, _rotations
from tests.recurrence._problems import worst_excess

pytestmark = pytest.mark.usefixtures("in_any_order_too")


@pytest.mark.parametrize("case", [_gated.Case(20, lengths=True), _gated.Case(130, 2, 2, "tanh")], ids=str)
def test_gated(case: _gated.Case, emulated: Emulated) -> None:
    """Against the equations under autograd; in float64 there are no kernels."""
    given = _gated.problem(case)
    truth, loop = (_gated.sweeps(_gated.plain, given, dtype) for dtype in (torch.float64, torch.float32))
    assert not emulated.launched
    assert worst_excess(truth, loop, _gated.sweeps(gated_recurrence.gated, given, torch.float32)) < 4
    assert emulated.launched == ["forward"] * case.steps + ["backward"] * case.steps + ["gram", "collect"]


CASES = [
    _rotations.Case(33, 3, lengths=True),
    _rotations.Case(64, 6, butterfly=True),
    _rotations.Case(20, 2, nonlinearity="tanh", steps=3),
    _rotations.Case(2100, 2, steps=1, batch=1),
    _rotations.Case(4096, 12, butterfly=True, steps=1, batch=1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rotations(case: _rotations.Case, emulated: Emulated) -> None:
    """With more pairs than a block has threads, and with sums that have no room in shared memory, too."""
    assert _rotations.excess(_rotations_cuda.forward, _rotations_cuda.backward, _rotations.problem(case), "cpu") < 4
    assert emulated.launched == ["prepare", "forward", "prepare", "backward", "collect"]
