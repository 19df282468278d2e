"""Spectral radii and powers of matrices: what their kernels compute. (Of threads in any order: `test_order.py`.)"""

from __future__ import annotations

import pytest
import torch

from enrnn.matrices import _normalization
from enrnn.spectrum import _square
from enrnn.spectrum._device import squaring_on_device
from tests.emulated.test_matrices import noise
from tests.emulator._chip import Emulated


@pytest.mark.parametrize("size", [20, 50, 70, 120])
def test_spectral_radii(size: int, emulated: Emulated, full: bool) -> None:
    """One block, four, six; and the kernels of large matrices. A matrix whose powers would be zero, were it not scaled."""
    if size < 100 or full:  # half a minute else
        emulated.watch()
    matrix = 2.0**-700 * noise(size, size, seed=size)
    pair, certified = squaring_on_device(matrix)
    values = torch.linalg.eigvals(matrix)
    assert certified
    torch.testing.assert_close(pair.radius, values.abs().max(), rtol=1e-11, atol=0)
    for operator, vector, value in ((matrix, pair.right, pair.eigenvalue), (matrix.mT, pair.left, pair.eigenvalue.conj())):
        torch.testing.assert_close(operator.to(vector.dtype) @ vector, value * vector, rtol=0, atol=1e-9 * float(pair.radius))
    assert emulated.launched


def test_a_large_matrix_in_float32(emulated: Emulated) -> None:
    """As the normalisation has it, which has looked for its largest entries."""
    matrix = noise(100, 100).float()
    kernels = _normalization.kernels_for(matrix)
    assert kernels is not None
    pair, certified = squaring_on_device(matrix, 1e-10, _normalization.largest(kernels, matrix))
    assert certified
    torch.testing.assert_close(pair.radius, torch.linalg.eigvals(matrix.double()).abs().max(), rtol=1e-9, atol=0)
    assert emulated.launched[:2] == ["largest", "scaled_single"]


@pytest.mark.parametrize("size", [131, 144])
def test_squares_of_large_matrices(size: int, emulated: Emulated) -> None:
    """Tiles that are full and that are not; each kernel begins before the one before it has ended."""
    emulated.watch()
    kernels = _square.kernels_for(torch.device("cpu"))
    assert kernels is not None
    matrix = noise(size, size)
    exact = matrix @ matrix
    exact = exact @ exact / torch.linalg.vector_norm(exact) ** 2
    with emulated.at_once():
        found = _square.squared(matrix, 2, kernels)
    assert float(torch.linalg.vector_norm(found - exact) / torch.linalg.vector_norm(exact)) < 1e-13
