"""The certificate: it holds for what is true, and cannot be had for what is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

import enrnn
from enrnn.spectrum._certificate import exclude
from enrnn.spectrum._powers import Powers
from enrnn.spectrum._squaring import FURTHER, squaring
from tests._record import Recorder
from tests.spectrum._matrices import FAMILIES, in_random_basis


def invariant_subspaces(matrix: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal real bases of the right and left invariant subspaces of the chosen eigenvalues (with their conjugates)."""
    _, right = torch.linalg.eig(matrix)
    left = torch.linalg.inv(right).mH
    bases = []
    for vectors in (right[:, chosen], left[:, chosen]):
        parts = torch.cat([vectors.real, vectors.imag], dim=1)
        basis, _, _ = torch.linalg.svd(parts, full_matrices=False)
        bases.append(basis[:, : int(torch.linalg.matrix_rank(parts, rtol=1e-8))])
    return bases[0], bases[1]


def is_certified(matrix: Tensor, chosen: Tensor) -> bool:
    """Offer the subspace of the chosen eigenvalues to the certificate, the largest of them as the spectral radius."""
    powers = Powers(matrix)
    for _ in range(6):
        powers.square()
    right, left = invariant_subspaces(matrix, chosen)
    radius = torch.linalg.eigvals(matrix)[chosen].abs().max().item()
    return exclude(powers, matrix, right, left, radius, FURTHER).holds


def runner_up(matrix: Tensor, gap: float) -> tuple[Tensor, Tensor]:
    """Masks of the dominant eigenvalue with its conjugate, and of everything within `gap` below it."""
    moduli = torch.linalg.eigvals(matrix).abs()
    top = moduli > moduli.max() * (1 - 1e-9)
    return top, (moduli > moduli.max() * (1 - gap)) & ~top


@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("size", [20, 61])
def test_a_converged_runner_up_is_refused(gap: float, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    spectrum = 0.8 * torch.rand(size, dtype=torch.float64, generator=generator)
    spectrum[0], spectrum[1] = 1.0, -(1.0 - gap)
    matrix = in_random_basis(torch.diag(spectrum), generator)
    top, second = runner_up(matrix, 2 * gap)
    assert is_certified(matrix, top | second)
    assert not is_certified(matrix, second)


def test_a_runner_up_in_a_gaussian_matrix_is_refused(full: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(100 if full else 10):
        matrix = FAMILIES["gaussian"](50, generator)
        top, second = runner_up(matrix, 0.5)
        assert is_certified(matrix, top | second)
        assert not is_certified(matrix, second)


def test_the_bound_holds_for_every_power_and_tightens(record: Recorder) -> None:
    generator = torch.Generator().manual_seed(4)
    for name, size in [("gaussian", 30), ("trained", 60), ("positive", 11), ("near_tie", 25), ("initial", 33)]:
        matrix = FAMILIES[name](size, generator)
        radius = torch.linalg.eigvals(matrix).abs().max().item()
        powers = Powers(matrix)
        bounds = [powers.bound()]
        for _ in range(9):
            powers.square()
            bounds.append(powers.bound())
        assert all(bound >= radius * (1 - 1e-13) for bound in bounds)
        assert bounds[-1] < 1.02 * radius
        record(cases=1, worst_excess=bounds[-1] / radius - 1)


def test_rounding_is_accounted_for_by_the_drift() -> None:
    """`P x − μ^k x` for true eigenvectors x, measured, stays below the bound of (*)."""
    generator = torch.Generator().manual_seed(5)
    for size in (10, 60):
        matrix = FAMILIES["trained"](size, generator)
        values, vectors = torch.linalg.eig(matrix)
        index = values.abs().argmax()
        mu, x = values[index], vectors[:, index]
        powers = Powers(matrix)
        for _ in range(6):
            powers.square()
            unit = mu**powers.k * 2.0**-powers.shift
            image = powers.matrix.to(x.dtype) @ x
            drift = torch.linalg.vector_norm(image / unit - x).item()
            # LAPACK's own x and μ are off by rounding too, which the k-th power magnifies k times.
            own = powers.k * size * 1e-15 * powers.size_at(abs(mu).item())
            assert drift <= powers.drift_at(abs(mu).item()) + own
            assert powers.drift_at(abs(mu).item()) < 1e-3


def real_matrices() -> list[Path]:
    folder = Path(os.environ.get("ENRNN_DATA", "")) / "short_term_matrices"
    return sorted(folder.glob("T_*.npy")) if folder.is_dir() else []


@pytest.mark.parametrize("file", real_matrices() or [None], ids=lambda file: file.stem if file else "none")
def test_short_term_matrices_of_real_training_are_certified_and_right(file: Path | None, record: Recorder) -> None:
    if file is None:
        pytest.skip("no short-term matrices: set ENRNN_DATA to a folder that holds short_term_matrices/T_*.npy")
    numpy = pytest.importorskip("numpy")
    matrix = torch.from_numpy(numpy.load(file)).double()
    found = squaring(matrix)
    truth = enrnn.spectral_radius(matrix, "dense")
    assert found is not None
    assert found.certified
    error = (found.pair.radius / truth.value - 1).abs().item()
    assert error < 1e-12
    phase = truth.eigenvalue.conj() / truth.value
    exact = phase * torch.outer(truth.left.conj(), truth.right) / (truth.left.conj() @ truth.right)
    off = torch.linalg.matrix_norm(found.pair.derivative() - exact.real) / torch.linalg.matrix_norm(exact.real)
    assert off < 1e-9
    record(worst_error=error, worst_derivative=off, squarings=found.squarings)
    moduli = torch.linalg.eigvals(matrix).abs()
    second = moduli[moduli < moduli.max() * (1 - 1e-9)].max()
    assert not is_certified(matrix / 8, (moduli - second).abs() < 1e-9)
