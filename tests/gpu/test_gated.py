"""The kernels of the gated recurrence are its equations: at every size, on any strides, in a graph, and always the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import enrnn
from enrnn.recurrence import _gated
from tests._record import Recorder
from tests.gpu._kernels import assert_near_the_float64_reference, in_poison, replayed
from tests.recurrence._gated import Case, Problem, excess, plain, problem, sweeps

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels")]

SIZES = [1, 2, 3, 31, 32, 33, 64, 100, 127, 128, 129, 255, 300, 512, 515]
NAMES = list(_gated.SIGMA)


@pytest.mark.parametrize("units", SIZES)
def test_every_size(units: int, full: bool, record: Recorder) -> None:
    """modReLU and another nonlinearity, with and without lengths; all nonlinearities with --full."""
    place = SIZES.index(units)
    worst = 0.0
    for index, name in enumerate(NAMES if full else ["modrelu", NAMES[place % len(NAMES)]]):
        for steps, batch in [(1, 1), (6, 5), (3, 33)]:
            given = problem(Case(units, steps, batch, name, lengths=(place + index) % 2 == 1))
            worst = max(worst, excess(given, "cuda"))
            record(cases=1)
    record(worst_error_over_the_float32_loops=worst)
    assert worst < 4


def test_long_sequences_and_more_of_them_than_a_grid_has_rows(record: Recorder) -> None:
    cases = [Case(40, steps=500, batch=2), Case(300, steps=100, batch=7, lengths=True), Case(2, 3, 70_000, lengths=True)]
    worst = max(excess(problem(case), "cuda") for case in cases)
    record(cases=len(cases), worst_error_over_the_float32_loops=worst)
    assert worst < 4


def poisoned(given: Problem) -> Problem:
    return Problem(*(in_poison(each) if isinstance(each, Tensor) and each.is_floating_point() else each for each in given))


@pytest.mark.parametrize("case", [Case(33, lengths=True), Case(512, batch=32, lengths=True), Case(129)], ids=str)
@pytest.mark.parametrize("keep", [False, True])
def test_everything_is_written_and_always_the_same(case: Case, keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs between NaN, all that is allocated full of NaN; thrice the same bits, and no other than without."""
    given = problem(case)
    there = Problem(*given.arguments(torch.float32, "cuda"), given.upstream.float().cuda())

    def run(given: Problem) -> list[Tensor]:
        *arguments, _, upstream = given
        states, kept = _gated.gated(*arguments, keep)
        return [states, kept, *(_gated.gated_backward(upstream, *known, *arguments[1:], True) if keep else [])]

    known = _gated.gated(*there[:-2], keep)
    expected, between = run(there), poisoned(there)
    empty_like, new_empty = torch.empty_like, Tensor.new_empty
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: empty_like(*args, **kwargs).fill_(float("nan")))
    monkeypatch.setattr(Tensor, "new_empty", lambda *args, **kwargs: new_empty(*args, **kwargs).fill_(float("nan")))
    for again in (there, there, there):
        for found, before in zip(run(again), expected, strict=True):
            assert torch.isfinite(found).all()
            assert torch.equal(found, before)
    for found, before in zip(run(between), expected, strict=True):  # whose strides cuBLAS may answer with another kernel
        torch.testing.assert_close(found, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_visible(poison: float) -> None:
    given = problem(Case(70))
    arguments = given.arguments(torch.float32, "cuda")
    arguments[0][1, 1, 145] = poison
    states = _gated.gated(*arguments)[0]
    assert not torch.isfinite(states[1:, 1]).all()
    assert torch.isfinite(states[:, [0, 2]]).all()
    assert torch.isfinite(states[0]).all()


@pytest.mark.parametrize("case", [Case(34, lengths=True), Case(512, batch=32, nonlinearity="tanh")], ids=str)
def test_in_a_graph(case: Case) -> None:
    """Both sweeps captured and replayed on new data."""
    given = problem(case)
    arguments = given.leaves(torch.float32, "cuda")
    leaves = [each for each in arguments if isinstance(each, Tensor) and each.is_floating_point()]
    upstream = given.upstream.float().cuda()

    def step() -> tuple[Tensor, ...]:
        states = _gated.gated(*arguments)[0]
        return (states.detach(), *torch.autograd.grad(states, leaves, upstream))

    first, second = replayed(step, leaves)
    for inside, again, outside in zip(second, first, step(), strict=True):
        assert torch.equal(inside, again)
        torch.testing.assert_close(inside, outside, rtol=1e-4, atol=1e-4)


def test_a_graph_captured_first_of_all_does_without_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem(Case(20, lengths=True))
    expected = sweeps(_gated.gated, given, torch.float32, "cuda")  # cuBLAS has been used by then
    monkeypatch.setattr(_gated, "_loaded", {})
    arguments = given.arguments(torch.float32, "cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        states = _gated.gated(*arguments)[0]
    assert not _gated._loaded
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(states, expected[0], rtol=1e-5, atol=1e-5)


def test_in_float64_it_is_a_loop_of_torch_operations() -> None:
    given = problem(Case(20, lengths=True))
    for found, exact in zip(sweeps(_gated.gated, given, device="cuda"), sweeps(plain, given), strict=True):
        torch.testing.assert_close(found.cpu(), exact, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"nonlinearity": "tanh"}, {"capacity": 3, "bias": False}, {"style": "fft"}], ids=str)
def test_goru_runs_on_the_kernels(options: dict[str, object]) -> None:
    """States and all gradients, against the float64 reference."""
    torch.manual_seed(0)
    exact = enrnn.GORU(2, 256, **options, backend="reference", dtype=torch.float64)
    layer = enrnn.GORU(2, 256, **options, device="cuda")
    layer.load_state_dict(exact.state_dict())
    exact.load_state_dict(layer.state_dict())  # as float32 has it
    assert layer.backend_used == "gated"
    with torch.no_grad():
        for each in (exact, layer):
            if each.bias:
                each.bias_l0[512:] = -0.01  # above zero, modReLU jumps
    assert_near_the_float64_reference(layer, exact, torch.randn(9, 3, 2))
    assert _gated._loaded


def test_goru_compiles_in_one_graph() -> None:
    layer = enrnn.GORU(2, 64, device="cuda")
    x = torch.randn(3, 2, 2, device="cuda")
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x)[0], layer(x)[0])
