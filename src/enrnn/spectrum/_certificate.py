"""The proof that no eigenvalue was overlooked: everything outside a resolved subspace is excluded by a bound."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..recurrence._cpu_products import product
from ._powers import UNIT, Powers


class Exclusion(NamedTuple):
    """What `exclude` has shown of the eigenvalues μ of A with |μ| ≥ radius."""

    holds: bool
    """Whether each of them is tied to an eigenvalue of the projected matrix Θ."""
    distance: float
    """How near: within `distance·κ(V)` of it, V the eigenvectors of Θ."""


def exclude(powers: Powers, matrix: Tensor, right: Tensor, left: Tensor, radius: float, squarings: int) -> Exclusion:
    """Show that every eigenvalue of A (`matrix`) with |μ| ≥ radius belongs to the subspaces spanned by `right` and `left`.

    Let `X`, `Y` [m, r] be the two bases, orthonormal, `Π = X (YᵀX)⁻¹ Yᵀ` the projector they define, `N = I − Π`, `P ≈ A^k` the
    computed power, and

        B = N P N,   R = N P X,   L = (YᵀX)⁻¹ Yᵀ A N,   Θ = (YᵀX)⁻¹ Yᵀ A X.

    Take `A x = μ x`, ‖x‖ = 1, and split `x = X c + a`, `a = N x`. Applying N to `P x = μ^k x + e`, and (YᵀX)⁻¹Yᵀ to `A x = μ x`,

        B a = μ^k a − w,   w = R c − N e,        (Θ − μ) c = −L a.

    The left equation survives squaring, `B² a = μ^{2k} a − (B + μ^k) w`, so w grows by (*) of `Powers`. If after some squarings
    `τ = ‖B^q‖/|μ|^{kq} < 1`, then `‖a‖ ≤ ω/(1 − τ)`. When that is below ½, x lies mostly in the subspace, c cannot vanish, and
    the right equation ties μ to Θ: `σ_min(Θ − μ) ≤ ‖L‖‖a‖/‖c‖`, i.e. μ is within `κ(V)‖L‖‖a‖/‖c‖` of an eigenvalue of Θ
    (Bauer–Fike). As L is at rounding level for a converged subspace, that is next to nothing.

    B is squared, not A: measured in units of radius^k its powers shrink, and rounding errors with them. At most `squarings`
    products are spent; a hopeless case (ω out of hand) is given up at once.
    """
    size, rank = right.shape
    gram = left.mT @ right
    inverse = torch.linalg.inv_ex(gram)[0]
    # ‖Π‖ = ‖(YᵀX)⁻¹‖, and ‖N‖ = ‖Π‖ for a projector that is neither 0 nor I.
    projector = torch.linalg.matrix_norm(inverse, 2).item() * (1 + 1e-6)
    defect = torch.linalg.matrix_norm(gram @ inverse - torch.eye(rank, dtype=gram.dtype, device=gram.device)).item()
    defect += 4 * size * UNIT * projector * rank  # how far the computed Π is from one, relative to ‖Π‖
    if not defect < 0.01:
        return Exclusion(False, math.inf)
    if rank == size:
        return Exclusion(True, 0.0)

    lift, colift = right @ inverse, inverse @ left.mT
    image, coimage = product(powers.matrix, right), product(left.mT, powers.matrix)
    core = colift @ image
    outer = powers.matrix - product(image, colift) - product(lift, coimage) + product(right, core @ colift)
    residual = torch.linalg.matrix_norm(image - right @ core).item()
    leak = product(colift, matrix)
    leak_norm = torch.linalg.matrix_norm(leak - product(leak @ right, colift)).item()
    leak_norm += 8 * size * UNIT * projector**2 * torch.linalg.matrix_norm(matrix).item()

    formed = (4 * defect + 16 * size * UNIT) * projector**2  # rounding in forming B and R, relative to ‖P‖
    unit = radius_power(radius, powers.k, powers.shift)
    omega = projector * (powers.drift_at(radius) + residual / unit + 2 * formed * powers.size_at(radius))
    rest = Powers(outer, powers.k, powers.shift)
    drift = omega
    for _ in range(squarings):
        if rest.size_at(radius) < 0.25 or not drift < 0.25:
            break
        rest.square()
        drift = rest.drift_at(radius, omega, projector)
    tau = rest.size_at(radius)
    if not (tau < 1 and drift < 0.4 * (1 - tau)):
        return Exclusion(False, math.inf)
    share = drift / (1 - tau)
    return Exclusion(True, leak_norm * share / (1 - share))


def radius_power(radius: float, k: int, shift: int) -> float:
    """`radius^k / 2^shift`: the unit in which a computed power is measured."""
    return math.exp2(min(max(k * math.log2(radius) - shift, -1000.0), 1000.0))
