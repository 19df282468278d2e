"""A matrix by its singular value decomposition, with factors made of reflections (Spectral RNN)."""

import torch
from torch import Tensor

from .._checks import positive_int, square_matrix
from .._precision import working_dtype
from ._contract import Matrix
from ._householder import normalize_, product, reflector_count, reflectors
from ._margin import checked_margin, free_values, margin_error, singular_values
from ._orthogonal import finite_matrix


class SVD(Matrix):
    """`W = U diag(σ) Vᵀ` with σ = `1 + 2m·(sigmoid(p) − ½)`, and `U`, `V` products of r reflections (Zhang, Lei & Dhillon, 2018).

    Free tensors: the reflectors of `U` (n×r, as in `Householder`), `p` (n), the reflectors of `V` (n×r).

    Arguments:
        reflectors: r; None for a quarter of the size, as the authors' code has it.
        margin: m, how far from one a singular value may be.
    """

    slow = ()

    def __init__(self, reflectors: int | None = None, *, margin: float = 0.01) -> None:
        super().__init__()
        self.reflectors = None if reflectors is None else positive_int("reflectors", reflectors)
        self.margin = checked_margin(margin)

    def forward(self, left: Tensor, spectrum: Tensor, right: Tensor) -> Tensor:
        U, p, V = (part.to(working_dtype(left)) for part in (left, spectrum, right))
        return ((product(U) * singular_values(p, self.margin)) @ product(V).mT).to(left.dtype)

    def after_step(self, left: Tensor, spectrum: Tensor, right: Tensor) -> None:
        """The paper's: reflectors of length one. `W` does not change by it, the next step does."""
        normalize_(left)
        normalize_(right)

    def right_inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        """From the singular value decomposition, with σ moved into the margin.

        Its factors are products of n reflections; with fewer, it is a `ValueError` unless they happen to be of that kind.
        """
        square_matrix("the matrix assigned to an SVD parametrization", matrix)
        size = matrix.shape[0]
        count = self._count(size)
        if matrix.is_meta:
            return matrix.new_empty(size, count), matrix.new_empty(size), matrix.new_empty(size, count)
        eps = torch.finfo(matrix.dtype).eps
        left, values, right = torch.linalg.svd(finite_matrix(matrix))
        p = free_values(values, self.margin, eps)
        parts = reflectors(left, count, eps), p, reflectors(right.mT, count, eps)
        return tuple(part.to(matrix.dtype) for part in parts)

    def originals(self, size: int, like: Tensor) -> tuple[Tensor, ...]:
        count = self._count(size)
        return like.new_zeros(size, count), like.new_zeros(size), like.new_zeros(size, count)

    def initialize_(self, *originals: Tensor) -> None:
        """Reflectors uniform and normalised, σ = 1."""
        left, spectrum, right = originals
        with torch.no_grad():
            spectrum.zero_()
            for part in (left, right):
                part.uniform_(-1.0, 1.0)
                normalize_(part)

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """By how much a singular value is outside the margin, at worst."""
        return margin_error(matrix, self.margin)

    def free_parameters(self, size: int) -> int:
        """`2(nr − r(r − 1)/2) + n`, as the paper counts: the lengths of the reflectors are among them."""
        count = self._count(size)
        return 2 * size * count - count * (count - 1) + size

    def extra_repr(self) -> str:
        return f"reflectors={self.reflectors}, margin={self.margin}"

    def _count(self, size: int) -> int:
        return max(1, size // 4) if self.reflectors is None else reflector_count(self.reflectors, size)
