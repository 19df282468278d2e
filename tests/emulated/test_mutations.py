"""What these tests are worth: kernels that are broken on purpose do not pass them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from enrnn.recurrence import _cuda
from tests.emulated.test_linked import AtOnce, given
from tests.emulator._chip import Emulated
from tests.emulator._machine import EmulationError
from tests.gpu._kernels import Both
from tests.recurrence import _problems


class Broken(NamedTuple):
    text: str
    """What is in a source."""
    to: str
    """What comes in its place."""
    excess: Callable[[Emulated], float]
    together: str = "in any order"
    """Whether it takes an unfair schedule to find it."""


def linked(emulated: Emulated) -> float:
    return _problems.excess(Both(60), given(60, 150, steps=3), "cpu")


def at_once(emulated: Emulated) -> float:
    return _problems.excess(AtOnce(emulated, Both(60)), given(60, 150), "cpu")


def recurrence(n: int) -> Callable[[Emulated], float]:
    return lambda emulated: _problems.excess(_cuda, _problems.problem(4, 3, n, "relu", lengths=True), "cpu")


BROKEN = {
    "a wrong index": Broken("T - 1 - index < length", "T - 1 - index <= length", linked, "in step"),
    "letters that are not expected": Broken("if (lane == 0) expect(mine + now * WARPS * 8, bytes);", "", linked, "in step"),
    "copies that are not waited for": Broken(
        'asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");', "", recurrence(96), "in step"
    ),
    "no wait for the matrix": Broken("if (!FOLLOWS) wait_for_the_one_before();", "", at_once, "in step"),
    "no second look": Broken("while (more[0] == NOTHING || more[1] == NOTHING) look();", "", at_once, "in step"),
    "no barrier in a block": Broken("#else\n        block_barrier();\n#endif", "#endif", recurrence(96)),
    "no barrier in a warp": Broken("__syncwarp();\n            messages.go", "messages.go", recurrence(310)),
    "no barrier for rows": Broken(
        "largest[warp][lane / 4] = most;\n    __syncthreads();", "largest[warp][lane / 4] = most;", linked
    ),
    "a counter that is not cleared": Broken("tells[team] = 0;", "", at_once),
}


@pytest.mark.parametrize("name", BROKEN)
def test_it_is_found(name: str, emulated: Emulated) -> None:
    broken = BROKEN[name]
    emulated.change(broken.text, broken.to)
    for seed in range(8) if broken.together == "in any order" else [None]:
        if seed is not None:
            emulated.unfair(seed)
        try:
            if not broken.excess(emulated) < 4:
                return
        except EmulationError:
            return
    pytest.fail("nothing was found")
