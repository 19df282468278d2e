"""Matrices with a chosen dominant eigenvalue, and Proposition 3.2 evaluated without torch.

Everything here is NumPy, SciPy in float64 and mpmath, and written from the mathematics, so that it shares no line with what it
is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass

import mpmath
import numpy as np
import scipy.linalg
from numpy.typing import NDArray

EPS = float(np.finfo(np.float64).eps)
Array = NDArray[np.float64]


def true_radius(T: Array) -> float:
    """ρ(T) from eigenvalues with fifty digits."""
    if len(T) == 1:
        # mpmath returns the eigenvalue of a 1×1 matrix in another shape.
        return float(abs(T[0, 0]))
    with mpmath.workdps(50):
        values = mpmath.eig(mpmath.matrix(T.tolist()), left=False, right=False)
        return float(max(abs(value) for value in values))


def matrix_with_dominant(rng: np.random.Generator, size: int, kind: str) -> Array:
    """A non-normal matrix whose eigenvalue of largest modulus is "real" or "complex" (a conjugate pair), simple, and
    ahead of all others by a fifth."""
    radius = float(np.exp(rng.uniform(np.log(0.3), np.log(3.0))))
    if kind == "real":
        blocks = [np.array([[radius * rng.choice([-1.0, 1.0])]])]
    else:
        blocks = [radius * rotation(rng.uniform(0.3, np.pi - 0.3))]
    left = size - blocks[0].shape[0]
    while left:
        modulus = radius * rng.uniform(0.0, 0.8)
        if left == 1 or rng.random() < 0.5:
            blocks.append(np.array([[modulus * rng.choice([-1.0, 1.0])]]))
        else:
            blocks.append(modulus * rotation(rng.uniform(0.3, np.pi - 0.3)))
        left -= blocks[-1].shape[0]
    basis = orthogonal(rng, size) @ np.diag(np.exp(rng.uniform(0.0, 1.0, size))) @ orthogonal(rng, size)
    return basis @ scipy.linalg.block_diag(*blocks) @ np.linalg.inv(basis)


def rotation(angle: float) -> Array:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def orthogonal(rng: np.random.Generator, size: int) -> Array:
    q, r = np.linalg.qr(rng.standard_normal((size, size)))
    return q * np.sign(np.diag(r))


@dataclass(frozen=True)
class Spectrum:
    """The dominant eigenvalue of `T` by SciPy, and how sensitive all of this is to a perturbation of `T`."""

    T: Array
    eigenvalue: complex
    right: NDArray[np.complex128]
    left: NDArray[np.complex128]
    basis_condition: float
    """κ(X) of the matrix of eigenvectors: eigenvalues move by at most κ(X)‖E‖ under a perturbation E (Bauer–Fike)."""
    lead: float
    """ρ minus the modulus of the next eigenvalue (the conjugate does not count)."""
    distance: float
    """|λ − μ| for the nearest other eigenvalue μ, the conjugate included."""

    @property
    def radius(self) -> float:
        return abs(self.eigenvalue)

    @property
    def condition(self) -> float:
        """‖u‖‖v‖/|v*u|: by how much λ moves, to first order, under a perturbation of norm 1."""
        u, v = self.right, self.left
        return float(np.linalg.norm(u) * np.linalg.norm(v) / abs(np.vdot(v, u)))

    @property
    def rounding(self) -> float:
        """The backward error of a dense eigensolver: it solves for T + E, with ‖E‖ below this."""
        return 4 * len(self.T) * EPS * float(np.linalg.norm(self.T))

    def C(self, *, conjugate: bool = False) -> Array:
        """Proposition 3.2's `α Re S + β Im S`, `S = v̄uᵀ/(v*u)`, for λ or for its conjugate."""
        u, v, eigenvalue = self.right, self.left, self.eigenvalue
        if conjugate:
            u, v, eigenvalue = u.conj(), v.conj(), eigenvalue.conjugate()
        S = np.outer(v.conj(), u) / np.vdot(v, u)
        return eigenvalue.real * S.real + eigenvalue.imag * S.imag

    def error_of_C(self) -> float:
        """How far two computed C may differ. With the projector P, ‖P‖ = condition, and the reduced resolvent R,
        ‖R‖ ≤ κ(X)/distance, first-order perturbation theory gives dC = Re(dλ̄ Pᵀ + λ̄ (P E R + R E P)ᵀ)."""
        resolvent = 0.0 if len(self.T) == 1 else self.basis_condition / self.distance
        return 2 * self.rounding * self.condition * (self.condition + 2 * self.radius * resolvent)


