"""Calls that are replayed (`_replay.py`): the same bits as those that are not, whatever the chip and its memory are doing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import enrnn
from enrnn import _replay
from tests.recurrence._replayed import answers, leaves, programs

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels")]

SIZES = [
    (180, 50, 96, 64),
    (420, 20, 172, 20),
    (40, 28, 374, 94),
    (50, 32, 310, 720),
    (50, 4, 310, 720),
    (20, 8, 40, 24),
    (2000, 4, 300, 20),
    (9, 3, 50, 0),
    (1, 32, 310, 720),
    (1, 3, 50, 20),
]
"""The paper's, with fewer steps; one whose parts are run in turn; small ones; a long one, whose gradients are torch's products
while the bias's is found beside them; a single step."""


def anew(given: list[Tensor | None], upstream: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    with monkeypatch.context() as patch:
        patch.setattr(_replay, "replayable", lambda like: False)
        return answers(given, upstream, "modrelu")


def readies() -> list[_replay._Ready]:
    return [ready for program in programs() if type(program) is _replay.Program for ready in program._free]


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(first, second, strict=True))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_same_bits(size: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(6):
        given, upstream = leaves(*size, seed, "cuda")
        found = answers(given, upstream, "modrelu")
        assert equal(found, anew(given, upstream, monkeypatch))
    assert [type(each) for each in programs()] == [_replay.Program] * 2
    for _ in range(3):  # with the same tensors, and so at the same addresses
        assert equal(answers(given, upstream, "modrelu"), found)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("total", [False, True], ids=["given", "of a sum"])
def test_graphs_of_calls(size: tuple[int, int, int, int], total: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At addresses that come again, with other values; and now and then at others. A sum's gradient has to be copied first."""
    given, upstream = leaves(*size, 0, "cuda")
    upstream = upstream[0, 0, 0].expand(upstream.shape) if total else upstream
    others, more = leaves(*size, 1, "cuda")
    kept = []
    for seed in range(12):
        with torch.no_grad():
            for each in given:
                if each is not None:
                    each.mul_(0.97)
        found = answers(given, upstream, "modrelu")
        if seed % 4 == 2:
            kept.append(answers(others, more, "modrelu"))
        assert equal(found, anew(given, upstream, monkeypatch))
        del found
    assert all(equal(each, kept[0]) for each in kept)
    graphs = [each for ready in readies() for each in ready.graphs]
    assert all(any(known.graph is not None for known in each._known.values()) for each in graphs)
    products = any(
        step.call is not None and step.call.operation not in _replay.CAPTURED for each in programs() for step in each.steps
    )
    assert graphs or products


@pytest.mark.parametrize("size", SIZES[2:5], ids=str)
def test_memory_that_is_given_out_again_and_again(size: tuple[int, int, int, int]) -> None:
    """Hundreds of calls are under way at once, each with memory that others have just given back, on a chip that is late."""
    given, upstream = leaves(*size, 0, "cuda")
    first = answers(given, upstream, "modrelu")
    wrong = torch.zeros((), dtype=torch.long, device="cuda")
    torch.cuda._sleep(100_000_000)
    for _ in range(200):
        found = answers(given, upstream, "modrelu")
        for each, right in zip(found, first, strict=True):
            wrong += (each != right).sum()
        del found
    assert wrong == 0


def test_another_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    given, upstream = leaves(*SIZES[3], 1, "cuda")
    for _ in range(4):
        found = answers(given, upstream, "modrelu")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        doubled = [
            each if each is None else (2 * each.detach()).requires_grad_() for each in given
        ]  # late, and so is what reads it
        there = answers(doubled, upstream, "modrelu")
    torch.cuda.current_stream().wait_stream(stream)
    assert equal(there, anew(doubled, upstream, monkeypatch))
    assert equal(found, anew(given, upstream, monkeypatch))


@pytest.mark.parametrize("short", [64, 200])
def test_a_layer_step_by_step(short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user trains it, without a graph: losses are the same, bit by bit, as with nothing replayed."""

    def losses() -> list[float]:
        torch.manual_seed(0)
        layer, x = enrnn.ENRNN(5, 90 + short, short_size=short, device="cuda"), torch.randn(30, 20, 5, device="cuda")
        with torch.no_grad():
            layer.parametrizations["weight_short_l0"].original.mul_(1.5)
        optimizer, found = torch.optim.Adam(layer.parameters(), 1e-3), []
        for _ in range(8):
            loss = (layer(x)[0][-1] - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        assert layer.normalizing.all()
        return found

    replayed = losses()
    assert _replay.Program in {type(each) for each in programs()}
    monkeypatch.setattr(_replay, "replayable", lambda like: False)
    assert replayed == losses()
    assert replayed[-1] < replayed[0]
