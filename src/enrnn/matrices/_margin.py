"""Singular values kept within a margin of one, for the families that write a matrix by its singular value decomposition."""

import torch
from torch import Tensor

from .._checks import non_negative
from .._precision import working_dtype


def checked_margin(margin: float) -> float:
    if non_negative("margin", margin) >= 1:
        raise ValueError(f"margin must lie in [0, 1), so that no singular value is zero, got: {margin}")
    return float(margin)


def singular_values(free: Tensor, margin: float) -> Tensor:
    """`σ = 1 + 2m·(sigmoid(p) − ½)`, which is `1 + m·tanh(p/2)`: within (1 − m, 1 + m)."""
    return 1 + margin * torch.tanh(free / 2)


def free_values(singular: Tensor, margin: float, eps: float) -> Tensor:
    """The `p` for given σ; for those outside the margin, one near its edge."""
    if margin == 0:
        return torch.zeros_like(singular)
    return 2 * torch.atanh(((singular - 1) / margin).clamp(eps - 1, 1 - eps))


def margin_error(matrix: Tensor, margin: float) -> Tensor:
    """By how much a singular value is outside the margin, at worst."""
    values = torch.linalg.svdvals(matrix.detach().to(working_dtype(matrix)))
    excess: Tensor = ((values - 1).abs().max() - margin).clamp_min(0)
    return excess
