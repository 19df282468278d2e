"""Products by tiles of ours: of matrices that lie in any way, rounded as any sum of products is; and when they are taken."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from enrnn.recurrence import _cpu, _cpu_products, _engines, _projection
from enrnn.recurrence._cpu_products import product
from enrnn.recurrence._projection import projected
from tests._record import Recorder

pytest.importorskip("numba", reason="tiles are compiled by numba")


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tiles take it all; by which of the two ways, a sweep of one step or sums over tall matrices, is written down."""
    ways: list[str] = []
    for home, name in ((_cpu, "one_step"), (_cpu_products, "_weigh")):
        function = getattr(home, name)
        monkeypatch.setattr(home, name, lambda *given, name=name, function=function: (ways.append(name), function(*given))[1])
    monkeypatch.setattr(_cpu_products, "library_is_slow", lambda: True)
    monkeypatch.setattr(_cpu_products, "LEAST_WORK", 1)
    monkeypatch.setattr(_cpu_products, "LEAST_TALL", 1)
    monkeypatch.setattr(_projection, "MUCH_WORK", 1)
    monkeypatch.setattr(_cpu, "WORK_OF_A_THREAD", 1)
    monkeypatch.setattr(_cpu, "MUCH_TO_PACK", 1)
    return ways


def lying(matrix: Tensor, how: str) -> Tensor:
    """It, by rows, by columns, or as every other entry of something that is not a number elsewhere."""
    if how == "rows":
        return matrix.contiguous()
    if how == "columns":
        return matrix.mT.contiguous().mT
    apart = matrix.new_full((matrix.shape[0], 2 * matrix.shape[1] + 1), torch.nan)
    apart[:, 1::2] = matrix
    return apart[:, 1::2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_matrices_that_lie_in_any_way(tiles: list[str], dtype: torch.dtype, record: Recorder) -> None:
    sizes = [(1, 1, 1), (2, 3, 1), (1, 40, 17), (33, 1, 16), (17, 65, 47), (70, 33, 129), (700, 5, 3), (3, 700, 31)]
    for seed, ((M, k, n), one, other) in enumerate(itertools.product(sizes, *[["rows", "columns", "apart"]] * 2)):
        generator = torch.Generator().manual_seed(seed)
        a, b, c = (torch.randn(*size, dtype=dtype, generator=generator) for size in ((M, k), (k, n), (n,)))
        rounding = torch.finfo(dtype).eps * float((a.abs().double() @ b.abs().double()).max())
        for bias in (None, c):
            found, exact = product(lying(a, one), lying(b, other), bias), a.double() @ b.double() + (0 if bias is None else c)
            error = float((found - exact).abs().max())
            record(cases=1, worst_ratio=error / (4 * rounding))
            assert found.shape == (M, n)
            assert error <= 4 * rounding, (M, k, n, one, other)
    assert set(tiles) == {"one_step", "_weigh"}


def test_what_is_to_be_differentiated_is_torchs(tiles: list[str]) -> None:
    a, b = torch.randn(5, 7, requires_grad=True), torch.randn(7, 3)
    assert product(a, b).requires_grad
    assert product(b.mT, a.mT).requires_grad
    with torch.no_grad():
        assert tiles == []
        product(a, b)
        assert tiles == ["one_step"]


def test_so_is_what_is_not_meant_for_tiles(tiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (torch.bfloat16, torch.int64):
        product(torch.ones(5, 7, dtype=dtype), torch.ones(7, 3, dtype=dtype))
    product(torch.ones(5, 7, device="meta"), torch.ones(7, 3, device="meta"))
    torch.func.vmap(lambda a: product(a, torch.ones(7, 3)))(torch.ones(2, 5, 7))
    assert product(torch.ones(5, 0), torch.ones(0, 3)).tolist() == [[0.0] * 3] * 5
    monkeypatch.setattr(_cpu_products, "library_is_slow", lambda: False)
    product(torch.ones(5, 7), torch.ones(7, 3))
    assert tiles == []


def test_what_does_not_fit_together_is_refused_as_ever(tiles: list[str]) -> None:
    """Not read past its end, nor where it is not."""
    a, b = torch.ones(5, 7), torch.ones(7, 3)
    refused: list[tuple[Tensor, ...]] = [(a, torch.ones(8, 3)), (torch.ones(8, 5).mT, b), (a, b, torch.ones(2))]
    refused += [(a, b.double()), (a, b, torch.ones(3).double())]
    for given in refused:
        with pytest.raises(RuntimeError, match=r"shape|size|dtype"):
            product(*given)
    assert product(a, b, torch.ones(1)).eq(8).all()  # which torch allows
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        projected(torch.ones(2000, 8), torch.ones(40, 9), None)
    product(a, torch.ones(7, 3, device="meta"))
    assert tiles == []


@pytest.mark.parametrize("name", ["torch", "reference"])
def test_so_is_everything_where_the_environment_asks_for_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_engines, "OVERRIDE", name)
    assert not _cpu_products.library_is_slow.__wrapped__()


def test_only_a_large_product_loads_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cpu_products, "library_is_slow", lambda: pytest.fail("nobody has to know"))
    product(torch.ones(8, 8), torch.ones(8, 8))
