"""Products of layers of plane rotations, in blocks.

A brick wall of L layers on n sites: layer l turns the pairs (a, a + 1) with a ≡ l (mod 2). Two rotations depend on each other
only where their light cones meet, so the wall can be cut into diamonds: with u = (l + a)/2 and v = (l − a)/2, a square of b×b
values of (u, v) is a dense matrix on 2b neighbouring sites, the diamonds of equal u + v lie side by side, and they are a brick
wall again, of L/b layers. Four diamonds make one of twice the size,

    D = last · (left ⊕ right) · first,

`first` and `last` on the middle half of the sites. Small diamonds are formed rotation by rotation, all at once, larger ones from
four each, and diamonds of 2·`WIDTH` sites are multiplied with the matrix: everything that costs is a batched product. On the left
and right edge half a diamond is missing; the two halves are kept as one on a ring of sites, with no rotation across the gap.

Backwards, the matrices are orthogonal (unitary), so nothing but the diamonds is kept. With the gradient `G` of a product
`X = T ⋯`, all that the rotations of `T` ask of it is the skew part `K = GXᴴ − XGᴴ` on the sites of `T`, and before `T` it is
`Tᴴ K T`: the angle of the last rotation of a pair has the gradient `Re K[a + 1, a]`, and so on down.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .._operators import Operator, differentiated_again, moved_by

WIDTH = 16
"""b of the largest diamonds: the least time for n = 512 on a CPU."""

SMALL = 4
"""b of the diamonds that are formed rotation by rotation."""


class Wall(NamedTuple):
    """How n sites and L layers are cut into `rows` of `columns` diamonds."""

    places: Tensor
    """[b₀², N]: for each rotation of each small diamond, layer by layer, where its angle is among n·⌈L/2⌉; for none, the number
    after them."""
    width: int
    rows: int
    columns: int


@lru_cache(maxsize=64)
def cut(size: int, layers: int, device: torch.device) -> Wall:
    width = 1
    while 2 * width <= min(WIDTH, size // 2, layers):
        width *= 2
    small = min(width, SMALL)
    columns = -(-size // (2 * width))
    rows = (layers + width - 2) // width + 1
    row = torch.arange(rows, device=device).view(-1, 1, 1, 1)
    column = torch.arange(columns, device=device).view(-1, 1, 1)
    u, v = torch.arange(width, device=device).view(-1, 1), torch.arange(width, device=device)
    # Even rows begin with layer b·row, on site zero; odd ones b sites further on.
    site = (width * (row % 2 + 2 * column) + width - 1 + u - v) % (2 * width * columns)
    layer = (width * row - width + 1 + u + v).expand_as(site)
    per_site = -(-layers // 2)
    there = (layer >= 0) & (layer < layers) & (site < size - 1)
    index = torch.where(there, site * per_site + layer // 2, size * per_site)
    halvings = (width // small).bit_length() - 1
    index = index.view(rows * columns, *[2] * halvings, small, *[2] * halvings, small)
    bits = [axis for low in range(halvings) for axis in (halvings - low, 2 * halvings + 1 - low)]
    index = index.permute(halvings + 1, 2 * halvings + 2, *bits, 0).reshape(small, small, -1)
    by_layer = sorted((u + v, u, v) for u in range(small) for v in range(small))
    return Wall(torch.stack([index[u, v] for _, u, v in by_layer]), width, rows, columns)


@Operator
def brick_wall(angles: Tensor, phases: Tensor | None, layers: int) -> Tensor:
    """`F_L ⋯ F_2 F_1`, [n, n], each pair of a layer times `[[cos θ, −e^{iφ}sin θ], [sin θ, e^{iφ}cos θ]]`; real without phases.

    `angles` and `phases` are [n, ⌈L/2⌉]: row a, column k belongs to the pair (a, a + 1) in layer 2k if a is even, else 2k + 1.
    """
    size = angles.shape[0]
    wall = cut(size, layers, angles.device)
    w, total = 2 * wall.width, 2 * wall.width * wall.columns
    dtype = angles.dtype if phases is None else angles.dtype.to_complex()
    for diamonds in _diamonds(wall.width, *_turns(wall, angles, phases)):
        largest = diamonds
    diamonds = largest.view(wall.rows, wall.columns, w, w)
    X = angles.new_zeros(total, total, dtype=dtype)
    other = torch.empty_like(X)
    _blocks(X, w).copy_(diamonds[0])
    for row in range(1, wall.rows):
        _bricks(diamonds[row], row % 2 == 1, X, other)
        X, other = other, X
    product: Tensor = X[:size, :size].contiguous()
    return product


@brick_wall.register_fake
def _(angles: Tensor, phases: Tensor | None, layers: int) -> Tensor:
    dtype = angles.dtype if phases is None else angles.dtype.to_complex()
    return angles.new_empty(angles.shape[0], angles.shape[0], dtype=dtype)


@Operator
def brick_wall_backward(
    gradient: Tensor, product: Tensor, angles: Tensor, phases: Tensor | None, layers: int
) -> tuple[Tensor, Tensor]:
    size = angles.shape[0]
    wall = cut(size, layers, angles.device)
    moment = gradient @ product.mH
    total = 2 * wall.width * wall.columns
    K = F.pad(moment - moment.mH, (0, total - size, 0, total - size))
    turns = _turns(wall, angles, phases)
    *smaller, largest = _diamonds(wall.width, *turns)
    skew = _unmultiply(largest.view(wall.rows, wall.columns, *largest.shape[1:]), K)
    for diamonds in reversed(smaller):
        skew = _unmerge(diamonds, skew)
    found = angles.new_zeros(1 if phases is None else 2, angles.numel() + 1)
    for whole, part in zip(found, _unturn(skew, *turns), strict=True):
        whole[wall.places] = part
    by_angle, *by_phase = (whole[:-1].view_as(angles).clone() for whole in found)
    return by_angle, by_phase[0] if by_phase else angles.new_empty(0)


@brick_wall_backward.register_fake
def _(gradient: Tensor, product: Tensor, angles: Tensor, phases: Tensor | None, layers: int) -> tuple[Tensor, Tensor]:
    return angles.new_empty(angles.shape), angles.new_empty(0 if phases is None else angles.shape)


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    angles, phases, ctx.layers = inputs
    ctx.save_for_backward(angles, phases, output)


def _pull_back(ctx, gradient: Tensor):  # type: ignore[no-untyped-def]
    """By the operator; but where the gradient is to be differentiated again, by autograd, layer by layer."""
    angles, phases, product = ctx.saved_tensors
    if differentiated_again():
        wanted = [part for part, needed in zip((angles, phases), ctx.needs_input_grad, strict=False) if needed]
        with torch.enable_grad():
            found = iter(torch.autograd.grad(_layer_by_layer(angles, phases, ctx.layers), wanted, gradient, create_graph=True))
        return *(next(found) if needed else None for needed in ctx.needs_input_grad[:2]), None
    by_angle, by_phase = brick_wall_backward(gradient.contiguous(), product, angles, phases, ctx.layers)
    return by_angle, None if phases is None else by_phase, None


brick_wall.register_autograd(_pull_back, setup_context=_save)


@brick_wall.register_tangent
def _(arguments: tuple[Tensor, Tensor | None, int], found: Tensor, tangents: tuple[Tensor | None, Tensor | None, None]) -> Any:
    """By torch's own, layer by layer."""
    return moved_by(_layer_by_layer, arguments, tangents)


