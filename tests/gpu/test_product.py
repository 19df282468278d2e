"""Products by the tensor cores: at every size, on any strides, as precise as in float32, in a graph, and always the same."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from enrnn import _nvrtc
from enrnn.recurrence import _product
from tests._record import Recorder
from tests.gpu._kernels import assert_the_same_in_a_graph
from tests.gpu._matrices import in_poison, normal

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels", "exact_library")]

SIZES = [
    (1, 1, 1),
    (3, 5, 1),
    (1, 70, 33),
    (65, 63, 31),
    (64, 80, 96),
    (129, 161, 127),
    (310, 310, 310),
    (720, 310, 200),
    (700, 1030, 1568),
    (67, 97, 20003),
]
ALONG = [*itertools.product((False, True), repeat=2)]


def excess(a: Tensor, b: Tensor, added: Tensor | None = None) -> float:
    """The error, against float64, over the larger of cuBLAS's in float32 and a few roundings of the largest entry."""
    exact = a.double() @ b.double() + (0 if added is None else added.double())
    usual = a @ b if added is None else torch.addmm(added, a, b)
    found = _product.product(a, b, added)
    assert found.shape == exact.shape
    floor = 4 * torch.finfo(torch.float32).eps * exact.abs().max()
    scale = torch.maximum((usual - exact).abs().max(), floor)
    return float((found - exact).abs().max() / scale)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_every_size(m: int, n: int, k: int, record: Recorder) -> None:
    """Either matrix with neighbours along k or across it, and with something to be added or nothing."""
    worst = 0.0
    a, b, added = normal(m, k), normal(k, n, seed=1), normal(m, n, seed=2)
    for (a_along, b_along), more in itertools.product(ALONG, (None, added)):
        worst = max(worst, excess(in_poison(a, down=not a_along), in_poison(b, down=b_along), more))
        record(cases=1)
    record(worst_error_over_cublas=worst)
    assert worst < 4


@pytest.mark.parametrize("size", _product.SIZES)
def test_every_layout(size: tuple[int, int, int, int, int], monkeypatch: pytest.MonkeyPatch, record: Recorder) -> None:
    """Tiles of each size, room for few rounds and for many, k in one share and in several."""
    room, worst = _nvrtc.room_of(torch.device("cuda", 0))[1], 0.0
    most = room // _product.Plan(*size, 1, 1).shared_bytes
    for stages, share in itertools.product({2, min(most, 3), min(most, _product.MOST_STAGES)}, (3, 8, 1024)):
        if stages > most:
            continue
        plan = _product.Plan(*size, stages, share)
        monkeypatch.setattr(_product, "planned", lambda *_, plan=plan: plan)
        for (m, n, k), (a_along, b_along) in itertools.product([(150, 174, 600), (335, 203, 333)], ALONG):
            a, b = in_poison(normal(m, k), down=not a_along), in_poison(normal(k, n, seed=1), down=b_along)
            worst = max(worst, excess(a, b, normal(m, n, seed=2)))
            record(cases=1)
    record(worst_error_over_cublas=worst)
    assert worst < 4


@pytest.mark.parametrize(("m", "n", "k"), [(68, 84, 100), (320, 1028, 1568)])
@pytest.mark.parametrize("along", ALONG)
def test_views_at_any_address_and_between_nan(m: int, n: int, k: int, along: tuple[bool, bool], record: Recorder) -> None:
    """Nothing else is looked at, and nothing else is written."""
    a, b, added = normal(m, k), normal(k, n, seed=1), normal(m, n, seed=2)
    exact = added.double() + a.double() @ b.double()
    tolerance = 4 * float((torch.addmm(added, a, b) - exact).abs().max())
    for before, after in itertools.product(range(4), repeat=2):
        views = in_poison(a, before, after, down=not along[0]), in_poison(b, 4 - before, before, down=along[1])
        out = torch.full((m + 2, n + 4), float("nan"), device="cuda")
        inner = out[1:-1, before : before + n]
        assert _product.product(*views, in_poison(added, after, before), out=inner) is inner
        assert float((inner - exact).abs().max()) <= tolerance
        inner.fill_(float("nan"))
        assert out.isnan().all()
        record(cases=1)


def test_in_place_of_what_is_added() -> None:
    a, b, added = normal(200, 130), normal(130, 170, seed=1), normal(200, 170, seed=2)
    expected = _product.product(a, b, added)
    assert _product.product(a, b, added, out=added) is added
    assert torch.equal(added, expected)


