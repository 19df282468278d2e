"""The eigenvalue normalisation's kernels against its torch operations, on the same GPU: values, flags, gradients and notes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import enrnn
from enrnn import _nvrtc
from enrnn.matrices import _normalization
from enrnn.matrices._eigenvalue_normalized import normalize_spectrum, normalize_spectrum_backward
from tests._record import Recorder

pytestmark = pytest.mark.gpu

SIZES = [1, 2, 3, 17, 33, 64, 94, 96, 97, 200, 720]
DTYPES = [torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def kernels() -> None:
    if reason := _nvrtc.unavailable():
        pytest.skip(reason)


def matrix(size: int, dtype: torch.dtype, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return (scale * torch.randn(size, size, generator=generator, dtype=torch.float64) / size**0.5).to("cuda", dtype)


def both(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """By the kernels, and by torch's operations."""
    ours: tuple[Tensor, ...] = normalize_spectrum(*arguments)
    with monkeypatch.context() as patch:
        patch.setattr(_normalization, "kernels_for", lambda tensor: None)
        theirs: tuple[Tensor, ...] = normalize_spectrum(*arguments)
    return ours, theirs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@pytest.mark.parametrize("on", [False, True])
def test_values_and_flags(
    dtype: torch.dtype, epsilon: float, on: bool, monkeypatch: pytest.MonkeyPatch, record: Recorder
) -> None:
    switch = torch.tensor(on, device="cuda")
    for size in SIZES:
        for scale in (2.0, 0.2, 1e-30, 1e30):
            ours, theirs = both(monkeypatch, matrix(size, dtype, scale), switch, epsilon, "auto")
            assert torch.equal(ours[0], theirs[0])
            assert torch.equal(ours[1], theirs[1])
            torch.testing.assert_close(ours[2], theirs[2], rtol=1e-6, atol=8 * torch.finfo(dtype).eps)
            assert [bool(flag) for flag in ours[3:]] == [bool(flag) for flag in theirs[3:]]
            record(cases=1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_cannot_be_divided(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    on = torch.tensor(True, device="cuda")
    nilpotent = torch.ones(5, 5, dtype=dtype, device="cuda").triu(1)
    defective = torch.eye(4, dtype=dtype, device="cuda") + torch.diag(torch.ones(3, dtype=dtype, device="cuda"), 1)
    tiny = torch.full((3, 3), torch.finfo(dtype).tiny, dtype=dtype, device="cuda")
    broken = matrix(6, dtype)
    broken[2, 3] = float("nan")
    for T in (nilpotent, defective, tiny, torch.zeros_like(tiny), broken):
        ours, theirs = both(monkeypatch, T, on, 0.0, "auto")
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_gradient(dtype: torch.dtype, epsilon: float, monkeypatch: pytest.MonkeyPatch, record: Recorder) -> None:
    for size in SIZES:
        T = matrix(size, dtype)
        W, radius, derivative, *_ = normalize_spectrum(T, torch.tensor(True, device="cuda"), epsilon, "auto")
        G = torch.randn_like(T)
        for applied in (torch.tensor(True, device="cuda"), torch.tensor(False, device="cuda")):
            ours = normalize_spectrum_backward(G, W, derivative, radius, applied, epsilon)
            again = normalize_spectrum_backward(G, W, derivative, radius, applied, epsilon)
            exact = [each.double() for each in (G, W, derivative, radius)]
            pull = torch.where(applied, (exact[0] * exact[1]).sum(), 0)
            wanted = (exact[0] - pull * exact[2]) / torch.where(applied, exact[3] + epsilon, 1)
            size_of = torch.maximum(exact[0].norm(), wanted.norm())  # of a 1 × 1 matrix, nothing is left: W is constant
            error = ((ours.double() - wanted).norm() / size_of).item() / torch.finfo(dtype).eps
            record(cases=1, worst_error_in_roundings=error)
            assert error < 4
            assert torch.equal(ours, again)


@pytest.mark.parametrize("training", [True, False])
def test_what_a_captured_step_notes_is_what_a_plain_one_does(training: bool) -> None:
    torch.manual_seed(0)
    plain, replayed = (enrnn.EigenvalueNormalized().cuda().train(training) for _ in range(2))
    static = matrix(20, torch.float32)
    replayed(static.clone())  # loads the kernels
    replayed.load_state_dict(plain.state_dict())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        W = replayed(static)
    for scale in (0.1, 3.0, 0.5):
        T = matrix(20, torch.float32, scale)
        static.copy_(T)
        graph.replay()
        assert torch.equal(W, plain(T))
        for name, buffer in plain.named_buffers():
            assert torch.equal(buffer, dict(replayed.named_buffers())[name]), name
    static[3, 4] = float("inf")
    graph.replay()
    with pytest.raises(ValueError, match="not finite"):
        replayed.check()
