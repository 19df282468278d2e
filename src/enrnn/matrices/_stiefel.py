"""Unitary matrices that move along geodesics (full-capacity uRNN)."""

import torch
from torch import Tensor

from .._checks import positive_int
from .._precision import working_dtype
from ._complex import check_columns, check_real_form, complex_units, nearest_unitary, real_form, stacked, unitarity_error
from ._contract import Matrix
from ._inverse import shifted_skew_inverse
from ._orthogonal import polished
from ._unitary_product import UnitaryProduct


class Stiefel(Matrix):
    """Any unitary `W`, as its real form of size 2n, kept unitary by how it is updated (Wisdom et al., 2016).

    The free tensor is `[Re W; Im W]`, 2n×n. An optimiser that steps on it would leave the unitary matrices, so it has a
    `manifold_update`: with the gradient `G = ∂L/∂Re W + i·∂L/∂Im W` and `A = GW* − WG*`,

        W ← (I + (η/2)·A)⁻¹(I − (η/2)·A) W.

    `A` is skew-Hermitian, and each step exact but for rounding. The authors let the rounding add up, and take `G` from the upper
    rows of the real form alone, which leaves out what `W` does to the imaginary part of the state; here it is the whole gradient.

    Arguments:
        polish_every: after how many steps rounding is taken out of `W` (the nearest unitary matrix).

    Buffers:
        steps: how many steps have been made.
    """

    steps: Tensor

    def __init__(self, *, polish_every: int = 100) -> None:
        super().__init__()
        self.polish_every = positive_int("polish_every", polish_every)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, original: Tensor) -> Tensor:
        check_columns("the free tensor of Stiefel", original)
        return real_form(original)

    @torch.no_grad()
    def manifold_update(self, original: Tensor, lr: float | Tensor) -> None:
        gradient = original.grad
        assert gradient is not None
        W, G = original.to(working_dtype(original)), gradient.to(working_dtype(original))
        pull = real_form(G) @ real_form(W).mT
        inverse = shifted_skew_inverse((lr / 2) * (pull - pull.mT))
        original.copy_(2 * inverse @ W - W)  # (I + S)⁻¹(I − S) = 2(I + S)⁻¹ − I

    @torch.no_grad()
    def after_step(self, original: Tensor) -> None:
        """Count the step; take out rounding if it is time."""
        self.steps.add_(1)
        due = self.steps % self.polish_every == 0
        if not original.is_cuda and not due:  # on a GPU a look would cost more than the work, and cannot be captured
            return
        original.copy_(torch.where(due, polished(real_form(original))[:, : original.shape[1]], original))

    def right_inverse(self, matrix: Tensor) -> Tensor:
        """The nearest unitary matrix."""
        check_real_form("the matrix assigned to a Stiefel parametrization", matrix)
        if matrix.is_meta:
            return matrix.new_empty(matrix.shape[0], matrix.shape[0] // 2)
        return stacked(nearest_unitary(matrix)).to(matrix.dtype)

    def originals(self, size: int, like: Tensor) -> tuple[Tensor, ...]:
        return (like.new_zeros(size, complex_units("a complex matrix in real numbers", size)),)

    def initialize_(self, *originals: Tensor) -> None:
        """The authors': a random matrix of the restricted family, `UnitaryProduct`."""
        (original,) = originals
        self.steps.zero_()
        start = UnitaryProduct()
        factors = start.originals(original.shape[0], original.detach())
        start.initialize_(*factors)
        with torch.no_grad():
            original.copy_(start(*factors)[:, : original.shape[1]])

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """How far from the real form of a unitary matrix."""
        return unitarity_error(matrix)

    def free_parameters(self, size: int) -> int:
        return (size // 2) ** 2

    def extra_repr(self) -> str:
        return f"polish_every={self.polish_every}"
