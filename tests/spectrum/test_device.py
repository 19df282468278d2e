"""The solver for GPUs and CUDA graphs, run here on the CPU: the same results, and never a look at a value."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import enrnn
from enrnn.spectrum._device import squaring_on_device
from tests._record import Recorder
from tests.spectrum._matrices import EXTREMES, FAMILIES, in_random_basis
from tests.spectrum.test_solvers import RADIUS, SIZES, check_against_dense


def as_result(matrix: Tensor) -> enrnn.SpectralRadius:
    """In the public form, with a bound that always holds."""
    pair, certified = squaring_on_device(matrix)
    bound, none = torch.linalg.matrix_norm(matrix) * (1 + 1e-12), torch.zeros((), dtype=torch.float64)
    return enrnn.SpectralRadius(*pair[:4], bound, none, pair.condition, certified, none)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_certified_equals_the_dense_solution(name: str, record: Recorder, full: bool) -> None:
    generator = torch.Generator().manual_seed(21)
    cases = list(itertools.product(SIZES, range(40 if full else 1)))
    certified = 0
    for size, _ in cases:
        matrix = FAMILIES[name](size, generator)
        result = as_result(matrix)
        if result.certified:
            certified += 1
            check_against_dense(matrix, result, record)
    record(cases_certified=certified)
    assert certified >= 0.9 * len(cases)


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_ties_defective_and_nilpotent_matrices_give_neither_nan_nor_a_wrong_value(name: str, scale: float) -> None:
    generator = torch.Generator().manual_seed(22)
    for size in (1, 2, 3, 20, 45):
        pair, certified = squaring_on_device(EXTREMES[name](size, generator) * scale)
        for field in pair:
            assert not torch.isnan(torch.view_as_real(field) if field.is_complex() else field).any()
        if certified and name != "hidden_nilpotent":  # which rounding makes another matrix
            assert abs(pair.radius.item() - RADIUS[name] * scale) <= 1e-6 * scale


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_matrix_that_is_not_finite_is_not_certified(bad: float) -> None:
    matrix = torch.eye(5, dtype=torch.float64)
    matrix[1, 2] = bad
    pair, certified = squaring_on_device(matrix)
    assert not certified
    assert pair.radius.item() == 0.0


class NoLook(TorchDispatchMode):
    """Forbids every operation that needs a value on the host, or a decomposition that no graph can capture."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "linalg_eig", "linalg_qr", "linalg_svd")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if any(name.startswith(forbidden) for forbidden in self.FORBIDDEN):
            raise AssertionError(f"{name} looks at a value")
        return func(*args, **(kwargs or {}))


def test_no_value_is_looked_at() -> None:
    matrix = torch.randn(30, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(23))
    with NoLook():
        pair, certified = squaring_on_device(matrix)
        pair.derivative()
    assert certified
    with pytest.raises(AssertionError, match="looks at a value"), NoLook():
        bool(certified)


@pytest.mark.parametrize("gap", [0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8])
def test_of_two_eigenvalues_of_opposite_sign_the_larger_one_is_taken(gap: float) -> None:
    generator = torch.Generator().manual_seed(24)
    for size, sign in itertools.product((2, 9, 30), (1.0, -1.0)):
        spectrum = 0.5 * torch.rand(size, dtype=torch.float64, generator=generator)
        spectrum[0], spectrum[1] = sign, -sign * (1 - gap)
        pair, certified = squaring_on_device(in_random_basis(torch.diag(spectrum), generator))
        assert not certified or abs(pair.eigenvalue.item() - sign) < 1e-10
        assert certified or gap < 1e-6


@pytest.mark.parametrize("gap", [1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10])
def test_of_two_real_eigenvalues_that_are_nearly_the_same_the_smaller_one_is_not_certified(gap: float) -> None:
    certified = same_sign_is_told_apart(gap, (2, 9, 30), "cpu")
    assert all(certified) or gap == 1e-7  # where the power leaves neither a line nor a plane


def same_sign_is_told_apart(gap: float, sizes: Iterable[int], device: str) -> list[bool]:
    """Whether each was certified. Symmetric matrices, where x is nearly parallel to its image long before it is u, and others."""
    generator, found = torch.Generator().manual_seed(25), []
    for size, symmetric, sign in itertools.product(sizes, (True, False), (1.0, -1.0)):
        spectrum = 0.5 * torch.rand(size, dtype=torch.float64, generator=generator)
        spectrum[0], spectrum[1] = sign, sign * (1 - gap)
        matrix = torch.diag(spectrum)
        if symmetric:
            basis, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))
            matrix = basis @ matrix @ basis.mT
        else:
            matrix = in_random_basis(matrix, generator)
        pair, certified = squaring_on_device(matrix.to(device))
        assert not certified or abs(pair.eigenvalue.item() - sign) < 1e-12
        assert certified or gap < 1e-6
        found.append(bool(certified))
    return found
