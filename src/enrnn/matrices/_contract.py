"""What every family of recurrent matrices offers."""

import torch
from torch import Tensor, nn


class Matrix(nn.Module):
    """A way to write a constrained square matrix through a free one, usable with
    `torch.nn.utils.parametrize.register_parametrization`.

    A family is one file with one subclass. `forward` takes the free matrix ("original") to the constrained one.
    """

    name = "the matrix"
    """What errors call the matrix; a layer puts the name of the weight here."""

    def right_inverse(self, matrix: Tensor) -> Tensor:
        """A free matrix that `forward` takes to `matrix`, or to the nearest one the family can write."""
        raise NotImplementedError

    def initialize_(self, original: Tensor) -> None:
        """Fill `original` in place with the paper's random start, and forget any state of this module."""
        raise NotImplementedError

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """How far `matrix` is from the constraint: a scalar, zero up to rounding for what `forward` returns."""
        raise NotImplementedError

    def free_parameters(self, size: int) -> int:
        """The dimension of the family at this size: the parameters that count."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise what was flagged on the device while nobody could look (compiled, exported or captured runs)."""


def rotation_angles(size: int, like: Tensor) -> Tensor:
    """`⌊size/2⌋` angles uniform in [0, π/2): §4's `t_j`, one for each 2×2 block on the diagonal."""
    return torch.empty(size // 2, dtype=like.dtype, device=like.device).uniform_(0.0, torch.pi / 2)
