"""Two sweeps at the same time, one following the other (`eights.cu`): as exact as in turn, whatever happens when."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from enrnn.functional import long_short_recurrence
from enrnn.nonlinearities import NONLINEARITIES
from enrnn.recurrence import _cuda, _linked
from tests._record import Recorder
from tests.gpu._kernels import Alone, Both, captured, in_poison, linked
from tests.recurrence._problems import excess, problem

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels")]

NAMES = [name for name in NONLINEARITIES if NONLINEARITIES[name].parts == 1]


@pytest.mark.parametrize("n", [49, 96, 97, 310, 384, 385, 631, 720, 768])
def test_a_sweep_alone(n: int, full: bool, record: Recorder) -> None:
    """Teams that fill their blocks and teams that do not, two to a cluster or one; tails, lengths and a single step."""
    worst, place = 0.0, n % len(NAMES)
    for name in NAMES if full else [NAMES[place], NAMES[place - 1]]:
        for steps, batch in [(1, 1), (7, 21), (2, 8), (50, 9)]:
            given = problem(steps, batch, n, name, lengths=steps == 7, bias=steps != 2)
            worst = max(worst, excess(Alone(), given, "cuda"))
            record(cases=1)
    record(worst_error_over_the_float32_loops=worst)
    assert worst < 4


@pytest.mark.parametrize(("q", "s"), [(310, 720), (97, 700), (384, 385), (100, 60), (385, 50), (500, 200), (60, 400)])
def test_two_sweeps(q: int, s: int, full: bool, record: Recorder) -> None:
    """Of either size, with tails and lengths, few steps and many, and sequences for which a team has no partner."""
    worst, place = 0.0, q % len(NAMES)
    for name in NAMES if full else [NAMES[place], NAMES[place - 1]]:
        for steps, batch in [(1, 3), (2, 20), (3, 8), (60, 19)]:
            given = problem(steps, batch, q + s, name, lengths=steps != 3, bias=steps != 2)
            given.weight[q:, :q] = 0
            worst = max(worst, excess(Both(q), given, "cuda"))
            record(cases=1)
    record(worst_error_over_the_float32_loops=worst)
    assert worst < 4


@pytest.mark.parametrize(("q", "s", "batch"), [(720, 720, 24), (720, 96, 40), (96, 720, 37)])
def test_more_teams_than_are_multiplied_together(q: int, s: int, batch: int, record: Recorder) -> None:
    """A thread block of the coupling then has more than one item for each state, the last with a team twice."""
    assert any(_items(leads, follows, batch) > 1 for leads, follows in ((s, q), (q, s)))
    given = problem(9, batch, q + s, "modrelu", lengths=True)
    given.weight[q:, :q] = 0
    worst = excess(Both(q), given, "cuda")
    record(cases=1, worst_error_over_the_float32_loops=worst)
    assert worst < 4


def _items(leads: int, follows: int, batch: int) -> int:
    layout = linked(leads, follows, batch).couples
    return math.ceil(layout.each(batch) / layout.together)


def test_as_many_steps_as_are_linked(record: Recorder) -> None:
    """Under an orthogonal matrix and with no nonlinearity, where what tensor cores cut off adds up."""
    q, s = 310, 400
    given = problem(_linked.MOST_STEPS, 9, q + s, "identity")
    given.weight[q:, :q] = 0
    given.weight[:q, :q] = torch.linalg.qr(given.weight[:q, :q])[0]
    worst = excess(Both(q), given, "cuda")
    record(cases=1, worst_error_over_the_float32_loops=worst)
    assert worst < 4


def _given(q: int, s: int, steps: int, batch: int) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator("cuda").manual_seed(q)
    sizes = [(steps, batch, q + s), (q, q), (q, s), (s, s), (q + s,), (batch, q + s)]
    leaves = [(torch.randn(size, device="cuda", generator=generator) / 30).requires_grad_() for size in sizes]
    return leaves, torch.randn(steps, batch, q + s, device="cuda", generator=generator)


@pytest.mark.parametrize("in_a_graph", [False, True], ids=["eager", "graph"])
def test_always_the_same_and_near_one_after_the_other(in_a_graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the size of the paper's characters, which is linked; memory that is given out again is full of NaN."""
    leaves, upstream = _given(310, 720, 50, 32)

    def step() -> list[Tensor]:
        states = long_short_recurrence(*leaves, "modrelu", backend="cuda")
        return [states.detach(), *torch.autograd.grad(states, leaves, upstream)]

    with monkeypatch.context() as alone:
        alone.setattr(_linked, "linked_for", lambda *_: None)
        expected = step()
    used = []
    monkeypatch.setattr(_linked, "_links", lambda *given, run=_linked._links: used.append(given[-1]) or run(*given))
    first = step()
    assert used == [False, True]
    graph, found = captured(step) if in_a_graph else (None, [])
    for _ in range(20):
        torch.full_like(upstream, float("nan"))
        if graph is None:
            found = step()
        else:
            for each in found:
                each.fill_(float("nan"))
            graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(found, first, strict=True))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))


