"""On a GPU: the fused kernel and the chain of torch operations find what LAPACK finds, and say when they do not."""

from __future__ import annotations

import itertools

import pytest
import torch

from enrnn import _nvrtc
from enrnn.spectrum import _square
from enrnn.spectrum._device import FUSED_UP_TO, _fused, _kernel, squaring_all_the_way, squaring_on_device, unpacked
from tests._record import Recorder
from tests.spectrum._matrices import EXTREMES, FAMILIES, in_random_basis
from tests.spectrum.test_device import as_result, same_sign_is_told_apart
from tests.spectrum.test_solvers import RADIUS, check_against_dense

pytestmark = pytest.mark.gpu

SIZES = (1, 2, 3, 7, 8, 9, 16, 20, 31, 32, 33, 40, 63, 64, 65, 94, 95, 96, 97, 130)


def needs_kernels() -> None:
    if reason := _nvrtc.unavailable():
        pytest.skip(reason)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_certified_equals_the_dense_solution(name: str, record: Recorder, full: bool) -> None:
    nearly_all_are_certified_and_right(name, [size for size in SIZES for _ in range(60 if full else 4)], 31, record)


def nearly_all_are_certified_and_right(name: str, sizes: list[int], seed: int, record: Recorder) -> None:
    generator = torch.Generator().manual_seed(seed)
    certified = 0
    for size in sizes:
        matrix = FAMILIES[name](size, generator)
        result = as_result(matrix.cuda())
        if result.certified:
            certified += 1
            check_against_dense(matrix, type(result)(*(field.cpu() for field in result)), record)
    record(cases_certified=certified)
    assert certified >= 0.9 * len(sizes)


def test_the_kernel_runs_up_to_its_size_and_squaring_all_the_way_beyond() -> None:
    needs_kernels()
    assert _kernel(torch.zeros(FUSED_UP_TO, FUSED_UP_TO, dtype=torch.float64, device="cuda")) is not None
    assert _kernel(torch.zeros(FUSED_UP_TO + 1, FUSED_UP_TO + 1, dtype=torch.float64, device="cuda")) is None


@pytest.mark.parametrize("size", [1, 5, 32, 33, 64, 70, 96])
def test_the_kernel_equals_squaring_all_the_way_and_itself_to_the_bit(size: int) -> None:
    needs_kernels()
    matrix = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size)).cuda()
    kernel = _kernel(matrix)
    assert kernel is not None
    poison = torch.full((6 + 4 * size,), torch.nan, dtype=torch.float64, device="cuda")
    del poison  # so that what the kernel does not write shows as NaN
    fused, again, chained = *(unpacked(_fused(matrix, kernel)) for _ in range(2)), squaring_all_the_way(matrix)
    assert fused.certified
    assert chained.certified
    torch.testing.assert_close(fused.pair.eigenvalue, chained.pair.eigenvalue, rtol=1e-11, atol=0)
    torch.testing.assert_close(fused.pair.derivative(), chained.pair.derivative(), rtol=1e-7, atol=1e-9)
    for first, second in zip(fused.pair, again.pair, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_ties_defective_and_nilpotent_matrices_give_neither_nan_nor_a_wrong_value(name: str, scale: float) -> None:
    generator = torch.Generator().manual_seed(32)
    for size in (1, 2, 3, 20, 45, 96, 100):
        pair, certified = squaring_on_device((EXTREMES[name](size, generator) * scale).cuda())
        for field in pair:
            assert not torch.isnan(torch.view_as_real(field) if field.is_complex() else field).any()
        if certified and name != "hidden_nilpotent":
            assert abs(pair.radius.item() - RADIUS[name] * scale) <= 1e-6 * scale


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_matrix_that_is_not_finite_is_not_certified(bad: float) -> None:
    for size in (5, 96, 120):
        matrix = torch.eye(size, dtype=torch.float64, device="cuda")
        matrix[1, 2] = bad
        pair, certified = squaring_on_device(matrix)
        assert not certified
        assert pair.radius.item() == 0.0


@pytest.mark.parametrize("gap", [0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8])
def test_of_two_eigenvalues_of_opposite_sign_the_larger_one_is_taken(gap: float) -> None:
    generator = torch.Generator().manual_seed(33)
    for size, sign in itertools.product((2, 9, 30, 60, 90), (1.0, -1.0)):
        spectrum = 0.5 * torch.rand(size, dtype=torch.float64, generator=generator)
        spectrum[0], spectrum[1] = sign, -sign * (1 - gap)
        pair, certified = squaring_on_device(in_random_basis(torch.diag(spectrum), generator).cuda())
        assert not certified or abs(pair.eigenvalue.item() - sign) < 1e-10
        assert certified or gap < 1e-6


@pytest.mark.parametrize("name", FAMILIES)
def test_large_matrices_are_compressed_and_equal_the_dense_solution(name: str, record: Recorder, full: bool) -> None:
    """And nearly all are certified: what is not, is found by squaring all the way."""
    needs_kernels()
    sizes = [size for size in (97, 128, 200, 333, 500, 720) for _ in range(10 if full else 2)]
    nearly_all_are_certified_and_right(name, sizes, 34, record)


@pytest.mark.parametrize("size", [97, 98, 128, 131, 144, 145, 300, 333, 719, 720, 721, 1030])
def test_a_large_matrix_is_squared_as_by_the_library(size: int, record: Recorder) -> None:
    """Sizes that end in full tiles, in edges, in both; a matrix that is not aligned; memory full of NaN; the same bits."""
    needs_kernels()
    kernels = _square.kernels_for(torch.device("cuda", 0))
    if kernels is None:
        pytest.skip("this chip has no room for the kernel")
    memory = torch.full((size * size + 1,), float("nan"), dtype=torch.float64, device="cuda")
    plain = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size)).cuda()
    for matrix in (plain, memory[1:].view(size, size).copy_(plain)):
        for count in (1, 2, 5):
            exact = matrix
            for step in range(count):
                exact = exact @ exact / (torch.linalg.vector_norm(exact) ** 2 if step else 1)
            found = _square.squared(matrix, count, kernels)
            error = float(torch.linalg.vector_norm(found - exact) / torch.linalg.vector_norm(exact))
            record(cases=1, worst_relative_error=error)
            assert error < 1e-13
            assert torch.equal(found, _square.squared(matrix, count, kernels))


