"""Complex matrices in real numbers.

A state of n complex units is the real vector `[Re h; Im h]` of size 2n, and a complex matrix `A + iB` acts on it as the real
2n×2n matrix `[[A, −B], [B, A]]`, its real form. The first n columns of that, `[A; B]`, hold all of it: the columns of a complex
matrix, written as states are. So are complex matrices stored here. The real form of a product is the product of the real
forms, that of the adjoint the transpose; a unitary matrix has an orthogonal one, a skew-Hermitian matrix a skew-symmetric one.
"""

import torch
from torch import Tensor

from .._checks import InputError, floating_tensor, square_matrix
from ._orthogonal import finite_matrix, orthogonality_error


def stacked(matrix: Tensor) -> Tensor:
    """`[A; B]`, [2n, k], of a complex matrix `A + iB`, [n, k]."""
    return torch.cat([matrix.real, matrix.imag])


def unstacked(matrix: Tensor) -> Tensor:
    """`A + iB`, [n, k], of `[A; B]`, [2n, k]."""
    return torch.complex(*matrix.chunk(2))


def real_form(columns: Tensor) -> Tensor:
    """`[[A, −B], [B, A]]`, [2n, 2n], of `[A; B]`, [2n, n]."""
    real, imaginary = columns.chunk(2)
    return torch.cat([columns, torch.cat([-imaginary, real])], dim=1)


def nearest_complex(matrix: Tensor) -> Tensor:
    """`[A; B]`, [2n, n], whose real form is `matrix`, [2n, 2n], or the nearest to it that there is."""
    half = matrix.shape[0] // 2
    left, right = matrix[:, :half], matrix[:, half:]
    return (left + torch.cat([right[half:], -right[:half]])) / 2


def nearest_unitary(matrix: Tensor) -> Tensor:
    """The complex unitary matrix, [n, n], whose real form is nearest to `matrix`, [2n, 2n]."""
    left, _, right = torch.linalg.svd(unstacked(nearest_complex(finite_matrix(matrix))))
    nearest: Tensor = left @ right
    return nearest


def unitarity_error(matrix: Tensor) -> Tensor:
    """How far a real matrix is from the real form of a unitary one: the largest entry of `|WᵀW − I|`, or of what is between `W`
    and the nearest real form."""
    exact = matrix.detach()
    return torch.maximum(orthogonality_error(exact), (exact - real_form(nearest_complex(exact))).abs().max())


def check_real_form(name: str, matrix: Tensor) -> None:
    square_matrix(name, matrix)
    complex_units(name, matrix.shape[0])


def check_columns(name: str, columns: Tensor) -> None:
    """Reject what is not `[A; B]` of a square matrix."""
    floating_tensor(name, columns)
    if columns.dim() != 2 or columns.shape[0] != 2 * columns.shape[1]:
        raise InputError(f"{name} must be 2n×n, got shape {list(columns.shape)}")


def complex_units(name: str, size: int) -> int:
    """n, for a size of 2n."""
    if size % 2:
        raise InputError(f"the size of {name} must be even, since a complex unit is two real numbers, got: {size}")
    return size // 2
