"""The fast solver: repeated squaring, a block of vectors, two-sided Rayleigh–Ritz, and a certificate."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..recurrence._cpu_products import product
from ._certificate import exclude
from ._dense import Dominant, power_of_two_above
from ._powers import UNIT, Powers

BLOCK = 32
"""Vectors in the block. Near ties are the rule in training, and every eigenvalue near the largest needs a place in it."""

STAGES = ((5, 2), (6, 3), (7, 3))
"""(j, rounds): after j squarings, so many rounds of applications and looks, before the next squaring. A round costs about as much
as a squaring at m = 720 and does as much for the block; and the power must stay low, because its rounding error is what the
certificate starts from."""

APPLICATIONS = 4
"""How often the power is applied to the block in one round."""

FURTHER = 5
"""How many more squarings the certificate may spend on what is left outside the resolved subspace."""

RESOLVED = 1e-9
"""The residual, relative to ‖A‖, below which a Ritz pair counts as resolved."""

DOUBT = 1e-6
"""λ is not certified, by any method, when LAPACK's backward error times its condition exceeds this fraction of ρ."""

SEPARATION = 1e-6
"""How near, relative to ρ, the certificate must tie every large eigenvalue to a resolved one. It is there to rule out a further
eigenvalue; how accurate the resolved ones are is told by their own residuals."""


class Found(NamedTuple):
    """The dominant pair as far as it was found, with the evidence."""

    pair: Dominant
    upper_bound: float
    """ρ ≤ upper_bound, rounding included, certified or not."""
    residual: float
    """max(‖Tu − λu‖, ‖v*T − λv*‖) for unit vectors: (λ, u, v) is exact for a matrix no further than that from T."""
    certified: bool
    squarings: int


def squaring(matrix: Tensor, accuracy: float = 1e-12) -> Found | None:
    """The dominant eigenvalue of one finite float64 matrix, or None if the block never resolved any eigenvalue.

    The columns of `A^k X`, orthonormalised, tend to the right invariant subspace of the largest eigenvalues, those of
    `(Aᵀ)^k Y` to the left one. On the two subspaces the eigenproblem is that of `Θ = (YᵀX)⁻¹ YᵀAX`, of the block's size. The
    pairs with small residuals on both sides are the resolved ones; the largest of them is the candidate, and `exclude` has to
    show that nothing else is as large.
    """
    scale = power_of_two_above(matrix.abs().max())
    scaled = matrix / scale
    size = matrix.shape[-1]
    norm = torch.linalg.matrix_norm(scaled).item()
    powers = Powers(scaled)
    generator = torch.Generator().manual_seed(size)
    start = torch.randn(2, size, min(BLOCK, size), dtype=matrix.dtype, generator=generator).to(matrix.device)
    right, left = start[0], start[1]

    found = None
    rank = 0
    squarings = 0
    for wanted, rounds in STAGES:
        while squarings < wanted:
            powers.square()
            squarings += 1
        for _ in range(rounds):
            for _ in range(APPLICATIONS):
                right, left = _orthonormal(product(powers.matrix, right)), _orthonormal(product(powers.matrix.mT, left))
            ritz = _rayleigh_ritz(scaled, right, left, RESOLVED * norm)
            if ritz is None or not _accurate(ritz, norm, accuracy) or ritz.right_basis.shape[1] <= rank:
                continue  # nothing new to show
            rank = ritz.right_basis.shape[1]
            exclusion = exclude(powers, scaled, ritz.right_basis, ritz.left_basis, ritz.radius, FURTHER)
            certified = exclusion.holds and exclusion.distance * ritz.vector_condition < SEPARATION * ritz.radius
            found = Found(
                Dominant(ritz.eigenvalue.abs() * scale, ritz.eigenvalue * scale, ritz.right, ritz.left, ritz.condition),
                powers.bound() * scale.item(),
                ritz.residual * scale.item(),
                certified,
                squarings,
            )
            if certified:
                return found
    return found


