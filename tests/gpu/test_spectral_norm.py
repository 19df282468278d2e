"""The spectral norm on a GPU: against torch's singular values, and captured in a CUDA graph against steps that are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from enrnn import SpectralNorm
from enrnn.matrices import _spectral_norm
from enrnn.matrices._spectral_norm import largest_singular
from enrnn.spectrum import accuracy_for
from enrnn.training import Config, ModelSettings, Watch, train
from enrnn.training._graph import OneByOne, Replayed, captured
from enrnn.training._step import Step
from tests._record import Recorder
from tests.training._runs import ADDING, tiny
from tests.training.test_cuda import different, step_of
from tests.zoo.test_spectral_norm import gaussian, near_tie, start, with_values

pytestmark = pytest.mark.gpu

SIZES = [1, 2, 3, 17, 33, 64, 94, 96, 97, 200, 720]
DTYPES = [torch.float32, torch.float64]
MODEL = ModelSettings(hidden_size=160, short_size=64, options={"short": "spectral_norm"})


def norm_of(T: Tensor) -> Tensor:
    """By LAPACK."""
    return torch.linalg.svdvals(T.double().cpu())[0]


def replaying(matrix: SpectralNorm, static: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """The forming of W from what is in `static`, as a graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        matrix(torch.eye(len(static), dtype=static.dtype, device="cuda"))  # loads the kernels
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        W = matrix(static)
    return graph, W


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_a_random_matrix_is_certified_and_its_norm_exact(dtype: torch.dtype, scale: float, record: Recorder) -> None:
    for size in SIZES:
        T = (scale * gaussian(size)).to(dtype).double().cuda()
        found = largest_singular(T, accuracy_for(dtype))
        assert found.certified
        error = abs(float(found.norm.cpu() / norm_of(T)) - 1)
        record(cases=1, worst_error=error)
        assert error <= 1e-12


@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-12, 1e-10, 1e-9, 3e-9, 1e-8, 1e-7, 1e-6, 1e-4])
@pytest.mark.parametrize("size", [12, 64, 90, 150])
def test_whatever_is_certified_is_exact_however_near_the_next_one(gap: float, size: int, record: Recorder) -> None:
    for times in (2, 3, 5):
        for seed in range(10):
            for accuracy in (1e-12, 1e-10):
                T = near_tie(gap, size, seed, times)
                found = largest_singular(T.cuda(), accuracy)
                record(cases=1, cases_uncertified=int(not found.certified))
                if found.certified:
                    assert abs(float(found.norm.cpu() / norm_of(T)) - 1) <= accuracy + 1e-14
                else:
                    assert gap < 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_is_that_of_torchs_singular_values(dtype: torch.dtype, record: Recorder) -> None:
    for size in SIZES[1:]:
        values = torch.linspace(0.0, 0.9, size, dtype=torch.float64)
        values[0] = 1.0
        T, G = with_values(values, size).to(dtype), gaussian(size, 7).to(dtype)
        matrix, ours = SpectralNorm().cuda(), T.cuda().requires_grad_()
        (matrix(ours) * G.cuda()).sum().backward()
        exact = T.double().requires_grad_()
        ((exact / torch.linalg.svdvals(exact)[0]) * G.double()).sum().backward()
        assert ours.grad is not None
        assert exact.grad is not None
        error = float((ours.grad.cpu().double() - exact.grad).norm() / exact.grad.norm())
        record(cases=1, worst_error=error)
        assert matrix.fallbacks == 0
        assert error <= (1e-9 if dtype == torch.float64 else torch.finfo(dtype).eps)


def test_second_derivatives_are_right() -> None:
    assert torch.autograd.gradgradcheck(SpectralNorm().cuda(), near_tie(0.3, 5).cuda().requires_grad_(), atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 20, 64, 94, 150, 720])
def test_what_a_graph_gives_is_what_a_plain_call_does(dtype: torch.dtype, size: int) -> None:
    plain, replayed = SpectralNorm().cuda(), SpectralNorm().cuda()
    static = gaussian(size).to("cuda", dtype)
    graph, W = replaying(replayed, static)
    for T in (gaussian(size, 1), 1e-3 * gaussian(size, 2), torch.zeros(size, size)):
        static.copy_(T)
        graph.replay()
        assert torch.equal(W, plain(T.to("cuda", dtype)))
    replayed.check()
    static.fill_(float("inf"))
    graph.replay()
    with pytest.raises(ValueError, match="not finite"):
        replayed.check()


def test_a_graph_flags_what_it_cannot_certify() -> None:
    matrix = SpectralNorm().cuda()
    static = gaussian(20).cuda()
    graph, W = replaying(matrix, static)
    static.copy_(3 * torch.eye(20))
    graph.replay()
    assert torch.equal(W, static)
    with pytest.raises(RuntimeError, match="could not be certified inside a CUDA graph"):
        matrix.check()
    assert torch.allclose(matrix(static), torch.eye(20, dtype=torch.float64, device="cuda"))


@pytest.mark.parametrize("size", [5, 20, 64, 65, 94, 150])
def test_at_the_start_W_is_right(size: int) -> None:
    T = start(size)
    W = SpectralNorm().cuda()(T.cuda()).cpu()
    assert torch.allclose(W, T / norm_of(T), rtol=1e-12, atol=0)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop_tf"])
def test_replayed_steps_are_plain_steps_to_the_bit(optimizer: str) -> None:
    one, other = (step_of(ADDING, MODEL, name=optimizer) for _ in range(2))
    OneByOne(one).advance(9)
    Replayed(other, captured(other)).advance(9)
    assert different(one, other) == []
    assert one.spectrum()["fallbacks"] <= 1  # at the start every singular value is double


@pytest.mark.parametrize("at", [[1], [3], [2, 3, 7]])
def test_uncertified_steps_are_done_over_and_counted(at: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the solver unsure of itself at these steps, inside the graph and outside."""
    solver = _spectral_norm.largest_singular
    places = torch.tensor(at, device="cuda")
    steps: list[Step] = []

    def unsure(matrix: Tensor, accuracy: float) -> object:
        found = solver(matrix, accuracy)
        sure = found.certified & ~(steps[-1]._ledger.done + 1 == places).any()
        return found._replace(norm=torch.where(sure, found.norm, 0), certified=sure)

    monkeypatch.setattr(_spectral_norm, "largest_singular", unsure)
    steps.append(step_of(ADDING, MODEL))
    OneByOne(steps[0]).advance(8)
    steps.append(step_of(ADDING, MODEL))
    Replayed(steps[1], captured(steps[1])).advance(8)
    assert different(*steps) == []
    assert len(at) <= steps[1].spectrum()["fallbacks"] <= len({1, *at})


def test_a_run_is_captured_and_is_the_run_without_a_graph(tmp_path: Path) -> None:
    said: list[str] = []

    class Listening(Watch):
        def said(self, text: str) -> None:
            said.append(text)

    def config(graph: bool) -> Config:
        return tiny(model=MODEL, device="cuda", look_every=3, graph=graph)

    one, other = (train(config(graph), tmp_path, Listening()) for graph in (True, False))
    assert not any("a CUDA graph cannot hold them" in text for text in said)
    assert one["last"] == other["last"]
    assert one["fallbacks"] == other["fallbacks"]
