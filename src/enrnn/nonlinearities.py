"""The nonlinearities, with their derivatives written in the output alone.

The reverse sweep keeps the states `h = σ(z, b)` and nothing else, so every derivative below is a function of `h` and `b`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

LEAK = 0.1
"""The slope of the leaky ReLU below zero, oRNN's."""


class Nonlinearity(NamedTuple):
    """`h = σ(z, b)`, with `dz = (∂σ/∂z)ᵀ g = pull_back(h, b, g)` for an upstream gradient `g`, and then
    `db = bias_gradient(h, dz)`, to be summed over all but the last dimension."""

    function: Callable[[Tensor, Tensor | None], Tensor]
    pull_back: Callable[[Tensor, Tensor | None, Tensor], Tensor]
    bias_gradient: Callable[[Tensor, Tensor], Tensor] = lambda h, dz: dz
    """The default: a bias that is simply added to z."""
    parts: int = 1
    """Real numbers that make up a unit. Two: unit j is the complex number `z_j + i·z_{j + n/2}`, and b has n/2 entries."""


def modrelu(z: Tensor, bias: Tensor | None = None) -> Tensor:
    """`sign(z)·relu(|z| + b)` (§4), with `sign(0) = 0`; the bias is the threshold and is not added to `z`.

    Without a bias it is the identity. With a positive bias it jumps at zero.
    """
    return z if bias is None else torch.sign(z) * torch.relu(z.abs() + bias)


def paired_modrelu(z: Tensor, bias: Tensor | None = None) -> Tensor:
    """modReLU of complex numbers, `(z/|z|)·relu(|z| + b)`, zero at zero, as unitary networks have it.

    The last dimension of `z` holds n/2 real parts, then n/2 imaginary parts; `bias` has n/2 entries.
    """
    if bias is None:
        return z
    real, imaginary = z.chunk(2, dim=-1)
    square = real * real + imaginary * imaginary
    zero = square == 0
    size = torch.where(zero, 1, square).sqrt()  # so that the derivative at zero is zero, and not NaN
    scale = torch.where(zero, 0, torch.relu(size + bias) / size)
    return z * torch.cat([scale, scale], dim=-1)


def _leaky_relu(z: Tensor, bias: Tensor | None) -> Tensor:
    return F.leaky_relu(_biased(z, bias), LEAK)


def _pull_back_leaky_relu(h: Tensor, bias: Tensor | None, g: Tensor) -> Tensor:
    """h has the sign of z. Where it is zero, z was zero or `LEAK·z` underflowed: torch has the lower slope in either case."""
    return torch.where(h > 0, g, LEAK * g)


def _pull_back_modrelu(h: Tensor, bias: Tensor | None, g: Tensor) -> Tensor:
    return g if bias is None else (h != 0).to(h.dtype) * g


def _pull_back_paired_modrelu(h: Tensor, bias: Tensor | None, g: Tensor) -> Tensor:
    """With `u = h/|h|` and `|z| = |h| − b`: `dz = c·g + (1 − c)·u·(u·g)` where `c = |h|/|z|`; zero where h is.

    So |z| is known to the rounding of |h|, and is taken to be that at least: with b > 0, c is at most 1/rounding.
    """
    if bias is None:
        return g
    size = torch.hypot(*h.chunk(2, dim=-1))
    known = torch.finfo(h.dtype)
    scale = size / torch.maximum(size - bias, known.eps * size).clamp_min(known.tiny)
    along = torch.where(size == 0, 0, (1 - scale) * _inner(h, g) / (size * size))
    return torch.cat([scale, scale], dim=-1) * g + torch.cat([along, along], dim=-1) * h


def _bias_gradient_paired_modrelu(h: Tensor, dz: Tensor) -> Tensor:
    """`u·dz`, since `∂h/∂b = u` and `u·dz = u·g`."""
    size = torch.hypot(*h.chunk(2, dim=-1))
    return torch.where(size == 0, 0, _inner(h, dz) / size)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    real, imaginary = (a * b).chunk(2, dim=-1)
    return real + imaginary


def _biased(z: Tensor, bias: Tensor | None) -> Tensor:
    return z if bias is None else z + bias


NONLINEARITIES: dict[str, Nonlinearity] = {
    "modrelu": Nonlinearity(modrelu, _pull_back_modrelu, lambda h, dz: torch.sign(h) * dz),
    "relu": Nonlinearity(lambda z, b: torch.relu(_biased(z, b)), lambda h, b, g: (h > 0).to(h.dtype) * g),
    "leaky_relu": Nonlinearity(_leaky_relu, _pull_back_leaky_relu),
    "tanh": Nonlinearity(lambda z, b: torch.tanh(_biased(z, b)), lambda h, b, g: (1 - h * h) * g),
    "identity": Nonlinearity(_biased, lambda h, b, g: g),
    "paired_modrelu": Nonlinearity(paired_modrelu, _pull_back_paired_modrelu, _bias_gradient_paired_modrelu, parts=2),
}


def pointwise(nonlinearity: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor | None], Tensor]:
    """`σ(z, b)` for a name above, or `f(z + b)` for any callable `f`."""
    if isinstance(nonlinearity, str):
        return NONLINEARITIES[nonlinearity].function
    return lambda z, b: nonlinearity(_biased(z, b))
