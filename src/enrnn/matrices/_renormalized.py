"""The paper's straw man: descend on the matrix itself, then divide it by its spectral radius."""

import torch
from torch import Tensor

from .._checks import square_matrix
from ._eigenvalue_normalized import EigenvalueNormalized


class Renormalized(EigenvalueNormalized):
    """`W` is the free matrix; after each step of the optimiser it is divided by ρ(W) + ε, from the first moment ρ(W) exceeds 1.

    §3.1 says against it that the gradient knows nothing of the division, so that a step that lowers the loss may no longer do so
    after it. The switch, arguments and buffers are those of `EigenvalueNormalized`, so that the two differ in nothing else.
    """

    def forward(self, original: Tensor) -> Tensor:
        square_matrix("the free matrix of Renormalized", original)
        return original

    @torch.no_grad()
    def after_step(self, original: Tensor) -> None:
        original.copy_(super().forward(original))

    def right_inverse(self, matrix: Tensor) -> Tensor:
        """`W` itself."""
        square_matrix("the matrix assigned to a Renormalized parametrization", matrix)
        return matrix
