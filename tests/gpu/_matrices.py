"""Matrices for products on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")


def in_poison(matrix: Tensor, before: int = 0, after: int = 0, down: bool = False) -> Tensor:
    """The same values as columns, or as rows, of a larger matrix full of NaN, with NaN around them."""
    if down:
        return in_poison(matrix.mT, before, after).mT
    rows, columns = matrix.shape
    wide = torch.full((rows + 2, before + columns + after), float("nan"), device="cuda")
    return wide[1:-1, before : before + columns].copy_(matrix)