def test_gaps_repeated_lines_and_transposed_output() -> None:
    a, b = normal(300, 400)[::2, ::2], normal(1, 200, seed=1).expand(90, 200).mT
    assert excess(a, b) < 4
    out = torch.empty(90, 150, device="cuda").mT
    assert torch.equal(_product.product(a, b, out=out), _product.product(a, b))


def close(found: Tensor, exact: Tensor, usual: Tensor) -> bool:
    floor = 4 * torch.finfo(torch.float32).eps * exact.abs().max()
    return bool((found - exact).abs().max() <= 4 * torch.maximum((usual - exact).abs().max(), floor))


SHAPES = [(160, 90, 70), (1600, 310, 720), (333, 161, 100)]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("along", ALONG)
def test_rows_before_others(m: int, n: int, k: int, along: tuple[bool, bool]) -> None:
    """As for `h_{t-1}`: the rows of `initial`, then those of the states, which lie elsewhere, in columns of a larger matrix."""
    a, b, added = normal(m, k), normal(k, n, seed=1), normal(m, n, seed=2)
    exact, usual = added.double() + a.double() @ b.double(), torch.addmm(added, a, b)
    for f in (0, 1, 32, m):
        first, rest = in_poison(a[:f], 1, 2, down=not along[0]), in_poison(a[f:], 3, down=not along[1])
        assert close(_product.product(rest, b, added, first=first), exact, usual)
        out = torch.full_like(added, float("nan"))
        assert _product.product(rest, b, added, out, first=first) is out
        assert torch.equal(out, _product.product(a, b, added))


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("along", ALONG)
def test_the_first_rows_go_elsewhere_and_the_last_are_zeros(m: int, n: int, k: int, along: tuple[bool, bool]) -> None:
    """As for `dz_{t+1}`: what comes first has no place among the others, and nothing comes after the last."""
    g = 32
    a, b = in_poison(normal(m, k), 1, down=not along[0]), in_poison(normal(k, n, seed=1), down=along[1])
    added = normal(m, n, seed=2)
    exact, usual = a.double() @ b.double(), a @ b
    out, wide = torch.full_like(added, float("nan")), torch.full((g, n + 3), float("nan"), device="cuda")
    early = wide[:, 1:-2]
    assert _product.product(a, b, added, out, out_first=early) is out
    assert close(early, exact[:g], usual[:g])
    assert close(out[: m - g], exact[g:] + added[: m - g], usual[g:] + added[: m - g])
    assert torch.equal(out[m - g :], added[m - g :])
    early.fill_(float("nan"))
    assert wide.isnan().all()
    found = _product.product(a, b, out_first=early)
    assert found.shape == (m - g, n)
    assert torch.equal(torch.cat((early, found)), _product.product(a, b))


@pytest.mark.parametrize(("m", "n", "k"), [(90, 100, 300), (310, 1030, 1568), (160, 160, 4000)])
@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("j", [1, 32, 50])
def test_columns_before_others(m: int, n: int, k: int, j: int, along: tuple[bool, bool]) -> None:
    """As for the gradient of the weights: the first step, then the others."""
    a, b, a_before, b_before = normal(m, k), normal(k, n, seed=1), normal(m, j, seed=2), normal(j, n, seed=3)
    exact = a.double() @ b.double() + a_before.double() @ b_before.double()
    before = in_poison(a_before, 1, down=not along[0]), in_poison(b_before, 1, down=along[1])
    found = _product.product(in_poison(a, 2, down=not along[0]), in_poison(b, 0, 1, down=along[1]), before=before)
    assert close(found, exact, torch.addmm(a @ b, a_before, b_before))


def test_pieces_that_would_take_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    m, n, k, f, g, j = 200, 150, 1000, 20, 30, 40
    a, b, added = normal(m - f, k), normal(k, n, seed=1), normal(m - g, n, seed=2)
    first, early = normal(f, k, seed=3), normal(g, n)
    exact = torch.cat((first, a)).double() @ b.double()
    exact[g:] += added
    monkeypatch.setattr(_product, "MOST_PIECES", 2**19)
    found = _product.product(a, b, added, first=first, out_first=early)
    assert close(torch.cat((early, found)), exact, exact.float())
    before = normal(m - f, j, seed=4), normal(j, n, seed=5)
    exact = a.double() @ b.double() + before[0].double() @ before[1].double()
    assert close(_product.product(a, b, before=before), exact, exact.float())


