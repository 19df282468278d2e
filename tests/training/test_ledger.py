"""What a step finds out about itself and counts; on a GPU, the kernels against the operations they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from enrnn.training import _ledger
from enrnn.training._ledger import Ledger

CPU = pytest.param("cpu", False)
GPU = pytest.param("cuda", True, marks=pytest.mark.gpu)
EVERYWHERE = pytest.mark.parametrize(("device", "by_kernel"), [CPU, GPU, pytest.param("cuda", False, marks=pytest.mark.gpu)])


@pytest.fixture
def ledger(device: str, by_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    if not by_kernel:
        monkeypatch.setattr(_ledger, "kernels_for", lambda like: None)
    found = Ledger(torch.device(device), 2)
    assert (found._kernels([torch.ones(3, device=device)], []) is not None) == by_kernel
    return found


def flags(device: str, *up: bool) -> list[Tensor]:
    return [torch.tensor(each, device=device) for each in up]


@EVERYWHERE
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_one_value_that_is_not_finite_is_found_wherever_it_is(ledger: Ledger, device: str, bad: float) -> None:
    values = [torch.ones(size, device=device) for size in (1, 3, 255, 4096, 4097, 9000)]
    for values_with in values:
        for place in {0, len(values_with) // 2, len(values_with) - 1}:
            assert ledger.judge(values, flags(device, False, False))
            assert not ledger.stopped
            values_with[place] = bad
            for _ in range(2):
                assert not ledger.judge(values, [])
                assert ledger.stopped
            values_with[place] = 1.0
            assert not ledger.judge(values, [])  # nothing is fine after that
            ledger.stopped.zero_()


@EVERYWHERE
def test_every_flag_counts_and_large_numbers_do_not(ledger: Ledger, device: str) -> None:
    values = [torch.tensor(3.4e38, device=device), torch.full((5,), -3.4e38, device=device)]
    for number in range(1, 33):
        assert ledger.judge(values, flags(device, *[False] * number))
        assert not ledger.judge(values, flags(device, *[False] * (number - 1), True))
        ledger.stopped.zero_()


@EVERYWHERE
def test_steps_are_counted_and_so_are_switches(ledger: Ledger, device: str) -> None:
    for number, on in enumerate([(False, False), (False, True), (True, True), (True, False)], start=1):
        ledger.count(torch.tensor(number / 3, device=device), flags(device, *on))
    assert ledger.place.tolist() == [4]
    assert ledger.done.item() == 4
    assert ledger.switched_at.tolist() == [3, 2]
    assert ledger.losses.tolist() == [sum(torch.tensor(number / 3).item() for number in (1, 2, 3, 4)), 4.0]


@EVERYWHERE
def test_what_the_kernels_are_not_for_is_judged_all_the_same(ledger: Ledger, device: str) -> None:
    """float64, gaps between entries, and more tensors and flags than a launch has room for."""
    odd = [torch.ones(4, dtype=torch.float64, device=device), torch.ones(4, 6, device=device)[:, ::2]]
    many = [torch.ones(2, device=device) for _ in range(70)]
    for values in ([odd[0]], [odd[1]], many):
        assert ledger.judge(values, flags(device, *[False] * 40))
        values[-1][-1] = torch.nan
        assert not ledger.judge(values, [])
        ledger.stopped.zero_()
    ledger.count(torch.tensor(0.1, dtype=torch.float64, device=device), flags(device, True, False))
    assert ledger.losses.tolist() == [0.1, 1.0]
    assert ledger.switched_at.tolist() == [1, -1]