def spectrum(T: Array) -> Spectrum:
    values, lefts, rights = scipy.linalg.eig(T, left=True, right=True)
    index = int(np.argmax(np.abs(values)))
    eigenvalue = complex(values[index])
    others = np.delete(values, index)
    distance = float(np.abs(others - eigenvalue).min(initial=np.inf))
    if eigenvalue.imag != 0:
        others = np.delete(others, np.argmin(np.abs(others - eigenvalue.conjugate())))
    lead = abs(eigenvalue) - float(np.abs(others).max(initial=0.0))
    condition = float(np.linalg.cond(rights))
    return Spectrum(T, eigenvalue, rights[:, index], lefts[:, index], condition, lead, distance)


def proposition(s: Spectrum, G: Array, epsilon: float, *, as_printed: bool = False) -> Array:
    """∂L/∂T: corrected, with the inner factor 1/ρ, or as the paper prints it, with 1/(ρ + ε)."""
    divisor = s.radius + epsilon
    inner = divisor if as_printed else s.radius
    W = s.T / divisor
    return (G - np.sum(G * W) / inner * s.C()) / divisor


def error_of_proposition(s: Spectrum, G: Array, epsilon: float) -> float:
    """How far two evaluations of the corrected formula may differ, in the largest entry."""
    divisor = s.radius + epsilon
    pull = float(np.abs(np.sum(G * s.T))) / divisor / s.radius
    norms = float(np.linalg.norm(G)) * (1 + s.condition * float(np.linalg.norm(s.T)) / divisor)
    rounding = (4 + len(s.T)) * EPS * norms + s.rounding * s.condition / divisor * norms
    return (pull * s.error_of_C() + 2 * rounding) / divisor


def central_differences(s: Spectrum, G: Array, epsilon: float) -> tuple[Array, float]:
    """The gradient of `L(T) = ⟨G, T/(ρ(T) + ε)⟩` from values of L alone, and a bound on its error.

    Two central differences with steps h and h/2 are combined by Richardson's rule, which leaves −h⁴L⁗′/480 + …. A step
    along one entry keeps λ analytic and ahead up to the radius r = lead/2κ(X) (Bauer–Fike), so by Cauchy's estimate that
    is at most M/r · (h/r)⁴/4, M the size of L around T; twice that covers the rest of the series. With h = eps^{1/5} r it
    balances the rounding of L divided by h.
    """
    size = len(s.T)
    r = min(s.lead, s.distance, s.radius) / (2 * s.basis_condition)
    h = EPS**0.2 * r

    def loss(T: Array) -> Array:
        radius = np.abs(np.linalg.eigvals(T)).max(-1)
        return np.sum(G * T, axis=(-2, -1)) / (radius + epsilon)

    steps = np.eye(size * size).reshape(-1, size, size)
    coarse, fine = (((loss(s.T + k * steps) - loss(s.T - k * steps)) / (2 * k)).reshape(size, size) for k in (h, h / 2))

    divisor = s.radius + epsilon
    scale = float(np.linalg.norm(G) * np.linalg.norm(s.T)) / divisor
    truncation = 2 * (4 * scale / r) * (h / r) ** 4 / 4
    rounding = 3 / h * scale * (s.rounding * s.condition / divisor + (size + 2) * EPS)
    return (4 * fine - coarse) / 3, truncation + rounding