def test_nothing_to_multiply() -> None:
    for m, n, k in [(0, 3, 5), (7, 0, 5), (7, 3, 0)]:
        found = _product.product(normal(m, k), normal(k, n))
        assert found.shape == (m, n)
        assert not found.any()
    added = normal(7, 3)
    assert torch.equal(_product.product(normal(7, 0), normal(0, 3), added), added)


@pytest.mark.parametrize("along", ALONG)
def test_rows_and_columns_of_any_magnitude(along: tuple[bool, bool], record: Recorder) -> None:
    """Each entry is as precise as in float32, relative to its own row and column."""
    m, n, k = 150, 170, 720
    exponent = torch.linspace(-10, 10, m, device="cuda")[:, None]
    a = in_poison(normal(m, k) * 10**exponent, down=not along[0])
    b = in_poison(normal(k, n, seed=1) * 10 ** torch.linspace(-10, 10, n, device="cuda"), down=along[1])
    exact = a.double() @ b.double()
    scale = a.double().abs() @ b.double().abs()
    found, usual = (float(((each - exact).abs() / scale).max()) for each in (_product.product(a, b), a @ b))
    record(error=found, cublas=usual)
    assert found < max(2 * usual, 2e-7)


def test_columns_of_any_magnitude(record: Recorder) -> None:
    """What is far below the largest numbers of a row's neighbourhood does not matter for the sum of the products."""
    a, b = normal(150, 720) * 10 ** torch.linspace(-10, 10, 720, device="cuda"), normal(720, 170, seed=1)
    worst = excess(a, b)
    record(worst_error_over_cublas=worst)
    assert worst < 4


@pytest.mark.parametrize("exponent", [-33, -30, -19, 0, 18, 19])
def test_very_small_and_very_large_numbers(exponent: int) -> None:
    """Down to where the exponent of a line is not taken lower, and beyond."""
    a, b = normal(70, 64) * 10.0**exponent, normal(64, 90, seed=1) * 10.0 ** min(-exponent, 30)
    exact = a.double() @ b.double()
    error = (_product.product(a, b) - exact).abs().max()
    usual = (a @ b - exact).abs().max()
    assert error <= torch.maximum(4 * usual, 1e-6 * exact.abs().max())


def test_values_that_are_not_finite_stay_where_they_are() -> None:
    for along in ALONG:
        a, b = normal(161, 333), normal(333, 170, seed=1)
        a[3, 17], a[150, 332], b[332, 160], b[0, 7] = float("nan"), float("-inf"), float("inf"), float("nan")
        finite = torch.isfinite(_product.product(in_poison(a, down=not along[0]), in_poison(b, down=along[1])))
        assert not finite[[3, 150]].any()
        assert not finite[:, [160, 7]].any()
        finite[[3, 150]], finite[:, [160, 7]] = True, True
        assert finite.all()


@pytest.mark.parametrize(("m", "n", "k"), [(1600, 310, 720), (310, 1030, 1568), (192, 192, 37450)])
def test_everything_is_written_and_always_the_same(m: int, n: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = normal(m, k), normal(k, n, seed=1)
    expected = _product.product(a, b)
    new_empty = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *args, **kwargs: new_empty(*args, **kwargs).fill_(float("nan")))
    for _ in range(5):
        assert torch.equal(_product.product(a, b), expected)


@pytest.mark.parametrize(("m", "n", "k"), [(1600, 310, 720), (310, 1030, 1568)])
def test_in_a_graph(m: int, n: int, k: int) -> None:
    assert_the_same_in_a_graph(_product.product, normal(m, k), normal(k, n, seed=1))


def test_cublas_where_nothing_was_compiled_before_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_product, "_loaded", {})
    a, b, added = normal(310, 400), normal(400, 310, seed=1), normal(310, 310, seed=2)
    first, early, before = normal(10, 400, seed=3), normal(20, 310), (normal(310, 32, seed=4), normal(32, 310, seed=5))
    expected = torch.addmm(added, a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = _product.product(a, b, added)
        shifted = _product.product(a, b, added, torch.empty_like(added), first=first, out_first=early)
        longer = _product.product(a, b, added, before=before)
    graph.replay()
    assert not _product._loaded
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    rows = torch.cat((first, a, torch.zeros_like(first))) @ b
    torch.testing.assert_close(early, rows[:20], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(shifted, rows[20:] + added, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(longer, expected + before[0] @ before[1], rtol=1e-4, atol=1e-3)
