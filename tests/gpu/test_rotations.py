"""The kernels under rotations are their recurrence: at every size, on any strides, in a graph, and always the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import enrnn
from enrnn.recurrence import _rotations, _rotations_cuda
from tests._record import Recorder
from tests.gpu._kernels import assert_near_the_float64_reference, in_poison, replayed
from tests.recurrence._rotations import Case, excess, problem

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels")]

SIZES = [(1, 1), (1, 2), (2, 1), (2, 3), (3, 3), (5, 2), (6, 5), (33, 3), (34, 2), (64, 1), (65, 7), (130, 2), (300, 31)]
SIZES += [(577, 2), (1000, 4), (1025, 3), (2047, 2), (2048, 2), (2048, 64), (2049, 2), (2050, 1), (4096, 3), (5001, 2)]
FOURIER = [(2, 1), (4, 2), (64, 6), (512, 9), (2048, 11), (4096, 12)]
CASES = [Case(*size) for size in SIZES] + [Case(*size, butterfly=True) for size in FOURIER]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_size(case: Case, full: bool, record: Recorder) -> None:
    """Every nonlinearity and both kinds of lengths over the sizes; all of them with --full. Threads with one pair and with more,
    sums in shared memory and outside of it."""
    place = CASES.index(case)
    names = ["paired_modrelu", *_rotations_cuda.SIGMA] if full else ["paired_modrelu", [*_rotations_cuda.SIGMA][place % 5]]
    worst = 0.0
    for index, name in enumerate(names):
        for steps, batch in [(1, 1), (6, 5), (3, 33)][: 3 if full else 2]:
            given = problem(case._replace(nonlinearity=name, steps=steps, batch=batch, lengths=(place + index) % 3 == 1))
            worst = max(worst, excess(_rotations_cuda.forward, _rotations_cuda.backward, given, "cuda"))
            record(cases=1)
    record(worst_error_over_the_float32_loops=worst)
    assert worst < 4


def test_long_sequences_and_more_of_them_than_run_at_once(record: Recorder) -> None:
    cases = [Case(40, 3, steps=1500, batch=2), Case(700, 2, steps=300, batch=2), Case(2048, 1, steps=2, batch=700, lengths=True)]
    worst = max(excess(_rotations_cuda.forward, _rotations_cuda.backward, problem(case), "cuda") for case in cases)
    record(cases=len(cases), worst_error_over_the_float32_loops=worst)
    assert worst < 4


@pytest.mark.parametrize("case", [Case(33, 3, lengths=True), Case(2048, 2, lengths=True), Case(4096, 12, True)], ids=str)
def test_everything_is_written_and_always_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs between NaN, all that is allocated full of NaN; thrice the same bits, and no other than without."""
    given = problem(case)
    plain = given.arguments(torch.float32, "cuda")
    upstream = given.upstream.float().cuda()

    def sweeps(arguments: list[object], upstream: Tensor) -> list[Tensor]:
        states = _rotations_cuda.forward(*arguments)
        return [states, *_rotations_cuda.backward(upstream, states, *arguments[1:])]

    expected = sweeps(plain, upstream)
    poisoned = [in_poison(each) if isinstance(each, Tensor) and each.is_floating_point() else each for each in plain]
    empty_like, new_empty = torch.empty_like, Tensor.new_empty
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: empty_like(*args, **kwargs).fill_(float("nan")))
    monkeypatch.setattr(Tensor, "new_empty", lambda *args, **kwargs: new_empty(*args, **kwargs).fill_(float("nan")))
    for _ in range(3):
        for found, before in zip(sweeps(poisoned, in_poison(upstream)), expected, strict=True):
            assert torch.isfinite(found).all()
            assert torch.equal(found, before)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_visible(poison: float) -> None:
    given = problem(Case(70, 2))
    arguments = given.arguments(torch.float32, "cuda")
    arguments[0][1, 1, 5] = poison
    states = _rotations_cuda.forward(*arguments)
    assert not torch.isfinite(states[1:, 1]).all()
    assert torch.isfinite(states[:, [0, 2]]).all()
    assert torch.isfinite(states[0]).all()


@pytest.mark.parametrize("case", [Case(34, 3, lengths=True), Case(2048, 2), Case(2050, 2)], ids=str)
def test_in_a_graph(case: Case) -> None:
    """Both sweeps captured and replayed on new data: the same bits as outside."""
    given = problem(case)
    arguments = given.arguments(torch.float32, "cuda")
    leaves = [each.requires_grad_() for each in arguments if isinstance(each, Tensor) and each.is_floating_point()]
    upstream = given.upstream.float().cuda()

    def step() -> tuple[Tensor, ...]:
        states = _rotations.rotations(*arguments)
        return (states.detach(), *torch.autograd.grad(states, leaves, upstream))

    for inside, again, outside in zip(*replayed(step, leaves), step(), strict=True):
        assert torch.equal(inside, outside)
        assert torch.equal(again, outside)


def test_more_than_two_to_the_31_elements() -> None:
    """Under the identity, what the first step is given can be followed to the last."""
    T, B, n = 70_000, 4_000, 4
    inputs = torch.zeros(T, B, 2 * n, device="cuda")
    inputs[0] = torch.randn(B, 2 * n, device="cuda")
    inputs[-1] = torch.randn(B, 2 * n, device="cuda")
    assert inputs.numel() > 2**31
    angles, phases = torch.zeros(2 * n, 1, device="cuda"), torch.zeros(n, device="cuda")
    initial = torch.zeros(B, 2 * n, device="cuda")
    states = _rotations_cuda.forward(inputs, angles, phases, None, initial, "identity", None, 1, False)
    assert torch.equal(states[-1], inputs[0] + inputs[-1])
    assert torch.equal(states[T // 2], inputs[0])
    grad_z, *_ = _rotations_cuda.backward(states, states, angles, phases, None, initial, "identity", None, 1, False)
    torch.testing.assert_close(grad_z[-1], states[-1])
    torch.testing.assert_close(grad_z[-3], states[-1] + 2 * inputs[0])


@pytest.mark.parametrize("options", [{}, {"nonlinearity": "tanh"}, {"capacity": 3, "bias": False}, {"style": "fft"}], ids=str)
def test_eurnn_runs_on_the_kernel(options: dict[str, object]) -> None:
    """States and all gradients, against the float64 reference under the matrix."""
    torch.manual_seed(0)
    exact = enrnn.EURNN(2, 2048, **options, backend="reference", dtype=torch.float64)
    layer = enrnn.EURNN(2, 2048, **options, device="cuda")
    layer.load_state_dict(exact.state_dict())
    exact.load_state_dict(layer.state_dict())  # as float32 has it
    assert layer.backend_used == "rotations"
    assert enrnn.EURNN(2, 4096, device="cuda").backend_used == "rotations"
    assert enrnn.EURNN(2, 200, device="cuda").backend_used == "cuda"
    assert_near_the_float64_reference(layer, exact, torch.randn(9, 3, 2))


def test_eurnn_compiles_in_one_graph() -> None:
    layer = enrnn.EURNN(2, 4096, device="cuda")
    x = torch.randn(3, 2, 2, device="cuda")
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x)[0], layer(x)[0])
