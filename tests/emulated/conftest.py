"""Tests of kernels on a machine without a GPU: they are run by the emulator, `tests/emulator`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from enrnn import _nvrtc
from tests.emulator._chip import Emulated, emulated_chip


@pytest.fixture
def emulated() -> Iterator[Emulated]:
    """A chip: while there is one, CPU tensors pass for its own."""
    if reason := _nvrtc.unavailable():
        pytest.skip(reason)
    with emulated_chip() as chip:
        yield chip


@pytest.fixture
def in_any_order_too(emulated: Emulated, seed: int | None) -> None:
    """The test is run once with threads in step, where races are looked for, and then with others held back at random."""
    if seed is None:
        emulated.watch()
    else:
        emulated.unfair(seed)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "in_any_order_too" in metafunc.fixturenames:
        seeds = range(10 if metafunc.config.getoption("--full") else 1)
        metafunc.parametrize("seed", [None, *seeds], ids=["in step", *(f"in any order {seed}" for seed in seeds)])
