"""A matrix by its singular value decomposition, with factors that move along geodesics (Vorontsov et al.)."""

import torch
from torch import Tensor

from .._checks import positive_int, square_matrix
from .._precision import working_dtype
from ._contract import Matrix
from ._inverse import shifted_skew_inverse
from ._margin import checked_margin, free_values, margin_error, singular_values
from ._orthogonal import finite_matrix, polished, random_orthogonal


class SoftMargin(Matrix):
    """`W = U diag(s) V` with `s = 2m·sigmoid(p) + 1 − m`; `U` and `V` are orthogonal and stay so by how they are updated.

    Free tensors: `U`, `p`, `V`. An optimiser that steps on `U` and `V` would leave the orthogonal matrices, so they have a
    `manifold_update`: with the gradient G, `A = GUᵀ − UGᵀ` and

        U ← (I + (η/2)·A)⁻¹(I − (η/2)·A) U,

    the steepest descent among the orthogonal matrices (Tagare, 2011). The authors' code has `A = GᵀU − UᵀG` there, which keeps
    `U` orthogonal, but is not the direction of steepest descent; we follow the paper.

    Arguments:
        margin: m; 0 for a matrix that is orthogonal.
        polish_every: after how many steps rounding is taken out of `U` and `V` (the nearest orthogonal matrices).

    Buffers:
        steps: how many steps have been made.
    """

    on_manifold = (0, 2)
    slow = (0, 2)

    steps: Tensor

    def __init__(self, *, margin: float = 0.1, polish_every: int = 100) -> None:
        super().__init__()
        self.margin = checked_margin(margin)
        self.polish_every = positive_int("polish_every", polish_every)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, left: Tensor, spectrum: Tensor, right: Tensor) -> Tensor:
        U, p, V = (part.to(working_dtype(left)) for part in (left, spectrum, right))
        return ((U * singular_values(p, self.margin)) @ V).to(left.dtype)

    @torch.no_grad()
    def manifold_update(self, original: Tensor, lr: float | Tensor) -> None:
        gradient = original.grad
        assert gradient is not None
        U, G = original.to(working_dtype(original)), gradient.to(working_dtype(original))
        pull = G @ U.mT
        inverse = shifted_skew_inverse((lr / 2) * (pull - pull.mT))
        original.copy_(2 * inverse @ U - U)  # (I + S)⁻¹(I − S) = 2(I + S)⁻¹ − I

    @torch.no_grad()
    def after_step(self, left: Tensor, spectrum: Tensor, right: Tensor) -> None:
        """Count the step; take out rounding if it is time."""
        self.steps.add_(1)
        due = self.steps % self.polish_every == 0
        if not left.is_cuda and not due:  # on a GPU a look would cost more than the work, and cannot be captured
            return
        for factor in (left, right):
            factor.copy_(torch.where(due, polished(factor), factor))

    def right_inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        """The singular value decomposition, with s moved into the margin."""
        square_matrix("the matrix assigned to a SoftMargin parametrization", matrix)
        if matrix.is_meta:
            return torch.empty_like(matrix), matrix.new_empty(matrix.shape[0]), torch.empty_like(matrix)
        left, values, right = torch.linalg.svd(finite_matrix(matrix))
        parts = left, free_values(values, self.margin, torch.finfo(matrix.dtype).eps), right
        return tuple(part.to(matrix.dtype).contiguous() for part in parts)

    def originals(self, size: int, like: Tensor) -> tuple[Tensor, ...]:
        return like.new_zeros(size, size), like.new_zeros(size), like.new_zeros(size, size)

    def initialize_(self, *originals: Tensor) -> None:
        """`s = 1`, and `U`, `V` the factors of a random orthogonal matrix, i.e. one of them random."""
        left, spectrum, right = originals
        self.steps.zero_()
        with torch.no_grad():
            left.copy_(random_orthogonal(left.shape[0], left))
            spectrum.zero_()
            right.zero_().fill_diagonal_(1.0)

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """By how much a singular value is outside the margin, at worst."""
        return margin_error(matrix, self.margin)

    def free_parameters(self, size: int) -> int:
        return size * (size - 1) + size

    def extra_repr(self) -> str:
        return f"margin={self.margin}"
