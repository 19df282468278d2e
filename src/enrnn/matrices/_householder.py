"""Orthogonal matrices as products of Householder reflections (oRNN)."""

import torch
from torch import Tensor

from .._checks import InputError, floating_tensor, positive_int, square_matrix
from .._precision import working_dtype
from ._contract import Matrix
from ._orthogonal import nearest_orthogonal, orthogonality_error


class Householder(Matrix):
    """`W = H_1 H_2 ⋯ H_m` with `H_j = I − 2u_ju_jᵀ/‖u_j‖²`, where the first j − 1 entries of `u_j` are zero.

    The free matrix is n×m, its columns are the `u_j`, and what stands above its diagonal is not read. With m = n the last
    reflection acts on one coordinate alone and is `diag(1, …, 1, ±1)` with the sign of the last entry, so that every orthogonal
    matrix can be written; that sign has no gradient, and fixes the determinant (Mhammedi et al., 2017). A column of zeros stands
    for the identity.

    All reflections are formed at once, in the compact WY form `W = I − U S⁻¹Uᵀ` with the upper triangular
    `S = triu(UᵀU, 1) + ½ diag(UᵀU)`.

    Arguments:
        reflectors: m; None for as many as the size.
    """

    def __init__(self, reflectors: int | None = None) -> None:
        super().__init__()
        self.reflectors = None if reflectors is None else positive_int("reflectors", reflectors)

    def forward(self, original: Tensor) -> Tensor:
        floating_tensor("the free matrix of Householder", original)
        if original.dim() != 2 or original.shape[0] < original.shape[1]:
            raise InputError(f"the free matrix of Householder must be n×m with m ≤ n, got shape {list(original.shape)}")
        return product(original.to(working_dtype(original))).to(original.dtype)

    def after_step(self, *originals: Tensor) -> None:
        """The paper's: columns of length one, zero above the diagonal. `W` does not change by it, the next step does."""
        for original in originals:
            normalize_(original)

    def right_inverse(self, matrix: Tensor) -> Tensor:
        """The `u_j` that take column after column of the nearest orthogonal matrix to the identity's.

        With fewer reflectors than the size, a matrix that is no such product is a `ValueError`.
        """
        square_matrix("the matrix assigned to a Householder parametrization", matrix)
        count = self._count(matrix.shape[0])
        if matrix.is_meta:
            return matrix.new_empty(matrix.shape[0], count)
        return reflectors(nearest_orthogonal(matrix), count, torch.finfo(matrix.dtype).eps).to(matrix.dtype)

    def originals(self, size: int, like: Tensor) -> tuple[Tensor, ...]:
        return (like.new_zeros(size, self._count(size)),)

    def initialize_(self, *originals: Tensor) -> None:
        """Normal numbers below the diagonal, columns normalised."""
        for original in originals:
            with torch.no_grad():
                original.normal_()
            normalize_(original)

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """The largest entry of `|WᵀW − I|`."""
        return orthogonality_error(matrix)

    def free_parameters(self, size: int) -> int:
        """`nm − m(m − 1)/2`, as the paper counts: the lengths of the `u_j` are among them."""
        count = self._count(size)
        return size * count - count * (count - 1) // 2

    def extra_repr(self) -> str:
        return "" if self.reflectors is None else f"reflectors={self.reflectors}"

    def _count(self, size: int) -> int:
        return reflector_count(self.reflectors, size)


def reflector_count(count: int | None, size: int) -> int:
    if count is not None and count > size:
        raise ValueError(f"reflectors must not exceed the size, {size}, got: {count}")
    return size if count is None else count


def product(original: Tensor) -> Tensor:
    """`H_1 ⋯ H_m`, [n, n], from an n×m matrix; in the dtype given."""
    size, count = original.shape
    U = original.tril()
    if count == size:
        last = U[-1, -1].detach()
        U = U[:, :-1]
    identity = torch.eye(size, dtype=U.dtype, device=U.device)
    lengths = U.square().sum(dim=0)
    S = (U.mT @ U).triu(1) + identity[: len(lengths), : len(lengths)] * torch.where(lengths == 0, 1, lengths / 2)
    W: Tensor = identity - torch.linalg.solve_triangular(S, U, upper=True, left=False) @ U.mT
    if count == size:
        W = torch.cat([W[:, :-1], torch.where(last < 0, -1, 1) * W[:, -1:]], dim=1)
    return W


def reflectors(orthogonal: Tensor, count: int, eps: float) -> Tensor:
    """The n×m matrix of `u_j` whose product is `orthogonal`, which is right up to `eps`."""
    size = orthogonal.shape[0]
    rest = orthogonal.clone()
    U = orthogonal.new_zeros(size, count)
    for j in range(min(count, size - 1)):
        x = rest[j:, j]
        u = x.clone()
        # u = x − e, and its first entry x₁ − 1 = −‖x₂,…‖²/(1 + x₁) without cancellation, since ‖x‖ = 1.
        u[0] = -x[1:].square().sum() / (1 + x[0]) if x[0] > 0 else x[0] - 1
        if torch.linalg.vector_norm(u) <= 4 * torch.finfo(u.dtype).eps:
            u = torch.zeros_like(u)
            u[1] = 1  # x is e already, and this reflection leaves it there
        u /= torch.linalg.vector_norm(u)
        rest[j:, j:] -= 2 * torch.outer(u, u @ rest[j:, j:])
        U[j:, j] = u
    if count == size:
        U[-1, -1] = rest[-1, -1].sign()
    elif (rest - torch.eye(size, dtype=rest.dtype, device=rest.device)).abs().max() > 100 * size * eps:
        raise ValueError(f"the matrix assigned is not the product of {count} reflections; {size} of them can write any")
    return U


def normalize_(original: Tensor) -> None:
    """Columns of length one, zero above the diagonal; a column of zeros is left alone."""
    with torch.no_grad():
        lower = original.tril()
        lengths = torch.linalg.vector_norm(lower, dim=0)
        original.copy_(lower / torch.where(lengths == 0, 1, lengths))
