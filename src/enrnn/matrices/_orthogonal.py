"""What the orthogonal families share: how far a matrix is from them, and the way back."""

import torch
from torch import Tensor

from .._precision import working_dtype


def orthogonality_error(matrix: Tensor) -> Tensor:
    """The largest entry of `|WᵀW − I|`."""
    exact = matrix.detach().to(working_dtype(matrix))
    identity = torch.eye(exact.shape[0], dtype=exact.dtype, device=exact.device)
    return (exact.mT @ exact - identity).abs().max()


def finite_matrix(matrix: Tensor) -> Tensor:
    """`matrix` in the precision constraints are computed in, or a `ValueError`."""
    exact = matrix.detach().to(working_dtype(matrix))
    if not torch.isfinite(exact).all():
        raise ValueError("the matrix assigned has entries that are not finite")
    return exact


def nearest_orthogonal(matrix: Tensor) -> Tensor:
    """The polar factor `UVᵀ` of `M = UΣVᵀ`, in the precision constraints are computed in."""
    left, _, right = torch.linalg.svd(finite_matrix(matrix))
    nearest: Tensor = left @ right
    return nearest


def polished(matrix: Tensor) -> Tensor:
    """The polar factor of a matrix that rounding has moved off the orthogonal ones.

    Newton and Schulz's `X ← X(3I − XᵀX)/2`, twice: each squares the error, and unlike an SVD it is a few products, which a CUDA
    graph can hold.
    """
    exact = matrix.detach().to(working_dtype(matrix))
    for _ in range(2):
        exact = 1.5 * exact - 0.5 * exact @ (exact.mT @ exact)
    return exact


def random_orthogonal(size: int, like: Tensor) -> Tensor:
    """Uniformly distributed over all orthogonal matrices."""
    normal = torch.randn(size, size, dtype=working_dtype(like), device=like.device)
    Q, R = torch.linalg.qr(normal)
    uniform: Tensor = Q * R.diagonal().sign()
    return uniform
