"""Two sweeps at once, `pack.cu`, `eights.cu` and `coupling.cu`: what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.emulator._chip import Emulated
from tests.gpu._kernels import Alone, Both
from tests.recurrence import _problems

pytestmark = pytest.mark.usefixtures("in_any_order_too")


def given(q: int, s: int, name: str = "modrelu", *, batch: int = 9, lengths: bool = True, steps: int = 4) -> _problems.Problem:
    found = _problems.problem(steps, batch, q + s, name, lengths=lengths)
    found.weight[q:, :q] = 0
    return found


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param((60, 500, "modrelu"), id="60 follow 500"),
        pytest.param((400, 60, "tanh"), id="400 follow 60"),
        pytest.param((100, 130, "leaky_relu"), id="100 follow 130"),
    ],
)
def test_one_sweep_after_the_other(problem: tuple[int, int, str], emulated: Emulated) -> None:
    assert _problems.excess(Both(problem[0]), given(*problem), "cpu") < 4
    assert emulated.launched == ["pack", "sweep", "couple", "sweep"] * 2


class AtOnce:
    """An engine whose kernels run at the same time."""

    def __init__(self, emulated: Emulated, engine: object) -> None:
        self.emulated, self.engine = emulated, engine

    def __getattr__(self, name: str) -> Callable[..., None]:
        def run(*given: Any) -> None:
            with self.emulated.at_once():
                getattr(self.engine, name)(*given)

        return run


@pytest.mark.parametrize(("q", "s", "batch"), [(60, 150, 9), (150, 60, 17), (340, 420, 3)])
def test_a_sweep_follows_another_while_that_is_running(q: int, s: int, batch: int, emulated: Emulated) -> None:
    assert _problems.excess(AtOnce(emulated, Both(q)), given(q, s, batch=batch, lengths=batch < 10, steps=5), "cpu") < 4


def test_a_sweep_alone(emulated: Emulated) -> None:
    assert _problems.excess(Alone(), _problems.problem(3, 5, 130, "relu", lengths=True), "cpu") < 4
