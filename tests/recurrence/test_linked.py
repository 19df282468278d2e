"""In which order two linked sweeps are launched, without a GPU too: a follower before its leader would wait for ever."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from enrnn import _launch, _nvrtc
from enrnn.recurrence import _cuda, _linked, _pack
from tests.recurrence.test_kernel import H200

Q, S, STEPS, BATCH = 100, 400, 5, 9


class Stream:
    """One that writes down what it is told."""

    def __init__(self, launched: list[str]) -> None:
        self.launched = launched

    def record_event(self) -> str:
        self.launched.append("swept")
        return "swept"

    def wait_event(self, event: str) -> None:
        self.launched.append(f"after {event}")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of kernels in the order of their launches, and blocks of the teams it writes and reads for."""
    found: list[str] = []

    def load(source: str, names: dict[str, int], device: torch.device, **defines: int) -> list[Callable[..., Any]]:
        def kernel(name: str) -> Callable[..., Any]:
            def launch(grid: int, block: int, *given: Any, early: bool = False, begun: bool = False, lets: bool = False) -> Any:
                assert all(isinstance(each, Tensor | int | ctypes.Structure | None) for each in given)
                sizes = f" {defines['TEAM']}/{defines['FROM_TEAM']}" if "TEAM" in defines else ""
                found.append(f"{name}{sizes}{', early' if early else ''}")
                return "begun" if begun else None

            return launch

        return [kernel(name) for name in names]

    def beside(events: list[str], work: Callable[[], None], device: torch.device) -> None:
        assert events == ["begun"]
        work()

    monkeypatch.setattr(_nvrtc, "load", load)
    monkeypatch.setattr(_cuda, "_loaded", {})
    monkeypatch.setattr(_linked, "_loaded", {})
    monkeypatch.setattr(_pack, "_loaded", {})
    monkeypatch.setattr(_cuda, "limits_of", lambda device: H200)
    monkeypatch.setattr(_cuda, "forbid_loading", lambda: None)
    monkeypatch.setattr(_cuda, "beside", beside)
    monkeypatch.setattr(_linked, "Joined", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream(found))
    monkeypatch.setattr(torch.cuda, "Event", str)
    return found


def layouts(leads: int, follows: int) -> _linked.Linked:
    found = _linked.linked(leads, follows, BATCH, "relu", H200)
    assert found is not None
    return found


def blocks() -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros(Q, Q), torch.zeros(Q, S), torch.zeros(S, S)


def test_forward_the_short_part_leads(launched: list[str]) -> None:
    x = torch.zeros(Q + S, BATCH, STEPS).permute(2, 1, 0)  # which has to be copied, before anything is launched
    i, lengths = torch.zeros(BATCH, Q + S), torch.full((BATCH,), STEPS, dtype=torch.int32)
    _linked.forward(layouts(S, Q), x, blocks(), None, i, "relu", lengths, torch.zeros(x.shape), torch.zeros_like(i))
    assert launched == ["pack", "sweep 9/9, early", "couple 3/9, early", "sweep 3/3, early"]


@pytest.mark.parametrize("tells", [True, False], ids=["a driver that tells", "an old driver"])
@pytest.mark.parametrize("apart", [True, False])
def test_backward_the_long_part_leads(apart: bool, tells: bool, launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    n = Q + S
    g, h, dz, i = *torch.zeros(3, STEPS, BATCH, n), torch.zeros(BATCH, n)
    monkeypatch.setattr(_launch, "tells_when_begun", lambda: tells)
    then = [lambda: launched.append("dW_L"), lambda: launched.append("dW_S"), lambda: launched.append("db")] if apart else []
    _linked.backward(layouts(Q, S), g, h, blocks(), torch.zeros(n), "relu", None, dz, i, *then)
    assert launched[:4] == ["pack", "sweep 3/3, early", "couple 9/3", "sweep 9/9, early"]
    assert launched[4:] == ["swept", *(["dW_S", "dW_L", "after swept", "db"] if apart else ["after swept"])]


def test_what_is_done_beside_a_sweep_waits_for_all_that_was_before(launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """That the sweep has begun, which CUDA tells as well as it can, is not enough."""
    waited: list[list[str]] = []
    monkeypatch.setattr(_cuda, "beside", lambda events, work, device: waited.append(events))
    monkeypatch.setattr(_launch, "tells_when_begun", lambda: True)
    g, h, dz = torch.zeros(3, STEPS, BATCH, Q)
    _cuda.backward(g, h, torch.zeros(Q, Q), None, "relu", None, dz, torch.zeros(BATCH, Q), lambda: None)
    assert waited == [["swept", "begun"]]
    assert [each.split()[0].strip(",") for each in launched] == ["swept", "pack", "sweep"]
