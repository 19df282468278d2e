"""Matrices to try a solver on: each family is a function of (size, generator), in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import enrnn

Family = Callable[[int, torch.Generator], Tensor]


def gaussian(size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(size, size, dtype=torch.float64, generator=generator)


def initial(size: int, generator: torch.Generator) -> Tensor:
    """The paper's start, §4."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        matrix = torch.empty(size, size, dtype=torch.float64)
        enrnn.EigenvalueNormalized().initialize_(matrix)
    return matrix


def positive(size: int, generator: torch.Generator) -> Tensor:
    return torch.rand(size, size, dtype=torch.float64, generator=generator)


def trained(size: int, generator: torch.Generator) -> Tensor:
    """What training makes of the start: a non-normal perturbation of rotations, ‖T‖₂ a few times ρ."""
    low = max(size // 8, 1)
    left = torch.randn(size, low, dtype=torch.float64, generator=generator)
    right = torch.randn(low, size, dtype=torch.float64, generator=generator)
    noise = torch.randn(size, size, dtype=torch.float64, generator=generator) / size**0.5
    return initial(size, generator) + 0.2 * noise + 0.3 * left @ right / (size * low) ** 0.5


def near_tie(size: int, generator: torch.Generator) -> Tensor:
    """Two largest moduli whose relative gap is between 1e-2 and 1e-6, in a well-conditioned basis."""
    gap = 10.0 ** -(2 + 4 * torch.rand((), generator=generator).item())
    spectrum = 0.95 * torch.rand(size, dtype=torch.float64, generator=generator)
    spectrum[0] = 1.0
    if size > 1:
        spectrum[1] = -(1.0 - gap)
    return in_random_basis(torch.diag(spectrum), generator)


def near_tie_of_pairs(size: int, generator: torch.Generator) -> Tensor:
    """As `near_tie`, with two complex pairs on top."""
    matrix = torch.diag(0.95 * torch.rand(size, dtype=torch.float64, generator=generator))
    gap = 10.0 ** -(2 + 4 * torch.rand((), generator=generator).item())
    for start, modulus in ((0, 1.0), (2, 1.0 - gap)):
        if start + 2 <= size:
            angle = 3.0 * torch.rand((), dtype=torch.float64, generator=generator)
            cos, sin = modulus * torch.cos(angle), modulus * torch.sin(angle)
            matrix[start : start + 2, start : start + 2] = torch.stack([torch.stack([cos, -sin]), torch.stack([sin, cos])])
    return in_random_basis(matrix, generator)


def in_random_basis(matrix: Tensor, generator: torch.Generator) -> Tensor:
    """`S M S⁻¹` with S of condition at most 9 or so."""
    size = matrix.shape[0]
    left, _ = torch.linalg.qr(gaussian(size, generator))
    right, _ = torch.linalg.qr(gaussian(size, generator))
    stretch = 1 / 3 + (3 - 1 / 3) * torch.rand(size, dtype=torch.float64, generator=generator)
    basis = (left * stretch) @ right
    return torch.linalg.solve(basis, matrix @ basis)


def scaled(size: int, generator: torch.Generator) -> Tensor:
    return gaussian(size, generator) * 10.0 ** (60 * torch.rand((), generator=generator).item() - 30)


FAMILIES: dict[str, Family] = {
    family.__name__: family for family in (gaussian, initial, positive, trained, near_tie, near_tie_of_pairs, scaled)
}


def rotation(size: int, generator: torch.Generator) -> Tensor:
    orthogonal, _ = torch.linalg.qr(gaussian(size, generator))
    return orthogonal


def identity(size: int, generator: torch.Generator) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


def zero(size: int, generator: torch.Generator) -> Tensor:
    return torch.zeros(size, size, dtype=torch.float64)


def nilpotent(size: int, generator: torch.Generator) -> Tensor:
    return gaussian(size, generator).triu(1)


def hidden_nilpotent(size: int, generator: torch.Generator) -> Tensor:
    return in_random_basis(nilpotent(size, generator), generator)


def jordan(size: int, generator: torch.Generator) -> Tensor:
    return identity(size, generator) + torch.diag(torch.ones(size - 1, dtype=torch.float64), 1)


EXTREMES: dict[str, Family] = {
    family.__name__: family for family in (rotation, identity, zero, nilpotent, hidden_nilpotent, jordan)
}
"""Exact ties, defective and nilpotent matrices, with the spectral radius known: 1, 1, 0, 0, 0, 1."""