@pytest.mark.usefixtures("nothing_is_replayed")
def test_one_may_be_far_ahead_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower begins long after the other has ended, and while other work keeps it from its place."""
    leaves, upstream = _given(310, 720, 30, 32)

    def step() -> list[Tensor]:
        states = long_short_recurrence(*leaves, "modrelu", backend="cuda")
        return [states.detach(), *torch.autograd.grad(states, leaves, upstream)]

    expected, run = step(), _cuda.forward
    busy, other = torch.randn(8192, 8192, device="cuda"), torch.cuda.Stream()

    def forward(*given: Any) -> None:
        if given[-1].gains is not None:
            torch.cuda._sleep(10**7)
        run(*given)

    monkeypatch.setattr(_linked._cuda, "forward", forward)
    for _ in range(5):
        with torch.cuda.stream(other):
            busy @ busy
        assert all(torch.equal(a, b) for a, b in zip(step(), expected, strict=True))
    torch.cuda.synchronize()


def test_only_the_outputs_are_written() -> None:
    q, s, steps, batch = 100, 310, 9, 11
    given = problem(steps, batch, q + s, "modrelu", lengths=True)
    given.weight[q:, :q] = 0
    assert given.bias is not None
    assert given.lengths is not None
    inputs, upstream, initial, weight = (
        in_poison(each.float().cuda()) for each in (given.inputs, given.upstream, given.initial, given.weight)
    )
    bias, lengths, engine = given.bias.float().cuda(), given.lengths.cuda(), Both(q)
    outputs = [in_poison(torch.zeros_like(like)) for like in (inputs, initial, inputs, initial)]
    states, final, grad_z, grad_initial = outputs
    for each in outputs:
        each.fill_(float("nan"))
    engine.forward(inputs, weight, bias, initial, "modrelu", lengths, states, final)
    engine.backward(upstream, states, weight, bias, "modrelu", lengths, grad_z, grad_initial)
    for each in outputs:
        assert torch.isfinite(each).all()
        assert each._base is not None
        assert int(torch.isfinite(each._base).sum()) == each.numel()


@pytest.mark.parametrize("place", [0, 5, 11])
def test_what_is_not_finite_stays_visible(place: int) -> None:
    """NaN or infinity in one sequence's short part reaches its long part, and no other sequence."""
    leaves, _ = _given(310, 720, 12, 32)
    with torch.no_grad():
        leaves[0][place, 3, 400] = float("nan")
        leaves[0][place, 20, 900] = float("inf")
        found = long_short_recurrence(*leaves, "relu", backend="cuda")
    bad = ~torch.isfinite(found).all(dim=-1)
    assert bad[place:, [3, 20]].all()
    bad[place:, [3, 20]] = False
    assert not bad.any()
    if place + 1 < len(found):
        assert not torch.isfinite(found[place + 1, [3, 20], :310]).any()
