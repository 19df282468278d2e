"""The real form of a normal matrix: an orthogonal basis in which it is scaled rotations, side by side.

The symmetric part `S` of a normal matrix `M` commutes with the skew part `K`. So the eigenvectors of the Hermitian matrix
`H = cos φ·S + i sin φ·K` are those of `M`, and they come out orthonormal, however near eigenvalues are to each other (He &
Kressner, 2024). To λ belongs the eigenvalue `Re e^{iφ}λ` of `H`. Hence rounding mixes the eigenvectors of λ and μ by
eps/|Re e^{iφ}(λ − μ)|, and what that leaves beside the diagonal is |λ − μ| times as much: nothing to speak of, near each other or
not, unless φ looks along λ − μ. If it nearly does, one Newton step removes what is left; if it does exactly, another φ is taken.
"""

import math

import torch
from torch import Tensor

_DIRECTIONS = (1.0, 2.0, 0.5)
"""φ, one after the other until one has told all eigenvalues apart: two that differ can look exactly alike from one of them."""


def normal_basis(matrix: Tensor) -> Tensor:
    """An orthogonal `Q` that leaves of a normal `M` nothing in `QᵀMQ` but 2×2 blocks on the diagonal, and of an odd size a number
    of its own at the end.

    A pair of complex eigenvalues has a block `[[c, −s], [s, c]]`. So has a pair of equal real ones, with s = 0; of real ones that
    do not pair up, those that differ least share a block.
    """
    rounding = 16 * matrix.shape[0] * torch.finfo(matrix.dtype).eps
    found = []
    for direction in _DIRECTIONS:
        Q, radius = _seen_from(direction, matrix)
        left = float(torch.linalg.norm(_beside_blocks(Q.mT @ matrix @ Q)))
        found.append((left, Q))
        if left <= rounding * radius:
            break
    return min(found, key=lambda one: one[0])[1]


def scaled_rotations(middle: Tensor) -> tuple[Tensor, Tensor]:
    """c and s of the blocks `[[c, −s], [s, c]]` nearest to those on the diagonal, [⌊n/2⌋] each."""
    pairs = middle.shape[0] // 2
    a, b, c, d = (middle[i::2, j::2].diagonal()[:pairs] for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)))
    return (a + d) / 2, (c - b) / 2


def skew_of(basis: Tensor, turns: Tensor) -> Tensor:
    """`QBQᵀ`, exactly skew-symmetric, with the blocks `t·[[0, −1], [1, 0]]` on the diagonal of `B`."""
    pairs = 2 * len(turns)
    half = basis[:, 1:pairs:2] * turns @ basis[:, :pairs:2].mT
    skew: Tensor = half - half.mT
    return skew


def paired(values: Tensor) -> Tensor:
    """The order of ascending numbers in which neighbours are in pairs that differ least; of an odd count, the odd one is last."""
    order = torch.arange(len(values), device=values.device)
    if len(values) % 2 == 0:
        return order
    # Without the k-th, k even, it is 0 with 1, …, k − 2 with k − 1, and then k + 1 with k + 2, ….
    steps = values.diff().square()
    none = steps.new_zeros(1)
    before = torch.cat([none, steps[0::2].cumsum(0)])
    after = torch.cat([steps[1::2].flip(0).cumsum(0).flip(0), none])
    alone = 2 * int((before + after).argmin())
    return torch.cat([order[:alone], order[alone + 1 :], order[alone : alone + 1]])


def _seen_from(direction: float, matrix: Tensor) -> tuple[Tensor, float]:
    """The basis as one φ has it, and the spectral radius.

    An eigenvector `x + iy` of an eigenvalue above the real line gives the plane of x and y. What is orthogonal to these planes
    belongs to the real eigenvalues, and there `M` is symmetric.
    """
    size = matrix.shape[0]
    symmetric, skew = (matrix + matrix.mT) / 2, (matrix - matrix.mT) / 2
    _, U = torch.linalg.eigh(torch.complex(math.cos(direction) * symmetric, math.sin(direction) * skew))
    M = matrix.to(U.dtype)
    U = _told_apart(M, U)
    values = (U.conj() * (M @ U)).sum(0)
    radius = float(values.abs().max())
    upper = values.imag.argsort(descending=True)[: size // 2]
    upper = upper[values.imag[upper] > 8 * size * torch.finfo(matrix.dtype).eps * radius]
    Q, _ = torch.linalg.qr(torch.view_as_real(U[:, upper]).flatten(1), mode="complete")
    planes, rest = Q[:, : 2 * len(upper)], Q[:, 2 * len(upper) :]
    numbers, vectors = torch.linalg.eigh(rest.mT @ symmetric @ rest)
    return torch.cat([planes, (rest @ vectors)[:, paired(numbers)]], dim=1), radius


def _told_apart(M: Tensor, U: Tensor) -> Tensor:
    """One Newton step: `U(I + X)` makes `E = UᴴMU` diagonal to first order with `X_ij = E_ij/(λ_j − λ_i)`, skew-Hermitian."""
    E = U.mH @ M @ U
    values = E.diagonal()
    gap = values - values.unsqueeze(1)
    small = E.abs() < 0.1 * gap.abs()  # nowhere on the diagonal
    X = torch.where(small, E / torch.where(small, gap, 1), 0)
    refined: Tensor = torch.linalg.qr(U + U @ (X - X.mH) / 2)[0]
    return refined


def _beside_blocks(matrix: Tensor) -> Tensor:
    """What stands beside the 2×2 blocks on the diagonal."""
    block = torch.arange(matrix.shape[0], device=matrix.device) // 2
    return torch.where(block.unsqueeze(1) != block, matrix, 0)