def _layer_by_layer(angles: Tensor, phases: Tensor | None, layers: int) -> Tensor:
    """What `brick_wall` is, in operations that can be differentiated any number of times."""
    size = angles.shape[0]
    X = torch.eye(size, dtype=angles.dtype if phases is None else angles.dtype.to_complex(), device=angles.device)
    for layer in range(layers):
        first, last = layer % 2, size - (size - layer) % 2
        rows = slice(first, last, 2), layer // 2
        theta = angles[rows].unsqueeze(1)
        cosine, sine = torch.cos(theta), torch.sin(theta)
        even, odd = X[first:last:2], X[first + 1 : last : 2]
        if phases is not None:
            phi = phases[rows].unsqueeze(1)
            odd = odd * torch.polar(torch.ones_like(phi), phi)
        turned = torch.stack([cosine * even - sine * odd, sine * even + cosine * odd], dim=1)
        X = torch.cat([X[:first], turned.flatten(0, 1), X[last:]])
    return X


def _turns(wall: Wall, angles: Tensor, phases: Tensor | None) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """cos θ and sin θ, [b₀², N], and the same of φ."""
    theta, *phi = (F.pad(part.flatten(), (0, 1))[wall.places] for part in (angles, phases) if part is not None)
    return torch.cos(theta), torch.sin(theta), (torch.cos(phi[0]), torch.sin(phi[0])) if phi else None


