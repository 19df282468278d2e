"""Powers `A, A², A⁴, …` by repeated squaring, and what rounding can have done to them, told eigenvector by eigenvector."""

import math

import torch
from torch import Tensor

from ..recurrence._cpu_products import product

UNIT = 2.0**-53
"""The unit roundoff of float64, in which everything in this folder is computed."""


class Powers:
    """The computed `P_j ≈ A^k / 2^shift`, `k = 2^j`, rescaled by powers of two (which costs no digit), with their norms.

    Let `A x = μ x`, ‖x‖ = 1. In exact arithmetic `P_j x = μ^k x`; the computed ones satisfy `P_j x = μ^k x + e_j`, and since one
    squaring has `P_{j+1} = P_j² + E`, ‖E‖_F ≤ γ‖P_j‖_F², `γ = m·u/(1 − m·u)` (Higham 2002, §3.5),

        e_{j+1} = (P_j + μ^k) e_j + E x.

    Measured in units of |μ|^k, with `τ_j = ‖P_j‖_F/|μ|^k` and `ω_j = ‖e_j‖/|μ|^k`:

        ω_{j+1} ≤ (1 + τ_j) ω_j + γ τ_j².                                                                    (*)

    Both sides fall as |μ| grows: evaluated at a radius r, (*) holds for every eigenvalue with |μ| ≥ r. A bound on the matrices
    themselves, ‖P_j − A^k‖, would grow by 2τ_j a step; following one eigenvector is what makes the certificate affordable.
    """

    def __init__(self, matrix: Tensor, k: int = 1, shift: int = 0) -> None:
        self.matrix = matrix
        self.k = k
        self.shift = shift
        size = matrix.shape[-1]
        self.gamma = size * UNIT / (1 - size * UNIT)
        # A norm summed over m² squares in any order; taking the root halves the relative error.
        self._slack = 1 + (size * size / 2 + 2) * UNIT
        self._history: list[tuple[int, float]] = []
        self._note()

    def _note(self) -> None:
        """Rescale the newest power to a norm in [½, 1) and write down its logarithm."""
        norm = torch.linalg.matrix_norm(self.matrix).item() * self._slack
        if norm > 0:
            _, exponent = math.frexp(norm)
            self.matrix = self.matrix * 2.0**-exponent
            self.shift += exponent
            self._history.append((self.k, math.log2(norm) + self.shift - exponent))
        else:
            self._history.append((self.k, -math.inf))

    def square(self) -> None:
        self.matrix = product(self.matrix, self.matrix)
        self.k *= 2
        self.shift *= 2
        self._note()

    def size_at(self, radius: float) -> float:
        """τ of the newest power, at |μ| = radius."""
        return _ratio(self._history[-1], math.log2(radius))

    def drift_at(self, radius: float, start: float = 0.0, scale: float = 1.0) -> float:
        """ω of the newest power, at |μ| = radius, by (*); `start` is ω of the oldest, `scale` the length of x."""
        log_radius = math.log2(radius)
        omega = start
        for level in self._history[:-1]:
            tau = _ratio(level, log_radius)
            omega = (1 + tau) * omega + self.gamma * tau * tau * scale
        return omega

    def bound(self) -> float:
        """A radius that no eigenvalue of A exceeds: Gelfand's `‖A^k‖^{1/k}` with rounding included.

        From `μ^k x = P x − e` follows `1 ≤ τ + ω` at |μ|. So any radius with `τ + ω < 1` bounds ρ(A); the least is found by
        bisection.
        """
        first = self._history[0][1]
        if first == -math.inf:
            return 0.0
        low, high = first - 64.0, first + 1e-9  # in log₂; the Frobenius norm of A itself is always a bound
        for _ in range(64):
            middle = (low + high) / 2
            radius = math.exp2(middle)
            if self.size_at(radius) + self.drift_at(radius) < 1:
                high = middle
            else:
                low = middle
        return math.exp2(high) * (1 + 1e-12)


def _ratio(level: tuple[int, float], log_radius: float) -> float:
    k, log_norm = level
    return math.exp2(min(log_norm - k * log_radius, 500.0))
