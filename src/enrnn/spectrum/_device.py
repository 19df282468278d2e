"""The fast solver for a GPU: squaring all the way, a fixed sequence of operations that looks at no value, for CUDA graphs too.

On a GPU products are cheap and every look at a value is dear, so that the block of vectors of `_squaring.py` does not pay: T is
squared 27 times. What is left of `T^K`, K = 2²⁷, is the spectral projector of the dominant eigenvalue (or of a complex pair),
from which λ, u and v are read.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ._dense import Dominant, power_of_two_above
from ._powers import UNIT
from ._squaring import DOUBT

SQUARINGS = 27
"""Enough to tell moduli apart that differ by 1e-6: (1 − 1e-6)^(2^27) = 5e-59."""

RESCALE = 3
"""Rescale after so many squarings; in between, a norm of 1 falls to no less than (ρ/‖T‖)^8."""


class Found(NamedTuple):
    """The dominant pair, all zeros where it is not certified, and whether it is."""

    pair: Dominant
    certified: Tensor


def squaring_on_device(matrix: Tensor) -> Found:
    """The dominant eigenvalue of one float64 matrix. Never NaN, also for a matrix that is not finite (never certified).

    Certified means three things.
    * The pair is right: residual × condition is below 1e-12 ρ, or below what rounding T itself may cause.
    * Gelfand's `‖T^K‖^{1/K}` equals |λ| to 1e-6. As ρ(T) is no larger, no eigenvalue exceeds |λ| by more than that. (Rounding in
      an early power moves this number by as little as rounding in T does: its K-th root is taken.)
    * Nothing as large hides within that 1e-6. An eigenvalue μ with |μ| ≥ |λ| is amplified at least as much as λ is; it has its
      share in `x = T^K g`, g a generic vector, and leaves a residual of the order of |μ − λ|. So a residual at rounding level
      leaves room only for ties at rounding level.

    Unlike `_certificate.py`, this takes the effect of rounding on the powers from its order of magnitude, not from a bound.
    """
    size = matrix.shape[-1]
    finite = torch.isfinite(matrix).all()
    scale = power_of_two_above(torch.where(finite, matrix.abs().amax(), 1))
    scaled = torch.where(finite, matrix / scale, torch.zeros_like(matrix))
    norm = torch.linalg.matrix_norm(scaled)

    power = scaled / norm
    log = torch.log2(norm)
    for step in range(1, SQUARINGS + 1):
        power = power @ power
        log = 2 * log
        if step % RESCALE == 0:
            size_now = torch.linalg.matrix_norm(power)
            power = power / size_now
            log = log + torch.log2(size_now)
    gelfand = torch.exp2(log / 2.0**SQUARINGS)

    probe = _scattered(size, matrix.device)
    eigenvalue, right = _in_plane(scaled, _unit(power @ probe))
    _, left = _in_plane(scaled.mT, _unit(power.mT @ probe))  # leftᵀ is the left vector
    right, left = _unit(right), _unit(left)
    radius = eigenvalue.abs()
    condition = 1 / (left * right).sum().abs()
    residual = torch.maximum(
        torch.linalg.vector_norm(_times(scaled, right) - eigenvalue * right),
        torch.linalg.vector_norm(_times(scaled.mT, left) - eigenvalue * left),
    )
    rounding = 50 * UNIT * condition * norm
    accurate = (residual * condition < torch.maximum(1e-12 * radius, rounding)) & (rounding < DOUBT * radius)
    certified = finite & accurate & ((gelfand / radius - 1).abs() < 1e-6)

    nothing = torch.zeros_like(right)
    pair = Dominant(
        torch.where(certified, radius * scale, 0),
        torch.where(certified, eigenvalue * scale, nothing[0]),
        torch.where(certified, right, nothing),
        torch.where(certified, left.conj_physical(), nothing),
        torch.where(certified, condition, torch.inf),
    )
    return Found(pair, certified)


def _in_plane(matrix: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvalue on span{x, Mx} that x is nearest to, with non-negative imaginary part, and its vector.

    The plane serves a complex pair, and also two real eigenvalues, λ and nearly −λ, which M tells apart better than its square.
    """
    image = matrix @ x
    a = x @ image
    rest = image - a * x
    c = torch.linalg.vector_norm(rest)
    single = c < 4 * UNIT * a.abs()
    y = rest / torch.where(single, 1, c)
    image = matrix @ y
    b, d = x @ image, y @ image
    half = (a + d) / 2
    square = ((a - d) / 2) ** 2 + b * c
    root = square.abs().sqrt()
    turning = square < 0
    real = torch.where(single, a, torch.where(turning, half, half + torch.where(a < d, -root, root)))
    imaginary = torch.where(turning & ~single, root, 0)
    eigenvalue = torch.complex(real, imaginary)
    return eigenvalue, torch.where(single, torch.complex(x, torch.zeros_like(x)), (eigenvalue - d) * x + c * y)


def _scattered(size: int, device: torch.device) -> Tensor:
    """Numbers without a pattern to speak of, made on the device without a generator, which a graph could not draw from."""
    index = torch.arange(1, size + 1, dtype=torch.float64, device=device)
    numbers: Tensor = torch.frac(torch.sin(index * 12.9898) * 43758.5453)
    return numbers


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """A real matrix times a complex vector."""
    return torch.complex(matrix @ vector.real, matrix @ vector.imag)


def _unit(vector: Tensor) -> Tensor:
    unit: Tensor = vector / torch.linalg.vector_norm(vector)
    return unit