def _layers(count: int) -> list[tuple[slice, slice, slice]]:
    """The 2b₀ − 1 layers of a small diamond: which of its rotations, on which sites, and the sites reached by then."""
    small = math.isqrt(count)
    found = []
    done = 0
    for time in range(2 * small - 1):
        pairs = min(time, 2 * small - 2 - time) + 1
        sites = slice(small - pairs, small + pairs)
        found.append((slice(done, done + pairs), sites, sites if time < small else slice(0, 2 * small)))
        done += pairs
    return found


def _turn(rows: Tensor, cosine: Tensor, sine: Tensor) -> None:
    """Neighbouring rows 2k and 2k + 1 of [planes, rows, columns, N] times `[[c, −s], [s, c]]`, in place."""
    even, odd = rows.view(len(rows), -1, 2, *rows.shape[2:]).unbind(2)
    c, s = cosine.unsqueeze(1), sine.unsqueeze(1)
    part = s * even
    even.mul_(c).addcmul_(s, odd, value=-1)
    odd.mul_(c).add_(part)


def _shift(rows: Tensor, cosine: Tensor, sine: Tensor) -> None:
    """The odd rows of [2 planes, rows, columns, N], a complex number, times `c + is`, in place."""
    real, imaginary = rows[:, 1::2]
    c, s = cosine.unsqueeze(1), sine.unsqueeze(1)
    part = s * real
    real.mul_(c).addcmul_(s, imaginary, value=-1)
    imaginary.mul_(c).add_(part)


def _diamonds(width: int, cosine: Tensor, sine: Tensor, phase: tuple[Tensor, Tensor] | None) -> Iterator[Tensor]:
    """All diamonds, [N, 2b, 2b], of every size from the smallest to b = `width`."""
    side = 2 * math.isqrt(len(cosine))
    X = cosine.new_zeros(1 if phase is None else 2, side, side, cosine.shape[1])
    X[0].diagonal().fill_(1)
    for some, sites, reached in _layers(len(cosine)):
        rows = X[:, sites, reached]
        if phase is not None:
            _shift(rows, phase[0][some], phase[1][some])
        _turn(rows, cosine[some], sine[some])
    small = X.permute(3, 1, 2, 0).contiguous()
    diamonds = small.squeeze(-1) if phase is None else torch.view_as_complex(small)
    del X, small
    yield diamonds
    while diamonds.shape[-1] < 2 * width:
        diamonds = _merge(diamonds)
        yield diamonds


def _merge(diamonds: Tensor) -> Tensor:
    """Diamonds of twice the size, each from four."""
    w = diamonds.shape[-1]
    b = w // 2
    first, left, right, last = diamonds.view(4, -1, w, w)
    D = diamonds.new_empty(len(first), 2 * w, 2 * w)
    D[:, :w, w + b :], D[:, w:, :b] = 0, 0
    D[:, :w, :b] = left[:, :, :b]
    D[:, w:, w + b :] = right[:, :, b:]
    spread = F.pad(first, (0, 0, b, b))  # with zeros to multiply, for products half as large are not left to the fast library
    D[:, :w, b : w + b] = left @ spread[:, :w]
    D[:, w:, b : w + b] = right @ spread[:, w:]
    D[:, b : w + b] = last @ D[:, b : w + b]
    return D


def _unmerge(diamonds: Tensor, K: Tensor) -> Tensor:
    """`K` of the four diamonds that make up each of twice the size, from its own, which is written over."""
    w = diamonds.shape[-1]
    b = w // 2
    first, left, right, last = diamonds.view(4, -1, w, w)
    found = K.new_empty(4, len(first), w, w)
    middle = slice(b, w + b)
    found[3] = K[:, middle, middle]
    K[:, middle] = last.mH @ K[:, middle]
    K[:, :, middle] = K[:, :, middle] @ last
    found[1], found[2] = K[:, :w, :w], K[:, w:, w:]
    found[0, :, :b, :b] = (left.mH @ (K[:, :w, :w] @ left))[:, b:, b:]
    found[0, :, b:, b:] = (right.mH @ (K[:, w:, w:] @ right))[:, :b, :b]
    found[0, :, :b, b:] = (left.mH @ (K[:, :w, w:] @ right))[:, b:, :b]
    found[0, :, b:, :b] = -found[0, :, :b, b:].mH
    return found.flatten(0, 1)


