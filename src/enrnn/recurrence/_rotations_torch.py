"""The recurrence under `W = D F_L ⋯ F_1`, layer after layer of rotations, in plain torch: no matrix is formed.

Layer l turns disjoint pairs (a, b) of complex units by `[[cos θ, −e^{iφ}sin θ], [sin θ, e^{iφ}cos θ]]`: first `y = e^{iφ} x_b`,
then (x_a, y) by the real rotation. `D = diag(e^{iω})`. The pairs, and where their angles are, `UnitaryGivens` says.

Shapes: T steps, B sequences, n complex units; a state [B, 2n] holds n real parts, then n imaginary parts, and is seen here as
[B, 2, n]. A layer's k·d pairs are k groups, in which the first d units are paired with the d units that follow.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .._precision import working_dtype
from ..nonlinearities import NONLINEARITIES


class Layer(NamedTuple):
    """One layer of rotations: the unit its first pair begins with, and cos θ, sin θ, cos φ, sin φ, each [k, d]."""

    start: int
    cosine: Tensor
    sine: Tensor
    real: Tensor
    imaginary: Tensor


def reference(
    inputs: Tensor,  # [T, B, 2n]
    angles: Tensor,  # [2n, ⌈L/2⌉]: the θ above the φ
    phases: Tensor,  # [n]: ω
    bias: Tensor | None,  # [n]
    initial: Tensor,  # [B, 2n]
    nonlinearity: str,
    lengths: Tensor | None,  # [B]
    layers: int,
    butterfly: bool,
) -> Tensor:  # [T, B, 2n]
    """The specification: `h_t = σ(x̂_t + D F_L ⋯ F_1 h_{t−1}, b)`, any dtype, differentiated by autograd."""
    sigma = NONLINEARITIES[nonlinearity].function
    turns, diagonal = turns_of(angles, layers, butterfly), phase_of(phases)
    h, states = initial, []
    for t, x in enumerate(inputs):
        step = sigma(x + _times(_parts(h), turns, diagonal).flatten(1), bias)
        h = step if lengths is None else torch.where((t < lengths).unsqueeze(-1), step, h)
        states.append(h)
    return torch.stack(states)


def backward(
    grad_states: Tensor,  # [T, B, 2n]
    states: Tensor,  # [T, B, 2n]
    angles: Tensor,
    phases: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    nonlinearity: str,
    lengths: Tensor | None,
    layers: int,
    butterfly: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The reverse sweep: the gradients at the argument of σ [T, B, 2n], of the angles, ω, the bias and the initial state.

    A step forms its product anew from the state before it. From there back, the rotations are undone one layer after the other,
    in the product `x` and in the gradient `g` alike, and of a pair turned to (x_a, x_b) the angle has the gradient
    `g_b·x_a − g_a·x_b`; a phase that made y has `Im(ȳ g_y)`.
    """
    sigma = NONLINEARITIES[nonlinearity]
    turns, diagonal = turns_of(angles, layers, butterfly), phase_of(phases)
    by_turn = [(torch.zeros_like(layer.cosine), torch.zeros_like(layer.cosine)) for layer in turns]
    grad_phases = torch.zeros_like(phases)
    grad_z = torch.empty_like(states)
    carried = torch.zeros_like(initial)  # dL/dh_t by way of later steps
    for t in range(states.shape[0] - 1, -1, -1):
        total = grad_states[t] + carried
        dz = sigma.pull_back(states[t], bias, total)
        running = None if lengths is None else (t < lengths).unsqueeze(-1)
        if running is not None:
            dz = dz.masked_fill(~running, 0)
        grad_z[t] = dz
        w = _times(_parts(states[t - 1] if t else initial), turns, diagonal)
        both = torch.stack([w, _parts(dz)])  # [x and g, B, 2, n]
        grad_phases += _twist(both[0], both[1])
        both = _phased(both, diagonal[0], -diagonal[1])
        for layer, (by_angle, by_phase) in zip(reversed(turns), reversed(by_turn), strict=True):
            both = _undo(both, layer, by_angle, by_phase)
        gradient = both[1].flatten(1)
        carried = gradient if running is None else torch.where(running, gradient, total)
    grad_angles = torch.zeros_like(angles, memory_format=torch.contiguous_format)
    for index, found in enumerate(by_turn):
        for part, values in zip(grad_angles.chunk(2), found, strict=True):
            part[index % 2 :: 2, index // 2][: values.numel()] = values.flatten()
    grad_bias = states.new_empty(0) if bias is None else sigma.bias_gradient(states, grad_z).sum((0, 1))
    return grad_z, grad_angles, grad_phases, grad_bias, carried.clone()  # which was half of a tensor


def turns_of(angles: Tensor, layers: int, butterfly: bool) -> list[Layer]:
    """The layers from their angles, [2n, ⌈L/2⌉]; computed in float64, held in the angles' own dtype."""
    wide = angles.to(working_dtype(angles))
    theta, phi = wide.chunk(2)
    n, found = len(theta), []
    for index in range(layers):
        start, distance = (0, n >> (index + 1)) if butterfly else (index % 2, 1)
        pairs = n // 2 if butterfly else (n - start) // 2
        rows = slice(index % 2, index % 2 + 2 * pairs, 2)
        both = [part[rows, index // 2].view(-1, distance) for part in (theta, phi)]
        found.append(Layer(start, *(function(part).to(angles.dtype) for part in both for function in (torch.cos, torch.sin))))
    return found


def phase_of(phases: Tensor) -> tuple[Tensor, Tensor]:
    """cos ω and sin ω, [n]."""
    wide = phases.to(working_dtype(phases))
    return torch.cos(wide).to(phases.dtype), torch.sin(wide).to(phases.dtype)


def _parts(state: Tensor) -> Tensor:
    """[B, 2n] as [B, 2, n]."""
    return torch.unflatten(state, -1, (2, -1))


def _times(x: Tensor, turns: list[Layer], diagonal: tuple[Tensor, Tensor]) -> Tensor:
    """`D F_L ⋯ F_1 x`, [B, 2, n]."""
    for layer in turns:
        upper, lower = _pairs(x, layer)
        y = _phased(lower, layer.real, layer.imaginary, dim=-3)
        x = _with_pairs(x, layer, layer.cosine * upper - layer.sine * y, layer.sine * upper + layer.cosine * y)
    return _phased(x, *diagonal)


def _undo(both: Tensor, layer: Layer, by_angle: Tensor, by_phase: Tensor) -> Tensor:
    """x and g before a layer, [2, B, 2, n], from those after it; what its angles gain is added to their gradients."""
    upper, lower = _pairs(both, layer)
    by_angle += (lower[1] * upper[0] - upper[1] * lower[0]).sum((0, 1))
    before, y = layer.cosine * upper + layer.sine * lower, layer.cosine * lower - layer.sine * upper
    by_phase += _twist(y[0], y[1], dim=-3)
    return _with_pairs(both, layer, before, _phased(y, layer.real, -layer.imaginary, dim=-3))


def _pairs(x: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """The upper and the lower units of a layer's pairs, [..., 2, k, d] each."""
    groups, distance = layer.cosine.shape
    turned = x.narrow(-1, layer.start, 2 * groups * distance)
    upper, lower = torch.unflatten(turned, -1, (groups, 2, distance)).unbind(-2)
    return upper, lower


def _with_pairs(x: Tensor, layer: Layer, upper: Tensor, lower: Tensor) -> Tensor:
    """`x` with a layer's pairs replaced."""
    turned = torch.stack([upper, lower], dim=-2).flatten(-3)
    if turned.shape == x.shape:
        return turned
    return torch.cat([x[..., : layer.start], turned, x[..., layer.start + turned.shape[-1] :]], dim=-1)


def _phased(x: Tensor, cosine: Tensor, sine: Tensor, dim: int = -2) -> Tensor:
    """Complex numbers, whose parts are along `dim`, times `cosine + i·sine`."""
    real, imaginary = x.unbind(dim)
    return torch.stack([cosine * real - sine * imaginary, sine * real + cosine * imaginary], dim=dim)


def _twist(y: Tensor, g: Tensor, dim: int = -2) -> Tensor:
    """`Im(ȳ g)`, summed over the sequences: the gradient of a phase that made y."""
    (real, imaginary), (by_real, by_imaginary) = y.unbind(dim), g.unbind(dim)
    return (by_imaginary * real - by_real * imaginary).sum(0)
