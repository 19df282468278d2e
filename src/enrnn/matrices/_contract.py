"""What every family of recurrent matrices offers."""

import torch
from torch import Tensor, nn


class Matrix(nn.Module):
    """A way to write a constrained square matrix through free ones, usable with
    `torch.nn.utils.parametrize.register_parametrization`.

    A family is one file with one subclass. `forward` takes the free tensor ("original"), or several, to the constrained matrix.

    A family whose network acts after the optimiser's step, or in its place, has one or both of these as well, which a training
    loop calls without gradients (`enrnn.training` does):

        after_step(*originals)           when all parameters have been updated
        manifold_update(original, lr)    in place of the update of each original that `on_manifold` names, with its gradient
                                         in `original.grad`

    A `forward` that writes to a buffer calls `enrnn._streams.before_writing()` first: inside a CUDA graph a copy of it may be in
    the making, for a step that has to be taken back.
    """

    name = "the matrix"
    """What errors call the matrix; a layer puts the name of the weight here."""

    on_manifold: tuple[int, ...] = (0,)
    """Where there is a `manifold_update`: the positions of the originals that it updates."""

    slow: tuple[int, ...] = (0,)
    """The positions of the originals that the papers train at a rate of their own, lower than the others'."""

    def right_inverse(self, matrix: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Free tensors that `forward` takes to `matrix`, or to the nearest one the family can write."""
        raise NotImplementedError

    def originals(self, size: int, like: Tensor) -> tuple[Tensor, ...]:
        """New free tensors for a matrix of this size, of the dtype and on the device of `like`, for `initialize_` to fill."""
        return (like.new_zeros(size, size),)

    def initialize_(self, *originals: Tensor) -> None:
        """Fill the free tensors in place with the paper's random start, and forget any state of this module."""
        raise NotImplementedError

    def constraint_error(self, matrix: Tensor) -> Tensor:
        """How far `matrix` is from the constraint: a scalar, zero up to rounding for what `forward` returns."""
        raise NotImplementedError

    def free_parameters(self, size: int) -> int:
        """The dimension of the family at this size: the parameters that count."""
        raise NotImplementedError

    def penalty(self, *originals: Tensor) -> Tensor | None:
        """What the paper adds to the loss, if anything."""
        return None

    def check(self) -> None:
        """Raise what was flagged on the device while nobody could look (compiled, exported or captured runs)."""


def cleared(buffer: Tensor, device: torch.device) -> Tensor:
    """Zeros in its place: in its own memory where that is on the device, so that no tensor of inference mode's takes it."""
    return buffer.zero_() if buffer.device == device else torch.zeros_like(buffer, device=device)


def rotation_angles(size: int, like: Tensor) -> Tensor:
    """`⌊size/2⌋` angles uniform in [0, π/2): §4's `t_j`, one for each 2×2 block on the diagonal."""
    return torch.empty(size // 2, dtype=like.dtype, device=like.device).uniform_(0.0, torch.pi / 2)
