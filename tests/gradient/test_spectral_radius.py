"""ρ(T) against mpmath's eigenvalues with fifty digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from enrnn import EigenvalueNormalized
from enrnn.spectrum import dominant
from tests._record import Recorder
from tests.gradient._spectra import Array, matrix_with_dominant, orthogonal, rotation, spectrum, true_radius


def bound(T: Array) -> float:
    """How far ρ may be off: Bauer–Fike's κ(X)‖E‖, or Elsner's bound, which holds for defective matrices too."""
    s = spectrum(T)
    norm = float(np.linalg.norm(T))
    elsner = (2 * norm + s.rounding) ** (1 - 1 / len(T)) * s.rounding ** (1 / len(T))
    # κ(X) is itself no better than a guess where X is singular to rounding.
    return min(s.basis_condition * s.rounding if s.basis_condition < 1e12 else np.inf, elsner)


def similar(rng: np.random.Generator, *blocks: Array) -> Array:
    size = sum(len(block) for block in blocks)
    whole, at = np.zeros((size, size)), 0
    for block in blocks:
        whole[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    basis = orthogonal(rng, size) @ np.diag(rng.uniform(1.0, 2.0, size)) @ orthogonal(rng, size)
    return basis @ whole @ np.linalg.inv(basis)


def scalar(value: float) -> Array:
    return np.array([[value]])


RNG = np.random.default_rng(0)
SPECIAL: dict[str, Array] = {
    "one entry": scalar(-0.7),
    "exact tie of 1 and −1": similar(RNG, scalar(1.0), scalar(-1.0), scalar(0.2)),
    "near tie of two reals": similar(RNG, scalar(1.0), scalar(1.0 - 1e-12)),
    "near tie of opposite reals": similar(RNG, scalar(1.0), scalar(-1.0 - 1e-13), scalar(0.9)),
    "near tie of a real and a pair": similar(RNG, scalar(1.0), (1.0 - 1e-13) * rotation(1.0)),
    "near tie of two pairs": similar(RNG, rotation(1.0), (1.0 + 1e-14) * rotation(1.0 + 1e-9)),
    "a pair about to become real": similar(RNG, rotation(1e-9), scalar(0.5)),
    "nearly defective": np.array([[1.0, 1.0], [1e-14, 1.0]]),
    "defective": np.array([[0.3, 1.0, 0.0], [0.0, 0.3, 1.0], [0.0, 0.0, 0.3]]),
    "badly scaled": np.array([[1.0, 1e8], [1e-9, 0.5]]),
    "companion": np.array([[0.0, 0.0, 1.0], [1.0, 0.0, -0.5], [0.0, 1.0, 0.25]]),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_the_spectral_radius_of_special_matrices_is_right(record: Recorder, name: str) -> None:
    T = SPECIAL[name]
    truth = true_radius(T)
    error = abs(dominant(torch.from_numpy(T)).radius.item() - truth)
    record(cases=1, worst_error_over_norm=error / np.linalg.norm(T))
    assert error <= bound(T)


def test_the_spectral_radius_of_random_matrices_is_right(record: Recorder, full: bool) -> None:
    for seed in range(300 if full else 12):
        rng = np.random.default_rng(seed)
        size = 2 + seed % 7
        T = matrix_with_dominant(rng, size, "complex") if seed % 2 else rng.standard_normal((size, size))
        truth = true_radius(T)
        error = abs(dominant(torch.from_numpy(T)).radius.item() - truth)
        record(cases=1, worst_relative_error=error / truth)
        assert error <= bound(T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_the_buffer_holds_the_spectral_radius(dtype: torch.dtype) -> None:
    T = SPECIAL["near tie of a real and a pair"] * 0.5
    matrix = EigenvalueNormalized().to(dtype)
    stored = torch.from_numpy(T).to(dtype)
    matrix(stored)
    assert matrix.radius.dtype == dtype
    truth = true_radius(stored.double().numpy())
    assert abs(matrix.radius.item() - truth) <= torch.finfo(dtype).eps * truth + bound(T)
