"""The rotations that make up a given matrix (Clements et al., Optica 2016)."""

import cmath
import math

import torch
from torch import Tensor


def decomposed(matrix: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """θ and φ, as `brick_wall` takes them, [n, columns], and ω of `W = diag(e^{iω}) F_n ⋯ F_1`, for a unitary matrix.

    For a real one, of determinant one, φ = 0 and ω = 0. Entries are made zero from the lower left corner on, by rotations `E`
    from the right and `M` from the left, until a diagonal is left: `M W E* = D`, so `W = M* D E`. Then `M*` and `D` change
    places, and each rotation takes the first layer that is free.
    """
    size = matrix.shape[0]
    W = matrix.clone()
    real = not W.is_complex()
    turns: list[tuple[int, float, float]] = []
    left: list[tuple[int, float, float]] = []
    for i in range(1, size):
        for j in range(i):
            if i % 2:
                a = i - j - 1
                x, y = W[size - 1 - j, a : a + 2].tolist()
                theta, phi = (math.atan2(x, y), 0.0) if real else (math.atan2(abs(x), abs(y)), _angle(y) - _angle(x))
                W[:, a : a + 2] = W[:, a : a + 2] @ _pair(theta, phi, W).mH
                turns.append((a, theta, phi))
            else:
                a = size + j - i - 1
                x, y = W[a : a + 2, j].tolist()
                theta, phi = (math.atan2(-y, x), 0.0) if real else (math.atan2(-abs(y), abs(x)), _angle(x) - _angle(y))
                W[a : a + 2] = _pair(theta, phi, W) @ W[a : a + 2]
                left.append((a, theta, phi))
    omega = [_angle(value) for value in W.diagonal().tolist()]
    for a, theta, phi in reversed(left):
        p, q = omega[a : a + 2]
        if real:
            turns.append((a, -theta if p == q else theta, 0.0))
        else:
            turns.append((a, -theta, q - p))
            omega[a + 1] = p - phi
    angles, phases = matrix.new_zeros(2, size, columns, dtype=matrix.real.dtype)
    free = [0] * (size + 1)
    for a, theta, phi in turns:
        layer = max(free[a], free[a + 1])
        layer += (layer + a) % 2
        free[a] = free[a + 1] = layer + 1
        angles[a, layer // 2], phases[a, layer // 2] = theta, phi
    if real:
        _without_signs(angles, [value == 0 for value in omega])
        omega = [0.0] * size
    return angles, phases, angles.new_tensor(omega)


def _without_signs(angles: Tensor, positive: list[bool]) -> None:
    """Let the rotations take in a diagonal of signs: where a pair has one minus, it is moved on to the right, through all layers
    from the last, and where it has two, half a turn makes up for both."""
    size = len(positive)
    for layer in reversed(range(size)):
        for a in range(layer % 2, size - 1, 2):
            theta = angles[a, layer // 2]
            if positive[a] != positive[a + 1]:
                theta.copy_(-theta if positive[a] else math.pi - theta)
                positive[a : a + 2] = [True, False]
            elif not positive[a]:
                theta += math.pi
                positive[a : a + 2] = [True, True]


def _pair(theta: float, phi: float, like: Tensor) -> Tensor:
    c, s = math.cos(theta), math.sin(theta)
    phase = cmath.exp(1j * phi) if like.is_complex() else 1.0
    return torch.tensor([[c, -phase * s], [s, phase * c]], dtype=like.dtype, device=like.device)


def _angle(value: complex) -> float:
    return cmath.phase(value)