def test_a_crowded_rim_is_certified() -> None:
    """As in matrices late in a training run: far more than 64 eigenvalues within a few percent of the largest."""
    needs_kernels()
    generator = torch.Generator().manual_seed(36)
    crowd = 100
    for size, gap in itertools.product((300, 720), (3e-3, 5e-5)):
        moduli = torch.rand(size // 2, dtype=torch.float64, generator=generator).sqrt()
        moduli[: crowd // 2] = 1 - gap - torch.linspace(0, 0.024, crowd // 2, dtype=torch.float64)
        moduli[0] = 1.0
        angles = 3 * torch.rand(size // 2, dtype=torch.float64, generator=generator)
        pairs = torch.view_as_real(torch.polar(moduli, angles))
        turns = [torch.stack([torch.stack([c, -s]), torch.stack([s, c])]) for c, s in pairs]
        matrix = in_random_basis(torch.block_diag(*turns), generator)
        pair, certified = squaring_on_device(matrix.cuda(), 1e-10)
        assert certified, (size, gap)
        assert abs(pair.radius.item() - 1) < 1e-9


def test_a_nearly_double_pair_is_certified() -> None:
    """Complex pairs with small angles in a basis that is not orthogonal: x and Tx are nearly parallel there."""
    generator = torch.Generator().manual_seed(35)
    for size, angle in itertools.product((40, 90, 200), (1e-1, 1e-2, 3e-3)):
        matrix = torch.diag(0.9 * torch.rand(size, dtype=torch.float64, generator=generator))
        cos, sin = torch.cos(torch.tensor(angle)), torch.sin(torch.tensor(angle))
        matrix[:2, :2] = torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64)
        _, certified = squaring_on_device(in_random_basis(matrix, generator).cuda(), 1e-10)
        assert certified


@pytest.mark.parametrize("gap", [1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11])
def test_of_two_real_eigenvalues_that_are_nearly_the_same_the_smaller_one_is_not_certified(gap: float) -> None:
    needs_kernels()
    same_sign_is_told_apart(gap, (2, 20, 33, 64, 94, 130, 300), "cuda")


@pytest.mark.parametrize("size", [20, 64, 94, 300])
def test_two_pairs_a_billionth_apart_are_told_apart(size: int, record: Recorder) -> None:
    """As training at a small rate has them: the larger of two pairs is pushed down until the other one is larger."""
    needs_kernels()
    generator = torch.Generator().manual_seed(37)
    for gap, angle in itertools.product((1e-6, 1e-7, 1e-8, 1e-9), (0.3, 1.1, 2.5)):
        matrix = torch.diag(0.9 * torch.rand(size, dtype=torch.float64, generator=generator))
        for place, radius, turn in ((0, 1.0, angle), (2, 1.0 - gap, angle + 0.4)):
            cos, sin = radius * torch.cos(torch.tensor(turn).double()), radius * torch.sin(torch.tensor(turn).double())
            matrix[place : place + 2, place : place + 2] = torch.tensor([[cos, -sin], [sin, cos]])
        pair, certified = squaring_on_device(in_random_basis(matrix, generator).cuda(), 1e-10)
        assert certified
        error = abs(pair.radius.item() - 1)
        record(cases=1, worst_error=error)
        assert error < gap / 10
        assert abs(abs(pair.eigenvalue.angle().item()) - angle) < 1e-6


def test_a_compressed_solution_is_the_same_to_the_bit_and_in_a_graph() -> None:
    needs_kernels()
    matrix = torch.randn(300, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(36)).cuda()
    first, second = squaring_on_device(matrix), squaring_on_device(matrix)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        squaring_on_device(matrix)
        with torch.cuda.graph(graph, stream=stream):
            captured = squaring_on_device(matrix)
    graph.replay()
    torch.cuda.synchronize()
    assert first.certified
    for one, other, third in zip(first.pair, second.pair, captured.pair, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)
