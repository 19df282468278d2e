"""The nonlinearities, with their derivatives written in the output alone.

The reverse sweep keeps the states `h = σ(z, b)` and nothing else, so every derivative below is a function of `h` and `b`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ._checks import InputError, InputTypeError

LEAK = 0.1
"""The slope of the leaky ReLU below zero, oRNN's."""


class Curvature(NamedTuple):
    """How the symmetric matrix `D(h, b) = ∂σ/∂z` bends."""

    gradient: Callable[[Tensor, Tensor | None, Tensor, Tensor], tuple[Tensor, Tensor | None]]
    """Of `⟨a, D(h, b) g⟩` by h, and by b if D is a function of that too, given `h, b, a, g`."""
    tangent: Callable[[Tensor, Tensor | None, Tensor, Tensor, Tensor | None], Tensor]
    """How `D(h, b) g` moves as h and b do, given `h, b, g, ḣ, ḃ`."""


class Nonlinearity(NamedTuple):
    """`h = σ(z, b)`, with `dz = (∂σ/∂z)ᵀ g = pull_back(h, b, g)` for an upstream gradient `g`, and then
    `db = bias_gradient(h, dz)`, to be summed over all but the last dimension."""

    function: Callable[[Tensor, Tensor | None], Tensor]
    pull_back: Callable[[Tensor, Tensor | None, Tensor], Tensor]
    bias_gradient: Callable[[Tensor, Tensor], Tensor] = lambda h, dz: dz
    """The default: a bias that is simply added to z."""
    bias_tangent: Callable[[Tensor, Tensor], Tensor] = lambda h, db: db
    """What moves h as much, if added to z, as the bias does that moves by `db`: the transpose of `bias_gradient`."""
    curvature: Curvature | None = None
    """None: `∂σ/∂z` is constant wherever it is not undefined."""
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
    # In units of the larger part: no square is too large or too small then, and |z| is what it is, whatever the unit.
    unit = torch.maximum(real.abs(), imaginary.abs()).detach()
    zero = unit == 0
    unit = torch.where(zero, 1, unit)
    square = (real / unit).square() + (imaginary / unit).square()
    size = unit * torch.where(zero, 1, square).sqrt()  # so that the derivative at zero is zero, and not NaN
    return torch.where(_twice(zero), 0, z / _twice(size)) * _twice(torch.relu(size + bias))


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
    scale = size / _argument(size, bias)
    along = torch.where(size == 0, 0, (1 - scale) * _inner(h, g) / (size * size))
    return _twice(scale) * g + _twice(along) * h


def _bias_gradient_paired_modrelu(h: Tensor, dz: Tensor) -> Tensor:
    """`u·dz`, since `∂h/∂b = u` and `u·dz = u·g`."""
    return _inner(h, dz) / _direction(h)[1]


def _curvature_gradient_paired_modrelu(h: Tensor, bias: Tensor | None, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor | None]:
    """Of `c·⟨a, g⟩ + (1 − c)·⟨u, a⟩⟨u, g⟩`: u turns by what of ḣ is across it, divided by |h|; c is a function of |h| and b."""
    if bias is None:
        return torch.zeros_like(h), None
    u, size = _direction(h)
    argument = _argument(size, bias)
    along_a, along_g = _inner(u, a), _inner(u, g)
    by_scale = _inner(a, g) - along_a * along_g
    across = _twice(along_g) * (a - _twice(along_a) * u) + _twice(along_a) * (g - _twice(along_g) * u)
    by_h = _twice(by_scale * -bias / argument**2) * u - _twice(bias / (argument * size)) * across
    zero = (h == 0).chunk(2, dim=-1)
    nothing = zero[0] & zero[1]
    return torch.where(_twice(nothing), 0, by_h), torch.where(nothing, 0, by_scale * size / argument**2)


def _curvature_tangent_paired_modrelu(
    h: Tensor, bias: Tensor | None, g: Tensor, moved: Tensor, moved_bias: Tensor | None
) -> Tensor:
    if bias is None:
        return torch.zeros_like(h)
    u, size = _direction(h)
    argument = _argument(size, bias)
    along_g, along = _inner(u, g), _inner(u, moved)
    moved_scale = (-bias * along if moved_bias is None else size * moved_bias - bias * along) / argument**2
    turned = (moved - _twice(along) * u) / _twice(size)
    bent = turned * _twice(along_g) + u * _twice(_inner(turned, g))
    found = _twice(moved_scale) * (g - _twice(along_g) * u) - _twice(bias / argument) * bent
    zero = (h == 0).chunk(2, dim=-1)
    return torch.where(_twice(zero[0] & zero[1]), 0, found)


def _direction(h: Tensor) -> tuple[Tensor, Tensor]:
    """`u = h/|h|` and |h|; where h is zero they are zero and one, so that what they are differentiated by is finite there."""
    real, imaginary = h.chunk(2, dim=-1)
    zero = (real == 0) & (imaginary == 0)
    size = torch.hypot(torch.where(zero, 1, real), imaginary)
    return h / _twice(size), size


def _argument(size: Tensor, bias: Tensor) -> Tensor:
    """|z| from |h|."""
    known = torch.finfo(size.dtype)
    return torch.maximum(size - bias, known.eps * size).clamp_min(known.tiny)


def _twice(units: Tensor) -> Tensor:
    """For the real and the imaginary part."""
    return torch.cat([units, units], dim=-1)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    real, imaginary = (a * b).chunk(2, dim=-1)
    return real + imaginary


def _biased(z: Tensor, bias: Tensor | None) -> Tensor:
    return z if bias is None else z + bias


NONLINEARITIES: dict[str, Nonlinearity] = {
    "modrelu": Nonlinearity(modrelu, _pull_back_modrelu, lambda h, dz: torch.sign(h) * dz, lambda h, db: torch.sign(h) * db),
    "relu": Nonlinearity(lambda z, b: torch.relu(_biased(z, b)), lambda h, b, g: (h > 0).to(h.dtype) * g),
    "leaky_relu": Nonlinearity(_leaky_relu, _pull_back_leaky_relu),
    "tanh": Nonlinearity(
        lambda z, b: torch.tanh(_biased(z, b)),
        lambda h, b, g: (1 - h * h) * g,
        curvature=Curvature(lambda h, b, a, g: (-2 * h * a * g, None), lambda h, b, g, moved, _: -2 * h * moved * g),
    ),
    "identity": Nonlinearity(_biased, lambda h, b, g: g),
    "paired_modrelu": Nonlinearity(
        paired_modrelu,
        _pull_back_paired_modrelu,
        _bias_gradient_paired_modrelu,
        lambda h, db: _direction(h)[0] * _twice(db),
        Curvature(_curvature_gradient_paired_modrelu, _curvature_tangent_paired_modrelu),
        parts=2,
    ),
}


def pointwise(nonlinearity: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor | None], Tensor]:
    """`σ(z, b)` for a name above, or `f(z + b)` for any callable `f`."""
    if isinstance(nonlinearity, str):
        return NONLINEARITIES[nonlinearity].function

    def sigma(z: Tensor, bias: Tensor | None) -> Tensor:
        h = nonlinearity(_biased(z, bias))
        if not isinstance(h, Tensor) or h.shape != z.shape:
            found = list(h.shape) if isinstance(h, Tensor) else type(h).__name__
            raise InputError(f"nonlinearity must return a tensor of its argument's shape {list(z.shape)}, got: {found}")
        if h.dtype != z.dtype:
            raise InputTypeError(f"nonlinearity must return a tensor of its argument's dtype, {z.dtype}, got: {h.dtype}")
        return h

    return sigma
