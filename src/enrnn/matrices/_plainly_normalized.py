"""A matrix divided by its spectral radius, with a gradient that does not know of it: what Proposition 3.2 is judged against."""

import torch
from torch import Tensor

from .._checks import square_matrix
from ._eigenvalue_normalized import EigenvalueNormalized


class PlainlyNormalized(EigenvalueNormalized):
    """`W = T/(ρ(T) + ε)` as in `EigenvalueNormalized`, but `∂L/∂T = G/(ρ + ε)`: as if ρ did not depend on T.

    The switch, arguments and buffers are the same, so that the two differ in nothing but the gradient's second term.
    """

    def forward(self, original: Tensor) -> Tensor:
        square_matrix("the free matrix of PlainlyNormalized", original)
        with torch.no_grad():
            matrix = super().forward(original)
            ratio = torch.linalg.matrix_norm(matrix) / torch.linalg.matrix_norm(original)
            ratio = torch.where(torch.isfinite(ratio), ratio, 1)
        scaled = ratio * original
        return scaled + (matrix - scaled).detach()  # exactly W, with the gradient of a constant times T