def _unturn(skew: Tensor, cosine: Tensor, sine: Tensor, phase: tuple[Tensor, Tensor] | None) -> list[Tensor]:
    """The gradients of all angles, [b₀², N], and of the phases if there are any, from the small diamonds' `K`."""
    parts = torch.view_as_real(skew) if skew.is_complex() else skew.unsqueeze(-1)
    K = parts.permute(3, 1, 2, 0).contiguous()  # [planes, 2b₀, 2b₀, N]
    by_angle, by_phase = torch.empty_like(cosine), torch.empty_like(cosine)
    for some, sites, _ in reversed(_layers(len(cosine))):
        by_angle[some] = K[0, sites, sites].diagonal(-1)[:, ::2].mT
        for rows in (K[:, sites], K[:, :, sites].transpose(1, 2)):
            _turn(rows, cosine[some], -sine[some])
        if phase is not None:
            by_phase[some] = K[1, sites, sites].diagonal()[:, 1::2].mT / 2
            _shift(K[:, sites], phase[0][some], -phase[1][some])
            _shift(K[:, :, sites].transpose(1, 2), phase[0][some], phase[1][some])
    return [by_angle] if phase is None else [by_angle, by_phase]


def _bricks(diamonds: Tensor, shifted: bool, X: Tensor, out: Tensor) -> None:
    """One row of diamonds, [m, 2b, 2b], times `X`; if `shifted`, b sites further on, the last of them cut in two."""
    w = diamonds.shape[-1]
    b = w // 2
    if not shifted:
        torch.bmm(diamonds, X.view(-1, w, X.shape[1]), out=out.view(-1, w, X.shape[1]))
        return
    if len(diamonds) > 1:
        torch.bmm(diamonds[:-1], X[b:-b].view(-1, w, X.shape[1]), out=out[b:-b].view(-1, w, X.shape[1]))
    torch.mm(diamonds[-1, b:, b:], X[:b], out=out[:b])
    torch.mm(diamonds[-1, :b, :b], X[-b:], out=out[-b:])


def _unmultiply(diamonds: Tensor, K: Tensor) -> Tensor:
    """`K` of every diamond, [rows, m, 2b, 2b], from that of the product, which is written over."""
    rows, count, w, _ = diamonds.shape
    b = w // 2
    adjoint, transposed = diamonds.mH.resolve_conj(), diamonds.mT
    found = torch.zeros_like(diamonds)
    other = torch.empty_like(K)
    for row in reversed(range(rows)):
        shifted = row % 2 == 1
        now = K if (rows - row) % 2 else K.mT
        if not shifted:
            found[row] = _blocks(now, w)
        else:
            if count > 1:
                found[row, :-1] = _blocks(now[b:-b, b:-b], w)
            found[row, -1, :b, :b], found[row, -1, b:, b:] = now[-b:, -b:], now[:b, :b]
        if row:
            # Tᴴ K, and then (Tᴴ K T)ᵀ = Tᵀ(Tᴴ K)ᵀ: products from the left alone, and every second K is transposed.
            first, second = (adjoint, transposed) if now is K else (transposed, adjoint)
            _bricks(first[row], shifted, K, other)
            _bricks(second[row], shifted, other.mT, K)
    return found.flatten(0, 1)


def _blocks(matrix: Tensor, w: int) -> Tensor:
    """The w×w blocks on the diagonal."""
    count = len(matrix) // w
    return matrix.view(count, w, count, w).diagonal(dim1=0, dim2=2).movedim(-1, 0)


def butterfly(angles: Tensor, phases: Tensor | None) -> Tensor:
    """`F_k ⋯ F_2 F_1`, [n, n], for n = 2ᵏ, where layer l turns the pairs at the distance n/2ˡ as in `brick_wall`.

    `angles` and `phases` are [n, ⌈k/2⌉]: rows 2p and 2p + 1 of a column belong to the p-th pair of two successive layers. From
    the last layer on, a product has blocks on its diagonal, and one more layer scales the columns of two: no entry is a sum.
    """
    size = angles.shape[0]
    dtype = angles.dtype if phases is None else angles.dtype.to_complex()
    blocks = angles.new_ones(size, 1, 1, dtype=dtype)  # [n/d, d, d]
    for layer in reversed(range(size.bit_length() - 1)):
        distance = size >> (layer + 1)
        theta, *phi = (part[layer % 2 :: 2, layer // 2].view(-1, 1, distance) for part in (angles, phases) if part is not None)
        upper, lower = blocks.view(-1, 2, distance, distance).unbind(1)
        cosine, sine = torch.cos(theta), torch.sin(theta)
        phase = torch.polar(torch.ones_like(phi[0]), phi[0]) if phi else 1
        top = torch.cat([upper * cosine, -upper * (phase * sine)], dim=-1)
        blocks = torch.cat([top, torch.cat([lower * sine, lower * (phase * cosine)], dim=-1)], dim=-2)
    return blocks.squeeze(0)