def _accurate(ritz: "_Ritz", norm: float, accuracy: float) -> bool:
    """Whether the estimated error of ρ, ‖r‖·condition/ρ, is below `accuracy`, or below what rounding T itself may cause (unless
    that is so much that even the leading digits are in doubt)."""
    condition = ritz.condition.item()
    rounding = 50 * UNIT * condition * norm
    return ritz.residual * condition < max(accuracy * ritz.radius, rounding) and rounding < DOUBT * ritz.radius


class _Ritz(NamedTuple):
    eigenvalue: Tensor
    right: Tensor
    left: Tensor
    radius: float
    residual: float
    condition: Tensor
    right_basis: Tensor
    left_basis: Tensor
    vector_condition: float
    """κ(V), the condition of the eigenvectors of the projected matrix."""


def _rayleigh_ritz(matrix: Tensor, right: Tensor, left: Tensor, tolerance: float) -> _Ritz | None:
    """The resolved Ritz pairs on two subspaces given by orthonormal bases [m, p]; None if there are none.

    The small problem is solved on the host, where so small a matrix belongs.
    """
    image, coimage = product(matrix, right), product(left.mT, matrix)
    gram = (left.mT @ right).cpu()
    projected = (left.mT @ image).cpu()
    theta = torch.linalg.solve_ex(gram, projected)[0]
    if not torch.isfinite(theta).all():
        return None
    values, vectors = torch.linalg.eig(theta)
    covectors = torch.linalg.solve_ex(vectors, torch.linalg.inv_ex(gram)[0].to(vectors.dtype))[0]  # V⁻¹ (YᵀX)⁻¹
    if not torch.isfinite(torch.view_as_real(covectors)).all():
        return None

    wide = vectors.to(matrix.device)
    tall = covectors.to(matrix.device)
    complex_values = values.to(matrix.device)
    u = _lift(right, wide)  # [m, p], columns
    v = _lift(left, tall.mT)  # [m, p], columns; vᵀ are the left vectors, with vᵀu = I
    u_norm, v_norm = torch.linalg.vector_norm(u, dim=0), torch.linalg.vector_norm(v, dim=0)
    right_residual = torch.linalg.vector_norm(_lift(image, wide) - u * complex_values, dim=0) / u_norm
    left_residual = torch.linalg.vector_norm(_lift(coimage.mT, tall.mT) - v * complex_values, dim=0) / v_norm
    worst = torch.maximum(right_residual, left_residual).cpu()
    resolved = (worst < tolerance).nonzero().flatten()
    if resolved.numel() == 0:
        return None
    upper = resolved[values[resolved].imag >= 0]
    if upper.numel() == 0:
        return None
    order = upper[values[upper].abs().argsort(descending=True)]
    top = int(order[0])

    # The conjugate of a resolved complex pair is resolved as well: real and imaginary parts span both.
    paired = order[values[order].imag > 0].to(matrix.device)
    alone = order[values[order].imag == 0].to(matrix.device)
    right_basis = _orthonormal(torch.cat([u[:, paired].real, u[:, paired].imag, u[:, alone].real], dim=1))
    left_basis = _orthonormal(torch.cat([v[:, paired].real, v[:, paired].imag, v[:, alone].real], dim=1))
    chosen = torch.cat([vectors[:, order], vectors[:, order[values[order].imag > 0]].conj_physical()], dim=1)
    singular = torch.linalg.svdvals(chosen / torch.linalg.vector_norm(chosen, dim=0))

    return _Ritz(
        eigenvalue=complex_values[top],
        right=u[:, top] / u_norm[top],
        left=v[:, top].conj_physical() / v_norm[top],
        radius=values[top].abs().item(),
        residual=worst[top].item(),
        condition=u_norm[top] * v_norm[top],
        right_basis=right_basis,
        left_basis=left_basis,
        vector_condition=(singular[0] / singular[-1]).item() if singular[-1] > 0 else math.inf,
    )


def _lift(basis: Tensor, coefficients: Tensor) -> Tensor:
    """A real basis times complex coefficients, without making the basis complex."""
    return torch.complex(basis @ coefficients.real, basis @ coefficients.imag)


def _orthonormal(block: Tensor) -> Tensor:
    basis: Tensor = torch.linalg.qr(block)[0]
    return basis
