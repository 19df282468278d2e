"""What a matrix with ρ(W) ≤ 1 does before it forgets: norms of its powers."""

import torch
from torch import Tensor


def power_norms(matrix: Tensor, powers: list[int]) -> list[float]:
    """`‖W^k‖₂` for increasing k ≥ 0, in float64. Powers between two that are asked for are multiplied, not measured."""
    W = matrix.detach().double()
    power = torch.eye(len(W), dtype=W.dtype, device=W.device)
    norms, at = [], 0
    for k in powers:
        if k < at:
            raise ValueError(f"powers must increase from 0, got: {powers}")
        power = power @ torch.linalg.matrix_power(W, k - at)
        at = k
        norms.append(float(torch.linalg.matrix_norm(power, 2)))
    return norms


def spaced_powers(longest: int, size: int) -> list[int]:
    """0, 1, 2, … and, for large matrices, wider and wider apart up to `longest`."""
    if size <= 200:
        return list(range(longest + 1))
    found, k = [0], 1
    while k < longest:
        found.append(k)
        k = max(k + 1, round(1.25 * k))
    return [*found, longest]


def departure(matrix: Tensor) -> float:
    """Henrici's departure from normality, `√(‖W‖_F² − Σ|λ|²) / ‖W‖_F`: 0 for a normal matrix, 1 for a nilpotent one."""
    W = matrix.detach().double()
    whole = float(W.square().sum())
    eigenvalues = float(torch.linalg.eigvals(W).abs().square().sum())
    return (max(whole - eigenvalues, 0.0) / whole) ** 0.5 if whole else 0.0
