"""In which order threads go on makes no difference, not to a bit: whatever is summed is summed in one order.

That is more than to be near the truth. A state that is off by one rounding is a race, too; and what a race spoils the spectral
radius's kernels notice, and find a squaring later.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from enrnn.recurrence import _cuda, _gram, _product
from enrnn.recurrence._shapes import shape_for
from enrnn.recurrence._wide import wide_for
from enrnn.spectrum._device import squaring_on_device
from tests.emulated.test_linked import AtOnce, given
from tests.emulated.test_matrices import noise
from tests.emulator._chip import Emulated
from tests.gpu._kernels import Both, Forced
from tests.recurrence import _problems


def swept(engine: object, problem: _problems.Problem) -> list[Tensor]:
    return [*_problems.Sweeps(engine, problem, torch.float32, "cpu", noise(*problem.inputs.shape)).outputs().values()]


def many_sequences(*sizes: object) -> object:
    return wide_for(*sizes) or shape_for(*sizes[:5])  # type: ignore[arg-type]


def radius(size: int) -> Callable[[Emulated], list[Tensor]]:
    return lambda _: [*squaring_on_device(noise(size, size, seed=size)).pair]


CASES: dict[str, Callable[[Emulated], list[Tensor]]] = {
    "linked": lambda chip: swept(Both(60), given(60, 150)),
    "at once": lambda chip: swept(AtOnce(chip, Both(150)), given(150, 60)),
    "a cluster": lambda chip: swept(_cuda, _problems.problem(5, 3, 300, "tanh")),
    "many sequences": lambda chip: swept(Forced(many_sequences), _problems.problem(4, 21, 70, "tanh", lengths=True)),
    "a product": lambda chip: [_product.product(noise(40, 1500).float(), noise(1500, 50, seed=1).float())],
    "a tall product": lambda chip: [_gram.gram(noise(150, 33).float(), noise(150, 20, seed=1).float())],
    "one block": radius(20),
    "four blocks": radius(50),
    "a large matrix": radius(120),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits(name: str, emulated: Emulated, full: bool) -> None:
    expected = CASES[name](emulated)
    for seed in range(8 if full else 1):
        emulated.unfair(seed)
        assert all(torch.equal(*pair) for pair in zip(expected, CASES[name](emulated), strict=True)), seed
