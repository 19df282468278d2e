"""The gradient of the weights as one product: at every size, on any strides, in a graph, and always the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import enrnn
from enrnn.recurrence import _gram
from tests._record import Recorder
from tests.gpu._kernels import assert_the_same_in_a_graph
from tests.gpu._matrices import in_poison, normal

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels", "exact_library")]

SIZES = [1, 2, 7, 33, 64, 96, 100, 128, 160, 161, 192, 255, 256]
ROWS = [1, 5, 63, 64, 65, 4096, 37450]


def excess(z: Tensor, h: Tensor) -> float:
    """The error, against float64, over the larger of torch's own in float32 and a few roundings of the largest entry."""
    exact = z.double().mT @ h.double()
    found = _gram.gram(z, h)
    assert found.shape == exact.shape
    floor = 4 * torch.finfo(torch.float32).eps * exact.abs().max()
    scale = torch.maximum((z.mT @ h - exact).abs().max(), floor)
    return float((found - exact).abs().max() / scale)


@pytest.mark.parametrize("n", SIZES)
def test_every_size(n: int, record: Recorder) -> None:
    """Square, and with another number of rows in the output than columns."""
    worst = 0.0
    for rows in ROWS:
        z, h = normal(rows, n), normal(rows, n, seed=1)
        others = [normal(rows, size, seed=2) for size in (20, 172)]
        pairs = [(z, h), *((z, other) for other in others), *((other, h) for other in others)]
        worst = max(worst, *(excess(*pair) for pair in pairs))
        record(cases=len(pairs))
    record(worst_error_over_cublas=worst)
    assert worst < 4


@pytest.mark.parametrize("n", [1, 7, 64, 96, 160, 192, 255, 256])
def test_views_at_any_address_and_between_nan(n: int, record: Recorder) -> None:
    """Rows that can be read by fours, by twos, and one float at a time; nothing else is looked at, and the bits are the same."""
    widths = set()
    for rows in (5, 333, 4100):
        z, h = normal(rows, n), normal(rows, n, seed=1)
        expected = _gram.gram(z, h)
        for before in range(5):
            for apart in range(4):
                views = in_poison(z, before, -(n + before) % 4 + apart), in_poison(h, 4, -n % 4 + 2 * apart)
                widths.add(_gram._floats_at_once(*views))
                assert torch.equal(_gram.gram(*views), expected)
                record(cases=1)
    assert widths == {1, 2, 4}


@pytest.mark.parametrize("n", [7, 96, 160, 192, 255])
def test_rows_that_begin_elsewhere(n: int, record: Recorder) -> None:
    """As h_{t−1} does, with the initial state: the bits are those of one matrix."""
    for rows, early in [(5, 5), (333, 20), (4100, 1), (37450, 50), (8400, 8399)]:
        z, h = normal(rows, n), normal(rows, n, seed=1)
        expected = _gram.gram(z, h)
        out = torch.full_like(expected, float("nan"))
        assert _gram.gram(z, in_poison(h[early:], 4, 4), in_poison(h[:early], 8, 0), out=out) is out
        assert torch.equal(out, expected)
        record(cases=1)


def test_columns_with_gaps_and_rows_that_repeat() -> None:
    z, h = normal(160, 4100).mT, normal(1, 96, seed=1).expand(4100, 96)
    assert excess(z, h) < 4


def test_no_rows_or_no_columns() -> None:
    for rows, m, n in [(0, 3, 5), (7, 0, 5), (7, 3, 0)]:
        found = _gram.gram(normal(rows, m), normal(rows, n))
        assert found.shape == (m, n)
        assert not found.any()


def test_values_that_are_not_finite_stay_where_they_are() -> None:
    z, h = normal(4100, 161), normal(4100, 161, seed=1)
    z[17, 3], h[4099, 160] = float("nan"), float("inf")
    finite = torch.isfinite(_gram.gram(z, h))
    assert not finite[3].any()
    assert not finite[:, 160].any()
    finite[3], finite[:, 160] = True, True
    assert finite.all()


@pytest.mark.parametrize("n", [33, 160, 192, 256])
def test_everything_is_written_and_always_the_same(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    z, h = normal(37450, n), normal(37450, n, seed=1)
    expected = _gram.gram(z, h)
    new_empty = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *args, **kwargs: new_empty(*args, **kwargs).fill_(float("nan")))
    for _ in range(5):
        assert torch.equal(_gram.gram(z, h), expected)


@pytest.mark.parametrize("n", [64, 160, 192, 256])
def test_in_a_graph(n: int) -> None:
    assert_the_same_in_a_graph(_gram.gram, normal(4100, n), normal(4100, n, seed=1))


def test_cublas_where_nothing_was_compiled_before_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gram, "_loaded", {})
    z, h = normal(4100, 40), normal(4100, 40, seed=1)
    expected = z.mT @ h
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = _gram.gram(z, h)
    graph.replay()
    assert not _gram._loaded
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_layers_gradients_come_from_it(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of a layer, as with cuBLAS; and it was used."""

    def gradients(layer: torch.nn.Module, x: Tensor) -> list[Tensor]:
        states, _ = layer(x)
        return [*torch.autograd.grad(states.square().mean(), list(layer.parameters()))]

    torch.manual_seed(0)
    layer = enrnn.ENRNN(10, 160, short_size=64, device="cuda")
    x = normal(250, 40, 10)
    monkeypatch.setattr(_gram, "_loaded", {})
    found = gradients(torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer, x)
    assert _gram._loaded
    monkeypatch.setattr(_gram, "_kernels", lambda *_: None)
    for one, other in zip(found, gradients(layer, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))
