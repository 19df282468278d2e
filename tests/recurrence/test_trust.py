"""A kernel on a chip that it was never tested on is tried out first, once."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from enrnn.recurrence import _cuda
from enrnn.recurrence._trust import Noise, Trusted

HERE = torch.device("cpu")


@pytest.fixture(autouse=True)
def a_chip_never_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cuda, "unavailable", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (99, 0))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


class Kernel:
    """Twice a matrix, or nearly."""

    def __init__(self, factor: float = 2.0) -> None:
        self.factor, self.times = factor, 0
        self.trusted = Trusted("double.cu", self.tried)

    def tried(self, noise: Noise) -> list[tuple[Tensor, Tensor]]:
        self.times += 1
        assert self.trusted(HERE), "or it would not be run"
        given = noise(30, 20)
        return [(2 * given, (self.factor * given).float())]


def test_one_that_is_right_is_used() -> None:
    kernel = Kernel()
    assert all(kernel.trusted(HERE) for _ in range(3))
    assert kernel.times == 1


def test_one_that_is_wrong_is_not_and_says_so_once() -> None:
    kernel = Kernel(2.001)
    with pytest.warns(UserWarning, match=r"double\.cu is not right on this GPU"):
        assert not kernel.trusted(HERE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not kernel.trusted(HERE)
    assert kernel.times == 1


def test_one_that_does_not_run_is_not() -> None:
    def fails(noise: Noise) -> list[tuple[Tensor, Tensor]]:
        raise RuntimeError("CUDA answered no")

    with pytest.warns(UserWarning, match="never tested"):
        assert not Trusted("broken.cu", fails)(HERE)


def test_nan_is_not_right() -> None:
    with pytest.warns(UserWarning, match="never tested"):
        assert not Kernel(float("nan")).trusted(HERE)


def test_a_tested_chip_tries_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cuda, "TESTED", {(99, 0)})
    kernel = Kernel(3.0)
    assert kernel.trusted(HERE)
    assert kernel.times == 0


def test_nothing_is_tried_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    with monkeypatch.context() as during:
        during.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert not kernel.trusted(HERE)
    assert kernel.times == 0
    assert kernel.trusted(HERE)


def test_where_no_kernel_runs_none_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cuda, "unavailable", lambda _: "there is no compiler")
    kernel = Kernel()
    assert not kernel.trusted(HERE)
    assert kernel.times == 0


def test_in_a_graph_a_tested_chip_is_trusted_if_something_ran_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first look at the chip would have to compile something."""

    def cold(_: torch.device) -> None:
        raise RuntimeError("a kernel cannot be compiled while a CUDA graph is captured")

    monkeypatch.setattr(_cuda, "TESTED", {(99, 0)})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    kernel = Kernel()
    with monkeypatch.context() as at_first:
        at_first.setattr(_cuda, "unavailable", cold)
        assert not kernel.trusted(HERE)
    assert kernel.trusted(HERE)
    assert kernel.times == 0
