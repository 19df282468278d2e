"""A matrix divided by its largest singular value (SN-GAN)."""

import torch
from torch import Tensor

from .._checks import square_matrix
from .._precision import working_dtype
from ._contract import Matrix
from ._eigenvalue_normalized import EigenvalueNormalized


class SpectralNorm(Matrix):
    """`W = T/‖T‖₂` (Miyato et al., 2018). Its spectral radius is at most one, and for most `T` much less, which is what the paper
    (§2) has against it.

    The norm is exact, where SN-GAN has one step of the power method. `T = 0` is left as it is.
    """

    slow = ()

    def forward(self, original: Tensor) -> Tensor:
        square_matrix("the free matrix of SpectralNorm", original)
        exact = original.to(working_dtype(original))
        norm = torch.linalg.svdvals(exact)[0]
        return (exact / torch.where(norm == 0, 1, norm)).to(original.dtype)

    def right_inverse(self, matrix: Tensor) -> Tensor:
        """`T = W`, which `forward` takes back to `W/‖W‖₂`."""
        square_matrix("the matrix assigned to a SpectralNorm parametrization", matrix)
        return matrix

    def initialize_(self, *originals: Tensor) -> None:
        """As `EigenvalueNormalized`: scaled rotations on the diagonal."""
        EigenvalueNormalized().initialize_(*originals)

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """By how much the largest singular value exceeds 1."""
        values: Tensor = torch.linalg.svdvals(matrix.detach().to(working_dtype(matrix)))
        return (values[0] - 1).clamp_min(0)

    def free_parameters(self, size: int) -> int:
        return size * size
